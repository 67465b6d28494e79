/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of a container (ECS, EKS Pod Identity), with one request to an agent on this host. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "tier/s3/credentials/private.h"

#define TIMEOUT_MS 2000
#define ECS "169.254.170.2"

int
kvt__s3_container_url(const struct kvt__s3_chain_params *params, struct kvt__s3_url *out)
{
    static const char relative_name[] = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
    static const char full_name[] = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
    const char *relative = kvt__s3_getenv(params, relative_name);
    const char *full = kvt__s3_getenv(params, full_name);
    char text[sizeof out->path + 32];

    if (!relative && !full)
        return KVT__S3_NOT_SET;
    if (relative) {
        if (*relative != '/')
            return kvt__fail(EINVAL, "%s does not begin with /.", relative_name);
        if ((size_t)snprintf(text, sizeof text, "http://" ECS "%s", relative) >=
            sizeof text)
            return kvt__fail(EINVAL, "%s is too long.", relative_name);
        return kvt__s3_read_url(text, relative_name, out);
    }
    return kvt__s3_read_url(full, full_name, out);
}

/* Read the value of the Authorization header for the agent, to the heap.  *out NULL: no header.  0
 * or -errno with a sentence. */
static int
read_authorization(const struct kvt__s3_chain_params *params, char **out)
{
    static const char name[] = "AWS_CONTAINER_AUTHORIZATION_TOKEN";
    const char *file = kvt__s3_getenv(params, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    const char *token = kvt__s3_getenv(params, name);

    *out = NULL;
    if (file)
        return kvt__s3_read_token(file, out);
    if (token && !(*out = strdup(token)))
        return kvt__fail(ENOMEM, "read %s", name);
    return 0;
}

static int
request_keys(const struct kvt__s3_chain_params *params, const struct kvt__s3_url *url,
             const char *authorization, struct kvt__s3_keys **out)
{
    const struct kvt__s3_pair headers[] = { { "accept", "application/json" },
                                            { "authorization", authorization } };
    struct kvt__s3_fetch *fetch = kvt__s3_fetch_new();

    if (!fetch)
        return -ENOMEM;
    fetch->url = url;
    fetch->method = "GET";
    fetch->headers = headers;
    fetch->n_headers = 2;
    fetch->timeout_ms = TIMEOUT_MS;
    int err = kvt__s3_fetch(params->http, fetch);
    if (!err && fetch->http_status != 200)
        err = kvt__s3_fetch_fail(fetch, authorization);
    else if (!err)
        err = kvt__s3_keys_from_json(fetch->text, fetch->n, KVT__S3_JSON_SERVICE, "container",
                                     out);
    kvt__s3_fetch_free(fetch);
    return err;
}

int
kvt__s3_keys_from_container(const struct kvt__s3_chain_params *params, struct kvt__s3_keys **out)
{
    struct kvt__s3_url url;
    char *authorization;
    int err = kvt__s3_container_url(params, &url);

    if (err || (err = read_authorization(params, &authorization)))
        return err;
    err = request_keys(params, &url, authorization, out);
    kvt__s3_wipe_free(authorization);
    return err;
}
