/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain bodies are discarded inside the kernel (MSG_TRUNC).  For TLS, a custom BIO collects the
 * records of many SSL_write()s; OpenSSL would send each record separately. */
#include "http-sink.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static unsigned char scratch[1024 * 1024];

static ssize_t
outcome(ssize_t n)
{
    if (n > 0)
        return n;
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? WIRE_AGAIN : WIRE_GONE;
}

/* ------------------------------------------------------------- BIO of a TLS wire */

static int
collect(BIO *bio, const char *from, int n)
{
    struct wire *w = BIO_get_data(bio);
    size_t room = WIRE_BUFFER - w->out_end;
    size_t take = (size_t)n < room ? (size_t)n : room;

    BIO_clear_retry_flags(bio);
    if (take == 0) {
        BIO_set_retry_write(bio);
        return -1;
    }
    memcpy(w->out + w->out_end, from, take);
    w->out_end += take;
    return (int)take;
}

static int
fetch(BIO *bio, char *to, int n)
{
    struct wire *w = BIO_get_data(bio);
    ssize_t got = recv(w->fd, to, (size_t)n, 0);

    BIO_clear_retry_flags(bio);
    if (got < 0 && errno == EAGAIN)
        BIO_set_retry_read(bio);
    return (int)got;
}

static long
control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static BIO *
new_bio(struct wire *w)
{
    static BIO_METHOD *method;
    BIO *bio;

    if (!method) {
        method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "collected");
        if (!method)
            return NULL;
        BIO_meth_set_write(method, collect);
        BIO_meth_set_read(method, fetch);
        BIO_meth_set_ctrl(method, control);
    }
    bio = BIO_new(method);
    if (bio) {
        BIO_set_data(bio, w);
        BIO_set_init(bio, 1);
    }
    return bio;
}

/* ------------------------------------------------------------------------- wires */

SSL_CTX *
wire_context(const char *cert, const char *key)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());

    if (!context || SSL_CTX_use_certificate_chain_file(context, cert) != 1 ||
        SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1) {
        ERR_print_errors_fp(stderr);
        SSL_CTX_free(context);
        return NULL;
    }
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, WIRE_BUFFER);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                  SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return context;
}

bool
wire_open(struct wire *w, int fd, SSL_CTX *context)
{
    int one = 1;
    BIO *bio;

    *w = (struct wire){.fd = fd};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (!context)
        return true;
    w->out = malloc(WIRE_BUFFER);
    w->ssl = SSL_new(context);
    bio = new_bio(w);
    if (!w->out || !w->ssl || !bio) {
        BIO_free(bio);
        return false;
    }
    SSL_set_bio(w->ssl, bio, bio);
    SSL_set_accept_state(w->ssl);
    return true;
}

void
wire_close(struct wire *w)
{
    SSL_free(w->ssl);
    free(w->out);
    close(w->fd);
}

static ssize_t
tls_outcome(struct wire *w, int n)
{
    int error;

    if (n > 0)
        return n;
    error = SSL_get_error(w->ssl, n);
    ERR_clear_error();
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? WIRE_AGAIN
                                                                         : WIRE_GONE;
}

ssize_t
wire_read(struct wire *w, void *to, size_t n)
{
    ssize_t got;

    if (!w->ssl)
        return outcome(recv(w->fd, to, n, 0));
    got = tls_outcome(w, SSL_read(w->ssl, to, (int)n));
    if (wire_flush(w) == WIRE_GONE) /* send the remaining bytes of the handshake */
        return WIRE_GONE;
    return got;
}

ssize_t
wire_discard(struct wire *w, size_t n)
{
    if (n > sizeof(scratch))
        n = sizeof(scratch);
    if (w->ssl)
        return wire_read(w, scratch, n);
    return outcome(recv(w->fd, scratch, n, MSG_TRUNC));
}

ssize_t
wire_write(struct wire *w, const void *from, size_t n)
{
    size_t done = 0;

    if (!w->ssl)
        return outcome(send(w->fd, from, n, MSG_NOSIGNAL));
    if (w->out_end == WIRE_BUFFER) {
        int failed = wire_flush(w);

        if (failed)
            return failed;
    }
    while (done < n) {
        size_t left = n - done;
        ssize_t put = tls_outcome(w, SSL_write(w->ssl, (const char *)from + done,
                                               (int)(left < 16384 ? left : 16384)));

        if (put == WIRE_GONE)
            return WIRE_GONE;
        if (put < 0)
            break; /* the buffer is full, possibly with a partial last record */
        done += (size_t)put;
    }
    if (wire_flush(w) == WIRE_GONE)
        return WIRE_GONE;
    return done > 0 ? (ssize_t)done : WIRE_AGAIN;
}

int
wire_flush(struct wire *w)
{
    while (w->out_start < w->out_end) {
        ssize_t sent = outcome(send(w->fd, w->out + w->out_start,
                                    w->out_end - w->out_start, MSG_NOSIGNAL));

        if (sent < 0)
            return (int)sent;
        w->out_start += (size_t)sent;
    }
    w->out_start = w->out_end = 0;
    return 0;
}
