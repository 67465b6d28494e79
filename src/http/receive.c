/* SPDX-License-Identifier: Apache-2.0
 *
 * Receiving an answer: its head in the connection's buffer, a body of known length
 * straight in the caller's memory. */
#include "http/private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* So little of the body comes with the head, and is copied. */
#define FIRST_READ 1024
/* Read and hand on so much at a time: it stays in the core's second cache until the
 * caller has looked at it. */
#define PIECE ((size_t)512 << 10)
/* One connection's turn, before the others have theirs. */
#define TURN ((size_t)4 << 20)
/* Wake up for so many bytes while more are to come. */
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
    conn->lost = true;
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

/* Whether it has to wait until the others had their turn. */
static bool
turn_is_over(struct kvt__http_conn *conn)
{
    if (conn->turn_bytes < TURN)
        return false;
    conn->again = conn->thread->again = true;
    return true;
}

/* left: bytes that are to come; the tail must not wait for more than it has.  TLS may have
 * read a part of a record. */
void
kvt__http_set_lowat(struct kvt__http_conn *conn, int64_t left)
{
    int lowat = left > LOWAT + 2 * 16384 ? (int)LOWAT : 1;

    if (lowat == conn->lowat)
        return;
    setsockopt(conn->fd, SOL_SOCKET, SO_RCVLOWAT, &lowat, sizeof lowat);
    conn->lowat = lowat;
}

/* -------------------------------------------------------------------- the end */

static int
truncated(struct kvt__http_conn *conn, int err)
{
    if (!conn->eof)
        return err;
    if (conn->chunked || conn->left < 0)
        return kvt__fail(ECONNRESET, "%s closed the connection in the middle of the body.",
                         conn->origin->label);
    return kvt__fail(ECONNRESET, "%s closed the connection, %lld bytes of the body did "
                     "not come.", conn->origin->label, (long long)conn->left);
}

static int
too_long(struct kvt__http_conn *conn)
{
    return kvt__fail(EMSGSIZE, "%s answers with more than the %zu bytes that were "
                     "expected.", conn->origin->label, conn->req->room);
}

static int
no_http(struct kvt__http_conn *conn, const char *wrong)
{
    return kvt__fail(EPROTO, "%s: %s.", conn->origin->label, wrong);
}

static int
complete(struct kvt__http_conn *conn)
{
    struct kvt__http_request *req = conn->req;

    kvt__http_conn_release(conn);
    kvt__http_finish(req, 0);
    return 0;
}

/* ------------------------------------------------------------------- the body */

static void
took(struct kvt__http_conn *conn, size_t n)
{
    struct kvt__http_request *req = conn->req;
    size_t at = req->received_bytes;

    req->received_bytes += n;
    if (req->received && n)
        req->received(req, at, n);
}

static int
receive_length(struct kvt__http_conn *conn)
{
    struct kvt__http_request *req = conn->req;

    while (conn->left) {
        size_t want = conn->left < (int64_t)PIECE ? (size_t)conn->left : PIECE;
        ssize_t n = kvt__http_recv(conn, req->into + req->received_bytes, want);

        if (n < 0)
            return truncated(conn, (int)n);
        conn->left -= n;
        if (n)
            took(conn, (size_t)n);
        if ((size_t)n < want) {
            kvt__http_set_lowat(conn, conn->left);
            return 0;
        }
        if (conn->left && turn_is_over(conn))
            return 0;
    }
    return complete(conn);
}

/* What lies in the buffer from *at. */
static int
take_chunks(struct kvt__http_conn *conn)
{
    struct kvt__http_request *req = conn->req;
    struct kvt__http_chunks *c = &conn->chunks;
    size_t at = 0;

    while (at < conn->in_bytes && !c->done) {
        size_t n = conn->in_bytes - at;
        ssize_t used = kvt__http_chunks_read(c, conn->in + at, n);

        if (used < 0)
            return no_http(conn, "a chunked body that is malformed");
        at += (size_t)used;
        n -= (size_t)used;
        if (n > c->data)
            n = (size_t)c->data;
        if (c->done || !n)
            continue;
        if (n > req->room - req->received_bytes)
            return too_long(conn);
        memcpy(req->into + req->received_bytes, conn->in + at, n);
        at += n;
        c->data -= n;
        took(conn, n);
    }
    if (at < conn->in_bytes)
        conn->keep = false; /* bytes that nobody asked for */
    conn->in_bytes = 0;
    return 0;
}

static int
receive_chunks(struct kvt__http_conn *conn)
{
    for (;;) {
        int err = take_chunks(conn);

        if (err)
            return err;
        if (conn->chunks.done)
            return complete(conn);
        if (turn_is_over(conn))
            return 0;
        ssize_t n = kvt__http_recv_in(conn, SIZE_MAX);
        if (n <= 0)
            return n < 0 ? truncated(conn, (int)n) : 0;
    }
}

/* The end is where the stream ends, and must be an orderly one. */
static int
receive_rest(struct kvt__http_conn *conn)
{
    struct kvt__http_request *req = conn->req;

    for (;;) {
        size_t room = req->room - req->received_bytes;
        ssize_t n = room ? kvt__http_recv(conn, req->into + req->received_bytes,
                                          room < PIECE ? room : PIECE)
                         : kvt__http_recv(conn, conn->in, 1);

        if (n < 0)
            return conn->eof ? complete(conn) : (int)n;
        if (!n)
            return 0;
        if (!room)
            return too_long(conn);
        took(conn, (size_t)n);
        if (turn_is_over(conn))
            return 0;
    }
}

int
kvt__http_receive_body(struct kvt__http_conn *conn)
{
    if (conn->chunked)
        return receive_chunks(conn);
    return conn->left < 0 ? receive_rest(conn) : receive_length(conn);
}

/* What came with the head, from there on. */
static int
begin_body(struct kvt__http_conn *conn)
{
    struct kvt__http_request *req = conn->req;
    size_t n = conn->in_bytes;

    conn->state = KVT__HTTP_BODY;
    if (conn->chunked)
        return 1;
    if (conn->left >= 0 && n > (uint64_t)conn->left) {
        n = (size_t)conn->left;
        conn->keep = false;
    }
    if (n > req->room)
        return too_long(conn);
    if (n)
        memcpy(req->into, conn->in, n);
    if (conn->left >= 0)
        conn->left -= (int64_t)n;
    took(conn, n);
    return 1;
}

/* Nobody wants it: a small rest is read, so that the connection can be kept. */
int
kvt__http_drain(struct kvt__http_conn *conn)
{
    conn->in_used = sizeof conn->in;
    while (conn->left) {
        ssize_t n = kvt__http_recv(conn, conn->in, (size_t)conn->left);

        if (n <= 0)
            return (int)n;
        conn->left -= n;
    }
    kvt__http_conn_release(conn);
    return 0;
}

static int
refuse_body(struct kvt__http_conn *conn, int err)
{
    struct kvt__http_request *req = conn->req;
    int64_t left = conn->left - (int64_t)conn->in_bytes;

    if (conn->chunked || conn->left < 0 || left < 0 || left > KVT__HTTP_DRAIN_BYTES)
        conn->keep = false;
    conn->left = left;
    if (!conn->keep || !left) {
        kvt__http_conn_release(conn);
    } else {
        req->own.conn[conn == req->own.conn[1]] = NULL;
        conn->req = NULL;
        conn->state = KVT__HTTP_DRAIN;
    }
    kvt__http_finish(req, err);
    return conn->state == KVT__HTTP_DRAIN;
}

/* ------------------------------------------------------------------- the head */

/* The head's end is at bytes of the buffer; what is behind it is the body's beginning. */
static void
drop_head(struct kvt__http_conn *conn, size_t bytes)
{
    conn->in_bytes -= bytes;
    memmove(conn->in, conn->in + bytes, conn->in_bytes);
}

static int
begin_answer(struct kvt__http_conn *conn, struct kvt__http_answer *a, size_t head_bytes)
{
    struct kvt__http_request *req = conn->req;
    int status = a->head.status;
    bool no_body = req->is_head || status == 204 || status == 304;

    kvt__http_chosen(conn);
    req->early = kvt__http_sending(conn) || conn->send_failed;
    conn->keep = a->keep && !req->early;
    conn->chunked = a->chunked && !no_body;
    conn->left = no_body ? 0 : a->head.content_length;
    if (!conn->chunked && conn->left < 0)
        conn->keep = false;
    conn->hold_body = false;
    conn->send_failed = true; /* nothing more goes out */
    req->http_status = status;
    req->sent_ns = conn->sent_ns;
    req->first_byte_ns = conn->first_byte_ns;
    int err = req->answer(req, &a->head);
    drop_head(conn, head_bytes);
    if (err)
        return refuse_body(conn, err);
    if (conn->left > 0 && (uint64_t)conn->left > req->room)
        return too_long(conn);
    return begin_body(conn);
}

/* 1xx: there may be any number.  100 lets the body go. */
static int
interim(struct kvt__http_conn *conn, int status, size_t bytes)
{
    if (status == 101)
        return no_http(conn, "it wants another protocol");
    conn->hold_body = conn->hold_body && status != 100;
    drop_head(conn, bytes);
    conn->turn_bytes += conn->in_bytes; /* were moved */
    conn->first_byte_ns = conn->progress_ns;
    return 1;
}

static int
read_head(struct kvt__http_conn *conn)
{
    struct kvt__http_answer answer;
    const char *wrong;
    ssize_t n = kvt__http_parse_head(conn->in, conn->in_bytes, &answer, &wrong);

    if (n < 0)
        return no_http(conn, wrong);
    if (!n) {
        if (conn->in_bytes == sizeof conn->in)
            return no_http(conn, "the head of its answer is too long");
        return 0;
    }
    if (answer.head.status < 200)
        return interim(conn, answer.head.status, (size_t)n);
    return begin_answer(conn, &answer, (size_t)n);
}

static int
receive_head(struct kvt__http_conn *conn)
{
    bool first = !conn->in_bytes;
    ssize_t n = kvt__http_recv_in(conn, first ? FIRST_READ : SIZE_MAX);

    if (n < 0 && !first)
        return conn->eof ? kvt__fail(ECONNRESET, "%s closed the connection in the middle "
                                     "of its answer's head.", conn->origin->label)
                         : (int)n;
    if (n <= 0)
        return (int)n;
    if (first)
        conn->first_byte_ns = conn->progress_ns;
    conn->any = true;
    return 1;
}

int
kvt__http_exchange(struct kvt__http_conn *conn)
{
    int err;

    if (turn_is_over(conn))
        return 0;
    if (conn->in_bytes && (err = read_head(conn)))
        return err;
    kvt__http_send(conn);
    if (!conn->readable)
        return 0;
    err = receive_head(conn);
    conn->readable = err > 0;
    return err;
}
