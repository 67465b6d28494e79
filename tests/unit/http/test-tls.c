/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS: which certificates are accepted, resumed sessions, and ends of connections. */
#include "unit/http/script.h"

#include <errno.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "temp-dir.h"
#include "unit/http/certificate.h"

#define BIG ((size_t)5 << 20)
#define NAMES "DNS:test.example,DNS:*.wild.example,IP:127.0.0.1"

static struct temp_dir dir;
static char ca_file[300];
static struct authority authority;
static struct script server;
static SSL_CTX *ctx;
static struct kvt__http *http;
static unsigned char *into;

static void
begin(void (*const *plays)(struct peer *), SSL_CTX *tls, const char *ca, bool no_verify)
{
    struct kvt__http_params params = { .n_threads = 1, .max_requests = 4, .ca_file = ca,
                                       .no_verify = no_verify };

    ctx = tls;
    script_start(&server, plays, tls);
    assert_int_equal(kvt__http_open(&params, &http), 0);
    into = calloc(1, BIG);
    assert_non_null(into);
}

static void
end(void)
{
    kvt__http_close(http);
    script_stop(&server);
    SSL_CTX_free(ctx);
    free(into);
}

static struct kvt__http_origin *
origin_named(const char *host)
{
    struct kvt__http_target target = { .host = host, .port = server.port, .tls = true,
                                       .address = "127.0.0.1" };
    struct kvt__http_origin *origin;

    assert_int_equal(kvt__http_origin(http, &target, &origin), 0);
    return origin;
}

static int
get(struct ask *ask, const char *host)
{
    ask_init(ask, origin_named(host), "GET", "/x", into, BIG);
    return ask_run(http, ask);
}

static void
play_echo(struct peer *p)
{
    while (peer_head(p)) {
        char *length = strstr(p->head, "Content-Length: "), head[100];
        size_t n = length ? (size_t)atol(length + 16) : 0;

        if (peer_body(p, n) != n)
            return;
        sprintf(head, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", BIG);
        peer_send(p, head);
        peer_send_pattern(p, 0, BIG);
    }
}

static void
bodies_are_sent_and_received(void **state)
{
    unsigned char *body = malloc(BIG);
    struct ask ask;

    (void)state;
    assert_non_null(body);
    fill_pattern(body, BIG);
    begin(PLAYS(play_echo), server_context(&authority, NAMES, false), ca_file, false);
    for (int i = 0; i < 3; i++) {
        memset(into, 0, BIG);
        ask_init(&ask, origin_named("test.example"), "PUT", "/x", into, BIG);
        ask.req.body = body;
        ask.req.body_bytes = i == 2 ? 100 : BIG;
        assert_int_equal(ask_run(http, &ask), 0);
        assert_int_equal(ask.req.received_bytes, BIG);
        assert_pattern(into, BIG);
    }
    assert_int_equal(server.n_accepted, 1);
    end();
    free(body);
}

/* --------------------------------------------------------------- certificates */

static void
play_hello(struct peer *p)
{
    peer_serve(p, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
}

static void
names_and_addresses_must_match(void **state)
{
    static const char *const good[] = { "test.example", "TEST.example", "test.example.",
                                        "a.wild.example", "127.0.0.1" };
    static const char *const bad[] = { "example", "other.example", "x.test.example",
                                       "a.b.wild.example", "127.0.0.2", "[::1]" };
    struct ask ask;

    (void)state;
    begin(PLAYS(play_hello), server_context(&authority, NAMES, false), ca_file, false);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(get(&ask, good[i]), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(get(&ask, bad[i]), -EKEYREJECTED);
        assert_int_equal(ask.n_heads, 0); /* no request was sent */
        assert_non_null(strstr(ask.req.why, "certificate"));
    }
    end();
}

static void
an_unknown_authority_is_not_accepted(void **state)
{
    struct authority other;
    struct ask ask;

    (void)state;
    authority_init(&other);
    begin(PLAYS(play_hello), server_context(&other, NAMES, false), ca_file, false);
    assert_int_equal(get(&ask, "test.example"), -EKEYREJECTED);
    end();
    begin(PLAYS(play_hello), server_context(&authority, NAMES, false), NULL, false);
    assert_int_equal(get(&ask, "test.example"), -EKEYREJECTED);
    end();
    authority_fini(&other);
}

static void
an_expired_certificate_is_not_accepted(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_hello), server_context(&authority, NAMES, true), ca_file, false);
    assert_int_equal(get(&ask, "test.example"), -EKEYREJECTED);
    assert_non_null(strstr(ask.req.why, "expired"));
    end();
}

static void
without_verification_all_certificates_are_accepted(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_hello), server_context(&authority, NAMES, true), NULL, true);
    assert_int_equal(get(&ask, "other.example"), 0);
    end();
}

static void
a_file_without_certificates_is_an_error(void **state)
{
    static const char *const files[][2] = {
        { "/nonexistent/ca.pem", "/nonexistent/ca.pem: No such file or directory." },
        { "/proc/self/comm", "/proc/self/comm: " } };
    struct kvt__http_target target = { .host = "a", .port = 1, .tls = true };
    struct kvt__http_origin *origin;

    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct kvt__http_params params = { .n_threads = 1, .max_requests = 1,
                                           .ca_file = files[i][0] };

        assert_int_equal(kvt__http_open(&params, &http), 0);
        assert_int_equal(kvt__http_origin(http, &target, &origin), -EINVAL);
        assert_non_null(strstr(kvt__why(), files[i][1]));
        kvt__http_close(http);
    }
}

/* -------------------------------------------------------------------- handshake */

static char seen_name[64], seen_alpn[16];

static void
play_look(struct peer *p)
{
    const char *name = SSL_get_servername(p->ssl, TLSEXT_NAMETYPE_host_name);
    const unsigned char *alpn;
    unsigned n;

    SSL_get0_alpn_selected(p->ssl, &alpn, &n);
    snprintf(seen_name, sizeof seen_name, "%s", name ? name : "none");
    snprintf(seen_alpn, sizeof seen_alpn, "%.*s", (int)n, (const char *)alpn);
    play_hello(p);
}

/* Select ALPN like a server that prefers h2. */
static int
select_alpn(SSL *ssl, const unsigned char **out, unsigned char *n, const unsigned char *in,
            unsigned in_n, void *arg)
{
    static const unsigned char ours[] = "\x02h2\x08http/1.1";

    (void)ssl;
    (void)arg;
    return SSL_select_next_proto((unsigned char **)(uintptr_t)out, n, ours,
                                 sizeof ours - 1, in, in_n) == OPENSSL_NPN_NEGOTIATED
               ? SSL_TLSEXT_ERR_OK
               : SSL_TLSEXT_ERR_NOACK;
}

static void
the_handshake_has_sni_and_alpn(void **state)
{
    SSL_CTX *tls = server_context(&authority, NAMES, false);
    struct ask ask;

    (void)state;
    SSL_CTX_set_alpn_select_cb(tls, select_alpn, NULL);
    begin(PLAYS(play_look), tls, ca_file, false);
    assert_int_equal(get(&ask, "test.example."), 0);
    assert_string_equal(seen_name, "test.example");
    assert_string_equal(seen_alpn, "http/1.1");
    assert_int_equal(get(&ask, "127.0.0.1"), 0);
    assert_string_equal(seen_name, "none");
    end();
}

static void
play_hello_once(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
    peer_gone(p);
}

static void
sessions_are_resumed(void **state)
{
    static const int versions[] = { TLS1_2_VERSION, TLS1_3_VERSION };
    struct kvt__http_stats stats;
    struct ask ask;

    (void)state;
    for (int v = 0; v < 2; v++) {
        SSL_CTX *tls = server_context(&authority, NAMES, false);

        SSL_CTX_set_max_proto_version(tls, versions[v]);
        begin(PLAYS(play_hello_once), tls, ca_file, false);
        for (int i = 0; i < 4; i++)
            assert_int_equal(get(&ask, "test.example"), 0);
        kvt__http_stats(http, &stats);
        assert_int_equal(stats.connections, 4);
        assert_int_equal(stats.resumed, 3);
        /* Another name is another origin. */
        assert_int_equal(get(&ask, "127.0.0.1"), 0);
        kvt__http_stats(http, &stats);
        assert_int_equal(stats.resumed, 3);
        end();
    }
}

static void
old_versions_are_refused(void **state)
{
    SSL_CTX *tls = server_context(&authority, NAMES, false);
    struct ask ask;

    (void)state;
    SSL_CTX_set_security_level(tls, 0);
    SSL_CTX_set_min_proto_version(tls, TLS1_VERSION);
    SSL_CTX_set_max_proto_version(tls, TLS1_1_VERSION);
    begin(PLAYS(play_hello), tls, ca_file, false);
    assert_int_equal(get(&ask, "test.example"), -EPROTO);
    end();
}

static void
play_plain(struct peer *p)
{
    char byte;

    if (recv(p->fd, &byte, 1, 0) == 1)
        peer_send(p, "HTTP/1.1 400 The plain HTTP request was sent to HTTPS port\r\n\r\n");
    peer_gone(p);
}

static void
a_plain_server_is_an_error(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_plain), NULL, ca_file, false);
    assert_int_equal(get(&ask, "test.example"), -EPROTO);
    assert_int_equal(ask.n_heads, 0);
    end();
}

static void
play_gone(struct peer *p)
{
    (void)p;
}

static void
a_handshake_cut_short_is_an_error(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_gone), NULL, ca_file, false);
    assert_int_equal(get(&ask, "test.example"), -ECONNRESET);
    end();
}

/* ------------------------------------------------------------------------ ends */

static void
play_ends(struct peer *p)
{
    peer_head(p);
    bool rest = strstr(p->head, "/rest"), cut = strstr(p->head, "/cut");

    peer_send(p, rest ? "HTTP/1.1 200 OK\r\n\r\nhel"
                      : "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel");
    if (!cut)
        peer_send(p, "lo");
    if (strstr(p->head, "/rest-orderly"))
        SSL_shutdown(p->ssl);
}

static void
only_an_orderly_end_ends_a_body(void **state)
{
    static const struct {
        const char *path;
        int status;
    } ends[] = { { "/length", 0 }, { "/cut", -ECONNRESET }, { "/rest-orderly", 0 },
                 { "/rest", -ECONNRESET } };
    struct ask ask;

    (void)state;
    begin(PLAYS(play_ends), server_context(&authority, NAMES, false), ca_file, false);
    for (int i = 0; i < 4; i++) {
        ask_init(&ask, origin_named("test.example"), "GET", ends[i].path, into, BIG);
        assert_int_equal(ask_run(http, &ask), ends[i].status);
        assert_int_equal(ask.req.received_bytes, i == 1 ? 3 : 5);
    }
    end();
}

static void
play_hello_then_close(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    peer_head(p);
}

static void
a_stale_connection_is_replaced(void **state)
{
    struct kvt__http_stats stats;
    struct ask ask;

    (void)state;
    begin(PLAYS(play_hello_then_close, play_hello),
          server_context(&authority, NAMES, false), ca_file, false);
    for (int i = 0; i < 3; i++)
        assert_int_equal(get(&ask, "test.example"), 0);
    kvt__http_stats(http, &stats);
    assert_int_equal(stats.connections, 2);
    assert_int_equal(stats.open, 1);
    end();
}

static int
open_all(void **state)
{
    (void)state;
    temp_dir_make(&dir);
    authority_init(&authority);
    authority_write(&authority, dir.path, "ca.pem", ca_file);
    return 0;
}

static int
close_all(void **state)
{
    (void)state;
    authority_fini(&authority);
    temp_dir_remove(&dir);
    return 0;
}

/* --------------------------------------------------------- client certificates */

/* Send a request to a server that demands a certificate, from a client with these files. */
static int
get_from_demanding(struct ask *ask, const char *cert, const char *key)
{
    struct kvt__http_params params = { .n_threads = 1, .max_requests = 4,
                                       .ca_file = ca_file, .cert_file = cert,
                                       .key_file = key };
    struct kvt__http_target target = { .host = "test.example", .tls = true,
                                       .address = "127.0.0.1" };
    SSL_CTX *demanding = server_context(&authority, NAMES, false);

    demand_clients(demanding, &authority);
    begin(PLAYS(play_hello), demanding, ca_file, false);
    kvt__http_close(http);
    assert_int_equal(kvt__http_open(&params, &http), 0);
    target.port = server.port;
    struct kvt__http_origin *origin;
    int err = kvt__http_origin(http, &target, &origin);
    if (!err)
        err = get(ask, "test.example");
    end();
    return err;
}

static void
a_server_that_demands_a_certificate_gets_one(void **state)
{
    char cert[300], key[300], both[300];
    struct ask ask;

    (void)state;
    snprintf(cert, sizeof cert, "%s/client.pem", dir.path);
    snprintf(key, sizeof key, "%s/client.key", dir.path);
    snprintf(both, sizeof both, "%s/both.pem", dir.path);
    client_write(&authority, cert, key, NULL);
    client_write(&authority, both, NULL, NULL);
    assert_int_equal(get_from_demanding(&ask, cert, key), 0);
    assert_int_equal(ask.req.received_bytes, 5);
    assert_int_equal(get_from_demanding(&ask, both, NULL), 0);
    assert_int_equal(get_from_demanding(&ask, NULL, NULL), -EPROTO);
    assert_non_null(strstr(ask.req.why, "certificate required"));
}

static void
write_key(EVP_PKEY *key, const char *path)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL), 1);
    assert_int_equal(fclose(f), 0);
    EVP_PKEY_free(key);
}

static void
a_wrong_certificate_or_key_is_an_error(void **state)
{
    char cert[300], key[300], other[300], other_key[300], locked[300];
    struct ask ask;

    (void)state;
    snprintf(cert, sizeof cert, "%s/client.pem", dir.path);
    snprintf(key, sizeof key, "%s/client.key", dir.path);
    snprintf(other, sizeof other, "%s/other.pem", dir.path);
    snprintf(other_key, sizeof other_key, "%s/other.key", dir.path);
    snprintf(locked, sizeof locked, "%s/locked.key", dir.path);
    client_write(&authority, cert, locked, "a pass phrase");
    assert_int_equal(get_from_demanding(&ask, cert, locked), -EINVAL);
    assert_non_null(strstr(kvt__why(), "locked.key"));
    client_write(&authority, cert, key, NULL);
    client_write(&authority, other, other_key, NULL);
    assert_int_equal(get_from_demanding(&ask, cert, other_key), -EINVAL);
    assert_non_null(strstr(kvt__why(), "other.key"));
    assert_int_equal(get_from_demanding(&ask, cert, NULL), -EINVAL);
    write_key(EVP_RSA_gen(2048), other_key); /* the certificate's key is not an RSA key */
    assert_int_equal(get_from_demanding(&ask, cert, other_key), -EINVAL);
    assert_non_null(strstr(kvt__why(), "other.key"));
    assert_int_equal(get_from_demanding(&ask, "/no/such/file", key), -EINVAL);
    assert_non_null(strstr(kvt__why(), "/no/such/file"));
    assert_int_equal(get_from_demanding(&ask, cert, "/no/such/key"), -EINVAL);
    assert_non_null(strstr(kvt__why(), "/no/such/key"));
}

static void
a_ca_file_adds_to_the_systems_authorities(void **state)
{
    struct authority second;
    char second_file[300];
    struct ask ask;

    (void)state;
    authority_init(&second);
    authority_write(&second, dir.path, "second.pem", second_file);
    for (int i = 0; i < 2; i++) {
        struct kvt__http_params params = { .n_threads = 1, .max_requests = 4,
                                           .ca_file = ca_file,
                                           .more_ca_file = second_file };

        begin(PLAYS(play_hello), server_context(i ? &second : &authority, NAMES, false),
              ca_file, false);
        kvt__http_close(http);
        assert_int_equal(kvt__http_open(&params, &http), 0);
        assert_int_equal(get(&ask, "test.example"), 0);
        end();
    }
    authority_fini(&second);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bodies_are_sent_and_received),
        cmocka_unit_test(names_and_addresses_must_match),
        cmocka_unit_test(an_unknown_authority_is_not_accepted),
        cmocka_unit_test(an_expired_certificate_is_not_accepted),
        cmocka_unit_test(without_verification_all_certificates_are_accepted),
        cmocka_unit_test(a_file_without_certificates_is_an_error),
        cmocka_unit_test(the_handshake_has_sni_and_alpn),
        cmocka_unit_test(sessions_are_resumed),
        cmocka_unit_test(old_versions_are_refused),
        cmocka_unit_test(a_plain_server_is_an_error),
        cmocka_unit_test(a_handshake_cut_short_is_an_error),
        cmocka_unit_test(only_an_orderly_end_ends_a_body),
        cmocka_unit_test(a_stale_connection_is_replaced),
        cmocka_unit_test(a_server_that_demands_a_certificate_gets_one),
        cmocka_unit_test(a_wrong_certificate_or_key_is_an_error),
        cmocka_unit_test(a_ca_file_adds_to_the_systems_authorities),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
