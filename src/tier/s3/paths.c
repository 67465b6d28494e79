/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps that make an address; each step is independent.  Any thread. */
#include "tier/s3/paths.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "tier/s3/encode.h"
#include "tier/s3/host.h"

const char *
kvt__s3_split_endpoint(const char *text, struct kvt__s3_endpoint *out)
{
    out->scheme = KVT__S3_NO_SCHEME;
    if (!strncasecmp(text, "https://", 8)) {
        out->scheme = KVT__S3_HTTPS;
        text += 8;
    } else if (!strncasecmp(text, "http://", 7)) {
        out->scheme = KVT__S3_HTTP;
        text += 7;
    } else if (!strncmp(text + strcspn(text, ":/"), "://", 3)) {
        return "has a scheme other than http and https";
    }
    size_t n = strcspn(text, "/");
    out->path = text + n + strspn(text + n, "/");
    return kvt__s3_split_host(text, n, out->host, &out->port);
}

void
kvt__s3_set_port(struct kvt__s3_address *out, uint16_t port)
{
    uint16_t own = out->tls ? 443 : 80;

    out->port = port ? port : own;
    if (out->port == own)
        snprintf(out->host, sizeof out->host, "%s", out->name);
    else
        snprintf(out->host, sizeof out->host, "%s:%u", out->name, (unsigned)out->port);
}

int
kvt__s3_add_prefix(struct kvt__s3_address *out, const char *name, const char *text)
{
    size_t used = strlen(out->prefix), n;

    for (text += strspn(text, "/"); *text; text += n + (text[n] == '/')) {
        n = strcspn(text, "/");
        if (!n && !text[strspn(text, "/")])
            break;
        if (!n || (n <= 2 && !strncmp(text, "..", n)))
            return kvt__fail(EINVAL, "%s: the prefix has an empty segment, '.' or '..', "
                             "which some stores cannot hold. Remove this segment.", name);
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
                return kvt__fail(EINVAL, "%s: the prefix has control characters.", name);
        if (n + 2 > sizeof out->prefix - used)
            return kvt__fail(EINVAL, "%s: the prefix has more than %zu bytes.", name,
                             sizeof out->prefix - 1);
        memcpy(out->prefix + used, text, n);
        used += n;
        out->prefix[used++] = '/';
        out->prefix[used] = '\0';
    }
    return 0;
}

int
kvt__s3_set_paths(struct kvt__s3_address *out, const char *base, bool in_host)
{
    int n_base = (int)strlen(base);

    while (n_base && base[n_base - 1] == '/')
        n_base--;
    for (int i = 0; i < n_base; i++)
        if ((unsigned char)base[i] <= ' ' || (unsigned char)base[i] >= 0x7f ||
            strchr("?#\\\"<>", base[i]))
            return kvt__fail(EINVAL, "s3_endpoint_url: the path has characters that "
                             "must be percent-encoded.");
    int n = snprintf(out->bucket_path, sizeof out->bucket_path, "%s%.*s/%s",
                     n_base ? "/" : "", n_base, base, in_host ? "" : out->bucket);
    if (n < 0 || (size_t)n >= sizeof out->bucket_path)
        return kvt__fail(EINVAL, "s3_endpoint_url: the path is too long.");
    int used = snprintf(out->object_path, sizeof out->object_path, "%s%s", out->bucket_path,
                        in_host ? "" : "/");
    if (kvt__s3_encode(out->prefix, strlen(out->prefix), true, out->object_path + used,
                       sizeof out->object_path - (size_t)used) < 0)
        return kvt__fail(EINVAL, "s3_file_prefix: the prefix is too long.");
    return 0;
}

/* ------------------------------------------------------------------- resolve */

/* Copy an IPv4 or IPv6 address, without the brackets.  Return false if the text is not an
 * address. */
static bool
read_address(const char *text, size_t n, char *out, size_t room)
{
    unsigned char binary[sizeof(struct in6_addr)];

    if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    if (!n || n >= room)
        return false;
    memcpy(out, text, n);
    out[n] = '\0';
    return inet_pton(strchr(out, ':') ? AF_INET6 : AF_INET, out, binary) == 1;
}

/* Apply an entry of n bytes, if the entry matches and no earlier entry did.  Return false if the
 * entry is malformed. */
static bool
resolve_one(const char *text, size_t n, struct kvt__s3_address *out)
{
    char host[256], address[sizeof out->address];
    const char *bracket = *text == '[' ? memchr(text, ']', n) : text;
    const char *colon = bracket ? memchr(bracket, ':', n - (size_t)(bracket - text)) : NULL;
    uint16_t port;

    colon = colon ? memchr(colon + 1, ':', n - (size_t)(colon + 1 - text)) : NULL;
    if (!colon || kvt__s3_split_host(text, (size_t)(colon - text), host, &port) || !port ||
        !read_address(colon + 1, n - (size_t)(colon + 1 - text), address, sizeof address))
        return false;
    if (!*out->address && port == out->port && !strcasecmp(host, out->name))
        memcpy(out->address, address, sizeof address);
    return true;
}

int
kvt__s3_resolve(const char *text, struct kvt__s3_address *out)
{
    for (;;) {
        text += strspn(text, " ");
        size_t n = strcspn(text, ",");
        if (!resolve_one(text, n, out))
            return kvt__fail(EINVAL, "s3_resolve: the value is not of the form "
                             "HOST:PORT:ADDRESS[,HOST:PORT:ADDRESS...].");
        if (!text[n])
            return 0;
        text += n + 1;
    }
}
