/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of an EC2 instance, from the metadata service, version 2: three requests, for a token, the
 * role's name, and the role's keys.  On other machines nothing answers, so the timeout is short. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "tier/s3/credentials/private.h"
#include "tier/s3/encode.h"

#define TIMEOUT_MS 1000
#define ROLES "/latest/meta-data/iam/security-credentials/"
#define MAX_NAME ((size_t)256)

int
kvt__s3_metadata_url(const struct kvt__s3_chain_params *params, struct kvt__s3_url *out)
{
    static const char name[] = "AWS_EC2_METADATA_SERVICE_ENDPOINT";
    const char *text = kvt__s3_getenv(params, name);
    const char *mode = kvt__s3_getenv(params, "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");

    if (!text)
        text = mode && !strcasecmp(mode, "IPv6") ? "http://[fd00:ec2::254]"
                                                 : "http://169.254.169.254";
    int err = kvt__s3_read_url(text, name, out);
    size_t n = err ? 0 : strlen(out->path);
    if (n && out->path[n - 1] == '/')
        out->path[n - 1] = '\0'; /* requested paths begin with '/' */
    return err;
}

/* Request the URL's path followed by `path`.  token NULL: request a token.  0: status 200; -errno
 * with a sentence. */
static int
request(const struct kvt__s3_chain_params *params, struct kvt__s3_fetch *fetch,
        const char *path, const char *token)
{
    const struct kvt__s3_pair headers[] = {
        token ? (struct kvt__s3_pair){ "x-aws-ec2-metadata-token", token }
              : (struct kvt__s3_pair){ "x-aws-ec2-metadata-token-ttl-seconds", "21600" } };
    char whole[sizeof fetch->url->path + sizeof ROLES + 3 * MAX_NAME];

    snprintf(whole, sizeof whole, "%s%s", fetch->url->path, path);
    fetch->method = token ? "GET" : "PUT";
    fetch->path = whole;
    fetch->headers = headers;
    fetch->n_headers = 1;
    fetch->timeout_ms = TIMEOUT_MS;
    int err = kvt__s3_fetch(params->http, fetch);
    if (!err && fetch->http_status != 200)
        err = kvt__s3_fetch_fail(fetch, token);
    fetch->path = NULL;
    fetch->headers = NULL;
    return err;
}

static int
request_token(const struct kvt__s3_chain_params *params, struct kvt__s3_fetch *fetch,
              char **out)
{
    int err = request(params, fetch, "/latest/api/token", NULL);

    if (err)
        return err;
    for (size_t i = 0; i < fetch->n; i++)
        if (fetch->text[i] <= ' ' || fetch->text[i] > '~')
            return kvt__fail(EBADMSG, "%s answered with no token.", fetch->url->host);
    if (!fetch->n)
        return kvt__fail(EBADMSG, "%s answered with an empty token.", fetch->url->host);
    *out = strdup(fetch->text);
    return *out ? 0 : kvt__fail(ENOMEM, "request for keys");
}

/* Request the role's name and write the path of the role's keys.  path has room for ROLES and an
 * encoded name. */
static int
request_role(const struct kvt__s3_chain_params *params, struct kvt__s3_fetch *fetch,
             const char *token, char *path)
{
    int err = request(params, fetch, ROLES, token);

    if (err && fetch->http_status == 404)
        return kvt__fail(ENOKEY, "this instance has no role.");
    if (err)
        return err;
    size_t n = strcspn(fetch->text, "\r\n");
    memcpy(path, ROLES, sizeof ROLES);
    if (!n || n > MAX_NAME ||
        kvt__s3_encode(fetch->text, n, false, path + sizeof ROLES - 1,
                       3 * MAX_NAME + 1) < 0)
        return kvt__fail(EBADMSG, "%s answered with no role's name.", fetch->url->host);
    return 0;
}

static int
request_keys(const struct kvt__s3_chain_params *params, struct kvt__s3_fetch *fetch,
             const char *token, struct kvt__s3_keys **out)
{
    char path[sizeof ROLES + 3 * MAX_NAME];
    int err = request_role(params, fetch, token, path);

    if (!err)
        err = request(params, fetch, path, token);
    if (!err)
        err = kvt__s3_keys_from_json(fetch->text, fetch->n, KVT__S3_JSON_SERVICE,
                                     "EC2 metadata", out);
    return err;
}

int
kvt__s3_keys_from_metadata(const struct kvt__s3_chain_params *params, struct kvt__s3_keys **out)
{
    const char *disabled = kvt__s3_getenv(params, "AWS_EC2_METADATA_DISABLED");
    struct kvt__s3_fetch *fetch;
    struct kvt__s3_url url;
    char *token = NULL;

    if (disabled && !strcasecmp(disabled, "true"))
        return kvt__fail(ENOKEY, "disabled by AWS_EC2_METADATA_DISABLED.");
    int err = kvt__s3_metadata_url(params, &url);
    if (err)
        return err;
    if (!(fetch = kvt__s3_fetch_new()))
        return -ENOMEM;
    fetch->url = &url;
    if (!(err = request_token(params, fetch, &token)))
        err = request_keys(params, fetch, token, out);
    kvt__s3_wipe_free(token);
    kvt__s3_fetch_free(fetch);
    return err;
}
