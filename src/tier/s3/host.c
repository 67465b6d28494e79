/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of hosts: syntax, and the formats of AWS and CoreWeave. */
#include "tier/s3/host.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

#include "tier/s3/partition.h"

/* -------------------------------------------------------------------- syntax */

bool
kvt__s3_is_ip(const char *host)
{
    struct in_addr address;

    return *host == '[' || inet_pton(AF_INET, host, &address) == 1;
}

const char *
kvt__s3_split_host(const char *text, size_t n, char name[KVT__HTTP_HOST_ROOM],
                   uint16_t *port)
{
    const char *bad = kvt__http_split_host(text, n, name, port);

    return !bad && name[strlen(name) - 1] == '.' ? "has a name that ends with a dot" : bad;
}

/* ------------------------------------------------------------------- formats */

struct label {
    const char *text;
    size_t n;
};

static bool
is_label(const struct label *label, const char *text)
{
    return label->n == strlen(text) && !strncasecmp(label->text, text, label->n);
}

static bool
begins(const struct label *label, const char *text)
{
    return label->n > strlen(text) && !strncasecmp(label->text, text, strlen(text));
}

/* Return the last label of the first n bytes of a host, and shorten n by this label and the dot. */
static struct label
take_label(const char *host, size_t *n)
{
    size_t at = *n;

    while (at && host[at - 1] != '.')
        at--;
    struct label label = { host + at, *n - at };
    *n = at ? at - 1 : 0;
    return label;
}

static bool
is_service(const struct label *label)
{
    static const char *const services[] = { "s3", "s3-fips", "s3-accesspoint",
                                            "s3-accesspoint-fips", "s3-accelerate" };

    for (size_t i = 0; i < sizeof services / sizeof *services; i++)
        if (is_label(label, services[i]))
            return true;
    return begins(label, "s3express-") && !is_label(label, "s3express-control");
}

/* Parse the part of an AWS host's name before the partition's domain.  The service is the last
 * label, or stands before the region, optionally with "dualstack" between service and region:
 *   [BUCKET.]s3[-fips|-accesspoint][.dualstack].REGION    [BUCKET.]s3
 *   [BUCKET.]s3-accelerate[.dualstack]                    [BUCKET.]s3-REGION
 *   [BUCKET.]s3express-ZONE[.dualstack].REGION
 *   [BUCKET.]bucket.vpce-ID.s3.REGION.vpce */
static void
parse_aws(const char *host, size_t n, struct kvt__s3_host *out)
{
    struct label last = take_label(host, &n), service = last, region = { NULL, 0 };
    bool private = is_label(&last, "vpce");

    if (private)
        last = service = take_label(host, &n);
    if (begins(&last, "s3-") && !is_service(&last)) {
        region = (struct label){ last.text + 3, last.n - 3 };
    } else if (!is_service(&last)) {
        service = take_label(host, &n);
        if (is_label(&last, "dualstack"))
            last.n = 0;
        else if (is_label(&service, "dualstack"))
            service = take_label(host, &n);
        if (!is_service(&service))
            return;
        region = last;
    }
    if (private) {
        struct label id = take_label(host, &n), kind = take_label(host, &n);
        if (!begins(&id, "vpce-") || !is_label(&kind, "bucket"))
            return;
    }
    out->aws = true;
    out->express = begins(&service, "s3express-");
    out->fips = is_label(&service, "s3-fips") || begins(&service, "s3express-fips-") ||
                is_label(&service, "s3-accesspoint-fips");
    out->n_bucket = n;
    out->region = region.n ? region.text : NULL;
    out->n_region = region.n;
}

void
kvt__s3_parse_host(const char *host, struct kvt__s3_host *out)
{
    const struct kvt__s3_partition *partition = kvt__s3_partition_of_host(host);
    bool lota = kvt__s3_in_domain(host, "cwlota.com");
    const char *domain = partition ? partition->domain : lota ? "cwlota.com"
                                                              : "cwobject.com";
    size_t n = strlen(host);

    *out = (struct kvt__s3_host){ 0 };
    if (!kvt__s3_in_domain(host, domain))
        return;
    n -= strlen(domain);
    n -= n != 0; /* the dot */
    if (partition) {
        parse_aws(host, n, out);
    } else {
        out->coreweave = true;
        out->lota = lota;
        out->n_bucket = n;
    }
}

/* ---------------------------------------------------------------- redirects */

/* Return NAMESPACE.svc.CLUSTER of a Kubernetes host SERVICE.NAMESPACE.svc.CLUSTER, for any CLUSTER
 * domain: hosts of a namespace have the same owner.  NULL: not the name of a service. */
static const char *
namespace_of(const char *host)
{
    size_t n = strlen(host);

    while (n) {
        struct label label = take_label(host, &n);
        size_t before = n;

        if (is_label(&label, "svc") && before) {
            struct label namespace = take_label(host, &before);

            if (before)
                return namespace.text;
        }
    }
    return NULL;
}

/* Return the registrable domain: the last two labels, or the last three labels if the last label
 * has two letters and the second last label at most three, as in co.uk and com.cn.  The list of
 * public suffixes is not used.  So two owners below another public suffix (for example k12.ca.us,
 * or a hosting company's domain) count as the same owner. */
static const char *
domain_of(const char *host)
{
    size_t n = strlen(host);
    struct label last = take_label(host, &n), second = take_label(host, &n);
    const char *namespace = namespace_of(host);

    if (namespace)
        return namespace;
    return last.n == 2 && second.n <= 3 && n ? take_label(host, &n).text : second.text;
}

bool
kvt__s3_same_owner(const char *host, const char *other)
{
    struct kvt__s3_host parsed, other_parsed;

    if (!strcasecmp(host, other))
        return true;
    if (kvt__s3_is_ip(host) || kvt__s3_is_ip(other))
        return false;
    /* Below amazonaws.com are also machines of AWS's customers, so only S3 endpoints of the same
     * partition count. */
    kvt__s3_parse_host(host, &parsed);
    kvt__s3_parse_host(other, &other_parsed);
    if (kvt__s3_partition_of_host(host) || kvt__s3_partition_of_host(other))
        return parsed.aws && other_parsed.aws &&
               kvt__s3_partition_of_host(host) == kvt__s3_partition_of_host(other);
    return strchr(host, '.') && !strcasecmp(domain_of(host), domain_of(other));
}
