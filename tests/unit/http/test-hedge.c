/* SPDX-License-Identifier: Apache-2.0
 *
 * Hedges: a request without a timely response is sent on a second connection.  The first response
 * is used, and the other connection is closed before the body is received.  The clients have a
 * limit of 1 connection, which a hedge exceeds. */
#include "unit/http/pair.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void
end_after(uint64_t hedges)
{
    struct kvt__http_stats stats;

    kvt__http_stats(http, &stats);
    assert_int_equal(stats.hedges, hedges);
    end();
}

static void
hello(struct peer *p, char c)
{
    char text[] = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n.";

    text[sizeof text - 2] = c;
    peer_send(p, text);
}

/* Check that the request's other connection is closed. */
static int
answer_alone(struct kvt__http_request *req, const struct kvt__http_head *head)
{
    struct kvt__http_stats stats;
    struct ask *ask = req->user;

    (void)head;
    kvt__http_stats(http, &stats);
    assert_int_equal(stats.open, 1);
    ask->n_answers++;
    return 0;
}

/* Submit a request, and put the clock forward to its hedge after the server got the request. */
static void
ask_until_late(struct ask *ask)
{
    ask_init(ask, origin, "GET", "/x", into, BIG);
    ask->req.deadline_ns = 0;
    ask->req.hedge_ns = 5 * KVT__NS_PER_S;
    ask->req.on_head = answer_alone;
    kvt__http_submit(http, &ask->req);
    sem_wait(&server.came);
    put_forward(origin, 6);
}

static void
play_silent_until_closed(struct peer *p)
{
    peer_head(p);
    sem_post(&p->script->came);
    peer_gone(p);
    sem_post(&p->script->go);
}

static void
play_second(struct peer *p)
{
    while (peer_head(p))
        hello(p, '2');
}

static void
the_second_connection_may_win(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_silent_until_closed, play_second), 1, 1);
    ask_until_late(&ask);
    assert_int_equal(ask_wait(&ask), 0);
    assert_true(ask.req.hedged);
    assert_int_equal(into[0], '2');
    assert_int_equal(ask.n_heads, 2);
    assert_true(ask.req.first_byte_ns >= ask.req.sent_ns);
    sem_wait(&server.go);
    end_after(1);
}

static void
play_first_when_told(struct peer *p)
{
    while (peer_head(p)) {
        sem_post(&p->script->came);
        sem_wait(&p->script->go);
        hello(p, '1');
    }
}

static void
play_tell_the_first(struct peer *p)
{
    peer_head(p);
    sem_post(&p->script->go);
    peer_gone(p);
    sem_post(&p->script->came);
}

static void
the_first_connection_may_still_win(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_first_when_told, play_tell_the_first), 1, 1);
    ask_until_late(&ask);
    assert_int_equal(ask_wait(&ask), 0);
    assert_false(ask.req.hedged);
    assert_int_equal(into[0], '1');
    sem_wait(&server.came);
    end_after(1);
}

static void
play_reset(struct peer *p)
{
    peer_head(p);
    sem_post(&p->script->came);
    sem_wait(&p->script->go);
    peer_reset(p);
}

static void
play_second_after_first_ended(struct peer *p)
{
    while (peer_head(p)) {
        sem_post(&p->script->go); /* then the first connection is reset */
        sem_wait(&p->script->came);
        hello(p, '2');
    }
}

static void
a_failed_connection_leaves_the_request_to_the_other(void **state)
{
    struct kvt__http_stats stats;
    struct ask ask;

    (void)state;
    begin(PLAYS(play_reset, play_second_after_first_ended), 1, 1);
    ask_until_late(&ask);
    do
        kvt__http_stats(http, &stats);
    while (stats.requests < 2 || stats.open == 2);
    sem_post(&server.came);
    assert_int_equal(ask_wait(&ask), 0);
    assert_int_equal(into[0], '2');
    end_after(1);
}

static void
a_request_fails_if_both_connections_fail(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_reset, play_reset), 1, 1);
    ask_until_late(&ask);
    sem_wait(&server.came);
    sem_post(&server.go);
    sem_post(&server.go);
    assert_int_equal(ask_wait(&ask), -ECONNRESET);
    end_after(1);
}

static void
play_half(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n1");
    sem_wait(&p->script->go);
    peer_send(p, "2");
    peer_gone(p);
}

static void
received_half(struct kvt__http_request *req, size_t at, size_t n)
{
    struct ask *ask = req->user;

    ask->next_at = at + n;
    sem_post(&server.came);
}

static void
no_hedge_begins_after_the_response_began(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_half, play_second), 1, 1);
    ask_init(&ask, origin, "GET", "/x", into, BIG);
    ask.req.hedge_ns = 5 * KVT__NS_PER_S;
    ask.req.on_body = received_half;
    kvt__http_submit(http, &ask.req);
    sem_wait(&server.came);
    put_forward(origin, 6);
    sem_post(&server.go);
    assert_int_equal(ask_wait(&ask), 0);
    assert_memory_equal(into, "12", 2);
    end_after(0);
}

static void
the_end_of_the_client_ends_both(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_silent_until_closed), 1, 1);
    ask_until_late(&ask);
    sem_wait(&server.came);
    kvt__http_stop(http);
    assert_int_equal(ask_wait(&ask), -ECANCELED);
    sem_wait(&server.go);
    sem_wait(&server.go);
    end_after(1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_connection_may_win),
        cmocka_unit_test(the_first_connection_may_still_win),
        cmocka_unit_test(a_failed_connection_leaves_the_request_to_the_other),
        cmocka_unit_test(a_request_fails_if_both_connections_fail),
        cmocka_unit_test(no_hedge_begins_after_the_response_began),
        cmocka_unit_test(the_end_of_the_client_ends_both),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
