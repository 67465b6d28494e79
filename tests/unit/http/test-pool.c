/* SPDX-License-Identifier: Apache-2.0
 *
 * Many requests: their connections, the limit of connections, and the order of requests. */
#include "unit/http/pair.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct script other;

static void
play_404(struct peer *p)
{
    peer_serve(p, "HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n");
}

static void
a_404_keeps_its_connection(void **state)
{
    struct kvt__http_stats stats;
    struct ask ask;

    (void)state;
    begin(PLAYS(play_404), 1, 4);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(get(&ask), 0);
        assert_int_equal(ask.req.http_status, 404);
    }
    kvt__http_stats(http, &stats);
    assert_int_equal(stats.connections, 1);
    assert_int_equal(stats.open, 1);
    assert_int_equal(stats.requests, 100);
    end();
}

static void
play_close(struct peer *p)
{
    while (peer_head(p))
        peer_send(p, strstr(p->head, "/old")
                         ? "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"
                         : "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"
                           "connection: x, Close\r\n\r\n");
}

static void
a_response_can_close_its_connection(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_close), 1, 4);
    for (unsigned i = 1; i <= 4; i++) {
        ask_init(&ask, origin, "GET", i % 2 ? "/old" : "/new", NULL, 0);
        assert_int_equal(ask_run(http, &ask), 0);
        assert_int_equal(server.n_accepted, i);
    }
    end();
}

/* ------------------------------------------------------------------- the limit */

#define MANY 10000
#define LIMIT 8

static atomic_uint max_open;

static int
answer_and_count(struct kvt__http_request *req, const struct kvt__http_head *head)
{
    struct kvt__http_stats stats;
    struct ask *ask = req->user;

    (void)head;
    ask->n_answers++;
    kvt__http_stats(http, &stats);
    if (stats.open > max_open)
        max_open = (unsigned)stats.open;
    return 0;
}

static void
there_are_never_more_connections_than_allowed(void **state)
{
    struct ask *asks = calloc(MANY, sizeof *asks);
    struct kvt__http_origin *second;

    (void)state;
    assert_non_null(asks);
    begin(PLAYS(play_404), 3, LIMIT);
    script_start(&other, PLAYS(play_404), NULL);
    second = origin_of(http, &other);
    for (int i = 0; i < MANY; i++) {
        /* 5 % of the requests are for another server, which needs a connection of its own. */
        ask_init(&asks[i], i % 1000 < 950 ? origin : second, "GET", "/x",
                 asks[i].small, sizeof asks[i].small);
        asks[i].req.on_head = answer_and_count;
        asks[i].req.on_body = NULL;
        asks[i].next_at = 3;
        kvt__http_submit(http, &asks[i].req);
    }
    for (int i = 0; i < MANY; i++)
        assert_int_equal(ask_wait(&asks[i]), 0);
    assert_true(max_open <= LIMIT);
    end();
    script_stop(&other);
    free(asks);
}

/* ---------------------------------------------------------------------- order */

static void
play_gated(struct peer *p)
{
    while (peer_head(p)) {
        sem_post(&p->script->came);
        sem_wait(&p->script->go);
        peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    }
}

static unsigned n_in_order;

static int
answer_in_order(struct kvt__http_request *req, const struct kvt__http_head *head)
{
    struct ask *ask = req->user;

    (void)head;
    ask->n_answers++;
    ask->length = n_in_order++;
    return 0;
}

static void
urgent_requests_come_first(void **state)
{
    static const enum kvt__prio prios[] = {
        KVT__PRIO_STORE, KVT__PRIO_STORE, KVT__PRIO_PREFETCH, KVT__PRIO_LOAD,
        KVT__PRIO_STORE, KVT__PRIO_LOOKUP, KVT__PRIO_LOAD, KVT__PRIO_LOOKUP };
    static const int64_t place[] = { 0, 6, 5, 3, 7, 1, 4, 2 };
    struct ask asks[8];

    (void)state;
    n_in_order = 0;
    begin(PLAYS(play_gated), 1, 1);
    for (int i = 0; i < 8; i++) {
        ask_init(&asks[i], origin, "GET", "/x", NULL, 0);
        asks[i].req.prio = prios[i];
        asks[i].req.on_head = answer_in_order;
        kvt__http_submit(http, &asks[i].req);
        if (!i)
            sem_wait(&server.came); /* the first request is under way */
    }
    for (int i = 0; i < 8; i++)
        sem_post(&server.go);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(ask_wait(&asks[i]), 0);
        assert_int_equal(asks[i].length, place[i]);
    }
    end();
}

static void
a_request_waits_for_its_time(void **state)
{
    struct ask later, now;

    (void)state;
    clock_runs = true;
    int64_t at = kvt__now_ns() + 100 * KVT__NS_PER_MS;
    begin(PLAYS(play_404), 1, 1);
    ask_init(&later, origin, "GET", "/x", into, BIG);
    later.req.not_before_ns = at;
    kvt__http_submit(http, &later.req);
    assert_int_equal(get(&now), 0); /* the waiting request does not delay this request */
    assert_int_equal(ask_wait(&later), 0);
    assert_true(later.req.sent_ns >= at);
    end();
    clock_runs = false;
}

/* -------------------------------------------------------------- old connections */

static void
play_once_then_close(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    peer_head(p);
}

static void
a_stale_connection_is_replaced(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_once_then_close, play_404), 1, 4);
    assert_int_equal(get(&ask), 0);
    assert_int_equal(get(&ask), 0);
    assert_int_equal(ask.req.http_status, 404);
    assert_int_equal(ask.n_heads, 2);
    assert_int_equal(server.n_accepted, 2);
    end();
}

static void
play_nothing(struct peer *p)
{
    peer_head(p);
}

static void
a_stale_connection_is_replaced_once(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_once_then_close, play_nothing), 1, 4);
    assert_int_equal(get(&ask), 0);
    assert_int_equal(get(&ask), -ECONNRESET);
    assert_int_equal(server.n_accepted, 2);
    end();
}

static void
a_new_connection_is_not_replaced(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_nothing), 1, 4);
    assert_int_equal(get(&ask), -ECONNRESET);
    assert_int_equal(server.n_accepted, 1);
    end();
}

static void
play_once_then_a_byte(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    peer_head(p);
    peer_send(p, "H");
}

static void
after_a_byte_of_a_response_a_request_is_not_repeated(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_once_then_a_byte, play_404), 1, 4);
    assert_int_equal(get(&ask), 0);
    assert_int_equal(get(&ask), -ECONNRESET);
    assert_int_equal(server.n_accepted, 1);
    end();
}

static void
play_once_then_more(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    sem_wait(&p->script->go);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    sem_post(&p->script->came);
    peer_gone(p);
}

static void
a_response_without_a_request_is_ignored(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_once_then_more, play_404), 1, 4);
    assert_int_equal(get(&ask), 0);
    sem_post(&server.go);
    sem_wait(&server.came);
    assert_int_equal(get(&ask), 0);
    assert_int_equal(ask.req.http_status, 404);
    end();
}

static void
a_body_is_sent_again_on_the_new_connection(void **state)
{
    size_t n = (size_t)1 << 20;
    unsigned char *body = malloc(n);
    struct ask ask;

    (void)state;
    assert_non_null(body);
    fill_pattern(body, n);
    begin(PLAYS(play_once_then_close, play_404), 1, 4);
    assert_int_equal(get(&ask), 0);
    ask_init(&ask, origin, "PUT", "/x", NULL, 0);
    ask.req.body = body;
    ask.req.body_bytes = n;
    ask.refuse = -EBADMSG;
    ask.n_answers = 0;
    assert_int_equal(ask_run(http, &ask), -EBADMSG);
    assert_int_equal(ask.req.http_status, 404);
    assert_int_equal(ask.n_heads, 2);
    end();
    free(body);
}

/* ----------------------------------------------------------- failed requests */

static int
refuse_to_write(struct kvt__http_request *req, char *out, size_t room)
{
    (void)req;
    (void)out;
    (void)room;
    return kvt__fail(EMSGSIZE, "a head that is too long");
}

/* The connection is closed as a busy connection, although no request was sent. */
static void
a_request_without_a_head_closes_its_kept_connection(void **state)
{
    struct kvt__http_stats stats;
    struct ask ask;

    (void)state;
    begin(PLAYS(play_404), 1, 4);
    assert_int_equal(get(&ask), 0);
    ask_init(&ask, origin, "GET", "/x", NULL, 0);
    ask.req.write_head = refuse_to_write;
    assert_int_equal(ask_run(http, &ask), -EMSGSIZE);
    kvt__http_stats(http, &stats);
    assert_int_equal(stats.open, 0);
    assert_int_equal(get(&ask), 0);
    assert_int_equal(get(&ask), 0);
    kvt__http_stats(http, &stats);
    assert_int_equal(stats.connections, 2);
    assert_int_equal(stats.open, 1);
    end();
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_404_keeps_its_connection),
        cmocka_unit_test(a_response_can_close_its_connection),
        cmocka_unit_test(there_are_never_more_connections_than_allowed),
        cmocka_unit_test(urgent_requests_come_first),
        cmocka_unit_test(a_request_waits_for_its_time),
        cmocka_unit_test(a_stale_connection_is_replaced),
        cmocka_unit_test(a_stale_connection_is_replaced_once),
        cmocka_unit_test(a_new_connection_is_not_replaced),
        cmocka_unit_test(after_a_byte_of_a_response_a_request_is_not_repeated),
        cmocka_unit_test(a_response_without_a_request_is_ignored),
        cmocka_unit_test(a_body_is_sent_again_on_the_new_connection),
        cmocka_unit_test(a_request_without_a_head_closes_its_kept_connection),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
