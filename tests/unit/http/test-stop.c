/* SPDX-License-Identifier: Apache-2.0
 *
 * The stop of a client ends each request once, in every state. */
#include "unit/http/pair.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unit/http/slow-resolver.h"

static void
play_all(struct peer *p)
{
    if (!peer_head(p))
        return;
    if (strstr(p->head, "/head"))
        peer_send(p, "HTTP/1.1 2");
    if (strstr(p->head, "/body"))
        peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n12345");
    if (strstr(p->head, "/drain"))
        peer_send(p, "HTTP/1.1 500 No\r\nContent-Length: 100\r\n\r\n12345");
    sem_post(&p->script->came);
    sem_wait(&p->script->go);
}

static const char *const paths[] = { "/silent", "/head", "/body", "/put", "/later",
                                     "/queue", "/resolve", "/tls", "/queue", "/queue" };
#define N (sizeof paths / sizeof *paths)
#define N_BODY ((size_t)64 << 20)

static void
submit_all(struct ask asks[N], unsigned char places[N][100],
           const unsigned char *body)
{
    for (size_t i = 0; i < N; i++) {
        struct kvt__http_origin *to = !strcmp(paths[i], "/resolve")
                                          ? origin_at(http, "slow.example", 1, false)
                                          : origin_at(http, "127.0.0.1", server.port,
                                                      !strcmp(paths[i], "/tls"));
        bool put = !strcmp(paths[i], "/put"), queue = !strcmp(paths[i], "/queue");

        ask_init(&asks[i], to, put ? "PUT" : "GET", paths[i], places[i], 100);
        asks[i].req.prio = queue ? KVT__PRIO_STORE : i < 5 ? KVT__PRIO_LOOKUP
                                                           : KVT__PRIO_LOAD;
        asks[i].req.body = put ? body : NULL;
        asks[i].req.body_bytes = put ? N_BODY : 0;
        if (!strcmp(paths[i], "/later"))
            asks[i].req.not_before_ns = kvt__now_ns() + 60 * KVT__NS_PER_S;
        kvt__http_submit(http, &asks[i].req);
    }
}

static void
all_requests_in_flight_are_canceled(void **state)
{
    unsigned char *body = calloc(1, N_BODY), places[N][100];
    struct ask asks[N], ask;

    (void)state;
    assert_non_null(body);
    begin(PLAYS(play_all), 1, 7);
    ask_init(&ask, origin, "GET", "/drain", into, 100);
    ask.refuse = -EBADMSG;
    assert_int_equal(ask_run(http, &ask), -EBADMSG);
    sem_wait(&server.came);

    submit_all(asks, places, body);
    for (int i = 0; i < 4; i++)
        sem_wait(&server.came);
    kvt__http_stop(http);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(ask_wait(&asks[i]), -ECANCELED);

    ask_init(&ask, origin, "GET", "/x", into, 100);
    assert_int_equal(ask_run(http, &ask), -ECANCELED);
    assert_int_equal(ask.n_heads, 0);
    for (int i = 0; i < 10; i++)
        sem_post(&server.go);
    sem_post(&may_resolve);
    end();
    free(body);
}

static void
close_waits_for_remaining_requests(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_all), 3, 6);
    ask_init(&ask, origin, "GET", "/body", into, 100);
    kvt__http_submit(http, &ask.req);
    sem_wait(&server.came);
    sem_post(&server.go); /* the server closes the connection inside the body */
    kvt__http_close(http);
    assert_int_equal(ask.n_done, 1);
    assert_int_equal(ask_wait(&ask), -ECONNRESET);
    http = NULL;
    end();
}

static void
done_may_submit_again(struct kvt__http_request *req)
{
    struct ask *ask = req->user;

    if (++ask->n_done < 1000 && !req->status) {
        kvt__http_submit(http, req);
        return;
    }
    ask->n_done = 1;
    sem_post(&ask->done);
}

static void
play_hello(struct peer *p)
{
    peer_serve(p, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
}

static void
a_request_may_be_submitted_when_it_is_done(void **state)
{
    struct ask asks[20];

    (void)state;
    begin(PLAYS(play_hello), 2, 4);
    for (int i = 0; i < 20; i++) {
        ask_init(&asks[i], origin, "GET", "/x", NULL, 0);
        asks[i].req.on_done = done_may_submit_again;
        kvt__http_submit(http, &asks[i].req);
    }
    for (int i = 0; i < 20; i++) {
        sem_wait(&asks[i].done);
        assert_int_equal(asks[i].req.status, 0);
        assert_int_equal(asks[i].n_answers, 1000);
    }
    end();
}

static void
play_late(struct peer *p)
{
    if (!peer_head(p))
        return;
    sem_post(&p->script->came);
    sem_wait(&p->script->go);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    sem_post(&p->script->came);
}

/* A forked child has a copy of each socket, so the close in the parent does not close the
 * connection. */
static void
a_forked_child_keeps_no_closed_connection_alive(void **state)
{
    struct ask late, ask;

    (void)state;
    begin(PLAYS(play_late, play_hello), 1, 2);
    ask_init(&late, origin, "GET", "/late", into, 100);
    late.req.deadline_ns = kvt__now_ns() + 60 * KVT__NS_PER_S;
    kvt__http_submit(http, &late.req);
    sem_wait(&server.came);
    pid_t child = start_idle_child();
    put_forward(origin, 61);
    assert_int_equal(ask_wait(&late), -ETIMEDOUT);
    assert_int_equal(get(&ask), 0); /* the connection's memory is free now */
    sem_post(&server.go);
    sem_wait(&server.came);
    for (int i = 0; i < 3; i++)
        assert_int_equal(get(&ask), 0);
    end_idle_child(child);
    end();
}

static int
count_before(void **state)
{
    *state = (void *)(uintptr_t)count_descriptors();
    return 0;
}

static int
nothing_is_left_open(void **state)
{
    return count_descriptors() != (unsigned)(uintptr_t)*state;
}

static void
a_client_that_did_nothing_closes(void **state)
{
    (void)state;
    kvt__http_close(open_client(4, 1));
    kvt__http_close(NULL);
}

#define CLEAN(f) cmocka_unit_test_setup_teardown(f, count_before, nothing_is_left_open)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        CLEAN(all_requests_in_flight_are_canceled),
        CLEAN(close_waits_for_remaining_requests),
        CLEAN(a_request_may_be_submitted_when_it_is_done),
        CLEAN(a_forked_child_keeps_no_closed_connection_alive),
        CLEAN(a_client_that_did_nothing_closes),
    };

    sem_init(&may_resolve, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
