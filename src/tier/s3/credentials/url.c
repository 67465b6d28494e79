/* SPDX-License-Identifier: Apache-2.0
 *
 * URLs of services that provide keys: http[s]://HOST[:PORT][/PATH][?QUERY]. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "tier/s3/credentials/private.h"

/* Return the length of the scheme; 0: not http:// or https://. */
static size_t
read_scheme(const char *text, bool *tls)
{
    *tls = !strncasecmp(text, "https://", 8);
    return *tls ? 8 : strncasecmp(text, "http://", 7) ? 0 : 7;
}

/* Parse HOST[:PORT], n bytes.  Return false if the text is invalid. */
static bool
read_authority(const char *at, size_t n, struct kvt__s3_url *out)
{
    uint16_t own = out->tls ? 443 : 80;

    if (kvt__http_split_host(at, n, out->name, &out->port))
        return false;
    if (!out->port)
        out->port = own;
    if (out->port == own)
        snprintf(out->host, sizeof out->host, "%s", out->name);
    else
        snprintf(out->host, sizeof out->host, "%s:%u", out->name, (unsigned)out->port);
    return true;
}

static bool
is_local_ipv4(const char *text)
{
    struct in_addr in;

    if (inet_pton(AF_INET, text, &in) != 1)
        return false;
    uint32_t address = ntohl(in.s_addr);
    return address >> 24 == 127 || address >> 16 == 0xa9fe; /* 169.254.0.0/16 */
}

/* Return true for loopback and link-local addresses, and for AWS's two addresses of instance
 * metadata and of EKS Pod Identity. */
static bool
is_local_ipv6(const char *text)
{
    static const char *const of_aws[] = { "fd00:ec2::254", "fd00:ec2::23" };
    struct in6_addr in, other;

    if (inet_pton(AF_INET6, text, &in) != 1)
        return false;
    if (IN6_IS_ADDR_LOOPBACK(&in) || IN6_IS_ADDR_LINKLOCAL(&in))
        return true;
    for (size_t i = 0; i < sizeof of_aws / sizeof *of_aws; i++)
        if (inet_pton(AF_INET6, of_aws[i], &other) == 1 &&
            !memcmp(&in, &other, sizeof in))
            return true;
    return false;
}

/* Set the address of a local name.  Only "localhost" is a local name: a resolver under foreign
 * control could return a local address for any other name. */
static void
set_address(struct kvt__s3_url *url)
{
    size_t n = strlen(url->name);
    char bare[sizeof url->name];
    bool ipv6 = *url->name == '[';

    snprintf(bare, sizeof bare, "%.*s", (int)(ipv6 ? n - 2 : n), url->name + ipv6);
    if (!strcasecmp(bare, "localhost"))
        snprintf(bare, sizeof bare, "127.0.0.1");
    if (ipv6 ? is_local_ipv6(bare) : is_local_ipv4(bare))
        snprintf(url->address, sizeof url->address, "%.*s",
                 (int)sizeof url->address - 1, bare);
    else
        *url->address = '\0';
}

int
kvt__s3_read_url(const char *text, const char *what, struct kvt__s3_url *out)
{
    size_t scheme = read_scheme(text, &out->tls);
    const char *at = text + scheme;
    size_t n = strcspn(at, "/?#");

    if (!scheme || !read_authority(at, n, out))
        return kvt__fail(EINVAL, "%s is not of the form http[s]://HOST[:PORT][/PATH].", what);
    at += n;
    for (const char *p = at; *p; p++)
        if (*p <= ' ' || *p > '~' || *p == '#')
            return kvt__fail(EINVAL, "%s has a character that is not allowed in a URL.", what);
    if ((size_t)snprintf(out->path, sizeof out->path, "%s%s", *at == '/' ? "" : "/", at) >=
        sizeof out->path)
        return kvt__fail(EINVAL, "%s is too long.", what);
    set_address(out);
    if (!out->tls && !*out->address)
        return kvt__fail(EACCES, "%s is http:// to %s: only https:// may leave this host.",
                         what, out->name);
    return 0;
}
