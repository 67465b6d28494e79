/* SPDX-License-Identifier: Apache-2.0
 *
 * Resolve names to addresses.  getaddrinfo() blocks, so a thread of its own calls
 * getaddrinfo().  Addresses are used for FRESH_NS without a new lookup, and until USABLE_NS while
 * a new lookup is under way. */
#include "http/private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "base/thread.h"

#define FRESH_NS (5 * KVT__NS_PER_S)
#define USABLE_NS (60 * KVT__NS_PER_S)
#define BAD_NS (10 * KVT__NS_PER_S) /* a failed address is tried last */

bool
kvt__http_address_from_text(const char *text, uint16_t port, struct kvt__http_address *out)
{
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, text, &out->to.in4.sin_addr) == 1) {
        out->to.in4.sin_family = AF_INET;
        out->to.in4.sin_port = htons(port);
        return true;
    }
    if (inet_pton(AF_INET6, text, &out->to.in6.sin6_addr) == 1) {
        out->to.in6.sin6_family = AF_INET6;
        out->to.in6.sin6_port = htons(port);
        return true;
    }
    return false;
}

/* --------------------------------------------------------------- the thread */

static bool
is_equal_address(const struct kvt__http_address *a, const struct kvt__http_address *b)
{
    if (a->to.sa.sa_family != b->to.sa.sa_family)
        return false;
    if (a->to.sa.sa_family == AF_INET)
        return a->to.in4.sin_addr.s_addr == b->to.in4.sin_addr.s_addr;
    return !memcmp(&a->to.in6.sin6_addr, &b->to.in6.sin6_addr,
                   sizeof a->to.in6.sin6_addr);
}

static struct kvt__http_address *
find(struct kvt__http_address *in, size_t n, const struct kvt__http_address *address)
{
    for (size_t i = 0; i < n; i++)
        if (is_equal_address(&in[i], address))
            return &in[i];
    return NULL;
}

/* Replace the origin's addresses.  An address that was bad stays bad. */
static void
keep_addresses(struct kvt__http_origin *o, const struct addrinfo *list)
{
    struct kvt__http_address now[KVT__HTTP_MAX_ADDRESSES];
    size_t n = 0;

    for (; list && n < KVT__HTTP_MAX_ADDRESSES; list = list->ai_next) {
        struct kvt__http_address *was;

        if (list->ai_family != AF_INET && list->ai_family != AF_INET6)
            continue;
        memset(&now[n], 0, sizeof now[n]);
        memcpy(&now[n].to, list->ai_addr, list->ai_addrlen);
        if (list->ai_family == AF_INET)
            now[n].to.in4.sin_port = htons(o->connect_port);
        else
            now[n].to.in6.sin6_port = htons(o->connect_port);
        if (find(now, n, &now[n]))
            continue;
        was = find(o->addresses, o->n_addresses, &now[n]);
        now[n].bad_until_ns = was ? was->bad_until_ns : 0;
        n++;
    }
    memcpy(o->addresses, now, n * sizeof *now);
    o->n_addresses = n;
    o->resolved_ns = kvt__now_ns();
}

static void
wake_all(struct kvt__http *http)
{
    for (unsigned i = 0; i < http->n_threads; i++)
        kvt__http_wake(&http->threads[i]);
}

/* Look up the origin's name, without the lock, and wake all threads. */
static void
run_lookup(struct kvt__http *http, struct kvt__http_origin *o)
{
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
    struct addrinfo *list = NULL;

    pthread_mutex_unlock(&http->dns_lock);
    int err = getaddrinfo(o->connect_name, NULL, &hints, &list);
    int saved = errno;
    pthread_mutex_lock(&http->dns_lock);
    if (!err)
        keep_addresses(o, list);
    if (err || !o->n_addresses)
        snprintf(o->dns_why, sizeof o->dns_why, "%s",
                 err == EAI_SYSTEM ? strerror(saved)
                 : err             ? gai_strerror(err)
                                   : "it has no address");
    if (!err)
        freeaddrinfo(list);
    o->lookup_pending = false;
    o->n_lookups++;
    wake_all(http);
}

static void *
resolver_main(void *arg)
{
    struct kvt__http *http = arg;

    pthread_mutex_lock(&http->dns_lock);
    while (!http->dns_stop) {
        struct kvt__http_origin *o = http->lookups;

        if (!o) {
            pthread_cond_wait(&http->dns_work, &http->dns_lock);
            continue;
        }
        http->lookups = o->next_lookup;
        run_lookup(http, o);
    }
    pthread_mutex_unlock(&http->dns_lock);
    return NULL;
}

void
kvt__http_stop_resolver(struct kvt__http *http)
{
    pthread_mutex_lock(&http->dns_lock);
    http->dns_stop = true;
    pthread_cond_signal(&http->dns_work);
    pthread_mutex_unlock(&http->dns_lock);
    if (http->dns_started)
        pthread_join(http->dns_thread, NULL);
}

/* Queue a lookup of the origin, unless a lookup is queued or under way.  The lock is held.
 * Return 0 or -errno with a sentence: the thread cannot start. */
static int
queue_lookup(struct kvt__http *http, struct kvt__http_origin *o)
{
    struct kvt__http_origin **last = &http->lookups;

    if (o->lookup_pending)
        return 0;
    if (!http->dns_started) {
        int err = kvt__thread_start(&http->dns_thread, "kvt-dns", resolver_main, http);
        if (err)
            return err;
        http->dns_started = true;
    }
    while (*last)
        last = &(*last)->next_lookup;
    o->next_lookup = NULL;
    *last = o;
    o->lookup_pending = true;
    pthread_cond_signal(&http->dns_work);
    return 0;
}

/* ------------------------------------------------------------------ choosing */

/* The indices of a family's addresses, cyclic from the turn-th index. */
struct family {
    size_t n;
    uint8_t at[KVT__HTTP_MAX_ADDRESSES];
};

static const struct kvt__http_address *
nth_address(const struct kvt__http_origin *o, const struct family *family, size_t i)
{
    return &o->addresses[family->at[(o->n_orders + i) % family->n]];
}

/* Write the bad addresses, or the good addresses; return the number. */
static size_t
write_addresses(const struct kvt__http_origin *o, int64_t now, bool bad,
                struct kvt__http_address *out)
{
    struct family families[2] = { { .n = 0 }, { .n = 0 } };
    size_t n = 0;

    for (size_t i = 0; i < o->n_addresses; i++) {
        const struct kvt__http_address *a = &o->addresses[i];
        bool other = a->to.sa.sa_family != o->addresses[0].to.sa.sa_family;
        struct family *family = &families[other];

        if ((a->bad_until_ns > now) == bad)
            family->at[family->n++] = (uint8_t)i;
    }
    for (size_t i = 0; i < families[0].n || i < families[1].n; i++)
        for (int f = 0; f < 2; f++)
            if (i < families[f].n)
                out[n++] = *nth_address(o, &families[f], i);
    return n;
}

/* The order of attempts.  getaddrinfo() decides which family comes first, and the families
 * alternate (RFC 8305, 4).  Within a family, each connection begins an address further:
 * all addresses of a name in a family are equivalent (S3 has up to 8), and getaddrinfo's
 * order would send all connections of several seconds to a single server. */
static size_t
order_addresses(struct kvt__http_origin *o, int64_t now, struct kvt__http_address *out)
{
    size_t n = write_addresses(o, now, false, out);

    n += write_addresses(o, now, true, out + n);
    o->n_orders++;
    return n;
}

static int
pick(struct kvt__http_conn *conn, struct kvt__http_origin *o,
     struct kvt__http_address *out)
{
    bool is_waiting = conn->state == KVT__HTTP_RESOLVE;
    bool has_result = is_waiting && o->n_lookups != conn->n_lookups;
    int64_t now = kvt__now_ns(), age = now - o->resolved_ns;

    if (!o->is_literal && !has_result && (!o->n_addresses || age > FRESH_NS)) {
        int err = queue_lookup(o->http, o);
        if (err)
            return err;
    }
    if (o->n_addresses && (o->is_literal || has_result || age < USABLE_NS))
        return (int)order_addresses(o, now, out);
    if (has_result)
        return kvt__fail(EHOSTUNREACH, "resolve %s: %s.", o->connect_name, o->dns_why);
    if (!is_waiting)
        conn->n_lookups = o->n_lookups;
    return 0;
}

int
kvt__http_pick(struct kvt__http_conn *conn, struct kvt__http_address *out)
{
    struct kvt__http *http = conn->origin->http;

    pthread_mutex_lock(&http->dns_lock);
    int result = pick(conn, conn->origin, out);
    pthread_mutex_unlock(&http->dns_lock);
    return result;
}

void
kvt__http_bad_address(struct kvt__http_origin *o, const struct kvt__http_address *address)
{
    struct kvt__http *http = o->http;
    struct kvt__http_address *a;

    pthread_mutex_lock(&http->dns_lock);
    a = find(o->addresses, o->n_addresses, address);
    if (a)
        a->bad_until_ns = kvt__now_ns() + BAD_NS;
    if (o->resolved_ns > kvt__now_ns() - FRESH_NS - 1) /* the name may have moved */
        o->resolved_ns = kvt__now_ns() - FRESH_NS - 1;
    pthread_mutex_unlock(&http->dns_lock);
}
