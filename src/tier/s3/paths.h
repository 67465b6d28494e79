/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of an address, for address.c and redirect.c.  Any thread. */
#ifndef KVT_TIER_S3_PATHS_H
#define KVT_TIER_S3_PATHS_H

#include "tier/s3/address.h"

enum kvt__s3_scheme { KVT__S3_NO_SCHEME, KVT__S3_HTTP, KVT__S3_HTTPS };

struct kvt__s3_endpoint {
    enum kvt__s3_scheme scheme;
    char host[256];
    uint16_t port;    /* 0: none */
    const char *path; /* within the text, behind slashes; "" where there is none */
};

/* [http[s]://]HOST[:PORT][/PATH].  NULL, or what is wrong with it, which follows "it ". */
const char *kvt__s3_split_endpoint(const char *text, struct kvt__s3_endpoint *out);

/* And the Host header, when name and tls are known.  0: the scheme's own. */
void kvt__s3_set_port(struct kvt__s3_address *out, uint16_t port);

/* Append a path to the prefix.  Slashes at its ends do not count.  name: the setting. */
int kvt__s3_add_prefix(struct kvt__s3_address *out, const char *name, const char *text);

/* The first entry that has the address's name and port. */
int kvt__s3_resolve(const char *text, struct kvt__s3_address *out);

/* When bucket and prefix are known.  The base goes in front as it is.  in_host: the
 * bucket is not in the paths. */
int kvt__s3_set_paths(struct kvt__s3_address *out, const char *base, bool in_host);

#endif
