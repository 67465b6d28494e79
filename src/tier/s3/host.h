/* SPDX-License-Identifier: Apache-2.0
 *
 * What a host's name says by itself, for address.c.  Any thread. */
#ifndef KVT_TIER_S3_HOST_H
#define KVT_TIER_S3_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/http.h"

/* As kvt__http_split_host(), but for names that end with the root's dot: what follows
 * takes a name apart at its end, and stores know theirs without. */
const char *kvt__s3_split_host(const char *text, size_t n, char name[KVT__HTTP_HOST_ROOM],
                               uint16_t *port);

bool kvt__s3_is_ip(const char *host);

struct kvt__s3_host {
    bool aws;       /* an endpoint of S3 at AWS; not any machine there */
    bool coreweave; /* of CoreWeave, where the bucket must be in the host */
    bool lota;      /* of CoreWeave's cache, which speaks plain HTTP */
    bool express;   /* of a zone of S3 Express */
    bool fips;      /* an endpoint of AWS with FIPS 140 cryptography */
    size_t n_bucket;    /* bytes of the bucket that it begins with; of AWS and CoreWeave
                         * without: the service itself */
    const char *region; /* within the host; NULL: it does not tell one */
    size_t n_region;
};

void kvt__s3_look_at_host(const char *host, struct kvt__s3_host *out);

/* Whether an answer from one may send requests to the other. */
bool kvt__s3_same_owner(const char *host, const char *other);

#endif
