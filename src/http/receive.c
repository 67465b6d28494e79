/* SPDX-License-Identifier: Apache-2.0
 *
 * Receiving bytes of a response, and the limit of bytes for each turn of a connection. */
#include "http/private.h"

#include <errno.h>
#include <string.h>

/* Bytes of one turn: then the thread's other connections have their turns. */
#define TURN ((size_t)4 << 20)
/* SO_RCVLOWAT while more bytes are expected: the thread wakes less often. */
#define LOWAT ((int64_t)1 << 20)

ssize_t
kvt__http_recv(struct kvt__http_conn *conn, void *to, size_t n)
{
    ssize_t got;

    do
        got = conn->ssl ? kvt__http_tls_recv(conn, to, n)
                        : recv(conn->fd, to, n, MSG_DONTWAIT);
    while (!conn->ssl && got < 0 && errno == EINTR);
    if (got > 0) {
        conn->progress_ns = kvt__now_ns();
        conn->turn_bytes += (size_t)got;
    }
    if (got > 0 || conn->ssl)
        return got;
    if (got < 0 && errno == EAGAIN)
        return 0;
    conn->is_lost = true;
    conn->eof = !got;
    if (got < 0)
        return kvt__fail(errno, "receive from %s", conn->origin->label);
    return kvt__fail(ECONNRESET, "%s closed the connection before it answered.",
                     conn->origin->label);
}

ssize_t
kvt__http_recv_in(struct kvt__http_conn *conn, size_t n)
{
    size_t room = sizeof conn->in - conn->in_bytes;
    ssize_t got = kvt__http_recv(conn, conn->in + conn->in_bytes, n < room ? n : room);

    if (got > 0)
        conn->in_bytes += (size_t)got;
    if (conn->in_used < conn->in_bytes)
        conn->in_used = conn->in_bytes;
    return got;
}

/* Moved bytes count for the turn: a server may send any number of short interim responses. */
void
kvt__http_drop_head(struct kvt__http_conn *conn, size_t n)
{
    conn->in_bytes -= n;
    memmove(conn->in, conn->in + n, conn->in_bytes);
    conn->turn_bytes += conn->in_bytes;
}

bool
kvt__http_is_turn_over(struct kvt__http_conn *conn)
{
    if (conn->turn_bytes < TURN)
        return false;
    conn->has_unread = conn->thread->has_unread = true;
    return true;
}

/* Near the end of a body the mark must be 1: a mark above the number of remaining bytes would
 * never be reached.  The margin of two records covers bytes that TLS has read already. */
void
kvt__http_set_lowat(struct kvt__http_conn *conn, int64_t left)
{
    int lowat = left > LOWAT + 2 * 16384 ? (int)LOWAT : 1;

    if (lowat == conn->lowat)
        return;
    setsockopt(conn->fd, SOL_SOCKET, SO_RCVLOWAT, &lowat, sizeof lowat);
    conn->lowat = lowat;
}
