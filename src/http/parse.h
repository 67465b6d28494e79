/* SPDX-License-Identifier: Apache-2.0
 *
 * What HTTP/1.1 servers write, read strictly: what two readers could take in two ways is
 * an error.  Any thread, no state but the caller's. */
#ifndef KVT_HTTP_PARSE_H
#define KVT_HTTP_PARSE_H

#include <sys/types.h>

#include "http/http.h"

struct kvt__http_answer {
    struct kvt__http_head head;
    bool keep;    /* the server keeps the connection */
    bool chunked; /* the body is */
    size_t bytes; /* of the head */
};

/* The head at the beginning of n bytes: its length; 0: there is no end yet; -EPROTO, and
 * what is wrong in *wrong. */
ssize_t kvt__http_parse_head(const char *bytes, size_t n, struct kvt__http_answer *out,
                             const char **wrong);

/* A chunked body.  Begins as zeros. */
struct kvt__http_chunks {
    uint64_t data;    /* bytes of the body that come next */
    bool done;        /* all has come */
    bool digits;
    uint8_t state;
    uint64_t size;    /* as far as it was read */
    uint32_t skipped; /* of extensions and trailers */
};

/* Read what is between the data: stops where data comes or all is done.  How many bytes
 * it took, or -EPROTO. */
ssize_t kvt__http_chunks_read(struct kvt__http_chunks *chunks, const char *bytes,
                              size_t n);

#endif
