/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a request, and the choice between a request's two connections.  All functions run on
 * the request's thread. */
#include <stdio.h>

#include "http/private.h"

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
    kvt__http_timer_clear(&t->timers, &req->own.timer);
    req->status = status;
    if (status)
        snprintf(req->why, sizeof req->why, "%s", kvt__why());
    atomic_fetch_sub(&t->n_requests, 1);
    if (!waiter) {
        req->on_done(req);
        return;
    }
    pthread_mutex_lock(&waiter->lock);
    waiter->is_done = true;
    pthread_cond_signal(&waiter->done);
    pthread_mutex_unlock(&waiter->lock);
}

void
kvt__http_choose(struct kvt__http_conn *conn)
{
    struct kvt__http_request *req = conn->req;
    int slot = conn == req->own.conn[1];

    if (req->own.conn[!slot])
        kvt__http_conn_close(req->own.conn[!slot]);
    req->hedged = slot == 1;
    req->own.hedge_at_ns = 0;
}
