/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of a role for a token in a file, as Kubernetes provides for service accounts.  Kubernetes
 * replaces the file from time to time, so the file is read for each request. */
#include <errno.h>

#include "base/error.h"
#include "tier/s3/credentials/private.h"

int
kvt__s3_keys_from_web_identity(const struct kvt__s3_chain_params *params,
                               struct kvt__s3_keys **out)
{
    const char *file = kvt__s3_getenv(params, "AWS_WEB_IDENTITY_TOKEN_FILE");
    struct kvt__s3_role role = { .arn = kvt__s3_getenv(params, "AWS_ROLE_ARN") };

    if (!file)
        return KVT__S3_NOT_SET;
    if (!role.arn)
        return kvt__fail(ENOKEY, "AWS_ROLE_ARN is not set.");
    return kvt__s3_assume_role_by_token(params, &role, file, "web identity", out);
}
