/* SPDX-License-Identifier: Apache-2.0
 *
 * Readers of the XML documents that S3 and STS send.  Supported: elements, text, the five
 * predefined entities and character references.  A DTD or any other entity is an error.  Readers
 * decode texts in place, so a reader overwrites the document. */
#ifndef KVT_TIER_S3_XML_H
#define KVT_TIER_S3_XML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Every reader returns 0, or -EBADMSG with a sentence: the document is incomplete or has an
 * unexpected root element.  The sentence contains no text of the document except the root's name.
 * A reader with a callback checks the whole document before the first call of fn. */

/* <Error>, also inside <ErrorResponse> (STS).  A missing text is ""; a long text is truncated;
 * blanks replace control characters. */
struct kvt__s3_error {
    char code[64];
    char message[256];
    char request_id[64];
    char region[64];
    char endpoint[256];
};
int kvt__s3_read_error(char *xml, size_t n, struct kvt__s3_error *out);

/* <ListBucketResult>: fn receives each object.  key is decoded if the document declares
 * encoding-type url.  token: the continuation token; "" on the last page. */
struct kvt__s3_listed {
    const char *key;
    uint64_t bytes;
    int64_t modified_ns; /* wall clock; 0: unknown */
};
int kvt__s3_read_list(char *xml, size_t n,
                      void (*fn)(void *ctx, const struct kvt__s3_listed *listed),
                      void *ctx, char *token, size_t token_room);

/* <DeleteResult>: fn receives each key that was not deleted.  A missing text is ""; in code and
 * message blanks replace control characters. */
int kvt__s3_read_deleted(char *xml, size_t n,
                         void (*fn)(void *ctx, const char *key, const char *code,
                                    const char *message),
                         void *ctx);

/* <Credentials> at any depth (CreateSession, AssumeRole ...).  The texts point into xml.  All four
 * texts are required. */
struct kvt__s3_xml_credentials {
    const char *access, *secret, *token;
    int64_t expires_s;
};
int kvt__s3_read_credentials(char *xml, size_t n, struct kvt__s3_xml_credentials *out);

/* Parse an ISO 8601 time with an offset from UTC, for example "2026-11-22T01:02:03.456Z" or
 * "2026-11-22T01:02:03+00:00".  Return seconds since 1970, or INT64_MIN: not such a time.
 * fraction_ns: the rest in nanoseconds; may be NULL. */
int64_t kvt__s3_time(const char *text, int64_t *fraction_ns);

#endif
