/* SPDX-License-Identifier: Apache-2.0
 *
 * The baseline loop over sockets: transfer objects without kvtier.  Requests are not signed and
 * have no checksums.  The loop checks only the status and the length of a response. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "s3.h"
#include "cli.h"

#define TIMEOUT_MS 30000

struct bench_socket_conn {
    int fd;
    SSL *ssl;               /* NULL: no TLS */
    unsigned char *buffer;
    char request[512];
    size_t request_bytes, sent; /* sent: bytes of request and body */
    char head[1024];
    size_t head_bytes;      /* bytes in head: the response's head and the first bytes of the body */
    size_t left;            /* bytes of the response's body to receive */
    bool in_body, is_absent, writing;
};

static int
fail(const char *what, int err)
{
    fprintf(stderr, "kvtier-bench: baseline loop: %s%s%s\n", what, err ? ": " : "",
            err ? strerror(err) : "");
    return CLI_ENVIRONMENT;
}

/* ------------------------------------------------------------------------- bytes */

/* Convert the result of recv() or send(): bytes; 0: would block; -1: connection closed. */
static ssize_t
transfer_result(ssize_t n)
{
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    return n > 0 ? n : -1;
}

/* Convert the result of SSL_read_ex() or SSL_write_ex() in the same way. */
static ssize_t
tls_transfer_result(SSL *ssl, int result, size_t n)
{
    if (result == 1)
        return (ssize_t)n;
    int error = SSL_get_error(ssl, result);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

static ssize_t
receive(struct bench_socket_conn *c, void *to, size_t room)
{
    size_t n = 0;

    if (!c->ssl)
        return transfer_result(recv(c->fd, to, room, 0));
    int result = SSL_read_ex(c->ssl, to, room, &n);
    return tls_transfer_result(c->ssl, result, n);
}

static ssize_t
transmit(struct bench_socket_conn *c, const void *from, size_t bytes, bool more)
{
    size_t n = 0;

    if (!c->ssl)
        return transfer_result(send(c->fd, from, bytes, MSG_NOSIGNAL | (more ? MSG_MORE : 0)));
    int result = SSL_write_ex(c->ssl, from, bytes, &n);
    return tls_transfer_result(c->ssl, result, n);
}

/* ---------------------------------------------------------------------- requests */

static void
set_lowat(const struct bench_socket *s, struct bench_socket_conn *c, bool on)
{
    int lowat = on ? s->lowat : 1;

    if (s->lowat)
        setsockopt(c->fd, SOL_SOCKET, SO_RCVLOWAT, &lowat, sizeof lowat);
}

static void
set_events(struct bench_socket *s, struct bench_socket_conn *c, bool writing)
{
    struct epoll_event event = { .events = writing ? EPOLLOUT : EPOLLIN,
                                 .data.ptr = c };

    if (c->writing != writing)
        epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &event);
    c->writing = writing;
}

/* Send until the socket would block.  Return 1 if request and body are sent, 0 if not yet, -1 if
 * the connection closed. */
static int
send_pending(struct bench_socket *s, struct bench_socket_conn *c)
{
    size_t all = c->request_bytes + (s->kind == BENCH_PUT ? s->object_bytes : 0);

    while (c->sent < all) {
        bool body = c->sent >= c->request_bytes;
        size_t at = body ? c->sent - c->request_bytes : c->sent;
        ssize_t n = transmit(c, body ? (char *)c->buffer + at : c->request + at,
                             (body ? s->object_bytes : c->request_bytes) - at,
                             !body && all > c->request_bytes);

        if (n <= 0) {
            set_events(s, c, true);
            return (int)n;
        }
        c->sent += (size_t)n;
    }
    set_events(s, c, false);
    return 1;
}

static int
start_request(struct bench_socket *s, struct bench_socket_conn *c)
{
    static const char *const methods[] = { "GET", "PUT", "HEAD" };
    char length[64] = "";

    if (s->n_started == s->n_wanted)
        return 0;
    c->is_absent = s->kind == BENCH_HEAD && s->n_started++ % 2;
    s->n_started += s->kind != BENCH_HEAD;
    if (s->kind == BENCH_PUT)
        snprintf(length, sizeof length, "Content-Length: %zu\r\n", s->object_bytes);
    int n = snprintf(c->request, sizeof c->request, "%s /%s/object-%zu%s HTTP/1.1\r\n"
                     "Host: %s:%d\r\n%s\r\n", methods[s->kind], s->server->bucket,
                     (size_t)(c - s->conns), c->is_absent ? ".miss" : "",
                     s->server->host, s->server->port, length);
    c->request_bytes = (size_t)n;
    c->sent = c->head_bytes = 0;
    c->in_body = false;
    return send_pending(s, c) < 0 ? fail("the server closed a connection", 0) : 0;
}

/* --------------------------------------------------------------------- responses */

static size_t
length_of(const char *head)
{
    const char *field = strcasestr(head, "\r\ncontent-length:");

    return field ? strtoull(field + strlen("\r\ncontent-length:"), NULL, 10) : 0;
}

/* Receive the response's head.  Return 1 if the head is complete and has the expected status and
 * length, 0 if incomplete, -1 if the head is wrong or the connection closed. */
static int
read_head(struct bench_socket *s, struct bench_socket_conn *c)
{
    ssize_t n = receive(c, c->head + c->head_bytes, sizeof c->head - 1 - c->head_bytes);
    size_t body, want = s->kind == BENCH_GET ? s->object_bytes : 0;

    if (n <= 0)
        return (int)n;
    c->head_bytes += (size_t)n;
    c->head[c->head_bytes] = '\0';
    const char *end = strstr(c->head, "\r\n\r\n");
    if (!end)
        return 0;
    int status = c->head_bytes > 12 ? atoi(c->head + 9) : 0;
    if (s->kind == BENCH_HEAD ? status != (c->is_absent ? 404 : 200) : status / 100 != 2)
        return -1;
    body = c->head_bytes - (size_t)(end + 4 - c->head);
    if ((s->kind == BENCH_GET && length_of(c->head) != want) || body > want)
        return -1;
    memcpy(c->buffer, end + 4, body);
    c->left = want - body;
    c->in_body = true;
    if (c->left)
        set_lowat(s, c, true);
    return 1;
}

/* Receive until the socket would block.  Return 1 if the response is complete, 0 if not yet, -1 on
 * an error. */
static int
read_response(struct bench_socket *s, struct bench_socket_conn *c)
{
    if (!c->in_body) {
        int got = read_head(s, c);

        if (got <= 0)
            return got;
    }
    while (c->left) {
        ssize_t n = receive(c, c->buffer + s->object_bytes - c->left, c->left);

        if (n < 0)
            return -1;
        c->left -= (size_t)n;
        if (c->left && c->left < (size_t)s->lowat)
            set_lowat(s, c, false);
        if (!c->ssl || !n) /* epoll does not see bytes that OpenSSL has read ahead */
            break;
    }
    if (!c->left && s->kind == BENCH_GET)
        set_lowat(s, c, false);
    return !c->left;
}

static int
run_conn(struct bench_socket *s, struct bench_socket_conn *c)
{
    int done = c->writing ? send_pending(s, c) : read_response(s, c);

    if (done < 0)
        return fail("the server closed a connection, or its answer is no good", 0);
    if (!done || !c->in_body)
        return 0;
    s->n_done++;
    c->in_body = false;
    return start_request(s, c);
}

int
bench_socket_run(struct bench_socket *s, size_t n, struct bench_cost *out)
{
    struct epoll_event events[64];
    int code = 0;

    s->n_started = s->n_done = 0;
    s->n_wanted = n;
    bench_start(out);
    for (unsigned i = 0; !code && i < s->n_conns; i++)
        code = start_request(s, &s->conns[i]);
    while (!code && s->n_done < n) {
        int got = epoll_wait(s->epoll, events, 64, TIMEOUT_MS);

        if (bench_interrupted())
            return CLI_ENVIRONMENT;
        if (got == 0)
            return fail("the server does not answer", 0);
        for (int i = 0; !code && i < got; i++)
            code = run_conn(s, events[i].data.ptr);
    }
    bench_stop(out);
    return code;
}

/* ------------------------------------------------------------------- connections */

static int
connect_tls(struct bench_socket *s, struct bench_socket_conn *c)
{
    SSL_CTX_set_default_read_buffer_len(s->context, s->read_buffer);
    c->ssl = SSL_new(s->context);
    if (!c->ssl || SSL_set_fd(c->ssl, c->fd) != 1 || SSL_connect(c->ssl) != 1)
        return fail("TLS with the server", 0);
    return 0;
}

static int
connect_one(struct bench_socket *s, struct bench_socket_conn *c)
{
    int port = s->tls ? s->server->tls_port : s->server->port, on = 1;
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = c };

    c->buffer = s->buffers + (size_t)(c - s->conns) * s->object_bytes;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || inet_pton(AF_INET, s->server->host, &to.sin_addr) != 1 ||
        connect(c->fd, (struct sockaddr *)&to, sizeof to))
        return fail("connect to the server", errno);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int code = s->tls ? connect_tls(s, c) : 0;
    if (code)
        return code;
    if (fcntl(c->fd, F_SETFL, O_NONBLOCK) < 0 ||
        epoll_ctl(s->epoll, EPOLL_CTL_ADD, c->fd, &event))
        return fail("watch a connection", errno);
    return 0;
}

static void
disconnect_all(struct bench_socket *s)
{
    for (unsigned i = 0; s->conns && i < s->n_conns; i++) {
        struct bench_socket_conn *c = &s->conns[i];

        SSL_free(c->ssl);
        if (c->fd >= 0)
            close(c->fd);
        *c = (struct bench_socket_conn){ .fd = -1 };
    }
}

static int
connect_all(struct bench_socket *s)
{
    int code = 0;

    disconnect_all(s);
    for (unsigned i = 0; !code && i < s->n_conns; i++)
        code = connect_one(s, &s->conns[i]);
    return code;
}

static int
make_context(struct bench_socket *s)
{
    s->context = SSL_CTX_new(TLS_client_method());
    if (!s->context)
        return fail("TLS", 0);
    SSL_CTX_set_ciphersuites(s->context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384");
    SSL_CTX_set_read_ahead(s->context, 1);
    SSL_CTX_set_mode(s->context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                     SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return 0;
}

int
bench_socket_open(struct bench_socket *s)
{
    int code = 0;

    s->conns = calloc(s->n_conns, sizeof *s->conns);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!s->conns || s->epoll < 0)
        return fail("epoll", errno);
    for (unsigned i = 0; i < s->n_conns; i++)
        s->conns[i].fd = -1;
    s->read_buffer = s->tls ? (size_t)128 << 10 : 0;
    if (s->tls)
        code = make_context(s);
    return code ? code : connect_all(s);
}

void
bench_socket_close(struct bench_socket *s)
{
    disconnect_all(s);
    free(s->conns);
    SSL_CTX_free(s->context);
    if (s->epoll >= 0)
        close(s->epoll);
    s->conns = NULL;
    s->context = NULL;
    s->epoll = -1;
}

/* ------------------------------------------------------------------------ shapes */

/* Measure a run of n requests with the current shape: CPU seconds or wall-clock seconds. */
static int
measure_shape(struct bench_socket *s, size_t n, bool by_cpu, double *out)
{
    struct bench_cost cost;
    int code = s->tls ? connect_all(s) : 0;

    if (!code)
        code = bench_socket_run(s, n, &cost);
    *out = by_cpu ? cost.cpu : cost.seconds;
    return code;
}

int
bench_socket_tune(struct bench_socket *s, size_t n, bool by_cpu)
{
    static const struct {
        int lowat;          /* without TLS */
        size_t read_buffer; /* with TLS */
    } shapes[] = {
        { 0, (size_t)16 << 10 },       { 1 << 20, (size_t)32 << 10 },
        { 512 << 10, (size_t)64 << 10 }, { 256 << 10, (size_t)128 << 10 },
        { 128 << 10, (size_t)256 << 10 },
    };
    enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_TRIES = 3 };
    double costs[N_SHAPES][N_TRIES], least = 0;
    size_t best = 0;
    int code = 0;

    for (size_t i = 0; s->kind == BENCH_GET && !code && i < N_SHAPES * N_TRIES; i++) {
        s->lowat = s->tls ? 0 : shapes[i % N_SHAPES].lowat;
        s->read_buffer = s->tls ? shapes[i % N_SHAPES].read_buffer : 0;
        code = measure_shape(s, n, by_cpu, &costs[i % N_SHAPES][i / N_SHAPES]);
    }
    for (size_t i = 0; s->kind == BENCH_GET && !code && i < N_SHAPES; i++) {
        double cost = bench_median(costs[i], N_TRIES);

        best = !i || cost < least ? i : best;
        least = best == i ? cost : least;
    }
    if (s->kind != BENCH_GET || code)
        return code;
    s->lowat = s->tls ? 0 : shapes[best].lowat;
    s->read_buffer = s->tls ? shapes[best].read_buffer : 0;
    return s->tls ? connect_all(s) : 0;
}
