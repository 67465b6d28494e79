/* SPDX-License-Identifier: Apache-2.0
 *
 * The sources of keys, in the order of AWS's usual chain.  A call returns keys once; the refresh
 * thread of the tier calls again before the keys expire (docs/s3.md, Credentials). */
#ifndef KVT_TIER_S3_CREDENTIALS_H
#define KVT_TIER_S3_CREDENTIALS_H

#include <stdatomic.h>

#include "http/http.h"
#include "tier/s3/sign.h"

struct kvt__s3_chain_params {
    const char *const *environment; /* NAME=VALUE texts, ended by NULL; NULL: the process's
                                     * environment */
    struct kvt__http *http;         /* client for STS and the metadata services */
    const char *access, *secret, *token; /* from the configuration; NULL: unset */
    /* s3_profile.  If set, keys in the environment are ignored.  NULL: AWS_PROFILE, else
     * default. */
    const char *profile;
    const char *region;             /* region of STS */
    /* The owner sets *stop to end kvt__s3_chain_get_keys() early.  NULL: never.  Must stay valid
     * until the chain is closed. */
    const atomic_bool *stop;
};

struct kvt__s3_chain;

/* Open the HTTP client for chain_params.http.  The client always verifies certificates, against the
 * system's roots and AWS_CA_BUNDLE, and uses https_proxy for TLS only.  environment: as in
 * kvt__s3_chain_params; connect_ns: as in kvt__http_params.  0 or -errno with a sentence; the
 * caller closes the client. */
int kvt__s3_open_key_client(const char *const *environment, int64_t connect_ns,
                            struct kvt__http **out);

/* Set the proxies of *out from http_proxy, https_proxy and no_proxy.  The texts point into the
 * environment. */
void kvt__s3_read_proxies(const char *const *environment, struct kvt__http_params *out);

/* Copy the parameters, including the environment, without I/O.  0 or -ENOMEM with a sentence. */
int kvt__s3_chain_open(const struct kvt__s3_chain_params *params,
                       struct kvt__s3_chain **out);
void kvt__s3_chain_close(struct kvt__s3_chain *chain);

/* Get keys from the first source that has keys.  Later calls try this source first, and the other
 * sources only after a failure.  The caller releases *out with kvt__s3_keys_unref().
 *
 * Blocks for some seconds, or for up to 30 s if credential_process runs.  Only one thread at a
 * time.  0; -ENOKEY with a sentence that lists each tried source and its error, without secrets;
 * -ECANCELED: *stop was set, and a running credential_process has been killed. */
int kvt__s3_chain_get_keys(struct kvt__s3_chain *chain, struct kvt__s3_keys **out);

/* Read a setting (region, endpoint_url) of the selected profile from the files.  0; -ENOENT: the
 * profile has no such setting; -errno; all errors with a sentence. */
int kvt__s3_profile_text(const struct kvt__s3_chain_params *params, const char *key,
                         char *out, size_t room);

/* Set *out to true if AWS endpoints with FIPS 140 cryptography (dualstack: with IPv6) are required:
 * by AWS_USE_FIPS_ENDPOINT (AWS_USE_DUALSTACK_ENDPOINT), else by use_fips_endpoint
 * (use_dualstack_endpoint) of the selected profile.  0; -EINVAL: the value is neither true nor
 * false; -errno: a profile file exists but cannot be read; errors with a sentence. */
int kvt__s3_use_fips(const struct kvt__s3_chain_params *params, bool *out);
int kvt__s3_use_dualstack(const struct kvt__s3_chain_params *params, bool *out);

#endif
