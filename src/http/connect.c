/* SPDX-License-Identifier: Apache-2.0
 *
 * From an origin to a connection that can carry a request: an address, a socket, a tunnel,
 * TLS. */
#include "http/private.h"

#include <errno.h>
#include <netinet/tcp.h>

static int
open_socket(struct kvt__http_conn *conn)
{
    const struct kvt__http_address *a = &conn->address;
    bool in4 = a->to.sa.sa_family == AF_INET;
    int on = 1;

    conn->fd = socket(a->to.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (conn->fd < 0)
        return -errno;
    setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    conn->lowat = 1;
    if (!connect(conn->fd, &a->to.sa, in4 ? sizeof a->to.in4 : sizeof a->to.in6))
        return 0;
    return errno == EINPROGRESS || errno == EINTR ? 0 : -errno;
}

/* Open sockets until one is on its way. */
int
kvt__http_connect(struct kvt__http_conn *conn)
{
    for (;;) {
        int err = kvt__http_pick(conn);

        if (err <= 0) {
            if (!err && conn->state != KVT__HTTP_RESOLVE)
                kvt__http_set_state(conn, KVT__HTTP_RESOLVE);
            return err;
        }
        err = open_socket(conn);
        if (!err) {
            kvt__http_set_state(conn, KVT__HTTP_CONNECT);
            return 0;
        }
        kvt__http_close_socket(conn);
        if (kvt__http_bad_address(conn) <= ++conn->n_tried)
            return kvt__fail(-err, "connect to %s", conn->origin->connect_label);
    }
}

/* The socket tells how it went, or the time is over. */
int
kvt__http_connected(struct kvt__http_conn *conn)
{
    bool late = kvt__now_ns() >= kvt__http_due_ns(conn);
    int err = 0;
    socklen_t size = sizeof err;
    struct kvt__http_address peer;
    socklen_t peer_size = sizeof peer.to;

    if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &err, &size) < 0)
        err = errno;
    if (!err && !getpeername(conn->fd, &peer.to.sa, &peer_size)) {
        if (!conn->origin->tls)
            return kvt__http_opened(conn);
        if (!conn->origin->proxy)
            return kvt__http_tls_start(conn);
        kvt__http_set_state(conn, KVT__HTTP_TUNNEL);
        return kvt__http_tunnel_begin(conn);
    }
    if (!err && !late)
        return 0;
    kvt__http_close_socket(conn);
    if (kvt__http_bad_address(conn) <= ++conn->n_tried)
        return kvt__fail(err ? err : ETIMEDOUT, "connect to %s",
                         conn->origin->connect_label);
    return kvt__http_connect(conn);
}

int
kvt__http_tls_start(struct kvt__http_conn *conn)
{
    kvt__http_set_state(conn, KVT__HTTP_HANDSHAKE);
    return kvt__http_tls_begin(conn);
}

int
kvt__http_opened(struct kvt__http_conn *conn)
{
    int err;

    kvt__http_set_state(conn, KVT__HTTP_ANSWER);
    err = kvt__http_send_begin(conn);
    return err < 0 ? err : 1;
}
