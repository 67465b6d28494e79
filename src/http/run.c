/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop that moves a connection from state to state.  A step (connect.c, proxy.c, tls.c,
 * head.c, body.c) returns an outcome; only this file chooses the next state, and ends the
 * request or the connection.  All functions run on the connection's thread. */
#include <errno.h>
#include <sys/epoll.h>

#include "http/private.h"

/* ------------------------------------------------------------ the next state */

static int
resolve(struct kvt__http_conn *conn)
{
    int outcome = kvt__http_resolve(conn);

    if (outcome == KVT__HTTP_WAITS && conn->state != KVT__HTTP_RESOLVE)
        kvt__http_set_state(conn, KVT__HTTP_RESOLVE);
    if (outcome != KVT__HTTP_DONE)
        return outcome;
    kvt__http_set_state(conn, KVT__HTTP_CONNECT);
    return KVT__HTTP_GOES_ON;
}

/* Return the outcome of a change of state; err: the result of the new state's first call. */
static int
go_on(int err)
{
    return err < 0 ? err : KVT__HTTP_GOES_ON;
}

static int
begin_handshake(struct kvt__http_conn *conn)
{
    kvt__http_set_state(conn, KVT__HTTP_HANDSHAKE);
    return go_on(kvt__http_tls_begin(conn));
}

/* The state changes first: a failure closes the connection, and a connection in IDLE would be
 * removed from the list of idle connections. */
static int
begin_exchange(struct kvt__http_conn *conn)
{
    kvt__http_set_state(conn, KVT__HTTP_EXCHANGE);
    return go_on(kvt__http_send_begin(conn));
}

static int
on_connected(struct kvt__http_conn *conn)
{
    if (!conn->origin->tls)
        return begin_exchange(conn);
    if (!conn->origin->proxy)
        return begin_handshake(conn);
    kvt__http_set_state(conn, KVT__HTTP_TUNNEL);
    return go_on(kvt__http_tunnel_begin(conn));
}

/* End the request with err, and read or drop the body. */
static int
refuse_body(struct kvt__http_conn *conn, int err)
{
    struct kvt__http_request *req = conn->req;
    bool drain = kvt__http_can_drain(conn);

    if (drain) {
        kvt__http_conn_detach(conn);
        kvt__http_set_state(conn, KVT__HTTP_DRAIN);
    } else {
        kvt__http_conn_release(conn);
    }
    kvt__http_finish(req, err);
    return drain ? KVT__HTTP_GOES_ON : KVT__HTTP_WAITS;
}

static int
exchange(struct kvt__http_conn *conn)
{
    struct kvt__http_response response;
    int err, outcome = kvt__http_exchange(conn, &response);

    if (outcome != KVT__HTTP_DONE)
        return outcome;
    kvt__http_choose(conn);
    err = kvt__http_take_head(conn, &response);
    if (err)
        return refuse_body(conn, err);
    err = kvt__http_begin_body(conn);
    if (err)
        return err;
    kvt__http_set_state(conn, KVT__HTTP_BODY);
    return KVT__HTTP_GOES_ON;
}

static int
complete(struct kvt__http_conn *conn)
{
    struct kvt__http_request *req = conn->req;

    kvt__http_conn_release(conn);
    if (req) /* not in DRAIN */
        kvt__http_finish(req, 0);
    return KVT__HTTP_WAITS;
}

/* Take one step, and choose the next state if the step is done with the present state. */
static int
step(struct kvt__http_conn *conn)
{
    int outcome;

    switch (conn->state) {
    case KVT__HTTP_RESOLVE:
        return resolve(conn);
    case KVT__HTTP_CONNECT:
        outcome = kvt__http_connect(conn);
        return outcome == KVT__HTTP_DONE ? on_connected(conn) : outcome;
    case KVT__HTTP_TUNNEL:
        outcome = kvt__http_tunnel(conn);
        return outcome == KVT__HTTP_DONE ? begin_handshake(conn) : outcome;
    case KVT__HTTP_HANDSHAKE:
        outcome = kvt__http_handshake(conn);
        return outcome == KVT__HTTP_DONE ? begin_exchange(conn) : outcome;
    case KVT__HTTP_EXCHANGE:
        return exchange(conn);
    case KVT__HTTP_BODY:
        outcome = kvt__http_receive_body(conn);
        return outcome == KVT__HTTP_DONE ? complete(conn) : outcome;
    case KVT__HTTP_DRAIN:
        outcome = kvt__http_drain(conn);
        return outcome == KVT__HTTP_DONE ? complete(conn) : outcome;
    case KVT__HTTP_IDLE:
        if (!kvt__http_conn_is_quiet(conn))
            kvt__http_conn_close(conn);
        return KVT__HTTP_WAITS;
    default:
        return KVT__HTTP_WAITS;
    }
}

/* ------------------------------------------------------------------ failures */

/* Return true if the request may be sent again.  A server may close an idle connection at any
 * time; if no byte of a response arrived, the server had probably closed the connection before
 * the request. */
static bool
is_stale(const struct kvt__http_conn *conn)
{
    return conn->is_reused && conn->is_lost && !conn->has_received && !conn->req->own.replaced;
}

/* Close a connection that failed with the sentence kvt__why().  The request continues on the
 * other connection or, if the connection was stale, on a new connection; otherwise the request
 * ends. */
static void
fail(struct kvt__http_conn *conn, int err)
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

/* -------------------------------------------------------------------- events */

static bool
wants_to_write(const struct kvt__http_conn *conn)
{
    switch (conn->state) {
    case KVT__HTTP_TUNNEL:
        return conn->out_sent < conn->out_bytes;
    case KVT__HTTP_EXCHANGE:
        return conn->tls_wants_write ||
               (kvt__http_is_sending(conn) &&
                !(conn->hold_body && conn->out_sent == conn->out_bytes));
    default:
        return conn->tls_wants_write;
    }
}

static int
watch(struct kvt__http_conn *conn)
{
    struct epoll_event e = { .data.ptr = conn };

    if (conn->fd < 0)
        return 0;
    e.events = EPOLLIN;
    if (wants_to_write(conn))
        e.events |= EPOLLOUT;
    if (e.events == conn->events)
        return 0;
    if (epoll_ctl(conn->thread->epoll, conn->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD,
                  conn->fd, &e) < 0)
        return kvt__fail(errno, "watch the connection to %s", conn->origin->label);
    conn->events = e.events;
    return 0;
}

/* --------------------------------------------------------------------- times */

/* Return the monotonic time at which the state has lasted too long. */
static int64_t
due_ns(const struct kvt__http_conn *conn)
{
    switch (conn->state) {
    case KVT__HTTP_CONNECT:
        return kvt__http_race_due_ns(conn);
    case KVT__HTTP_DRAIN:
        return conn->progress_ns + KVT__HTTP_DRAIN_NS;
    case KVT__HTTP_IDLE:
        return conn->progress_ns + KVT__HTTP_IDLE_NS;
    case KVT__HTTP_EXCHANGE:
        if (conn->hold_body)
            return conn->progress_ns + KVT__HTTP_CONTINUE_NS;
        return conn->progress_ns + conn->thread->http->stall_ns;
    default:
        return conn->progress_ns + conn->thread->http->stall_ns;
    }
}

/* Limit for bytes below the low-water mark to wait for a read. */
#define LOOK_NS (100 * KVT__NS_PER_MS)

/* Set the connection's timer.  Received bytes only move progress_ns: the timer is set again when
 * the timer runs or the state changes. */
static void
rearm(struct kvt__http_conn *conn)
{
    int64_t at = due_ns(conn), look = kvt__now_ns() + LOOK_NS;

    if (conn->lowat > 1 && look < at)
        at = look;
    kvt__http_timer_set(&conn->thread->timers, &conn->timer, at);
}

/* Handle a state that has lasted too long. */
static int
on_due(struct kvt__http_conn *conn)
{
    const char *what = "no byte arrived";

    switch (conn->state) {
    case KVT__HTTP_CONNECT:
        return KVT__HTTP_GOES_ON; /* the race goes on, or fails */
    case KVT__HTTP_RESOLVE:
        what = "the name was not resolved";
        break;
    case KVT__HTTP_DRAIN:
    case KVT__HTTP_IDLE:
        kvt__http_conn_close(conn);
        return KVT__HTTP_WAITS;
    case KVT__HTTP_EXCHANGE:
        if (conn->hold_body) {
            conn->hold_body = false;
            conn->progress_ns = kvt__now_ns();
            return KVT__HTTP_GOES_ON;
        }
        what = kvt__http_is_sending(conn) ? "the server accepted no byte"
                                          : "no response arrived";
        break;
    default:
        break;
    }
    return kvt__fail(ETIMEDOUT, "%s: %s for %lld ms.", conn->origin->label, what,
                     (long long)(conn->thread->http->stall_ns / KVT__NS_PER_MS));
}

static void
on_timer(struct kvt__http_timer *timer)
{
    struct kvt__http_conn *conn = (struct kvt__http_conn *)timer;

    /* The socket may have bytes without an event: bytes below the low-water mark, or bytes that
     * arrived while this thread could not run. */
    conn->readable = true;
    kvt__http_conn_run(conn);
    if (conn->state == KVT__HTTP_CLOSED)
        return;
    if (kvt__now_ns() >= due_ns(conn)) {
        int outcome = on_due(conn);

        if (outcome < 0)
            fail(conn, outcome);
        else if (outcome == KVT__HTTP_GOES_ON)
            kvt__http_conn_run(conn);
    }
    if (conn->state != KVT__HTTP_CLOSED)
        rearm(conn);
}

/* ------------------------------------------------------------------ the loop */

void
kvt__http_conn_run(struct kvt__http_conn *conn)
{
    enum kvt__http_state was = conn->state;
    int lowat = conn->lowat, outcome;

    conn->turn_bytes = 0;
    do
        outcome = step(conn);
    while (outcome == KVT__HTTP_GOES_ON);
    if (outcome >= 0 && conn->state != KVT__HTTP_CLOSED)
        outcome = watch(conn);
    if (outcome < 0)
        fail(conn, outcome);
    else if (conn->state == KVT__HTTP_CLOSED)
        return;
    else if (conn->state != was || (lowat == 1) != (conn->lowat == 1) || !conn->timer.set ||
             conn->state == KVT__HTTP_CONNECT) /* the next deadline may be earlier now */
        rearm(conn);
}

void
kvt__http_conn_begin(struct kvt__http_thread *t, struct kvt__http_request *req, int slot,
                     bool fresh)
{
    struct kvt__http_conn *conn = kvt__http_conn_take(t, req->origin, fresh);
    int err;

    if (!conn) {
        err = kvt__fail(ENOMEM, "a connection to %s", req->origin->label);
        if (!req->own.conn[!slot])
            kvt__http_finish(req, err);
        return;
    }
    conn->timer.run = on_timer;
    conn->req = req;
    req->own.conn[slot] = conn;
    err = conn->is_reused ? begin_exchange(conn) : resolve(conn);
    if (err < 0)
        fail(conn, err);
    else
        kvt__http_conn_run(conn);
}
