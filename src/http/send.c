/* SPDX-License-Identifier: Apache-2.0
 *
 * Sending a request: the head from the connection's buffer, the body from the caller's memory,
 * both in one call if the socket has room. */
#include "http/private.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

int
kvt__http_send_begin(struct kvt__http_conn *conn)
{
    struct kvt__http_request *req = conn->req;
    int n = req->write_head(req, conn->out, sizeof conn->out);

    assert(n <= (int)sizeof conn->out);
    if (n >= 0 && req->origin->proxy && !req->origin->tls)
        n = kvt__http_proxy_head(req->origin, conn->out, (size_t)n, sizeof conn->out);
    if (n < 0)
        return n;
    conn->out_bytes = (size_t)n;
    conn->out_sent = conn->body_sent = 0;
    conn->hold_body = req->expect_continue && req->body_bytes;
    conn->send_failed = conn->is_lost = conn->eof = conn->readable = false;
    conn->can_keep = conn->has_received = false;
    conn->in_bytes = 0;
    conn->first_byte_ns = 0;
    memset(&conn->chunks, 0, sizeof conn->chunks);
    conn->sent_ns = conn->progress_ns = kvt__now_ns();
    atomic_fetch_add(&conn->thread->http->n_requests, 1);
    return 0;
}

bool
kvt__http_is_sending(const struct kvt__http_conn *conn)
{
    return conn->req && !conn->send_failed &&
           (conn->out_sent < conn->out_bytes || conn->body_sent < conn->req->body_bytes);
}

static ssize_t
send_some(struct kvt__http_conn *conn)
{
    const struct kvt__http_request *req = conn->req;
    struct iovec parts[2] = {
        { conn->out + conn->out_sent, conn->out_bytes - conn->out_sent },
        { (char *)(uintptr_t)req->body + conn->body_sent,
          req->body_bytes - conn->body_sent },
    };
    size_t first = parts[0].iov_len ? 0 : 1;
    size_t last = conn->hold_body || !parts[1].iov_len ? 0 : 1;
    struct msghdr message = { .msg_iov = &parts[first], .msg_iovlen = last + 1 - first };
    ssize_t n;

    if (conn->ssl)
        return kvt__http_tls_send(conn, message.msg_iov, message.msg_iovlen);
    do
        n = sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0 ? n : errno == EAGAIN ? 0 : -errno;
}

/* Send once, then let the caller look for a response, which may arrive before the body is sent.
 * A failed send does not fail the request: the server may have sent a response before it closed
 * the connection. */
void
kvt__http_send(struct kvt__http_conn *conn)
{
    size_t head = conn->out_bytes - conn->out_sent;
    ssize_t n;

    if (!kvt__http_is_sending(conn) || (conn->hold_body && !head))
        return;
    n = send_some(conn);
    if (n < 0) {
        conn->send_failed = conn->readable = true;
    } else if (n) {
        conn->progress_ns = kvt__now_ns();
        if ((size_t)n < head)
            head = (size_t)n;
        conn->out_sent += head;
        conn->body_sent += (size_t)n - head;
    }
}
