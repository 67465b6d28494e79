/* SPDX-License-Identifier: Apache-2.0
 *
 * A request's way: it waits for its time, then in its queue, is under way on one
 * connection or two, and ends.  Its thread only. */
#include "http/private.h"

#include <errno.h>
#include <stdio.h>

void
kvt__http_put(struct kvt__http_list *list, struct kvt__http_request *req)
{
    req->own.list = list;
    req->own.next = NULL;
    req->own.prev = list->last;
    if (list->last)
        list->last->own.next = req;
    else
        list->first = req;
    list->last = req;
}

void
kvt__http_unlink(struct kvt__http_request *req)
{
    struct kvt__http_list *list = req->own.list;

    if (req->own.prev)
        req->own.prev->own.next = req->own.next;
    else
        list->first = req->own.next;
    if (req->own.next)
        req->own.next->own.prev = req->own.prev;
    else
        list->last = req->own.prev;
    req->own.list = NULL;
}

/* -------------------------------------------------------------------- its end */

void
kvt__http_finish(struct kvt__http_request *req, int status)
{
    struct kvt__http_thread *t = req->own.thread;
    struct kvt__http_waiter *waiter = req->own.waiter;

    for (int i = 0; i < 2; i++)
        if (req->own.conn[i])
            kvt__http_conn_close(req->own.conn[i]);
    t->n_under_way -= req->own.list == &t->under_way;
    kvt__http_unlink(req);
    kvt__http_time_clear(&t->times, &req->own.time);
    req->status = status;
    if (status)
        snprintf(req->why, sizeof req->why, "%s", kvt__why());
    atomic_fetch_sub(&t->n_requests, 1);
    if (!waiter) {
        req->done(req);
        return;
    }
    pthread_mutex_lock(&waiter->lock);
    waiter->is_done = true;
    pthread_cond_signal(&waiter->done);
    pthread_mutex_unlock(&waiter->lock);
}

/* What a server does that closes idle connections.  Nothing came, so it cannot have been
 * an answer to this request. */
static bool
is_stale(const struct kvt__http_conn *conn)
{
    return conn->reused && conn->lost && !conn->any && !conn->req->own.replaced;
}

void
kvt__http_conn_failed(struct kvt__http_conn *conn, int err)
{
    struct kvt__http_request *req = conn->req;
    struct kvt__http_thread *t = conn->thread;
    int slot;

    if (!req) {
        kvt__http_conn_close(conn);
        return;
    }
    slot = conn == req->own.conn[1];
    if (req->own.conn[!slot]) {
        kvt__http_conn_close(conn);
    } else if (is_stale(conn)) {
        kvt__http_conn_close(conn);
        req->own.replaced = true;
        kvt__http_conn_begin(t, req, slot, true);
    } else {
        kvt__http_finish(req, err);
    }
}

void
kvt__http_chosen(struct kvt__http_conn *conn)
{
    struct kvt__http_request *req = conn->req;
    int slot = conn == req->own.conn[1];

    if (req->own.conn[!slot])
        kvt__http_conn_close(req->own.conn[!slot]);
    req->hedged = slot == 1;
    req->own.hedge_at_ns = 0;
}

/* ------------------------------------------------------------------- its times */

static const char *
what_it_did(const struct kvt__http_request *req)
{
    const struct kvt__http_conn *conn = req->own.conn[0] ? req->own.conn[0]
                                                         : req->own.conn[1];

    if (!conn)
        return "it waited for its turn";
    switch (conn->state) {
    case KVT__HTTP_RESOLVE:
        return "its name was being resolved";
    case KVT__HTTP_CONNECT:
        return "it was being connected to";
    case KVT__HTTP_TUNNEL:
        return "its proxy was being asked";
    case KVT__HTTP_HANDSHAKE:
        return "TLS was being set up";
    case KVT__HTTP_ANSWER:
        return kvt__http_sending(conn) ? "the request was being sent"
                                       : "there was no answer";
    default:
        return "the answer was being received";
    }
}

static void
set_time(struct kvt__http_request *req)
{
    struct kvt__http_thread *t = req->own.thread;
    int64_t at = req->deadline_ns > 0 ? req->deadline_ns : INT64_MAX;
    int64_t other = req->own.list == &t->waiting     ? req->not_before_ns
                    : req->own.list == &t->under_way ? req->own.hedge_at_ns
                                                     : 0;

    if (other && other < at)
        at = other;
    if (at < INT64_MAX)
        kvt__http_time_set(&t->times, &req->own.time, at);
    else
        kvt__http_time_clear(&t->times, &req->own.time);
}

static void
hedge(struct kvt__http_request *req)
{
    struct kvt__http_thread *t = req->own.thread;
    const struct kvt__http_conn *conn = req->own.conn[0];

    req->own.hedge_at_ns = 0;
    set_time(req);
    if (!conn || conn->state > KVT__HTTP_ANSWER || conn->in_bytes ||
        (req->may_hedge && !req->may_hedge(req)))
        return;
    atomic_fetch_add(&t->http->n_hedges, 1);
    kvt__http_conn_begin(t, req, 1, false);
}

static void
on_time(struct kvt__http_time *time)
{
    struct kvt__http_request *req =
        (struct kvt__http_request *)((char *)time -
                                     offsetof(struct kvt__http_request, own.time));
    struct kvt__http_thread *t = req->own.thread;
    int64_t now = kvt__now_ns();

    if (req->deadline_ns > 0 && now >= req->deadline_ns) {
        kvt__http_finish(req, kvt__fail(ETIMEDOUT, "%s: the time was over while %s.",
                                        req->origin->label, what_it_did(req)));
    } else if (req->own.list == &t->waiting) {
        kvt__http_unlink(req);
        kvt__http_put(&t->queues[req->prio], req);
        set_time(req);
    } else {
        hedge(req);
    }
}

/* ------------------------------------------------------------------- its begin */

void
kvt__http_arrive(struct kvt__http_thread *t, struct kvt__http_request *req)
{
    bool later = req->not_before_ns > kvt__now_ns();

    req->own.time.run = on_time;
    kvt__http_put(later ? &t->waiting : &t->queues[req->prio], req);
    set_time(req);
}

void
kvt__http_start(struct kvt__http_thread *t, struct kvt__http_request *req)
{
    int64_t now = kvt__now_ns();

    kvt__http_unlink(req);
    kvt__http_put(&t->under_way, req);
    t->n_under_way++;
    req->own.hedge_at_ns = req->hedge_ns > 0 ? now + req->hedge_ns : 0;
    set_time(req);
    kvt__http_conn_begin(t, req, 0, false);
}
