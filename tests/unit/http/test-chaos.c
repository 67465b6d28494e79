/* SPDX-License-Identifier: Apache-2.0
 *
 * Many hedged requests to a server that fails often: each request ends once, with the right bytes
 * or an error. */
#include "unit/http/script.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit/http/certificate.h"

#define N 150
#define BYTES ((size_t)100000)

static struct script server;
static struct kvt__http *http;
static atomic_uint n_asked;

static void
send_chunked(struct peer *p, size_t n)
{
    char size[32];

    peer_send(p, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (size_t at = 0, piece = 1; at < n; at += piece, piece = piece * 5 + 3) {
        piece = piece < n - at ? piece : n - at;
        snprintf(size, sizeof size, "%zx\r\n", piece);
        peer_send(p, size);
        peer_send_pattern(p, at, piece);
        peer_send(p, "\r\n");
    }
    peer_send(p, "0\r\n\r\n");
}

static void
send_sized(struct peer *p, size_t n, size_t so_many)
{
    char head[100];

    snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", n);
    peer_send(p, head);
    peer_send_pattern(p, 0, so_many);
}

/* Return false if the connection is to be closed. */
static bool
misbehave(struct peer *p)
{
    switch (atomic_fetch_add(&n_asked, 1) % 16) {
    case 0:
        return false;
    case 1:
        peer_reset(p);
        return false;
    case 2:
        send_sized(p, BYTES, BYTES / 2);
        return false;
    case 3:
        send_sized(p, BYTES, BYTES / 3);
        peer_reset(p);
        return false;
    case 4:
        peer_send(p, "HTTP/1.1 200 O");
        return false;
    case 5:
        peer_send(p, "HTTP/1.1 102 Wait\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n");
        send_sized(p, BYTES, BYTES);
        return true;
    case 6:
        peer_send(p, "HTTP/1.1 200 OK\r\n\r\n");
        peer_send_pattern(p, 0, BYTES);
        if (p->ssl)
            SSL_shutdown(p->ssl);
        return false;
    case 7:
        send_sized(p, BYTES, BYTES);
        peer_send(p, "too much");
        return true;
    case 8:
        send_sized(p, BYTES + 1, BYTES + 1);
        return true;
    case 9:
    case 10:
        send_chunked(p, BYTES);
        return true;
    default:
        send_sized(p, BYTES, BYTES);
        return true;
    }
}

static void
play_chaos(struct peer *p)
{
    while (peer_head(p)) {
        const char *length = strstr(p->head, "Content-Length: ");
        size_t n = length ? (size_t)atol(length + 16) : 0;

        if (n && atomic_load(&n_asked) % 5 == 0) { /* respond before the body */
            send_sized(p, BYTES, BYTES);
            atomic_fetch_add(&n_asked, 1);
            return;
        }
        if (peer_body(p, n) != n || !misbehave(p))
            return;
    }
}

static bool
may_happen(int status)
{
    return status == -ECONNRESET || status == -EPIPE || status == -EMSGSIZE ||
           status == -EPROTO;
}

static void
live_through(SSL_CTX *tls)
{
    struct kvt__http_params params = { .n_threads = 3, .max_requests = 8,
                                       .no_verify = true,
                                       .stall_ns = 120 * KVT__NS_PER_S,
                                       .connect_ns = 120 * KVT__NS_PER_S };
    struct ask *asks = calloc(N, sizeof *asks);
    unsigned char *into = calloc(N, BYTES), *body = malloc(BYTES * 5);
    struct kvt__http_stats stats;
    unsigned good = 0;

    atomic_store(&n_asked, 0);
    assert_true(asks && into && body);
    fill_pattern(body, BYTES * 5);
    script_start(&server, PLAYS(play_chaos), tls);
    assert_int_equal(kvt__http_open(&params, &http), 0);
    for (size_t i = 0; i < N; i++) {
        ask_init(&asks[i], origin_of(http, &server), i % 3 ? "GET" : "PUT", "/x",
                 into + i * BYTES, BYTES);
        asks[i].req.body = i % 3 ? NULL : body;
        asks[i].req.body_bytes = i % 3 ? 0 : BYTES * (1 + i % 5);
        asks[i].req.deadline_ns = 0;
        asks[i].req.expect_continue = i % 4 == 0;
        asks[i].req.hedge_ns = i % 2 ? KVT__NS_PER_MS : 0;
        asks[i].req.prio = (enum kvt__prio)(i % KVT__N_PRIOS);
        kvt__http_submit(http, &asks[i].req);
    }
    for (size_t i = 0; i < N; i++) {
        int status = ask_wait(&asks[i]);

        if (!status) {
            assert_int_equal(asks[i].req.received_bytes, BYTES);
            assert_pattern(into + i * BYTES, BYTES);
            good++;
        } else if (!may_happen(status)) {
            fail_msg("%s", asks[i].req.why);
        }
    }
    assert_true(good > N / 2); /* 10 of the 16 kinds of misbehave() are good */
    assert_true(atomic_load(&n_asked) >= 2 * 16);
    kvt__http_stats(http, &stats);
    assert_true(stats.hedges > 0);
    kvt__http_close(http);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(asks[i].n_done, 1); /* on_done() was called once */
    script_stop(&server);
    free(asks);
    free(into);
    free(body);
}

static void
every_request_ends_once_with_the_right_bytes(void **state)
{
    (void)state;
    live_through(NULL);
}

static void
every_request_ends_once_over_tls(void **state)
{
    struct authority authority;

    (void)state;
    authority_init(&authority);
    SSL_CTX *tls = server_context(&authority, "IP:127.0.0.1", false);
    live_through(tls);
    SSL_CTX_free(tls);
    authority_fini(&authority);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_ends_once_with_the_right_bytes),
        cmocka_unit_test(every_request_ends_once_over_tls),
    };

    clock_runs = true;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
