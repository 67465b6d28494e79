/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection's life: made or taken from those that are kept, connected, given to one
 * request after the other, closed.  Its thread only. */
#include "http/private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

void
kvt__http_set_state(struct kvt__http_conn *conn, enum kvt__http_state state)
{
    conn->thread->n_resolving += state == KVT__HTTP_RESOLVE;
    conn->thread->n_resolving -= conn->state == KVT__HTTP_RESOLVE;
    conn->state = state;
    conn->progress_ns = kvt__now_ns();
}

/* ------------------------------------------------------------------ closing */

/* Remove the socket from the epoll before the close: a forked process may hold a copy, and
 * the epoll would then report events of a freed connection. */
void
kvt__http_close_fd(struct kvt__http_thread *t, int fd)
{
    epoll_ctl(t->epoll, EPOLL_CTL_DEL, fd, NULL);
    close(fd);
}

void
kvt__http_close_socket(struct kvt__http_conn *conn)
{
    kvt__http_tls_end(conn);
    kvt__http_race_end(conn);
    if (conn->fd >= 0)
        kvt__http_close_fd(conn->thread, conn->fd);
    conn->fd = -1;
    conn->events = 0;
}

/* Heads have signatures, answers may have keys. */
static void
wipe(struct kvt__http_conn *conn)
{
    explicit_bzero(conn->out, conn->out_bytes);
    explicit_bzero(conn->in, conn->in_used);
    conn->out_bytes = conn->out_sent = conn->in_bytes = conn->in_used = 0;
}

/* The request, if there is one, has to be told by the caller. */
void
kvt__http_conn_close(struct kvt__http_conn *conn)
{
    struct kvt__http_thread *t = conn->thread;
    struct kvt__http_request *req = conn->req;

    if (conn->state == KVT__HTTP_CLOSED)
        return;
    if (req)
        req->own.conn[conn == req->own.conn[1]] = NULL;
    conn->req = NULL;
    t->n_resolving -= conn->state == KVT__HTTP_RESOLVE;
    kvt__http_unlink_conn(conn->state == KVT__HTTP_IDLE ? &t->idle : &t->busy, conn);
    kvt__http_link_conn(&t->dead, conn);
    t->n_conns--;
    kvt__http_time_clear(&t->times, &conn->time);
    kvt__http_close_socket(conn);
    wipe(conn);
    conn->state = KVT__HTTP_CLOSED;
    atomic_fetch_sub(&t->http->n_open, 1);
}

/* -------------------------------------------------------------------- times */

int64_t
kvt__http_due_ns(const struct kvt__http_conn *conn)
{
    switch (conn->state) {
    case KVT__HTTP_CONNECT:
        return kvt__http_race_due_ns(conn);
    case KVT__HTTP_DRAIN:
        return conn->progress_ns + KVT__HTTP_DRAIN_NS;
    case KVT__HTTP_IDLE:
        return conn->progress_ns + KVT__HTTP_IDLE_NS;
    case KVT__HTTP_ANSWER:
        if (conn->hold_body)
            return conn->progress_ns + KVT__HTTP_CONTINUE_NS;
        return conn->progress_ns + conn->thread->http->stall_ns;
    default:
        return conn->progress_ns + conn->thread->http->stall_ns;
    }
}

static int
timed_out(struct kvt__http_conn *conn)
{
    const char *what = "not a byte came";

    switch (conn->state) {
    case KVT__HTTP_CONNECT:
        return 1; /* the race goes on, or fails */
    case KVT__HTTP_RESOLVE:
        what = "its name was not resolved";
        break;
    case KVT__HTTP_DRAIN:
    case KVT__HTTP_IDLE:
        kvt__http_conn_close(conn);
        return 0;
    case KVT__HTTP_ANSWER:
        if (conn->hold_body) {
            conn->hold_body = false;
            conn->progress_ns = kvt__now_ns();
            return 1;
        }
        what = kvt__http_sending(conn) ? "it took not a byte" : "there was no answer";
        break;
    default:
        break;
    }
    return kvt__fail(ETIMEDOUT, "%s: %s for %lld ms.", conn->origin->label, what,
                     (long long)(conn->thread->http->stall_ns / KVT__NS_PER_MS));
}

static void
on_time(struct kvt__http_time *time)
{
    struct kvt__http_conn *conn = (struct kvt__http_conn *)time;

    /* Bytes may lie there that nobody told of: below the low-water mark, or because this
     * thread could not run for a while. */
    conn->readable = true;
    kvt__http_conn_run(conn);
    if (conn->state == KVT__HTTP_CLOSED)
        return;
    if (kvt__now_ns() >= kvt__http_due_ns(conn)) {
        int err = timed_out(conn);

        if (err < 0)
            kvt__http_conn_failed(conn, err);
        else if (err > 0)
            kvt__http_conn_run(conn);
    }
    if (conn->state != KVT__HTTP_CLOSED)
        kvt__http_conn_rearm(conn);
}

/* How long bytes below the low-water mark may wait. */
#define LOOK_NS (100 * KVT__NS_PER_MS)

/* Bytes only move progress_ns; the time is set anew when it runs or the state changes. */
void
kvt__http_conn_rearm(struct kvt__http_conn *conn)
{
    int64_t at = kvt__http_due_ns(conn), look = kvt__now_ns() + LOOK_NS;

    if (conn->lowat > 1 && look < at)
        at = look;
    kvt__http_time_set(&conn->thread->times, &conn->time, at);
}

/* --------------------------------------------------------------------- steps */

static int
step(struct kvt__http_conn *conn)
{
    switch (conn->state) {
    case KVT__HTTP_RESOLVE:
        return kvt__http_connect(conn);
    case KVT__HTTP_CONNECT:
        return kvt__http_connected(conn);
    case KVT__HTTP_TUNNEL:
        return kvt__http_tunnel(conn);
    case KVT__HTTP_HANDSHAKE:
        return kvt__http_handshake(conn);
    case KVT__HTTP_ANSWER:
        return kvt__http_exchange(conn);
    case KVT__HTTP_BODY:
        return kvt__http_receive_body(conn);
    case KVT__HTTP_DRAIN:
        return kvt__http_drain(conn);
    case KVT__HTTP_IDLE:
        if (!kvt__http_conn_quiet(conn))
            kvt__http_conn_close(conn);
        return 0;
    default:
        return 0;
    }
}

static bool
wants_to_write(const struct kvt__http_conn *conn)
{
    switch (conn->state) {
    case KVT__HTTP_TUNNEL:
        return conn->out_sent < conn->out_bytes;
    case KVT__HTTP_ANSWER:
        return conn->want_write ||
               (kvt__http_sending(conn) &&
                !(conn->hold_body && conn->out_sent == conn->out_bytes));
    default:
        return conn->want_write;
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

void
kvt__http_conn_run(struct kvt__http_conn *conn)
{
    enum kvt__http_state was = conn->state;
    int lowat = conn->lowat, err;

    conn->turn_bytes = 0;
    do
        err = step(conn);
    while (err > 0);
    if (!err && conn->state != KVT__HTTP_CLOSED)
        err = watch(conn);
    if (err < 0)
        kvt__http_conn_failed(conn, err);
    else if (conn->state == KVT__HTTP_CLOSED)
        return;
    else if (conn->state != was || (lowat == 1) != (conn->lowat == 1) || !conn->time.set ||
             conn->state == KVT__HTTP_CONNECT) /* the next deadline may be earlier now */
        kvt__http_conn_rearm(conn);
}

/* ----------------------------------------------------------- made and taken */

/* Nothing came that nobody asked for, and it was not closed. */
bool
kvt__http_conn_quiet(struct kvt__http_conn *conn)
{
    char byte;

    if (conn->ssl)
        return kvt__http_tls_quiet(conn);
    return recv(conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

/* A kept connection of the origin, the one used last first: the others may age. */
static struct kvt__http_conn *
take_idle(struct kvt__http_thread *t, const struct kvt__http_origin *origin)
{
    for (struct kvt__http_conn *c = t->idle.first, *next; c; c = next) {
        next = c->next;
        if (c->origin != origin)
            continue;
        if (!kvt__http_conn_quiet(c)) {
            kvt__http_conn_close(c);
            continue;
        }
        kvt__http_unlink_conn(&t->idle, c);
        kvt__http_link_conn(&t->busy, c);
        kvt__http_time_clear(&t->times, &c->time);
        if (c->ssl)
            kvt__http_tls_rest(c, false);
        c->reused = true;
        return c;
    }
    return NULL;
}

/* A place among those that may be open: that of the one unused for longest, then one that
 * is drained.  A hedge may find none. */
static void
make_place(struct kvt__http_thread *t)
{
    while (t->n_conns >= t->max) {
        struct kvt__http_conn *victim = t->idle.last;

        for (struct kvt__http_conn *c = t->busy.first; c && !victim; c = c->next)
            if (c->state == KVT__HTTP_DRAIN)
                victim = c;
        if (!victim)
            return;
        kvt__http_conn_close(victim);
    }
}

static struct kvt__http_conn *
new_conn(struct kvt__http_thread *t, struct kvt__http_origin *origin)
{
    struct kvt__http_conn *conn;

    make_place(t);
    conn = malloc(sizeof *conn);
    if (!conn)
        return NULL;
    memset(conn, 0, offsetof(struct kvt__http_conn, out));
    conn->thread = t;
    conn->origin = origin;
    conn->fd = -1;
    conn->state = KVT__HTTP_CONNECT;
    conn->time.run = on_time;
    conn->progress_ns = kvt__now_ns();
    kvt__http_link_conn(&t->busy, conn);
    t->n_conns++;
    atomic_fetch_add(&t->http->n_open, 1);
    atomic_fetch_add(&t->http->n_connections, 1);
    return conn;
}

void
kvt__http_conn_begin(struct kvt__http_thread *t, struct kvt__http_request *req, int slot,
                     bool fresh)
{
    struct kvt__http_conn *conn = fresh ? NULL : take_idle(t, req->origin);
    int err;

    if (!conn)
        conn = new_conn(t, req->origin);
    if (!conn) {
        err = kvt__fail(ENOMEM, "a connection to %s", req->origin->label);
        if (!req->own.conn[!slot])
            kvt__http_finish(req, err);
        return;
    }
    conn->req = req;
    req->own.conn[slot] = conn;
    err = conn->reused ? kvt__http_send_begin(conn) : kvt__http_connect(conn);
    if (err < 0)
        kvt__http_conn_failed(conn, err);
    else
        kvt__http_conn_run(conn);
}

void
kvt__http_conn_release(struct kvt__http_conn *conn)
{
    struct kvt__http_request *req = conn->req;
    struct kvt__http_thread *t = conn->thread;

    kvt__http_set_lowat(conn, 0);
    if (conn->ssl)
        kvt__http_tls_rest(conn, true);
    if (!conn->keep || t->n_conns > t->max ||
        (conn->ssl && !kvt__http_conn_quiet(conn))) { /* gives its buffers back */
        kvt__http_conn_close(conn);
        return;
    }
    if (req)
        req->own.conn[conn == req->own.conn[1]] = NULL;
    conn->req = NULL;
    wipe(conn);
    kvt__http_unlink_conn(&t->busy, conn);
    kvt__http_link_conn(&t->idle, conn);
    kvt__http_set_state(conn, KVT__HTTP_IDLE);
}
