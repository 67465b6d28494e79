/* SPDX-License-Identifier: Apache-2.0
 *
 * HOST[:PORT] as it stands in URLs and settings. */
#include <arpa/inet.h>
#include <ctype.h>
#include <string.h>

#include "http/private.h"

#define MAX_NAME 253
#define MAX_LABEL 63

/* Return true if text is a host name: labels separated by dots, with an optional dot at the end,
 * which turns off the resolver's search domains.  Host names have no underscore by RFC 1123, but
 * many names of containers have. */
static bool
is_name(const char *text, size_t n)
{
    size_t label = 0;

    if (n && text[n - 1] == '.')
        n--;
    if (n > MAX_NAME)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '.') {
            if (!label)
                return false;
            label = 0;
        } else if (!isascii(text[i]) || (!isalnum((unsigned char)text[i]) &&
                                         text[i] != '-' && text[i] != '_')) {
            return false;
        } else if (++label > MAX_LABEL) {
            return false;
        }
    }
    return label != 0;
}

static bool
is_ipv6(const char *text, size_t n)
{
    char copy[INET6_ADDRSTRLEN];
    struct in6_addr address;

    if (n >= sizeof copy)
        return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    return inet_pton(AF_INET6, copy, &address) == 1;
}

/* Return the port; 0: the text is not a port. */
static uint16_t
read_port(const char *text, size_t n)
{
    unsigned value = 0;

    if (!n || n > 5)
        return 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9')
            return 0;
        value = value * 10 + (unsigned)(text[i] - '0');
    }
    return value <= UINT16_MAX ? (uint16_t)value : 0;
}

const char *
kvt__http_split_host(const char *text, size_t n, char name[KVT__HTTP_HOST_ROOM],
                     uint16_t *port)
{
    const char *colon = memchr(text, ':', n), *end = NULL;

    *port = 0;
    if (memchr(text, '@', n))
        return "has keys or a password, which do not belong there";
    if (n && *text == '[') {
        end = memchr(text, ']', n);
        if (!end || !is_ipv6(text + 1, (size_t)(end - text - 1)))
            return "has no IPv6 address in the brackets";
        end++;
        colon = end < text + n ? end : NULL;
        if (colon && *colon != ':')
            return "has text behind the brackets of an IPv6 address";
    } else if (colon && memchr(colon + 1, ':', n - (size_t)(colon + 1 - text))) {
        return "has more than one ':'; an IPv6 address stands in brackets";
    }
    if (colon && !(*port = read_port(colon + 1, n - (size_t)(colon + 1 - text))))
        return "has an invalid port";
    size_t n_name = colon ? (size_t)(colon - text) : n;
    if (!end && !is_name(text, n_name))
        return "has an invalid host name";
    memcpy(name, text, n_name);
    name[n_name] = '\0';
    return NULL;
}

char *
kvt__http_bare_host(const char *host)
{
    size_t n = strlen(host);

    return *host == '[' && host[n - 1] == ']' ? strndup(host + 1, n - 2) : strdup(host);
}
