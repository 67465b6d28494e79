/* SPDX-License-Identifier: Apache-2.0
 *
 * The head of a response, read into the connection's buffer.  While the head is awaited, interim
 * responses are handled and the request is sent. */
#include "http/private.h"

#include <errno.h>

/* Bytes of the first read.  Body bytes in this read must be copied, so the read is short. */
#define FIRST_READ 1024

static int
fail_protocol(struct kvt__http_conn *conn, const char *wrong)
{
    return kvt__fail(EPROTO, "%s: %s.", conn->origin->label, wrong);
}

int
kvt__http_take_head(struct kvt__http_conn *conn, struct kvt__http_response *a)
{
    struct kvt__http_request *req = conn->req;
    int status = a->head.status;
    bool no_body = req->is_head || status == 204 || status == 304;
    /* A 204 must not announce a body (RFC 9110, 8.6).  If a body follows nevertheless, its bytes
     * would be parsed as the next response. */
    bool body_may_follow = status == 204 && (a->chunked || a->head.content_length > 0);

    if (no_body && !req->is_head)
        a->head.content_length = 0; /* RFC 9110, 6.4.1: such a response has no content */
    req->early = kvt__http_is_sending(conn) || conn->send_failed;
    conn->can_keep = a->keep_alive && !req->early && !body_may_follow;
    conn->chunked = a->chunked && !no_body;
    conn->body_left = no_body ? 0 : a->head.content_length;
    if (!conn->chunked && conn->body_left < 0)
        conn->can_keep = false;
    conn->hold_body = false;
    conn->send_failed = true; /* send no more bytes of the request */
    req->http_status = status;
    req->sent_ns = conn->sent_ns;
    req->first_byte_ns = conn->first_byte_ns;
    int err = req->on_head(req, &a->head);
    kvt__http_drop_head(conn, a->bytes);
    return err;
}

/* Handle a response 1xx; any number of them may arrive.  A response 100 releases the body. */
static int
interim(struct kvt__http_conn *conn, int status, size_t bytes)
{
    if (status == 101)
        return fail_protocol(conn, "the server switches to another protocol");
    conn->hold_body = conn->hold_body && status != 100;
    kvt__http_drop_head(conn, bytes);
    conn->first_byte_ns = conn->progress_ns;
    return KVT__HTTP_GOES_ON;
}

static int
read_head(struct kvt__http_conn *conn, struct kvt__http_response *response)
{
    const char *wrong;
    ssize_t n = kvt__http_parse_head(conn->in, conn->in_bytes, response, &wrong);

    if (n < 0)
        return fail_protocol(conn, wrong);
    if (!n) {
        if (conn->in_bytes == sizeof conn->in)
            return fail_protocol(conn, "the head of the response is too long");
        return KVT__HTTP_WAITS;
    }
    if (response->head.status < 200)
        return interim(conn, response->head.status, (size_t)n);
    response->bytes = (size_t)n;
    return KVT__HTTP_DONE;
}

static int
receive_head(struct kvt__http_conn *conn)
{
    bool first = !conn->in_bytes;
    ssize_t n = kvt__http_recv_in(conn, first ? FIRST_READ : SIZE_MAX);

    if (n < 0 && !first)
        return conn->eof ? kvt__fail(ECONNRESET, "%s closed the connection in the middle "
                                     "of the response's head.", conn->origin->label)
                         : (int)n;
    if (n <= 0)
        return n < 0 ? (int)n : KVT__HTTP_WAITS;
    if (first)
        conn->first_byte_ns = conn->progress_ns;
    conn->has_received = true;
    return KVT__HTTP_GOES_ON;
}

int
kvt__http_exchange(struct kvt__http_conn *conn, struct kvt__http_response *response)
{
    int outcome;

    if (kvt__http_is_turn_over(conn))
        return KVT__HTTP_WAITS;
    if (conn->in_bytes && (outcome = read_head(conn, response)) != KVT__HTTP_WAITS)
        return outcome;
    kvt__http_send(conn);
    if (!conn->readable)
        return KVT__HTTP_WAITS;
    outcome = receive_head(conn);
    conn->readable = outcome == KVT__HTTP_GOES_ON;
    return outcome;
}
