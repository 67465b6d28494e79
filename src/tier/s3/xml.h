/* SPDX-License-Identifier: Apache-2.0
 *
 * The XML that S3 and STS answer with.  A scanner of elements and text, no more: no
 * DTDs, no entities but the five and numbers; what it cannot read is an error.  Texts are
 * decoded in place, so the buffer is written to. */
#ifndef KVT_TIER_S3_XML_H
#define KVT_TIER_S3_XML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All functions: 0, or -EBADMSG with a sentence, which has nothing of the document but
 * the name of its root: it is not such a document, or not whole.  That it is whole is
 * known before fn is called. */

/* <Error>, also within <ErrorResponse> (STS).  Texts are "" where they are missing, cut
 * off where they are too long, and have blanks for control characters. */
struct kvt__s3_error {
    char code[64];
    char message[256];
    char request_id[64];
    char region[64];
    char endpoint[256];
};
int kvt__s3_read_error(char *xml, size_t n, struct kvt__s3_error *out);

/* <ListBucketResult>: fn is called for each object, key decoded (encoding-type=url).
 * token is "" at the end of the list. */
struct kvt__s3_listed {
    const char *key;
    uint64_t bytes;
    int64_t modified_ns; /* wall clock; 0: unknown */
};
int kvt__s3_read_list(char *xml, size_t n,
                      void (*fn)(void *ctx, const struct kvt__s3_listed *listed),
                      void *ctx, char *token, size_t token_room);

/* <DeleteResult>: fn is called for each key that was not deleted; its texts are "" where
 * they are missing, and code and message have blanks for control characters. */
int kvt__s3_read_deleted(char *xml, size_t n,
                         void (*fn)(void *ctx, const char *key, const char *code,
                                    const char *message),
                         void *ctx);

/* Credentials anywhere in the document (CreateSession, AssumeRole...): texts in the
 * buffer, all four required. */
struct kvt__s3_xml_credentials {
    const char *access, *secret, *token;
    int64_t expires_s;
};
int kvt__s3_read_credentials(char *xml, size_t n, struct kvt__s3_xml_credentials *out);

/* Seconds since 1970 of an ISO 8601 time with its offset from UTC, as in
 * "2026-11-22T01:02:03.456Z" and "2026-11-22T01:02:03+00:00"; fraction_ns may be NULL.
 * INT64_MIN: it is none. */
int64_t kvt__s3_time(const char *text, int64_t *fraction_ns);

#endif
