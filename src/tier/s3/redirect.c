/* SPDX-License-Identifier: Apache-2.0
 *
 * The new address of a bucket after a redirect.  Responses are not trusted: a forged redirect could
 * send requests, with a session's token and the data, to any host. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "tier/s3/host.h"
#include "tier/s3/paths.h"

static bool
is_in_host(const struct kvt__s3_address *a)
{
    return a->bucket_path[strlen(a->bucket_path) - 1] == '/';
}

static int
set_region(struct kvt__s3_address *out, const char *region, size_t n)
{
    if (n >= sizeof out->region)
        return kvt__fail(EXDEV, "S3: the region in a redirect is too long.");
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)region[i] <= ' ' || region[i] == 0x7f || region[i] == '/')
            return kvt__fail(EXDEV, "S3: the region in a redirect has blanks, control "
                             "characters or '/'.");
    memmove(out->region, region, n);
    out->region[n] = '\0';
    return 0;
}

/* Replace the region in the name of an AWS host.  Other hosts stay unchanged. */
static int
move_host(struct kvt__s3_address *out, const char *region)
{
    struct kvt__s3_host parsed, now;
    char host[sizeof out->name], new_name[256];
    uint16_t port;

    kvt__s3_parse_host(out->name, &parsed);
    if (!parsed.region) /* a host of another store, or an AWS host without a region */
        return 0;
    int n = snprintf(host, sizeof host, "%.*s%s%s", (int)(parsed.region - out->name),
                     out->name, region, parsed.region + parsed.n_region);
    if (n < 0 || (size_t)n >= sizeof host ||
        kvt__s3_split_host(host, (size_t)n, new_name, &port) || port ||
        !kvt__s3_same_owner(out->name, new_name))
        return kvt__fail(EXDEV, "S3: the region in a redirect is not a region of AWS.");
    kvt__s3_parse_host(new_name, &now);
    if (now.n_bucket != parsed.n_bucket) /* the region contains a service's name */
        return kvt__fail(EXDEV, "S3: the region in a redirect would change the bucket "
                         "of %s.", out->name);
    memcpy(out->name, new_name, sizeof out->name);
    kvt__s3_set_port(out, out->port);
    return 0;
}

/* Set the host of the address to `host`, which has the owner of the present host.  AWS sends the
 * host with or without the bucket as the first label; this function adds the bucket if the present
 * host begins with the bucket.  Hosts of other stores are used unchanged: if the present host
 * begins with the bucket, the new host must too. */
static int
move_to(struct kvt__s3_address *out, const char *host)
{
    bool was_in_host = is_in_host(out);
    size_t n = strlen(out->bucket);
    struct kvt__s3_host parsed;

    kvt__s3_parse_host(host, &parsed);
    bool begins = n && !strncasecmp(host, out->bucket, n) && host[n] == '.' &&
                  (!parsed.aws || parsed.n_bucket == n);
    bool add = parsed.aws && was_in_host && !begins;
    int length = snprintf(out->name, sizeof out->name, "%s%s%s", add ? out->bucket : "",
                          add ? "." : "", host);
    if (length < 0 || (size_t)length >= sizeof out->name)
        return kvt__fail(EXDEV, "S3: the host in a redirect is too long.");
    /* Without the bucket in the host's name, the store would take the start of a key as the
     * bucket. */
    if (!begins && (parsed.aws ? parsed.n_bucket : n && was_in_host))
        return kvt__fail(EXDEV, "S3: a redirect leads to another bucket, at %s.",
                         host);
    return begins && !was_in_host ? kvt__s3_set_paths(out, "", true) : 0;
}

static int
follow(struct kvt__s3_address *out, const char *endpoint)
{
    struct kvt__s3_endpoint url;
    struct kvt__s3_host was, parsed;
    const char *bad = kvt__s3_split_endpoint(endpoint, &url);

    if (bad)
        return kvt__fail(EXDEV, "S3: the endpoint in a redirect %s.", bad);
    if (url.scheme != KVT__S3_NO_SCHEME && out->tls != (url.scheme == KVT__S3_HTTPS))
        return kvt__fail(EXDEV, "S3: a redirect leads from %s to another scheme.",
                         out->name);
    if (!kvt__s3_same_owner(out->name, url.host))
        return kvt__fail(EXDEV, "S3: a redirect leads from %s to %s, in another domain.",
                         out->name, url.host);
    kvt__s3_parse_host(out->name, &was);
    kvt__s3_parse_host(url.host, &parsed);
    if (was.fips && !parsed.fips)
        return kvt__fail(EXDEV, "S3: a redirect leads from %s to %s, which is not a FIPS "
                         "endpoint.", out->name, url.host);
    int rc = move_to(out, url.host);
    if (!rc)
        kvt__s3_set_port(out, url.port || url.scheme != KVT__S3_NO_SCHEME ? url.port
                                                                          : out->port);
    return rc;
}

int
kvt__s3_readdress(const struct kvt__s3_address *was, const char *endpoint,
                  const char *region, struct kvt__s3_address *out)
{
    struct kvt__s3_host parsed;
    int rc = 0;

    *out = *was;
    if (endpoint && *endpoint)
        rc = follow(out, endpoint);
    else if (region && *region)
        rc = move_host(out, region);
    if (rc)
        return rc;
    kvt__s3_parse_host(out->name, &parsed);
    if (region && *region)
        rc = set_region(out, region, strlen(region));
    else if (strcasecmp(out->name, was->name) && parsed.region)
        rc = set_region(out, parsed.region, parsed.n_region);
    if (strcasecmp(out->name, was->name) || out->port != was->port)
        *out->address = '\0';
    return rc;
}
