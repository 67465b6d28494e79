/* SPDX-License-Identifier: Apache-2.0
 *
 * The meaning of a host's name, for address.c and redirect.c.  Any thread. */
#ifndef KVT_TIER_S3_HOST_H
#define KVT_TIER_S3_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/http.h"

/* Split as kvt__http_split_host(), and reject names that end with a dot: the parsers here compare
 * the last labels, and stores expect a Host header without the dot.  Return NULL, or the error as
 * the rest of a sentence that begins with "it". */
const char *kvt__s3_split_host(const char *text, size_t n, char name[KVT__HTTP_HOST_ROOM],
                               uint16_t *port);

/* Return true for an IPv4 address, or an IPv6 address in brackets. */
bool kvt__s3_is_ip(const char *host);

struct kvt__s3_host {
    bool aws;       /* an S3 endpoint of AWS; false for other machines at AWS */
    bool coreweave; /* CoreWeave: the bucket must be in the host's name */
    bool lota;      /* CoreWeave's cache, with plain HTTP */
    bool express;   /* a zonal endpoint of S3 Express */
    bool fips;      /* an AWS endpoint with FIPS 140 cryptography */
    size_t n_bucket;    /* length of the bucket at the start of the name; 0: the service itself, for
                         * AWS and CoreWeave */
    const char *region; /* points into the name; NULL: the name has no region */
    size_t n_region;
};

/* Parse the name.  All fields are 0 for a host that belongs neither to AWS nor to CoreWeave. */
void kvt__s3_parse_host(const char *host, struct kvt__s3_host *out);

/* Return true if both hosts have the same owner: a response from one host may redirect requests to
 * the other. */
bool kvt__s3_same_owner(const char *host, const char *other);

#endif
