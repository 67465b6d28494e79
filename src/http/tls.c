/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS by OpenSSL.  OpenSSL reads up to 64 KiB from the socket at a time and decrypts record by
 * record into the caller's memory.  OpenSSL's socket calls may raise SIGPIPE; the threads of this
 * room block SIGPIPE.
 *
 * The kernel's TLS (SSL_OP_ENABLE_KTLS) is not used: users of OpenSSL 3.0 and 3.1 reported
 * corrupt bytes on non-blocking sockets. */
#include "http/private.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* OpenSSL moves a partial record to the start of the buffer: a larger buffer costs longer
 * moves. */
#define READ_BUFFER_BYTES ((size_t)64 << 10)
/* Bytes to encrypt in one call; then the connection looks for a response. */
#define SEND_BYTES ((size_t)1 << 20)

/* ------------------------------------------------------------------ the context */

/* Return OpenSSL's text of the newest error. */
static const char *
openssl_error(void)
{
    unsigned long code = ERR_peek_last_error();
    const char *text = code ? ERR_reason_error_string(code) : NULL;

    return text ? text : "an error of OpenSSL without a name";
}

/* Put AES-128-GCM, the fastest cipher, first, if the machine's policy permits AES-128-GCM. */
static void
prefer_aes_128(SSL_CTX *ctx)
{
    static const char first[] = "TLS_AES_128_GCM_SHA256";
    STACK_OF(SSL_CIPHER) *ciphers = SSL_CTX_get_ciphers(ctx);
    char list[512];
    size_t n = sizeof first - 1;
    bool found = false;

    memcpy(list, first, sizeof first);
    for (int i = 0; i < sk_SSL_CIPHER_num(ciphers); i++) {
        const char *name = SSL_CIPHER_get_name(sk_SSL_CIPHER_value(ciphers, i));
        size_t more = strlen(name) + 1;

        if (strncmp(name, "TLS_", 4)) /* a cipher of TLS 1.2 */
            continue;
        if (!strcmp(name, first))
            found = true;
        else if (n + more < sizeof list)
            n += (size_t)snprintf(list + n, sizeof list - n, ":%s", name);
    }
    if (found)
        SSL_CTX_set_ciphersuites(ctx, list);
}

static SSL_SESSION **
session_of(const struct kvt__http_conn *conn)
{
    return &conn->origin->sessions[conn->thread - conn->origin->http->threads];
}

/* Store the newest session for the thread's next connection to this origin.  Return 1: this
 * function owns session now. */
static int
keep_session(SSL *ssl, SSL_SESSION *session)
{
    SSL_SESSION **kept = session_of(SSL_get_app_data(ssl));

    SSL_SESSION_free(*kept);
    *kept = session;
    return 1;
}

static int
load_trusted_file(SSL_CTX *ctx, const char *file)
{
    if (access(file, R_OK) < 0)
        return kvt__fail(EINVAL, "certificates of %s: %m.", file);
    if (SSL_CTX_load_verify_locations(ctx, file, NULL) != 1)
        return kvt__fail(EINVAL, "certificates of %s: %s.", file, openssl_error());
    return 0;
}

static int
load_trusted(SSL_CTX *ctx, const struct kvt__http *http)
{
    int err = 0;

    if (http->no_verify)
        return 0;
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    if (http->ca_file)
        err = load_trusted_file(ctx, http->ca_file);
    else if (SSL_CTX_set_default_verify_paths(ctx) != 1)
        err = kvt__fail(EINVAL, "certificates of the system: %s.", openssl_error());
    return err || !http->more_ca_file ? err : load_trusted_file(ctx, http->more_ca_file);
}

/* Fail for a key with a pass phrase.  Without this callback OpenSSL asks the terminal for the
 * pass phrase. */
static int
refuse_pass_phrase(char *out, int room, int writes, void *user)
{
    (void)out;
    (void)room;
    (void)writes;
    (void)user;
    return -1;
}

/* Load the client's certificate and key, for servers that demand a client certificate. */
static int
load_client_certificate(SSL_CTX *ctx, const struct kvt__http *http)
{
    const char *cert = http->cert_file, *key = http->key_file ? http->key_file : cert;

    if (!cert)
        return 0;
    SSL_CTX_set_default_passwd_cb(ctx, refuse_pass_phrase);
    if (access(cert, R_OK) < 0)
        return kvt__fail(EINVAL, "client certificate %s: %m.", cert);
    if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
        return kvt__fail(EINVAL, "client certificate %s: %s.", cert, openssl_error());
    if (access(key, R_OK) < 0)
        return kvt__fail(EINVAL, "client key %s: %m.", key);
    /* SSL_CTX_use_PrivateKey_file() accepts a key of another type than the certificate's;
     * SSL_CTX_check_private_key() does not. */
    if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(ctx) != 1)
        return kvt__fail(EINVAL, "client key %s: %s.", key, openssl_error());
    return 0;
}

int
kvt__http_tls_open(struct kvt__http *http)
{
    static const unsigned char alpn[] = "\x08http/1.1";
    SSL_CTX *ctx;
    int err;

    if (http->tls)
        return 0;
    ERR_clear_error();
    ctx = SSL_CTX_new(TLS_client_method());
    if (!ctx)
        return kvt__fail(ENOMEM, "TLS: %s.", openssl_error());
    err = load_trusted(ctx, http);
    if (!err)
        err = load_client_certificate(ctx, http);
    ERR_clear_error();
    if (err) {
        SSL_CTX_free(ctx);
        return err;
    }
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE |
                              SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_alpn_protos(ctx, alpn, sizeof alpn - 1);
    SSL_CTX_set_read_ahead(ctx, 1);
    SSL_CTX_set_default_read_buffer_len(ctx, READ_BUFFER_BYTES);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_CLIENT |
                                            SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(ctx, keep_session);
    prefer_aes_128(ctx);
    http->tls = ctx;
    return 0;
}

void
kvt__http_tls_close(struct kvt__http *http)
{
    for (struct kvt__http_origin *o = http->origins; o; o = o->next)
        for (unsigned i = 0; i < http->n_threads; i++)
            SSL_SESSION_free(o->sessions[i]);
    SSL_CTX_free(http->tls);
}

/* ------------------------------------------------------------------- failures */

static int
fail_tls(struct kvt__http_conn *conn)
{
    const char *label = conn->origin->label;
    long verified = SSL_get_verify_result(conn->ssl);

    if (!conn->origin->http->no_verify && verified != X509_V_OK)
        return kvt__fail(EKEYREJECTED, "%s: its certificate is not accepted: %s.", label,
                         X509_verify_cert_error_string(verified));
    return kvt__fail(EPROTO, "TLS with %s: %s.", label, openssl_error());
}

/* Classify a failed OpenSSL call.  Return 0: the call waits for the socket; or -errno with a
 * sentence. */
static int
classify_failure(struct kvt__http_conn *conn, int result)
{
    int saved = errno;
    const char *label = conn->origin->label;

    switch (SSL_get_error(conn->ssl, result)) {
    case SSL_ERROR_WANT_WRITE:
        conn->tls_wants_write = true;
        return 0;
    case SSL_ERROR_WANT_READ:
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        conn->is_lost = conn->eof = true;
        return kvt__fail(ECONNRESET, "%s closed the connection before it answered.", label);
    case SSL_ERROR_SYSCALL:
        conn->is_lost = true;
        return kvt__fail(saved ? saved : ECONNRESET, "TLS with %s", label);
    default:
        if (ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
            conn->is_lost = true;
            return kvt__fail(ECONNRESET, "%s closed the connection without ending TLS.",
                             label);
        }
        conn->tls_failed = true;
        return fail_tls(conn);
    }
}

static void
clear_errors(struct kvt__http_conn *conn)
{
    ERR_clear_error();
    errno = 0;
    conn->tls_wants_write = false;
}

/* ----------------------------------------------------------------- connections */

/* Set the name or address that the server's certificate must contain. */
static bool
set_expected_name(SSL *ssl, const char *host)
{
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);
    struct kvt__http_address address;
    char name[256];
    size_t n = strlen(host);

    if (kvt__http_address_from_text(host, 0, &address))
        return X509_VERIFY_PARAM_set1_ip_asc(param, host) == 1;
    n -= n > 1 && host[n - 1] == '.';
    if (n >= sizeof name)
        return false;
    memcpy(name, host, n);
    name[n] = '\0';
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

int
kvt__http_tls_begin(struct kvt__http_conn *conn)
{
    struct kvt__http_origin *o = conn->origin;

    ERR_clear_error();
    conn->ssl = SSL_new(o->http->tls);
    if (!conn->ssl || SSL_set_fd(conn->ssl, conn->fd) != 1 ||
        !set_expected_name(conn->ssl, o->host))
        return kvt__fail(ENOMEM, "TLS with %s: %s.", o->label, openssl_error());
    SSL_set_app_data(conn->ssl, conn);
    if (*session_of(conn))
        SSL_set_session(conn->ssl, *session_of(conn));
    SSL_set_connect_state(conn->ssl);
    return 0;
}

int
kvt__http_handshake(struct kvt__http_conn *conn)
{
    clear_errors(conn);
    int result = SSL_do_handshake(conn->ssl);
    if (result != 1)
        return classify_failure(conn, result);
    if (SSL_session_reused(conn->ssl))
        atomic_fetch_add(&conn->thread->http->n_resumed, 1);
    return KVT__HTTP_DONE;
}

/* Receive records until n bytes are received or the socket is empty. */
ssize_t
kvt__http_tls_recv(struct kvt__http_conn *conn, void *to, size_t n)
{
    size_t got = 0;

    clear_errors(conn);
    while (got < n) {
        size_t some;
        int result = SSL_read_ex(conn->ssl, (char *)to + got, n - got, &some);

        if (result == 1)
            got += some;
        else if (got)
            break; /* the next call meets the failure again */
        else
            return classify_failure(conn, result);
    }
    return (ssize_t)got;
}

ssize_t
kvt__http_tls_send(struct kvt__http_conn *conn, const struct iovec *parts, size_t n_parts)
{
    size_t sent = 0;

    clear_errors(conn);
    for (size_t i = 0; i < n_parts; i++) {
        for (size_t at = 0, some; at < parts[i].iov_len; at += some, sent += some) {
            if (sent >= SEND_BYTES)
                return (ssize_t)sent;
            int result = SSL_write_ex(conn->ssl, (char *)parts[i].iov_base + at,
                                      parts[i].iov_len - at, &some);
            if (result != 1)
                return sent ? (ssize_t)sent : classify_failure(conn, result);
        }
    }
    return (ssize_t)sent;
}

/* The peek also processes session tickets.  Only WANT_READ means that the connection is open
 * without data. */
bool
kvt__http_tls_is_quiet(struct kvt__http_conn *conn)
{
    size_t n;
    char byte;

    clear_errors(conn);
    return SSL_peek_ex(conn->ssl, &byte, 1, &n) != 1 &&
           SSL_get_error(conn->ssl, 0) == SSL_ERROR_WANT_READ;
}

/* In this mode OpenSSL frees a buffer when the buffer is empty, at the next read or peek. */
void
kvt__http_tls_release_buffers(struct kvt__http_conn *conn, bool idle)
{
    if (idle)
        SSL_set_mode(conn->ssl, SSL_MODE_RELEASE_BUFFERS);
    else
        SSL_clear_mode(conn->ssl, SSL_MODE_RELEASE_BUFFERS);
}

void
kvt__http_tls_end(struct kvt__http_conn *conn)
{
    if (!conn->ssl)
        return;
    ERR_clear_error();
    if (SSL_is_init_finished(conn->ssl) && !conn->is_lost && !conn->tls_failed)
        SSL_shutdown(conn->ssl);
    /* SSL_free() marks the session as not resumable if the connection was not shut down. */
    SSL_set_shutdown(conn->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
    SSL_free(conn->ssl);
    ERR_clear_error();
    conn->ssl = NULL;
}
