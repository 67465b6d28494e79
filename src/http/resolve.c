/* SPDX-License-Identifier: Apache-2.0
 *
 * From names to addresses.  getaddrinfo() blocks, so one thread does nothing else.  What
 * it found is used for some seconds, and on while the next answer is not there. */
#include "http/private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "base/thread.h"

#define FRESH_NS (5 * KVT__NS_PER_S)
#define USABLE_NS (60 * KVT__NS_PER_S) /* while a new lookup is under way */
#define BAD_NS (10 * KVT__NS_PER_S)

bool
kvt__http_literal(const char *text, uint16_t port, struct kvt__http_address *out)
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
same_address(const struct kvt__http_address *a, const struct kvt__http_address *b)
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
        if (same_address(&in[i], address))
            return &in[i];
    return NULL;
}

/* What is known to be bad stays so. */
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

static void
look_up(struct kvt__http *http, struct kvt__http_origin *o)
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
    o->looking = false;
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
        look_up(http, o);
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

/* Under the lock. */
static int
ask(struct kvt__http *http, struct kvt__http_origin *o)
{
    struct kvt__http_origin **last = &http->lookups;

    if (o->looking)
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
    o->looking = true;
    pthread_cond_signal(&http->dns_work);
    return 0;
}

/* ------------------------------------------------------------------ choosing */

/* Each in its turn, but for the bad ones, unless all are. */
static const struct kvt__http_address *
choose(struct kvt__http_origin *o, int64_t now)
{
    for (size_t i = 0; i < o->n_addresses; i++) {
        const struct kvt__http_address *a = &o->addresses[o->turn++ % o->n_addresses];

        if (a->bad_until_ns <= now)
            return a;
    }
    return &o->addresses[o->turn++ % o->n_addresses];
}

static int
pick(struct kvt__http_conn *conn, struct kvt__http_origin *o)
{
    bool asked = conn->state == KVT__HTTP_RESOLVE;
    bool answered = asked && o->n_lookups != conn->n_lookups;
    int64_t now = kvt__now_ns(), age = now - o->resolved_ns;

    if (!o->literal && !answered && (!o->n_addresses || age > FRESH_NS)) {
        int err = ask(o->http, o);
        if (err)
            return err;
    }
    if (o->n_addresses && (o->literal || answered || age < USABLE_NS)) {
        conn->address = *choose(o, now);
        return 1;
    }
    if (answered)
        return kvt__fail(EHOSTUNREACH, "resolve %s: %s.", o->connect_name, o->dns_why);
    if (!asked)
        conn->n_lookups = o->n_lookups;
    return 0;
}

int
kvt__http_pick(struct kvt__http_conn *conn)
{
    struct kvt__http *http = conn->origin->http;

    pthread_mutex_lock(&http->dns_lock);
    int result = pick(conn, conn->origin);
    pthread_mutex_unlock(&http->dns_lock);
    return result;
}

size_t
kvt__http_bad_address(struct kvt__http_conn *conn)
{
    struct kvt__http_origin *o = conn->origin;
    struct kvt__http *http = o->http;
    struct kvt__http_address *a;

    pthread_mutex_lock(&http->dns_lock);
    a = find(o->addresses, o->n_addresses, &conn->address);
    if (a)
        a->bad_until_ns = kvt__now_ns() + BAD_NS;
    if (o->resolved_ns > kvt__now_ns() - FRESH_NS - 1) /* the name may have moved */
        o->resolved_ns = kvt__now_ns() - FRESH_NS - 1;
    size_t n = o->n_addresses;
    pthread_mutex_unlock(&http->dns_lock);
    return n;
}
