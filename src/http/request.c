/* SPDX-License-Identifier: Apache-2.0
 *
 * The stages of a request: the request waits for not_before_ns, then in the queue of its
 * priority, and is then under way on a connection, or on two with a hedge.  All functions run on
 * the request's thread. */
#include "http/private.h"

#include <errno.h>

/* ---------------------------------------------------------------------- timers */

static const char *
phase_text(const struct kvt__http_request *req)
{
    const struct kvt__http_conn *conn = req->own.conn[0] ? req->own.conn[0]
                                                         : req->own.conn[1];

    if (!conn)
        return "the request waited to be sent";
    switch (conn->state) {
    case KVT__HTTP_RESOLVE:
        return "the name was being resolved";
    case KVT__HTTP_CONNECT:
        return "a connection was being opened";
    case KVT__HTTP_TUNNEL:
        return "the proxy was opening a tunnel";
    case KVT__HTTP_HANDSHAKE:
        return "the TLS handshake was under way";
    case KVT__HTTP_EXCHANGE:
        return kvt__http_is_sending(conn) ? "the request was being sent"
                                       : "no response had arrived";
    default:
        return "the response was being received";
    }
}

/* Set the request's timer to the earliest of deadline, start and hedge. */
static void
set_timer(struct kvt__http_request *req)
{
    struct kvt__http_thread *t = req->own.thread;
    int64_t at = req->deadline_ns > 0 ? req->deadline_ns : INT64_MAX;
    int64_t other = req->own.list == &t->waiting     ? req->not_before_ns
                    : req->own.list == &t->under_way ? req->own.hedge_at_ns
                                                     : 0;

    if (other && other < at)
        at = other;
    if (at < INT64_MAX)
        kvt__http_timer_set(&t->timers, &req->own.timer, at);
    else
        kvt__http_timer_clear(&t->timers, &req->own.timer);
}

/* Send the request on a second connection, unless a response has begun or the caller forbids the
 * hedge. */
static void
hedge(struct kvt__http_request *req)
{
    struct kvt__http_thread *t = req->own.thread;
    const struct kvt__http_conn *conn = req->own.conn[0];

    req->own.hedge_at_ns = 0;
    set_timer(req);
    if (!conn || conn->state > KVT__HTTP_EXCHANGE || conn->in_bytes ||
        (req->can_hedge && !req->can_hedge(req)))
        return;
    atomic_fetch_add(&t->http->n_hedges, 1);
    kvt__http_conn_begin(t, req, 1, false);
}

static void
on_timer(struct kvt__http_timer *timer)
{
    struct kvt__http_request *req =
        (struct kvt__http_request *)((char *)timer -
                                     offsetof(struct kvt__http_request, own.timer));
    struct kvt__http_thread *t = req->own.thread;
    int64_t now = kvt__now_ns();

    if (req->deadline_ns > 0 && now >= req->deadline_ns) {
        kvt__http_finish(req, kvt__fail(ETIMEDOUT, "%s: the deadline passed while %s.",
                                        req->origin->label, phase_text(req)));
    } else if (req->own.list == &t->waiting) {
        kvt__http_unlink(req);
        kvt__http_append(&t->queues[req->prio], req);
        set_timer(req);
    } else {
        hedge(req);
    }
}

/* ----------------------------------------------------------------------- start */

void
kvt__http_enqueue(struct kvt__http_thread *t, struct kvt__http_request *req)
{
    bool later = req->not_before_ns > kvt__now_ns();

    req->own.timer.run = on_timer;
    kvt__http_append(later ? &t->waiting : &t->queues[req->prio], req);
    set_timer(req);
}

void
kvt__http_start(struct kvt__http_thread *t, struct kvt__http_request *req)
{
    int64_t now = kvt__now_ns();

    kvt__http_unlink(req);
    kvt__http_append(&t->under_way, req);
    t->n_under_way++;
    req->own.hedge_at_ns = req->hedge_ns > 0 ? now + req->hedge_ns : 0;
    set_timer(req);
    kvt__http_conn_begin(t, req, 0, false);
}
