/* SPDX-License-Identifier: Apache-2.0
 *
 * URLs of services that give keys: http[s]://HOST[:PORT][/PATH][?QUERY]. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "tier/s3/credentials/private.h"

/* The scheme's length; 0: none that we speak. */
static size_t
read_scheme(const char *text, bool *tls)
{
    *tls = !strncasecmp(text, "https://", 8);
    return *tls ? 8 : strncasecmp(text, "http://", 7) ? 0 : 7;
}

/* HOST[:PORT], n bytes of it.  False: it is none. */
static bool
read_authority(const char *at, size_t n, struct kvt__s3_url *out)
{
    const char *end = *at == '[' ? memchr(at, ']', n) : NULL;
    size_t name = end ? (size_t)(end - at) + 1 : strcspn(at, ":/?#");
    bool v6 = *at == '[';
    unsigned long port = out->tls ? 443 : 80;

    if (v6 && !end)
        return false;
    if (!name || name >= sizeof out->name ||
        strspn(at, v6 ? "[]:.0123456789abcdefABCDEF"
                      : "-._0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
            < name)
        return false;
    if (name < n) {
        size_t digits = strspn(at + name + 1, "0123456789");

        if (at[name] != ':' || !digits || digits > 5 || name + 1 + digits != n)
            return false;
        port = strtoul(at + name + 1, NULL, 10);
    }
    if (!port || port > UINT16_MAX)
        return false;
    out->port = (uint16_t)port;
    snprintf(out->name, sizeof out->name, "%.*s", (int)name, at);
    if (port == (out->tls ? 443 : 80))
        snprintf(out->host, sizeof out->host, "%s", out->name);
    else
        snprintf(out->host, sizeof out->host, "%s:%lu", out->name, port);
    return true;
}

int
kvt__s3_read_url(const char *text, const char *what, struct kvt__s3_url *out)
{
    size_t scheme = read_scheme(text, &out->tls);
    const char *at = text + scheme;
    size_t n = strcspn(at, "/?#");

    if (!scheme || !read_authority(at, n, out))
        return kvt__fail(EINVAL, "%s is none of http[s]://HOST[:PORT][/PATH].", what);
    at += n;
    for (const char *p = at; *p; p++)
        if (*p <= ' ' || *p > '~' || *p == '#')
            return kvt__fail(EINVAL, "%s has a character that is none of a URL's.", what);
    if ((size_t)snprintf(out->path, sizeof out->path, "%s%s", *at == '/' ? "" : "/", at) >=
        sizeof out->path)
        return kvt__fail(EINVAL, "%s is too long.", what);
    return 0;
}
