/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys from the configuration and from environment variables. */
#include <errno.h>

#include "base/error.h"
#include "tier/s3/credentials/private.h"
#include "tier/s3/xml.h"

static int
make(const char *access, const char *secret, const char *token, int64_t expires_s,
     const char *source, struct kvt__s3_keys **out)
{
    *out = kvt__s3_keys_new(access, secret, token, expires_s, source);
    return *out ? 0 : kvt__fail(ENOMEM, "keys");
}

static bool
is_empty(const char *text)
{
    return !text || !*text;
}

int
kvt__s3_keys_from_configuration(const struct kvt__s3_chain_params *params,
                                struct kvt__s3_keys **out)
{
    if (is_empty(params->access) && is_empty(params->secret))
        return KVT__S3_NOT_SET;
    if (is_empty(params->access) || is_empty(params->secret))
        return kvt__fail(ENOKEY, "the %s key is missing.",
                         is_empty(params->access) ? "access" : "secret");
    return make(params->access, params->secret,
                is_empty(params->token) ? NULL : params->token, INT64_MAX, "configuration",
                out);
}

int
kvt__s3_keys_from_environment(const struct kvt__s3_chain_params *params,
                              struct kvt__s3_keys **out)
{
    const char *access = kvt__s3_getenv(params, "AWS_ACCESS_KEY_ID");
    const char *secret = kvt__s3_getenv(params, "AWS_SECRET_ACCESS_KEY");
    const char *expires = kvt__s3_getenv(params, "AWS_CREDENTIAL_EXPIRATION");
    int64_t expires_s = INT64_MAX;

    if (!access && !secret)
        return KVT__S3_NOT_SET;
    if (!access || !secret)
        return kvt__fail(ENOKEY, "%s is not set.",
                         access ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
    if (expires && (expires_s = kvt__s3_time(expires, NULL)) == INT64_MIN)
        return kvt__fail(ENOKEY, "AWS_CREDENTIAL_EXPIRATION is not an ISO 8601 time.");
    return make(access, secret, kvt__s3_getenv(params, "AWS_SESSION_TOKEN"), expires_s,
                "environment", out);
}
