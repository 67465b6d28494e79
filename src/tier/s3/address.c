/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps from settings to an address, in the order of their dependencies: split the URL into
 * host and bucket; find the host's owner, and decide whether the host's name contains the bucket;
 * set TLS, port and region; set the paths.  docs/s3.md has a table of all forms, which is also a
 * test. */
#include "tier/s3/address.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "tier/s3/host.h"
#include "tier/s3/partition.h"
#include "tier/s3/paths.h"

#define FORMS "s3://BUCKET[/PREFIX], s3://HOST[/PREFIX] with the bucket in the host's " \
              "name, or s3://HOST:PORT/BUCKET[/PREFIX]"

#define EXPRESS "--x-s3" /* end of the names of S3 Express buckets */

struct work {
    const struct kvt__s3_address_params *params;
    struct kvt__s3_address *out;
    struct kvt__s3_endpoint rest, endpoint; /* endpoint.host "": no endpoint is set */
    bool at_endpoint;          /* requests use scheme, port and base path of endpoint */
    bool in_host;              /* the host's name contains the bucket */
    uint16_t port;             /* 0: the scheme's default */
    const char *prefix;        /* points into rest */
    struct kvt__s3_host parsed; /* meaning of out->name */
};

static bool
is_set(const char *text)
{
    return text && *text;
}

/* Copy text.  Return false if the text does not fit. */
static bool
copy(char *to, size_t room, const char *text)
{
    return (size_t)snprintf(to, room, "%s", text) < room;
}

static int
refuse(const char *name, const char *what)
{
    return kvt__fail(EINVAL, "%s: the address %s. The forms are " FORMS ".", name, what);
}

/* ------------------------------------------------------------ host and bucket */

static bool
is_endpoint(const struct work *w)
{
    return *w->endpoint.host && kvt__s3_in_domain(w->rest.host, w->endpoint.host) &&
           (!w->rest.port || w->rest.port == w->endpoint.port);
}

/* Return true if the first part of remote_url is a bucket, not a host.  A name without dot and port
 * is a bucket.  With an endpoint and path style, a name with dots is also a bucket, unless the name
 * is an IP address, a host of AWS or CoreWeave, or the endpoint. */
static bool
is_bucket(const struct work *w)
{
    const char *name = w->rest.host;
    struct kvt__s3_host parsed;

    if (w->rest.port || *name == '[')
        return false;
    if (!strchr(name, '.'))
        return true;
    kvt__s3_parse_host(name, &parsed);
    return *w->endpoint.host && w->params->style == KVT__S3_PATH && !is_endpoint(w) &&
           !parsed.aws && !parsed.coreweave && !kvt__s3_is_ip(name);
}

/* Set the bucket from the first segment of the path; the rest is the prefix. */
static int
take_bucket(struct work *w, const char *name)
{
    size_t n = strcspn(w->rest.path, "/");

    if (!n)
        return refuse(name, "names a host but no bucket");
    if (n >= sizeof w->out->bucket)
        return refuse(name, "has a bucket's name that is too long");
    memcpy(w->out->bucket, w->rest.path, n);
    w->prefix = w->rest.path + n + strspn(w->rest.path + n, "/");
    return 0;
}

static int
place_at_host(struct work *w, const char *name)
{
    struct kvt__s3_address *out = w->out;
    enum kvt__s3_style style = w->params->style;
    const char *host = w->rest.host;

    memcpy(out->name, host, sizeof out->name);
    kvt__s3_parse_host(host, &w->parsed);
    w->at_endpoint = is_endpoint(w);
    w->port = w->rest.port ? w->rest.port : w->at_endpoint ? w->endpoint.port : 0;
    size_t n_bucket = w->parsed.n_bucket, n_endpoint = strlen(w->endpoint.host);
    if (w->at_endpoint && strlen(host) > n_endpoint)
        n_bucket = strlen(host) - n_endpoint - 1;
    bool service = !n_bucket && (w->parsed.aws || w->parsed.coreweave || w->at_endpoint);
    bool path = !n_bucket && (style == KVT__S3_PATH ||
                              (style == KVT__S3_AUTO && *w->rest.path &&
                               (w->rest.port || kvt__s3_is_ip(host))));
    if (service || path)
        return take_bucket(w, name);
    w->in_host = true;
    if (n_bucket >= sizeof out->bucket)
        return refuse(name, "has a bucket's name that is too long");
    memcpy(out->bucket, host, n_bucket);
    return 0;
}

static bool
is_express_name(const char *bucket)
{
    size_t n = strlen(bucket), n_end = strlen(EXPRESS);

    return n > n_end && !strcmp(bucket + n - n_end, EXPRESS);
}

/* Make the AWS host for a bucket without a configured host. */
static int
name_aws_host(struct work *w, const char *name)
{
    struct kvt__s3_address *out = w->out;
    const char *region = w->params->region;
    const struct kvt__s3_partition *partition;
    bool fips = w->params->fips;
    char service[80], new_name[256];
    uint16_t port;

    if (!is_set(region))
        return kvt__fail(EINVAL, "%s: the bucket's region is not known. Set s3_region or "
                         "AWS_REGION, or s3_endpoint_url if it is not at AWS.", name);
    snprintf(service, sizeof service, "%s", fips ? "s3-fips" : "s3");
    if (is_express_name(out->bucket)) {
        int n_front = (int)strlen(out->bucket) - (int)strlen(EXPRESS), at = n_front;
        while (at > 2 && strncmp(out->bucket + at - 2, "--", 2))
            at--;
        if (at <= 2 || at == n_front)
            return refuse(name, "has a bucket whose name ends in " EXPRESS
                                " but contains no zone");
        snprintf(service, sizeof service, "s3express-%s%.*s", fips ? "fips-" : "",
                 n_front - at, out->bucket + at);
    }
    partition = kvt__s3_partition_of_region(region);
    int n = snprintf(out->name, sizeof out->name, "%s%s.%s.%s", service,
                     w->params->dualstack ? ".dualstack" : "", region, partition->domain);
    kvt__s3_parse_host(out->name, &w->parsed);
    if (n < 0 || (size_t)n >= sizeof out->name || !w->parsed.aws || w->parsed.n_bucket ||
        kvt__s3_split_host(out->name, (size_t)n, new_name, &port) || port)
        return kvt__fail(EINVAL, "s3_region: the value is not a region of AWS, but %s is at AWS. "
                         "Set s3_endpoint_url if the bucket is elsewhere.", name);
    return 0;
}

static int
place_bucket(struct work *w, const char *name)
{
    if (!copy(w->out->bucket, sizeof w->out->bucket, w->rest.host))
        return refuse(name, "has a bucket's name that is too long");
    w->prefix = w->rest.path;
    if (!*w->endpoint.host)
        return name_aws_host(w, name);
    w->at_endpoint = true;
    w->port = w->endpoint.port;
    memcpy(w->out->name, w->endpoint.host, sizeof w->out->name);
    kvt__s3_parse_host(w->out->name, &w->parsed);
    return 0;
}

/* ------------------------------------------------------------------ checks */

/* Check the FIPS setting.  A configured host is used unchanged, so the host itself must be a FIPS
 * endpoint. */
static int
check_fips(const struct work *w)
{
    if (!w->params->fips || !w->parsed.aws || w->parsed.fips)
        return 0;
    return kvt__fail(EINVAL, "%s: AWS_USE_FIPS_ENDPOINT (or use_fips_endpoint of the "
                     "profile) is true, but this is not a FIPS endpoint. Set a host of "
                     "s3-fips, or only the bucket.", w->out->name);
}

/* Check a bucket's name.  At AWS, AWS's rules apply.  Elsewhere the name must be usable unencoded
 * in a path: RGW and other stores allow upper case and underscores. */
static bool
is_bucket_name(const char *bucket, bool aws)
{
    static const char lower[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    size_t n = strlen(bucket);

    for (const char *at = bucket; *at; at++)
        if (!strchr(lower, *at) && *at != '-' && *at != '.' &&
            (aws || (*at != '_' && (*at < 'A' || *at > 'Z'))))
            return false;
    if (aws)
        return n >= 3 && strchr(lower, *bucket) && strchr(lower, bucket[n - 1]) &&
               !strstr(bucket, "..");
    return n && strcmp(bucket, ".") && strcmp(bucket, "..");
}

/* Put the bucket in front of the host's name, if the style is virtual. */
static int
apply_style(struct work *w, const char *name)
{
    struct kvt__s3_address *out = w->out;
    enum kvt__s3_style style = w->params->style;
    char host[sizeof out->name + sizeof out->bucket];

    if (w->in_host && !*out->bucket)
        return 0;
    if (!is_bucket_name(out->bucket, w->parsed.aws))
        return refuse(name, w->parsed.aws
                                ? "has a bucket whose name is not 3 to 63 of a-z, 0-9, '-' "
                                  "and '.'"
                                : "has a bucket whose name is not of letters, digits, '-', "
                                  "'_' and '.'");
    if (w->in_host)
        return 0;
    if (style == KVT__S3_PATH && w->parsed.coreweave)
        return kvt__fail(EINVAL, "%s: CoreWeave requires the bucket in the host's name. Set "
                         "s3_addressing to virtual or auto.", name);
    if (style == KVT__S3_PATH && w->parsed.aws && is_express_name(out->bucket))
        return kvt__fail(EINVAL, "%s: S3 Express requires the bucket in the host's name. Set "
                         "s3_addressing to virtual or auto.", name);
    if (style == KVT__S3_AUTO)
        style = w->parsed.coreweave || (w->parsed.aws && !strchr(out->bucket, '.'))
                    ? KVT__S3_VIRTUAL : KVT__S3_PATH;
    if (style == KVT__S3_PATH)
        return 0;
    if (kvt__s3_is_ip(out->name))
        return kvt__fail(EINVAL, "%s: the bucket cannot be put in front of the address %s. "
                         "Set s3_addressing to path or auto.", name, out->name);
    snprintf(host, sizeof host, "%s.%s", out->bucket, out->name);
    char new_name[256];
    uint16_t port;
    if (kvt__s3_split_host(host, strlen(host), new_name, &port))
        return refuse(name, "has a bucket whose name is not allowed in a host's name");
    memcpy(out->name, new_name, sizeof out->name);
    kvt__s3_parse_host(out->name, &w->parsed);
    w->in_host = true;
    return 0;
}

static int
set_tls(struct work *w, const char *name)
{
    struct kvt__s3_address *out = w->out;
    enum kvt__s3_scheme scheme = w->at_endpoint ? w->endpoint.scheme : KVT__S3_NO_SCHEME;

    if (w->params->tls != KVT__S3_TLS_AUTO)
        out->tls = w->params->tls == KVT__S3_TLS_ON;
    else if (scheme != KVT__S3_NO_SCHEME)
        out->tls = scheme == KVT__S3_HTTPS;
    else
        out->tls = !(out->plain_by_host = w->parsed.lota);
    out->aws = w->parsed.aws;
    /* At AWS the bucket's name decides; for other stores only the setting can. */
    out->express = w->parsed.aws ? w->parsed.express || is_express_name(out->bucket)
                                 : w->params->express;
    if (out->express && out->aws && !out->tls)
        return kvt__fail(EINVAL, "%s: S3 Express requires TLS. Remove disable_tls, "
                         "and http:// from s3_endpoint_url.", name);
    kvt__s3_set_port(out, w->port);
    return 0;
}

static int
set_region(struct work *w, const char *name)
{
    struct kvt__s3_address *out = w->out;
    const char *region = w->params->region;
    bool fits = true;

    if (is_set(region)) {
        fits = copy(out->region, sizeof out->region, region);
    } else if (w->parsed.region) {
        /* A label is shorter than out->region. */
        memcpy(out->region, w->parsed.region, w->parsed.n_region);
    } else if (w->parsed.aws) {
        return kvt__fail(EINVAL, "%s: %s does not contain the bucket's region. Set s3_region "
                         "or AWS_REGION.", name, out->name);
    } else {
        fits = copy(out->region, sizeof out->region, "us-east-1");
    }
    for (const char *at = out->region; fits && *at; at++)
        fits = (unsigned char)*at > ' ' && *at != 0x7f && *at != '/';
    if (!fits)
        return kvt__fail(EINVAL, "s3_region: the value is too long, or has blanks, control "
                         "characters or '/'.");
    return 0;
}

/* ---------------------------------------------------------- make an address */

static int
read_urls(struct work *w, const char *name)
{
    const char *rest = w->params->rest ? w->params->rest : "";
    const char *bad = kvt__s3_split_endpoint(rest, &w->rest);

    if (!bad && w->rest.scheme != KVT__S3_NO_SCHEME)
        bad = "has a scheme behind s3://";
    if (bad)
        return refuse(name, bad);
    w->prefix = w->rest.path;
    if (!is_set(w->params->endpoint_url))
        return 0;
    bad = kvt__s3_split_endpoint(w->params->endpoint_url, &w->endpoint);
    if (bad)
        return kvt__fail(EINVAL, "s3_endpoint_url: the address %s. The form is "
                         "[http[s]://]HOST[:PORT][/BASE].", bad);
    return 0;
}

int
kvt__s3_address(const char *name, const struct kvt__s3_address_params *params,
                struct kvt__s3_address *out)
{
    struct work w = { .params = params, .out = out };

    memset(out, 0, sizeof *out);
    int rc = read_urls(&w, name);
    if (!rc)
        rc = is_bucket(&w) ? place_bucket(&w, name) : place_at_host(&w, name);
    if (!rc)
        rc = check_fips(&w);
    if (!rc)
        rc = apply_style(&w, name);
    if (!rc)
        rc = set_tls(&w, name);
    if (!rc)
        rc = set_region(&w, name);
    if (!rc)
        rc = kvt__s3_add_prefix(out, name, w.prefix);
    if (!rc && is_set(params->file_prefix))
        rc = kvt__s3_add_prefix(out, "s3_file_prefix", params->file_prefix);
    if (!rc && is_set(params->resolve))
        rc = kvt__s3_resolve(params->resolve, out);
    if (!rc)
        rc = kvt__s3_set_paths(out, w.at_endpoint ? w.endpoint.path : "", w.in_host);
    return rc;
}
