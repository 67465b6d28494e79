/* SPDX-License-Identifier: Apache-2.0
 *
 * A strict parser of HTTP/1.1 responses: an ambiguous text is an error, because two parsers
 * could disagree about the end of a body.  Any thread; the parser has no state but the caller's
 * structs. */
#ifndef KVT_HTTP_PARSE_H
#define KVT_HTTP_PARSE_H

#include <sys/types.h>

#include "http/http.h"

struct kvt__http_response {
    struct kvt__http_head head;
    bool keep_alive; /* the server keeps the connection open */
    bool chunked;    /* the body is chunked */
    size_t bytes;    /* length of the head */
};

/* Parse the head at the beginning of n bytes.  The fields point into bytes.  Return the length
 * of the head; 0: the end of the head has not arrived; -EPROTO: *wrong is the reason, a static
 * text. */
ssize_t kvt__http_parse_head(const char *bytes, size_t n, struct kvt__http_response *out,
                             const char **wrong);

/* The parser of a chunked body.  The caller zeroes the struct before the first byte of the body. */
struct kvt__http_chunks {
    uint64_t data;    /* bytes of body data that follow; the caller consumes the bytes and decreases
                       * data */
    bool done;        /* the end of the body was parsed */
    bool digits;      /* the size has a digit */
    uint8_t state;
    uint64_t size;    /* size of the HTTP chunk, from the digits parsed so far */
    uint32_t skipped; /* bytes of extensions and trailers */
};

/* Parse the framing between the data, until data follows, the body is done, or the n bytes end.
 * Return the number of bytes parsed, or -EPROTO without a sentence. */
ssize_t kvt__http_chunks_read(struct kvt__http_chunks *chunks, const char *bytes,
                              size_t n);

#endif
