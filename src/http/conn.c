/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a connection: created, used by one request after the other, idle in between,
 * closed.  All functions run on the connection's thread. */
#include "http/private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* ------------------------------------------------------------------ closing */

static void
close_socket(struct kvt__http_conn *conn)
{
    kvt__http_tls_end(conn);
    kvt__http_race_end(conn);
    if (conn->fd >= 0)
        kvt__http_close_fd(conn->thread, conn->fd);
    conn->fd = -1;
    conn->events = 0;
}

/* Overwrite the buffers: a request's head contains a signature, a response may contain keys. */
static void
wipe(struct kvt__http_conn *conn)
{
    explicit_bzero(conn->out, conn->out_bytes);
    explicit_bzero(conn->in, conn->in_used);
    conn->out_bytes = conn->out_sent = conn->in_bytes = conn->in_used = 0;
}

void
kvt__http_conn_detach(struct kvt__http_conn *conn)
{
    struct kvt__http_request *req = conn->req;

    if (req)
        req->own.conn[conn == req->own.conn[1]] = NULL;
    conn->req = NULL;
}

void
kvt__http_conn_close(struct kvt__http_conn *conn)
{
    struct kvt__http_thread *t = conn->thread;

    if (conn->state == KVT__HTTP_CLOSED)
        return;
    kvt__http_conn_detach(conn);
    t->n_resolving -= conn->state == KVT__HTTP_RESOLVE;
    kvt__http_unlink_conn(conn->state == KVT__HTTP_IDLE ? &t->idle : &t->busy, conn);
    kvt__http_link_conn(&t->dead, conn);
    t->n_conns--;
    kvt__http_timer_clear(&t->timers, &conn->timer);
    close_socket(conn);
    wipe(conn);
    conn->state = KVT__HTTP_CLOSED;
    atomic_fetch_sub(&t->http->n_open, 1);
}

/* ------------------------------------------------------- created and reused */

bool
kvt__http_conn_is_quiet(struct kvt__http_conn *conn)
{
    char byte;

    if (conn->ssl)
        return kvt__http_tls_is_quiet(conn);
    return recv(conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

/* Return an idle connection of the origin, or NULL.  Use the most recently used connection
 * first, so that surplus connections reach their idle limit. */
static struct kvt__http_conn *
take_idle(struct kvt__http_thread *t, const struct kvt__http_origin *origin)
{
    for (struct kvt__http_conn *c = t->idle.first, *next; c; c = next) {
        next = c->next;
        if (c->origin != origin)
            continue;
        if (!kvt__http_conn_is_quiet(c)) {
            kvt__http_conn_close(c);
            continue;
        }
        kvt__http_unlink_conn(&t->idle, c);
        kvt__http_link_conn(&t->busy, c);
        kvt__http_timer_clear(&t->timers, &c->timer);
        if (c->ssl)
            kvt__http_tls_release_buffers(c, false);
        c->is_reused = true;
        return c;
    }
    return NULL;
}

/* Close connections until the thread may open another connection: first the idle connections,
 * from the longest idle one on, then connections in DRAIN.  If all connections serve requests, a
 * hedge exceeds the limit. */
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
    conn->progress_ns = kvt__now_ns();
    kvt__http_link_conn(&t->busy, conn);
    t->n_conns++;
    atomic_fetch_add(&t->http->n_open, 1);
    atomic_fetch_add(&t->http->n_connections, 1);
    return conn;
}

struct kvt__http_conn *
kvt__http_conn_take(struct kvt__http_thread *t, struct kvt__http_origin *origin, bool fresh)
{
    struct kvt__http_conn *conn = fresh ? NULL : take_idle(t, origin);

    return conn ? conn : new_conn(t, origin);
}

void
kvt__http_conn_release(struct kvt__http_conn *conn)
{
    struct kvt__http_thread *t = conn->thread;

    kvt__http_set_lowat(conn, 0);
    if (conn->ssl)
        kvt__http_tls_release_buffers(conn, true);
    if (!conn->can_keep || t->n_conns > t->max ||
        (conn->ssl && !kvt__http_conn_is_quiet(conn))) { /* this read also frees TLS buffers */
        kvt__http_conn_close(conn);
        return;
    }
    kvt__http_conn_detach(conn);
    wipe(conn);
    kvt__http_unlink_conn(&t->busy, conn);
    kvt__http_link_conn(&t->idle, conn);
    kvt__http_set_state(conn, KVT__HTTP_IDLE);
}
