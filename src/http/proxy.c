/* SPDX-License-Identifier: Apache-2.0
 *
 * Proxies: which origins use a proxy, by curl's rules, and the requests to a proxy.  Messages
 * never contain a proxy's password. */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"
#include "http/private.h"

/* -------------------------------------------------------------------- settings */

/* Decode USER:PASSWORD in place.  The text is percent-encoded; return the decoded length. */
static size_t
decode(char *text)
{
    char *to = text;

    for (const char *at = text; *at; at++) {
        int high = *at == '%' ? kvt__hex_digit(at[1]) : -1;
        int low = high >= 0 ? kvt__hex_digit(at[2]) : -1;

        if (low >= 0) {
            *to++ = (char)(high << 4 | low);
            at += 2;
        } else {
            *to++ = *at;
        }
    }
    return (size_t)(to - text);
}

/* Return the value of Proxy-Authorization, to be freed; NULL: no memory.  Overwrites user, which
 * has room for one more byte. */
static char *
authorization(char *user)
{
    bool has_password = strchr(user, ':');
    size_t n = decode(user);
    char *text = malloc(7 + 4 * ((n + 3) / 3));

    if (!text)
        return NULL;
    if (!has_password)
        user[n++] = ':';
    memcpy(text, "Basic ", 6);
    EVP_EncodeBlock((unsigned char *)text + 6, (const unsigned char *)user, (int)n);
    explicit_bzero(user, n);
    return text;
}

#define DEFAULT_PORT 1080 /* curl's */

/* Read HOST[:PORT], IPv6 in brackets.  Return 0, -EINVAL or -ENOMEM. */
static int
read_host(struct kvt__http_proxy *proxy, const char *text)
{
    char name[KVT__HTTP_HOST_ROOM];

    if (kvt__http_split_host(text, strlen(text), name, &proxy->port))
        return -EINVAL;
    if (!proxy->port)
        proxy->port = DEFAULT_PORT;
    proxy->host = kvt__http_bare_host(name);
    return proxy->host ? 0 : -ENOMEM;
}

static int
read_proxy(struct kvt__http_proxy *proxy, char *text)
{
    char *at = strstr(text, "://"), *user;

    if (at) {
        if (strncasecmp(text, "http:", 5))
            return -EINVAL;
        text = at + 3;
    }
    text[strcspn(text, "/")] = '\0';
    user = strrchr(text, '@');
    if (user) {
        *user = '\0';
        proxy->authorization = authorization(text);
        if (!proxy->authorization)
            return -ENOMEM;
        text = user + 1;
    }
    return read_host(proxy, text);
}

int
kvt__http_proxy_open(const char *value, struct kvt__http_proxy *out)
{
    char *text;
    size_t n;
    int err;

    if (!value || !*value)
        return 0;
    text = strdup(value);
    if (!text)
        return -ENOMEM;
    n = strlen(text);
    err = read_proxy(out, text);
    explicit_bzero(text, n);
    free(text);
    out->is_invalid = err == -EINVAL;
    return out->is_invalid ? 0 : err;
}

void
kvt__http_proxy_close(struct kvt__http_proxy *proxy)
{
    free(proxy->host);
    if (proxy->authorization)
        explicit_bzero(proxy->authorization, strlen(proxy->authorization));
    free(proxy->authorization);
}

/* -------------------------------------------------------------------- exceptions */

static bool
has_equal_bits(const unsigned char *a, const unsigned char *b, unsigned n)
{
    if (memcmp(a, b, n / 8))
        return false;
    return !(n % 8) || !((a[n / 8] ^ b[n / 8]) >> (8 - n % 8));
}

/* Return true if host is an address in network, ADDRESS or ADDRESS/BITS.  Changes network. */
static bool
in_network(const char *host, char *network)
{
    unsigned char a[16], b[16];
    char *slash = strchr(network, '/'), *end;
    int family = strchr(host, ':') ? AF_INET6 : AF_INET;
    unsigned long all = family == AF_INET ? 32 : 128, bits = all;

    if (slash) {
        if (!isdigit((unsigned char)slash[1]))
            return false;
        bits = strtoul(slash + 1, &end, 10);
        if (*end || bits > all)
            return false;
        *slash = '\0';
    }
    if (inet_pton(family, host, a) != 1 || inet_pton(family, network, b) != 1)
        return false;
    return has_equal_bits(a, b, (unsigned)bits);
}

static bool
in_domain(const char *host, const char *domain)
{
    size_t n = strlen(host), m = strlen(domain);

    if (m > n || strcasecmp(host + n - m, domain))
        return false;
    return m == n || host[n - m - 1] == '.';
}

static bool
is_excepted(const char *host, char *entry)
{
    size_t n = strlen(entry);
    struct kvt__http_address address;

    if (n > 1 && *entry == '[' && entry[n - 1] == ']') {
        entry[n - 1] = '\0';
        return in_network(host, entry + 1);
    }
    if (kvt__http_address_from_text(host, 0, &address))
        return in_network(host, entry);
    entry += *entry == '.';
    n = strlen(entry);
    if (n && entry[n - 1] == '.')
        entry[n - 1] = '\0';
    return *entry && in_domain(host, entry);
}

/* no_proxy has curl's form: names, which include their subdomains, addresses, networks; "*": all
 * hosts. */
bool
kvt__http_is_in_no_proxy(const char *list, const char *host)
{
    char entry[256], name[256];
    size_t n = strlen(host);

    if (!list)
        return false;
    if (!strcmp(list, "*"))
        return true;
    n -= n && host[n - 1] == '.';
    snprintf(name, sizeof name, "%.*s", (int)(n < 255 ? n : 255), host);
    for (const char *at = list; *at; at += n) {
        at += strspn(at, ", \t");
        n = strcspn(at, ", \t");
        if (!n || n >= sizeof entry)
            continue;
        memcpy(entry, at, n);
        entry[n] = '\0';
        if (is_excepted(name, entry))
            return true;
    }
    return false;
}

/* --------------------------------------------------------------------- requests */

/* A request to a proxy has the absolute form of the target, which begins with the origin.  A
 * proxy makes the Host field from the target (RFC 9112, 3.2.2).  The signature covers a Host
 * field without the port 80, so the target omits port 80. */
int
kvt__http_proxy_head(const struct kvt__http_origin *o, char *head, size_t n, size_t room)
{
    const char *auth = o->proxy->authorization;
    char *target = memchr(head, ' ', n), *fields = memmem(head, n, "\r\n", 2);
    size_t m = strlen(o->label) + 7 - (o->port == 80 ? 3 : 0);
    size_t k = auth ? strlen(auth) + 23 : 0;

    if (!target || !fields || target[1] != '/')
        return kvt__fail(EINVAL, "a request for %s: the target is not a path.", o->label);
    if (m + k > room - n)
        return kvt__fail(EMSGSIZE, "a request for %s: the head is too long for a proxy.",
                         o->label);
    target++;
    fields += 2;
    memmove(fields + m + k, fields, n - (size_t)(fields - head));
    if (auth) {
        memcpy(fields + m, "Proxy-Authorization: ", 21);
        memcpy(fields + m + 21, auth, k - 23);
        memcpy(fields + m + k - 2, "\r\n", 2);
    }
    memmove(target + m, target, (size_t)(fields - target));
    memcpy(target, "http://", 7);
    memcpy(target + 7, o->label, m - 7);
    return (int)(n + m + k);
}

int
kvt__http_tunnel_begin(struct kvt__http_conn *conn)
{
    const struct kvt__http_origin *o = conn->origin;
    const char *auth = o->proxy->authorization;
    int n = snprintf(conn->out, sizeof conn->out, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n"
                     "%s%s%s\r\n", o->label, o->label, auth ? "Proxy-Authorization: " : "",
                     auth ? auth : "", auth ? "\r\n" : "");

    if (n < 0 || (size_t)n >= sizeof conn->out)
        return kvt__fail(EMSGSIZE, "the proxy's user and password are too long.");
    conn->out_bytes = (size_t)n;
    conn->out_sent = conn->in_bytes = 0;
    return 0;
}

/* Read the proxy's response in the buffer.  GOES_ON: the response was interim. */
static int
read_tunnel(struct kvt__http_conn *conn)
{
    struct kvt__http_response response;
    const char *wrong, *label = conn->origin->label;
    ssize_t n = kvt__http_parse_head(conn->in, conn->in_bytes, &response, &wrong);

    if (n < 0)
        return kvt__fail(EPROTO, "the proxy for %s: %s.", label, wrong);
    if (!n)
        return conn->in_bytes < sizeof conn->in
                   ? KVT__HTTP_WAITS
                   : kvt__fail(EPROTO, "the proxy for %s: the head of the response is too "
                               "long.", label);
    if (response.head.status / 100 == 1) {
        kvt__http_drop_head(conn, (size_t)n);
        return KVT__HTTP_GOES_ON;
    }
    if (response.head.status / 100 != 2)
        return kvt__fail(response.head.status == 407 ? EACCES : EHOSTUNREACH,
                         "the proxy refuses to connect to %s: status %d.", label,
                         response.head.status);
    if (conn->in_bytes != (size_t)n)
        return kvt__fail(EPROTO, "the proxy for %s sent bytes before the tunnel was used.",
                         label);
    explicit_bzero(conn->out, conn->out_bytes); /* the proxy's password */
    return KVT__HTTP_DONE;
}

/* Send the rest of the request.  WAITS: the socket is full; DONE. */
static int
send_tunnel(struct kvt__http_conn *conn)
{
    while (conn->out_sent < conn->out_bytes) {
        ssize_t n = send(conn->fd, conn->out + conn->out_sent,
                         conn->out_bytes - conn->out_sent, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EAGAIN)
            return KVT__HTTP_WAITS;
        if (n < 0)
            return kvt__fail(errno, "send to the proxy for %s", conn->origin->label);
        conn->out_sent += (size_t)n;
        conn->progress_ns = kvt__now_ns();
    }
    return KVT__HTTP_DONE;
}

int
kvt__http_tunnel(struct kvt__http_conn *conn)
{
    int outcome = send_tunnel(conn);

    if (outcome != KVT__HTTP_DONE)
        return outcome;
    if (kvt__http_is_turn_over(conn))
        return KVT__HTTP_WAITS;
    if (conn->in_bytes && (outcome = read_tunnel(conn)) != KVT__HTTP_WAITS)
        return outcome;
    ssize_t n = kvt__http_recv_in(conn, SIZE_MAX);
    return n > 0 ? KVT__HTTP_GOES_ON : (int)n;
}
