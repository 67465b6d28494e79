/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps that make an address, for address.c and redirect.c.  Any thread. */
#ifndef KVT_TIER_S3_PATHS_H
#define KVT_TIER_S3_PATHS_H

#include "tier/s3/address.h"

enum kvt__s3_scheme { KVT__S3_NO_SCHEME, KVT__S3_HTTP, KVT__S3_HTTPS };

struct kvt__s3_endpoint {
    enum kvt__s3_scheme scheme;
    char host[256];
    uint16_t port;    /* 0: no port */
    const char *path; /* points into the text, after the leading slashes; "": no path */
};

/* Split [http[s]://]HOST[:PORT][/PATH].  Return NULL, or the error as the rest of a sentence that
 * begins with "it". */
const char *kvt__s3_split_endpoint(const char *text, struct kvt__s3_endpoint *out);

/* Set the port and the Host header of an address.  Call after name and tls are set.  port 0: the
 * default port of the scheme. */
void kvt__s3_set_port(struct kvt__s3_address *out, uint16_t port);

/* Append a path to the prefix, without slashes at both ends.  name: the setting's name for
 * messages.  0 or -EINVAL with a sentence. */
int kvt__s3_add_prefix(struct kvt__s3_address *out, const char *name, const char *text);

/* Set the address from the first entry of s3_resolve (text) with the name and port of the address.
 * 0 or -EINVAL with a sentence. */
int kvt__s3_resolve(const char *text, struct kvt__s3_address *out);

/* Set both paths of an address.  Call after bucket and prefix are set.  base: the path of the
 * endpoint, which begins both paths.  in_host: the name of the host contains the bucket, so the
 * paths contain no bucket.  0 or -EINVAL with a sentence. */
int kvt__s3_set_paths(struct kvt__s3_address *out, const char *base, bool in_host);

#endif
