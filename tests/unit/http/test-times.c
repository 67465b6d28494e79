/* SPDX-License-Identifier: Apache-2.0
 *
 * Timeouts: deadlines and stalls end requests; slow progress does not. */
#include "unit/http/pair.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "unit/http/slow-resolver.h"

/* ------------------------------------------------------------------- deadlines */

static void
wait_gone(struct peer *p)
{
    sem_post(&p->script->came);
    peer_gone(p);
    sem_post(&p->script->go);
}

static void
play_silence(struct peer *p)
{
    peer_head(p);
    wait_gone(p);
}

static void
play_half_a_head(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Le");
    wait_gone(p);
}

static void
play_half_a_body(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 5242880\r\n\r\n");
    peer_send_pattern(p, 0, 1000000);
    wait_gone(p);
}

static void
play_deaf(struct peer *p)
{
    sem_post(&p->script->came);
    sem_wait(&p->script->go);
}

static int
over_after(void (*play)(struct peer *), struct ask *ask, const void *body, size_t n)
{
    begin(PLAYS(play), 1, 1);
    ask_init(ask, origin, body ? "PUT" : "GET", "/x", into, BIG);
    ask->req.body = body;
    ask->req.body_bytes = n;
    ask->req.deadline_ns = kvt__now_ns() + 9 * KVT__NS_PER_S;
    kvt__http_submit(http, &ask->req);
    sem_wait(&server.came);
    put_forward(origin, 9);
    return ask_wait(ask);
}

static void
a_deadline_ends_a_request_wherever_it_is(void **state)
{
    static void (*const plays[])(struct peer *) = { play_silence, play_half_a_head,
                                                    play_half_a_body };
    struct ask ask;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(over_after(plays[i], &ask, NULL, 0), -ETIMEDOUT);
        assert_non_null(strstr(ask.req.why, "127.0.0.1:"));
        sem_wait(&server.go); /* the client has closed the connection */
        end();
    }
}

static void
a_deadline_ends_a_body_that_is_sent(void **state)
{
    size_t n = (size_t)64 << 20;
    unsigned char *body = calloc(1, n);
    struct ask ask;

    (void)state;
    assert_non_null(body);
    assert_int_equal(over_after(play_deaf, &ask, body, n), -ETIMEDOUT);
    assert_non_null(strstr(ask.req.why, "being sent"));
    free(body);
    sem_post(&server.go);
    end();
}

static void
a_deadline_ends_waiting_in_the_queue(void **state)
{
    struct ask first, second, later;

    (void)state;
    begin(PLAYS(play_silence), 1, 1);
    ask_init(&first, origin, "GET", "/x", into, BIG);
    kvt__http_submit(http, &first.req);
    ask_init(&second, origin, "GET", "/x", into, BIG);
    second.req.deadline_ns = kvt__now_ns() + 5 * KVT__NS_PER_S;
    kvt__http_submit(http, &second.req);
    ask_init(&later, origin, "GET", "/x", into, BIG);
    later.req.not_before_ns = kvt__now_ns() + 30 * KVT__NS_PER_S;
    later.req.deadline_ns = kvt__now_ns() + 5 * KVT__NS_PER_S;
    kvt__http_submit(http, &later.req);
    sem_wait(&server.came);
    put_forward(origin, 5);
    assert_int_equal(ask_wait(&second), -ETIMEDOUT);
    assert_int_equal(second.n_heads, 0);
    assert_int_equal(ask_wait(&later), -ETIMEDOUT);
    kvt__http_stop(http);
    assert_int_equal(ask_wait(&first), -ECANCELED);
    end();
}

static void
a_deadline_ends_resolving(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_silence), 1, 1);
    ask_init(&ask, origin_at(http, "slow.example", 80, false), "GET", "/x", into, BIG);
    ask.req.deadline_ns = kvt__now_ns() + 5 * KVT__NS_PER_S;
    kvt__http_submit(http, &ask.req);
    put_forward(origin, 5);
    assert_int_equal(ask_wait(&ask), -ETIMEDOUT);
    assert_non_null(strstr(ask.req.why, "resolved"));
    sem_post(&may_resolve);
    end();
}

static void
connecting_ends_with_the_deadline_or_its_own(void **state)
{
    struct full full;
    struct ask ask;

    (void)state;
    full_start(&full, "127.0.0.1", 0);
    begin(PLAYS(play_silence), 1, 1);
    for (int own = 0; own < 2; own++) {
        ask_init(&ask, origin_at(http, "127.0.0.1", full.port, false), "GET", "/x", into,
                 BIG);
        if (!own)
            ask.req.deadline_ns = kvt__now_ns() + 2 * KVT__NS_PER_S;
        kvt__http_submit(http, &ask.req);
        put_forward(origin, own ? 3 : 2);
        assert_int_equal(ask_wait(&ask), -ETIMEDOUT);
        assert_non_null(strstr(ask.req.why, own ? "connect to" : "connection was being opened"));
        assert_int_equal(ask.n_heads, 0);
    }
    end();
    full_stop(&full);
}

static void
a_deadline_ends_the_handshake(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_deaf), 1, 1);
    ask_init(&ask, origin_at(http, "127.0.0.1", server.port, true), "GET", "/x", into, BIG);
    ask.req.deadline_ns = kvt__now_ns() + 5 * KVT__NS_PER_S;
    kvt__http_submit(http, &ask.req);
    sem_wait(&server.came);
    put_forward(origin, 5);
    assert_int_equal(ask_wait(&ask), -ETIMEDOUT);
    assert_non_null(strstr(ask.req.why, "TLS"));
    sem_post(&server.go);
    end();
}

/* ------------------------------------------------------------------------ stalls */

static void
silence_ends_a_request(void **state)
{
    static void (*const plays[])(struct peer *) = { play_silence, play_half_a_head,
                                                    play_half_a_body };
    struct ask ask;
    int ended;

    (void)state;
    for (int i = 0; i < 3; i++) {
        begin(PLAYS(plays[i]), 1, 1);
        ask_init(&ask, origin, "GET", "/x", into, BIG);
        ask.req.deadline_ns = 0;
        kvt__http_submit(http, &ask.req);
        sem_wait(&server.came);
        do { /* bytes that were still under way count as progress */
            put_forward(origin, 11);
            sem_getvalue(&ask.done, &ended);
        } while (!ended);
        assert_int_equal(ask_wait(&ask), -ETIMEDOUT);
        sem_wait(&server.go);
        end();
    }
}

static void
play_drip(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 5242880\r\n\r\n");
    peer_send_pattern(p, 0, 1000);
    sem_wait(&p->script->go); /* the client has received these bytes */
    peer_send_pattern(p, 1000, BIG - 1000 - 1);
    sem_wait(&p->script->go);
    peer_send_pattern(p, BIG - 1, 1);
    peer_gone(p);
}

static void
received_and_go(struct kvt__http_request *req, size_t at, size_t n)
{
    struct ask *ask = req->user;

    ask->next_at = at + n;
    if (ask->next_at == 1000 || ask->next_at == BIG - 1)
        sem_post(&server.go);
}

/* The client receives bytes below the low-water mark too, in the middle and at the end. */
static void
a_slow_sender_is_not_waited_for(void **state)
{
    struct kvt__http_params params = { .n_threads = 1, .max_requests = 1,
                                       .stall_ns = 60 * KVT__NS_PER_S };
    struct ask ask;

    (void)state;
    clock_runs = true;
    begin(PLAYS(play_drip), 1, 1);
    kvt__http_close(http);
    assert_int_equal(kvt__http_open(&params, &http), 0);
    origin = origin_of(http, &server);
    ask_init(&ask, origin, "GET", "/x", into, BIG);
    ask.req.deadline_ns = 0;
    ask.req.on_body = received_and_go;
    assert_int_equal(ask_run(http, &ask), 0);
    assert_pattern(into, BIG);
    end();
    clock_runs = false;
}

static void
play_while_the_client_is_held(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n");
    peer_send_pattern(p, 0, 1000);
    sem_wait(&p->script->came);
    peer_send_pattern(p, 1000, 1000);
    clock_ahead_s += 11;
    sem_post(&p->script->go);
    peer_gone(p);
}

static void
received_and_hold(struct kvt__http_request *req, size_t at, size_t n)
{
    struct ask *ask = req->user;

    ask->next_at = at + n;
    if (ask->next_at != 1000)
        return;
    sem_post(&server.came);
    sem_wait(&server.go);
}

static void
bytes_that_arrived_while_the_client_was_held_are_progress(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_while_the_client_is_held), 1, 1);
    ask_init(&ask, origin, "GET", "/x", into, BIG);
    ask.req.on_body = received_and_hold;
    assert_int_equal(ask_run(http, &ask), 0);
    assert_pattern(into, 2000);
    end();
}

static void
play_hello(struct peer *p)
{
    peer_serve(p, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    sem_post(&p->script->go);
}

static void
unused_connections_are_closed_after_a_while(void **state)
{
    struct kvt__http_stats stats;
    struct ask ask;

    (void)state;
    begin(PLAYS(play_hello), 1, 1);
    assert_int_equal(get(&ask), 0);
    put_forward(origin, 61);
    sem_wait(&server.go);
    kvt__http_stats(http, &stats);
    assert_int_equal(stats.open, 0);
    end();
}

/* The client's thread is inside this callback while the other response arrives. */
static sem_t stands, goes_on;

static void
stand(struct kvt__http_request *req, size_t at, size_t n)
{
    ((struct ask *)req->user)->next_at = at + n;
    sem_post(&stands);
    sem_wait(&goes_on);
}

static void
play_later(struct peer *p)
{
    if (!peer_head(p))
        return;
    sem_post(&p->script->came);
    sem_wait(&p->script->go);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    sem_post(&p->script->came);
    peer_gone(p);
}

/* If a head arrived in time, the request succeeds, although the thread's timer runs before the
 * thread reads the head. */
static void
a_head_that_waits_for_the_thread_is_not_late(void **state)
{
    struct ask asks[2];

    (void)state;
    sem_init(&stands, 0, 0);
    sem_init(&goes_on, 0, 0);
    begin(PLAYS(play_later), 1, 2);
    for (int i = 0; i < 2; i++) {
        ask_init(&asks[i], origin, "GET", "/x", into + 16 * i, 16);
        asks[i].req.on_body = stand;
        kvt__http_submit(http, &asks[i].req);
    }
    for (int i = 0; i < 2; i++)
        sem_wait(&server.came);
    for (int i = 0; i < 2; i++) {
        sem_post(&server.go);
        sem_wait(&server.came);
        if (!i)
            sem_wait(&stands);
    }
    clock_ahead_s += 30;
    sem_post(&goes_on);
    sem_post(&goes_on);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ask_wait(&asks[i]), 0);
    end();
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_deadline_ends_a_request_wherever_it_is),
        cmocka_unit_test(a_deadline_ends_a_body_that_is_sent),
        cmocka_unit_test(a_deadline_ends_waiting_in_the_queue),
        cmocka_unit_test(a_deadline_ends_resolving),
        cmocka_unit_test(connecting_ends_with_the_deadline_or_its_own),
        cmocka_unit_test(a_deadline_ends_the_handshake),
        cmocka_unit_test(silence_ends_a_request),
        cmocka_unit_test(a_slow_sender_is_not_waited_for),
        cmocka_unit_test(bytes_that_arrived_while_the_client_was_held_are_progress),
        cmocka_unit_test(a_head_that_waits_for_the_thread_is_not_late),
        cmocka_unit_test(unused_connections_are_closed_after_a_while),
    };

    sem_init(&may_resolve, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
