/* SPDX-License-Identifier: Apache-2.0
 *
 * URLs of services that give keys: http[s]://HOST[:PORT][/PATH][?QUERY]. */
#include <errno.h>
#include <stdio.h>
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
