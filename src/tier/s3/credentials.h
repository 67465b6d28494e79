/* SPDX-License-Identifier: Apache-2.0
 *
 * Where keys come from: AWS's usual chain.  Each source answers once; a thread of the
 * tier's asks again before they expire (docs/s3.md, Credentials). */
#ifndef KVT_TIER_S3_CREDENTIALS_H
#define KVT_TIER_S3_CREDENTIALS_H

#include <stdatomic.h>

#include "http/http.h"
#include "tier/s3/sign.h"

struct kvt__s3_chain_params {
    const char *const *environment; /* NAME=VALUE, NULL at the end; NULL: the process's */
    struct kvt__http *http;         /* for STS and the metadata services */
    const char *access, *secret, *token; /* configured; NULL: not */
    const char *profile;            /* s3_profile: then not the environment's keys; NULL:
                                     * AWS_PROFILE or default */
    const char *region;             /* for STS */
    const atomic_bool *stop;        /* set: nobody wants keys any more; NULL: never.  Kept
                                     * until the chain is closed */
};

struct kvt__s3_chain;

/* Open the client for chain_params.http.  The client always verifies certificates, by the
 * system's roots and AWS_CA_BUNDLE, and uses https_proxy for TLS only.  environment: as
 * above; connect_ns: as of kvt__http_params. */
int kvt__s3_open_key_client(const char *const *environment, int64_t connect_ns,
                            struct kvt__http **out);

/* Point http_proxy, https_proxy and no_proxy into the environment. */
void kvt__s3_read_proxies(const char *const *environment, struct kvt__http_params *out);

/* Copies what it needs; asks nobody. */
int kvt__s3_chain_open(const struct kvt__s3_chain_params *params,
                       struct kvt__s3_chain **out);
void kvt__s3_chain_close(struct kvt__s3_chain *chain);

/* Ask the sources in order; the first that has keys is asked alone from then on, the
 * others again only when it fails.  Blocks, for at most some seconds, runs
 * credential_process; one thread at a time.  The caller ends the keys with
 * kvt__s3_keys_unref().  -ENOKEY with a sentence that lists what was tried and why each
 * failed, and has no secret; -ECANCELED: stop was set, a process is no more. */
int kvt__s3_chain_ask(struct kvt__s3_chain *chain, struct kvt__s3_keys **out);

/* Of the profile that counts: region, endpoint_url.  Reads files.  -ENOENT: it has no
 * such text; all with a sentence. */
int kvt__s3_profile_text(const struct kvt__s3_chain_params *params, const char *key,
                         char *out, size_t room);

/* Whether endpoints of AWS with FIPS 140 cryptography, or with IPv6, are demanded: by
 * AWS_USE_FIPS_ENDPOINT and AWS_USE_DUALSTACK_ENDPOINT, else by use_fips_endpoint and
 * use_dualstack_endpoint of the chosen profile.  0, or -errno with a sentence: the
 * value is neither true nor false (-EINVAL), or a file of profiles is there and cannot be
 * read. */
int kvt__s3_use_fips(const struct kvt__s3_chain_params *params, bool *out);
int kvt__s3_use_dualstack(const struct kvt__s3_chain_params *params, bool *out);

#endif
