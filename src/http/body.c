/* SPDX-License-Identifier: Apache-2.0
 *
 * The body of a response.  A body of known length is received directly into the caller's
 * memory. */
#include "http/private.h"

#include <errno.h>
#include <string.h>

/* Bytes of one read: the bytes stay in the core's level-2 cache until on_body() has used
 * them. */
#define PIECE ((size_t)512 << 10)

/* -------------------------------------------------------------------- the end */

static int
fail_truncated(struct kvt__http_conn *conn, int err)
{
    if (!conn->eof)
        return err;
    if (conn->chunked || conn->body_left < 0)
        return kvt__fail(ECONNRESET, "%s closed the connection in the middle of the body.",
                         conn->origin->label);
    return kvt__fail(ECONNRESET, "%s closed the connection; %lld bytes of the body are "
                     "missing.", conn->origin->label, (long long)conn->body_left);
}

static int
fail_too_long(struct kvt__http_conn *conn)
{
    return kvt__fail(EMSGSIZE, "%s sent a body of more than the expected %zu bytes.",
                     conn->origin->label, conn->req->room);
}

/* ------------------------------------------------------- three forms of a body */

static void
add_received(struct kvt__http_conn *conn, size_t n)
{
    struct kvt__http_request *req = conn->req;
    size_t at = req->received_bytes;

    req->received_bytes += n;
    if (req->on_body && n)
        req->on_body(req, at, n);
}

static int
receive_length(struct kvt__http_conn *conn)
{
    struct kvt__http_request *req = conn->req;

    while (conn->body_left) {
        size_t want = conn->body_left < (int64_t)PIECE ? (size_t)conn->body_left : PIECE;
        ssize_t n = kvt__http_recv(conn, req->into + req->received_bytes, want);

        if (n < 0)
            return fail_truncated(conn, (int)n);
        conn->body_left -= n;
        if (n)
            add_received(conn, (size_t)n);
        if ((size_t)n < want) {
            kvt__http_set_lowat(conn, conn->body_left);
            return KVT__HTTP_WAITS;
        }
        if (conn->body_left && kvt__http_is_turn_over(conn))
            return KVT__HTTP_WAITS;
    }
    return KVT__HTTP_DONE;
}

/* Parse the buffer's bytes and copy the body data to the caller's memory. */
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
            return kvt__fail(EPROTO, "%s: the chunked body is malformed.",
                             conn->origin->label);
        at += (size_t)used;
        n -= (size_t)used;
        if (n > c->data)
            n = (size_t)c->data;
        if (c->done || !n)
            continue;
        if (n > req->room - req->received_bytes)
            return fail_too_long(conn);
        memcpy(req->into + req->received_bytes, conn->in + at, n);
        at += n;
        c->data -= n;
        add_received(conn, n);
    }
    if (at < conn->in_bytes)
        conn->can_keep = false; /* bytes behind the response */
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
            return KVT__HTTP_DONE;
        if (kvt__http_is_turn_over(conn))
            return KVT__HTTP_WAITS;
        ssize_t n = kvt__http_recv_in(conn, SIZE_MAX);
        if (n <= 0)
            return n < 0 ? fail_truncated(conn, (int)n) : KVT__HTTP_WAITS;
    }
}

/* The body ends with the stream.  Only an orderly end of the stream completes the body. */
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
            return conn->eof ? KVT__HTTP_DONE : (int)n;
        if (!n)
            return KVT__HTTP_WAITS;
        if (!room)
            return fail_too_long(conn);
        add_received(conn, (size_t)n);
        if (kvt__http_is_turn_over(conn))
            return KVT__HTTP_WAITS;
    }
}

int
kvt__http_receive_body(struct kvt__http_conn *conn)
{
    if (conn->chunked)
        return receive_chunks(conn);
    return conn->body_left < 0 ? receive_rest(conn) : receive_length(conn);
}

int
kvt__http_begin_body(struct kvt__http_conn *conn)
{
    struct kvt__http_request *req = conn->req;
    size_t n = conn->in_bytes;

    if (conn->body_left > 0 && (uint64_t)conn->body_left > req->room)
        return fail_too_long(conn);
    if (conn->chunked)
        return 0;
    if (conn->body_left >= 0 && n > (uint64_t)conn->body_left) {
        n = (size_t)conn->body_left;
        conn->can_keep = false;
    }
    if (n > req->room)
        return fail_too_long(conn);
    if (n)
        memcpy(req->into, conn->in, n);
    if (conn->body_left >= 0)
        conn->body_left -= (int64_t)n;
    add_received(conn, n);
    return 0;
}

/* Read the rest of an unwanted body, so that the connection can be kept. */
int
kvt__http_drain(struct kvt__http_conn *conn)
{
    conn->in_used = sizeof conn->in;
    while (conn->body_left) {
        ssize_t n = kvt__http_recv(conn, conn->in, (size_t)conn->body_left);

        if (n <= 0)
            return n < 0 ? (int)n : KVT__HTTP_WAITS;
        conn->body_left -= n;
    }
    return KVT__HTTP_DONE;
}

bool
kvt__http_can_drain(struct kvt__http_conn *conn)
{
    int64_t left = conn->body_left - (int64_t)conn->in_bytes;

    if (conn->chunked || conn->body_left < 0 || left < 0 || left > KVT__HTTP_DRAIN_BYTES)
        conn->can_keep = false;
    conn->body_left = left;
    return conn->can_keep && left;
}
