/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of http.h: clients, origins, requests. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/thread.h"
#include "http/private.h"

/* ------------------------------------------------------------ open and close */

static void
free_origin(struct kvt__http_origin *o)
{
    free(o->host);
    free(o->label);
    free(o->address);
    free(o->connect_name);
    free(o->connect_label);
    free(o);
}

static void
fini_thread(struct kvt__http_thread *t)
{
    if (t->epoll >= 0)
        close(t->epoll);
    if (t->event >= 0)
        close(t->event);
    pthread_mutex_destroy(&t->lock);
}

static void
free_http(struct kvt__http *http)
{
    for (unsigned i = 0; i < http->n_threads; i++)
        fini_thread(&http->threads[i]);
    kvt__http_tls_close(http);
    for (struct kvt__http_origin *o = http->origins, *next; o; o = next) {
        next = o->next;
        free_origin(o);
    }
    kvt__http_proxy_close(&http->http_proxy);
    kvt__http_proxy_close(&http->https_proxy);
    free(http->ca_file);
    free(http->more_ca_file);
    free(http->cert_file);
    free(http->key_file);
    free(http->no_proxy);
    pthread_cond_destroy(&http->dns_work);
    pthread_mutex_destroy(&http->dns_lock);
    pthread_mutex_destroy(&http->lock);
    free(http);
}

static int
init_thread(struct kvt__http_thread *t)
{
    struct epoll_event e = { .events = EPOLLIN };

    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    t->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->epoll < 0 || t->event < 0 ||
        epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->event, &e) < 0)
        return kvt__fail(errno, "create an epoll for the HTTP client");
    return 0;
}

static void
notify_threads(struct kvt__http *http, bool close)
{
    for (unsigned i = 0; i < http->n_threads; i++) {
        struct kvt__http_thread *t = &http->threads[i];

        pthread_mutex_lock(&t->lock);
        t->stopped = t->stopped || !close;
        t->closing = close;
        pthread_mutex_unlock(&t->lock);
        kvt__http_wake(t);
    }
}

static void
join_threads(struct kvt__http *http, unsigned n)
{
    notify_threads(http, true);
    for (unsigned i = 0; i < n; i++)
        pthread_join(http->threads[i].id, NULL);
}

static bool
copy_text(const char *text, char **out)
{
    *out = text ? strdup(text) : NULL;
    return *out || !text;
}

static int
copy_params(struct kvt__http *http, const struct kvt__http_params *params)
{
    http->no_verify = params->no_verify;
    http->stall_ns = params->stall_ns ? params->stall_ns : KVT__HTTP_STALL_NS;
    http->connect_ns = params->connect_ns ? params->connect_ns : KVT__HTTP_CONNECT_NS;
    if (!copy_text(params->ca_file, &http->ca_file) ||
        !copy_text(params->more_ca_file, &http->more_ca_file) ||
        !copy_text(params->cert_file, &http->cert_file) ||
        !copy_text(params->key_file, &http->key_file) ||
        !copy_text(params->no_proxy, &http->no_proxy) ||
        kvt__http_proxy_open(params->http_proxy, &http->http_proxy) ||
        kvt__http_proxy_open(params->https_proxy, &http->https_proxy))
        return kvt__fail(ENOMEM, "an HTTP client");
    return 0;
}

int
kvt__http_open(const struct kvt__http_params *params, struct kvt__http **out)
{
    unsigned most = params->max_requests, started = 0;
    unsigned n = params->n_threads < most ? params->n_threads : most;
    struct kvt__http *http;
    int err = 0;

    assert(n);
    http = calloc(1, sizeof *http + n * sizeof http->threads[0]);
    if (!http)
        return kvt__fail(ENOMEM, "an HTTP client with %u threads", n);
    pthread_mutex_init(&http->lock, NULL);
    pthread_mutex_init(&http->dns_lock, NULL);
    pthread_cond_init(&http->dns_work, NULL);
    http->n_threads = n;
    for (unsigned i = 0; i < n; i++) {
        http->threads[i].http = http;
        http->threads[i].max = most / n + (i < most % n);
        http->threads[i].epoll = http->threads[i].event = -1;
        pthread_mutex_init(&http->threads[i].lock, NULL);
    }
    err = copy_params(http, params);
    for (unsigned i = 0; i < n && !err; i++)
        err = init_thread(&http->threads[i]);
    while (!err && started < n) {
        err = kvt__thread_start(&http->threads[started].id, "kvt-http",
                                kvt__http_thread_main, &http->threads[started]);
        started += !err;
    }
    if (err) {
        join_threads(http, started);
        free_http(http);
        return err;
    }
    *out = http;
    return 0;
}

void
kvt__http_stop(struct kvt__http *http)
{
    notify_threads(http, false);
}

void
kvt__http_close(struct kvt__http *http)
{
    if (!http)
        return;
    join_threads(http, http->n_threads);
    kvt__http_stop_resolver(http);
    free_http(http);
}

/* ------------------------------------------------------------------- origins */

static bool
is_equal_text(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

static bool
is_origin(const struct kvt__http_origin *o, const struct kvt__http_target *target,
          const char *host)
{
    return !strcasecmp(o->host, host) && o->port == target->port &&
           o->tls == target->tls && is_equal_text(o->address, target->address);
}

static char *
make_label(const char *host, uint16_t port)
{
    char *label;
    int n = strchr(host, ':') ? asprintf(&label, "[%s]:%u", host, port)
                              : asprintf(&label, "%s:%u", host, port);

    return n < 0 ? NULL : label;
}

/* Set *out to the origin's proxy; NULL: connect directly.  A target with an address is always
 * connected directly.  Return 0, or -EINVAL with a sentence: the proxy is invalid. */
static int
choose_proxy(const struct kvt__http *http, const struct kvt__http_target *target,
             const char *host, const struct kvt__http_proxy **out)
{
    const struct kvt__http_proxy *proxy = target->tls ? &http->https_proxy
                                                      : &http->http_proxy;

    *out = NULL;
    if (target->address || kvt__http_is_in_no_proxy(http->no_proxy, host))
        return 0;
    if (proxy->is_invalid)
        return kvt__fail(EINVAL, "%s_proxy: use [http://][USER:PASSWORD@]HOST[:PORT].",
                         target->tls ? "https" : "http");
    if (proxy->host)
        *out = proxy;
    return 0;
}

static void
choose_route(struct kvt__http_origin *o, const struct kvt__http_proxy *proxy)
{
    o->proxy = proxy;
    o->connect_port = proxy ? proxy->port : o->port;
    o->connect_name = kvt__http_bare_host(o->address ? o->address
                                          : o->proxy ? proxy->host
                                                     : o->host);
    if (o->label && (!o->proxy || asprintf(&o->connect_label, "the proxy %s:%u for %s",
                                           proxy->host, proxy->port, o->label) < 0))
        o->connect_label = o->proxy ? NULL : strdup(o->label);
}

static struct kvt__http_origin *
new_origin(struct kvt__http *http, const struct kvt__http_target *target, char *host,
           const struct kvt__http_proxy *proxy)
{
    struct kvt__http_origin *o = calloc(1, sizeof *o +
                                               http->n_threads * sizeof *o->sessions);

    if (!o) {
        free(host);
        return NULL;
    }
    o->http = http;
    o->host = host;
    o->port = target->port;
    o->tls = target->tls;
    o->label = make_label(host, target->port);
    o->address = target->address ? strdup(target->address) : NULL;
    choose_route(o, proxy);
    if (!o->label || !o->connect_name || !o->connect_label ||
        (target->address && !o->address)) {
        free_origin(o);
        return NULL;
    }
    o->is_literal = kvt__http_address_from_text(o->connect_name, o->connect_port, &o->addresses[0]);
    o->n_addresses = o->is_literal;
    return o;
}

const char *
kvt__http_connect_label(const struct kvt__http_origin *origin)
{
    return origin->connect_label;
}

int
kvt__http_origin(struct kvt__http *http, const struct kvt__http_target *target,
                 struct kvt__http_origin **out)
{
    char *host = kvt__http_bare_host(target->host);
    const struct kvt__http_proxy *proxy = NULL;
    struct kvt__http_origin *o;
    int err = 0;

    if (!host)
        return kvt__fail(ENOMEM, "the host %s", target->host);
    pthread_mutex_lock(&http->lock);
    for (o = http->origins; o && !is_origin(o, target, host); o = o->next)
        continue;
    if (!o)
        err = choose_proxy(http, target, host, &proxy);
    if (!o && !err && target->tls)
        err = kvt__http_tls_open(http);
    if (o || err) {
        free(host);
    } else if ((o = new_origin(http, target, host, proxy))) {
        o->next = http->origins;
        http->origins = o;
    } else {
        err = kvt__fail(ENOMEM, "the host %s", target->host);
    }
    pthread_mutex_unlock(&http->lock);
    *out = o;
    return err;
}

/* ------------------------------------------------------------------- requests */

static struct kvt__http_thread *
least_loaded(struct kvt__http *http)
{
    struct kvt__http_thread *best = &http->threads[0];

    for (unsigned i = 1; i < http->n_threads; i++)
        if (atomic_load(&http->threads[i].n_requests) < atomic_load(&best->n_requests))
            best = &http->threads[i];
    return best;
}

static void
submit(struct kvt__http *http, struct kvt__http_request *req,
       struct kvt__http_waiter *waiter)
{
    struct kvt__http_thread *t = least_loaded(http);

    req->status = req->http_status = 0;
    req->early = req->hedged = false;
    req->received_bytes = 0;
    req->sent_ns = req->first_byte_ns = 0;
    req->why[0] = '\0';
    memset(&req->own, 0, sizeof req->own);
    req->own.thread = t;
    req->own.waiter = waiter;
    atomic_fetch_add(&t->n_requests, 1);
    pthread_mutex_lock(&t->lock);
    bool wake = !t->inbox.first;
    kvt__http_append(&t->inbox, req);
    pthread_mutex_unlock(&t->lock);
    if (wake)
        kvt__http_wake(t);
}

void
kvt__http_submit(struct kvt__http *http, struct kvt__http_request *req)
{
    submit(http, req, NULL);
}

int
kvt__http_run(struct kvt__http *http, struct kvt__http_request *req)
{
    struct kvt__http_waiter waiter = { PTHREAD_MUTEX_INITIALIZER,
                                       PTHREAD_COND_INITIALIZER, false };

    submit(http, req, &waiter);
    pthread_mutex_lock(&waiter.lock);
    while (!waiter.is_done)
        pthread_cond_wait(&waiter.done, &waiter.lock);
    pthread_mutex_unlock(&waiter.lock);
    pthread_cond_destroy(&waiter.done);
    pthread_mutex_destroy(&waiter.lock);
    if (req->status)
        kvt__set_why(req->why);
    return req->status;
}

void
kvt__http_stats(struct kvt__http *http, struct kvt__http_stats *out)
{
    *out = (struct kvt__http_stats){
        .connections = atomic_load(&http->n_connections),
        .open = atomic_load(&http->n_open),
        .requests = atomic_load(&http->n_requests),
        .resumed = atomic_load(&http->n_resumed),
        .hedges = atomic_load(&http->n_hedges),
    };
}
