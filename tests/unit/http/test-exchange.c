/* SPDX-License-Identifier: Apache-2.0
 *
 * A single request and its response, with all kinds of server behaviour. */
#include "unit/http/pair.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Run a GET on a server with this play.  Return the request's status. */
static int
get_from(struct ask *ask, void (*play)(struct peer *), size_t room)
{
    begin(PLAYS(play), 1, 4);
    ask_init(ask, origin, "GET", "/x", into, room);
    return ask_run(http, ask);
}

/* ------------------------------------------------------------------- bodies */

static void
play_big(struct peer *p)
{
    char head[128];

    while (peer_head(p)) {
        sprintf(head, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", BIG);
        peer_send(p, head);
        peer_send_pattern(p, 0, BIG);
    }
}

static void
a_body_lands_in_the_callers_memory(void **state)
{
    struct ask ask;

    (void)state;
    assert_int_equal(get_from(&ask, play_big, BIG), 0);
    assert_int_equal(ask.req.http_status, 200);
    assert_int_equal(ask.req.received_bytes, BIG);
    assert_int_equal(ask.length, BIG);
    assert_pattern(into, BIG);
    assert_true(ask.req.sent_ns > 0 && ask.req.first_byte_ns >= ask.req.sent_ns);
    end();
}

static void
play_put(struct peer *p)
{
    while (peer_head(p)) {
        bool all = peer_body(p, BIG) == BIG;
        peer_send(p, all ? "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
                         : "HTTP/1.1 500 Bad\r\nContent-Length: 0\r\n\r\n");
    }
}

static void
a_body_is_sent_from_the_callers_memory(void **state)
{
    unsigned char *body = malloc(BIG);
    struct ask ask;

    (void)state;
    assert_non_null(body);
    fill_pattern(body, BIG);
    begin(PLAYS(play_put), 1, 4);
    for (int i = 0; i < 2; i++) {
        ask_init(&ask, origin, "PUT", "/x", NULL, 0);
        ask.req.body = body;
        ask.req.body_bytes = BIG;
        assert_int_equal(ask_run(http, &ask), 0);
        assert_int_equal(ask.req.http_status, 200);
        assert_false(ask.req.early);
    }
    assert_int_equal(server.n_accepted, 1);
    end();
    free(body);
}

static void
play_404(struct peer *p)
{
    peer_serve(p, "HTTP/1.1 404 Not Found\r\nContent-Length: 260\r\n\r\n");
}

static void
a_response_to_head_has_no_body(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_404), 1, 4);
    for (int i = 0; i < 3; i++) {
        ask_init(&ask, origin, "HEAD", "/x", NULL, 0);
        assert_int_equal(ask_run(http, &ask), 0);
        assert_int_equal(ask.req.http_status, 404);
        assert_int_equal(ask.length, 260);
    }
    assert_int_equal(server.n_accepted, 1);
    end();
}

static void
play_204(struct peer *p)
{
    peer_serve(p, "HTTP/1.1 204 No Content\r\n\r\n");
}

static void
a_204_has_no_body_either(void **state)
{
    struct ask ask;

    (void)state;
    assert_int_equal(get_from(&ask, play_204, 0), 0);
    assert_int_equal(ask.req.received_bytes, 0);
    assert_int_equal(ask.length, 0);
    ask_init(&ask, origin, "GET", "/x", NULL, 0);
    assert_int_equal(ask_run(http, &ask), 0);
    assert_int_equal(server.n_accepted, 1);
    end();
}

/* A 204 must not announce a body.  Here the body arrives late, and looks like a response. */
static void
play_204_with_body(struct peer *p)
{
    peer_head(p);
    peer_send(p, p->nth ? "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright"
                        : "HTTP/1.1 204 No Content\r\nContent-Length: 43\r\n\r\n");
    if (!p->nth && peer_head(p))
        peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong");
    peer_gone(p);
}

static void
the_body_of_a_204_is_no_later_answer(void **state)
{
    struct ask ask;

    (void)state;
    assert_int_equal(get_from(&ask, play_204_with_body, 0), 0);
    assert_int_equal(ask.req.received_bytes, 0);
    assert_int_equal(ask.length, 0);
    assert_int_equal(get(&ask), 0);
    assert_memory_equal(into, "right", 5);
    end();
}

static void
a_body_longer_than_room_never_begins(void **state)
{
    struct ask ask;

    (void)state;
    assert_int_equal(get_from(&ask, play_big, BIG - 1), -EMSGSIZE);
    assert_int_equal(ask.n_answers, 1);
    assert_int_equal(ask.req.received_bytes, 0);
    assert_int_equal(into[0], 0);
    end();
}

static void
play_short(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n");
    peer_send_pattern(p, 0, 60);
}

static void
a_truncated_body_is_an_error(void **state)
{
    struct ask ask;

    (void)state;
    assert_int_equal(get_from(&ask, play_short, BIG), -ECONNRESET);
    assert_int_equal(ask.req.received_bytes, 60);
    assert_non_null(strstr(ask.req.why, "40 bytes"));
    assert_non_null(strstr(ask.req.why, "127.0.0.1:"));
    end();
}

static void
play_reset(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n12");
    sem_wait(&p->script->go);
    peer_reset(p);
}

static int
answer_and_go(struct kvt__http_request *req, const struct kvt__http_head *head)
{
    struct ask *ask = req->user;

    ask->n_answers++;
    ask->length = head->content_length;
    sem_post(&server.go);
    return 0;
}

static void
a_reset_in_the_body_is_an_error(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_reset), 1, 4);
    ask_init(&ask, origin, "GET", "/x", into, BIG);
    ask.req.on_head = answer_and_go;
    assert_int_equal(ask_run(http, &ask), -ECONNRESET);
    end();
}

static void
play_too_much(struct peer *p)
{
    while (peer_head(p))
        peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n12"
                     "HTTP/1.1 200 no\r\n\r\n");
}

static void
bytes_after_a_body_close_the_connection(void **state)
{
    struct ask ask;

    (void)state;
    assert_int_equal(get_from(&ask, play_too_much, BIG), 0);
    assert_int_equal(ask.req.received_bytes, 2);
    assert_int_equal(get(&ask), 0);
    assert_int_equal(ask.req.received_bytes, 2);
    assert_int_equal(server.n_accepted, 2);
    end();
}

static void
play_until_eof(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\n\r\n");
    peer_send_pattern(p, 0, 100000);
}

static void
a_body_may_end_with_the_connection(void **state)
{
    struct ask ask;

    (void)state;
    assert_int_equal(get_from(&ask, play_until_eof, 100000), 0);
    assert_int_equal(ask.length, -1);
    assert_int_equal(ask.req.received_bytes, 100000);
    assert_pattern(into, 100000);
    ask_init(&ask, origin, "GET", "/x", into, 99999);
    assert_int_equal(ask_run(http, &ask), -EMSGSIZE);
    end();
}

/* ------------------------------------------------------------------- chunked */

static void
play_chunked(struct peer *p)
{
    while (peer_head(p)) {
        char size[32];

        peer_send(p, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        for (size_t at = 0, n = 1; at < 200000; at += n, n = n * 3 + 1) {
            if (n > 200000 - at)
                n = 200000 - at;
            sprintf(size, "%zx;name=\"value\"\r\n", n);
            peer_send(p, size);
            peer_send_pattern(p, at, n);
            peer_send(p, "\r\n");
        }
        peer_send(p, "0\r\nX-Trailer: yes\r\n\r\n");
    }
}

static void
a_chunked_body_is_put_together(void **state)
{
    struct ask ask;

    (void)state;
    assert_int_equal(get_from(&ask, play_chunked, 200000), 0);
    assert_int_equal(ask.req.received_bytes, 200000);
    assert_pattern(into, 200000);
    ask_init(&ask, origin, "GET", "/x", into, 199999);
    assert_int_equal(ask_run(http, &ask), -EMSGSIZE);
    assert_int_equal(server.n_accepted, 1);
    end();
}

static void
play_cut_chunk(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
}

static void
a_chunked_body_without_its_end_is_an_error(void **state)
{
    struct ask ask;

    (void)state;
    assert_int_equal(get_from(&ask, play_cut_chunk, BIG), -ECONNRESET);
    end();
}

/* ----------------------------------------------------------- early responses */

static void
play_early(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\ndenied");
    sem_wait(&p->script->go);
}

static void
an_early_answer_stops_the_sending(void **state)
{
    size_t n = (size_t)64 << 20;
    unsigned char *body = calloc(1, n);
    struct ask ask;

    (void)state;
    assert_non_null(body);
    begin(PLAYS(play_early), 1, 4);
    for (unsigned i = 1; i <= 2; i++) {
        ask_init(&ask, origin, "PUT", "/x", into, BIG);
        ask.req.body = body;
        ask.req.body_bytes = n;
        assert_int_equal(ask_run(http, &ask), 0);
        assert_int_equal(ask.req.http_status, 403);
        assert_memory_equal(into, "denied", 6);
        assert_true(ask.req.early);
        assert_int_equal(server.n_accepted, i);
    }
    sem_post(&server.go);
    sem_post(&server.go);
    end();
    free(body);
}

static void
play_continue(struct peer *p)
{
    while (peer_head(p)) {
        sem_post(&p->script->came);
        for (int n = atoi(strchr(p->head, '/') + 1); n; n--)
            peer_send(p, "HTTP/1.1 100 Continue\r\nX: y\r\n\r\n");
        bool all = peer_body(p, 1000) == 1000;
        peer_send(p, all ? "HTTP/1.1 102 Wait\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2"
                           "\r\n\r\nok"
                         : "HTTP/1.1 500 Bad\r\nContent-Length: 0\r\n\r\n");
    }
}

static void
the_body_waits_for_100_but_not_for_long(void **state)
{
    static const char *const paths[] = { "/1", "/2", "/0" };
    unsigned char body[1000];
    struct ask ask;

    (void)state;
    fill_pattern(body, sizeof body);
    begin(PLAYS(play_continue), 1, 4);
    for (int i = 0; i < 3; i++) {
        ask_init(&ask, origin, "PUT", paths[i], into, BIG);
        ask.req.body = body;
        ask.req.body_bytes = sizeof body;
        ask.req.expect_continue = true;
        kvt__http_submit(http, &ask.req);
        sem_wait(&server.came);
        if (i == 2)
            put_forward(origin, 1);
        assert_int_equal(ask_wait(&ask), 0);
        assert_int_equal(ask.req.http_status, 200);
        assert_false(ask.req.early);
    }
    assert_int_equal(server.n_accepted, 1);
    end();
}

static void
play_flood(struct peer *p)
{
    static const char line[] = "HTTP/1.1 102 Wait\r\n\r\n";
    char many[100 * sizeof line] = "";

    for (int i = 0; i < 100; i++)
        strcat(many, line);
    peer_head(p);
    sem_post(&p->script->came);
    while (send(p->fd, many, strlen(many), MSG_NOSIGNAL) > 0)
        continue;
}

static void
endless_responses_do_not_delay_other_requests(void **state)
{
    struct ask ask, other;

    (void)state;
    begin(PLAYS(play_flood, play_404), 1, 4);
    ask_init(&ask, origin, "GET", "/x", into, BIG);
    kvt__http_submit(http, &ask.req);
    sem_wait(&server.came);
    ask_init(&other, origin, "HEAD", "/x", NULL, 0);
    assert_int_equal(ask_run(http, &other), 0);
    kvt__http_stop(http);
    assert_int_equal(ask_wait(&ask), -ECANCELED);
    end();
}

static void
a_refusal_instead_of_100_saves_the_body(void **state)
{
    unsigned char body[1000] = { 0 };
    struct ask ask;

    (void)state;
    begin(PLAYS(play_early), 1, 4);
    ask_init(&ask, origin, "PUT", "/x", into, BIG);
    ask.req.body = body;
    ask.req.body_bytes = sizeof body;
    ask.req.expect_continue = true;
    assert_int_equal(ask_run(http, &ask), 0);
    assert_int_equal(ask.req.http_status, 403);
    assert_true(ask.req.early);
    sem_post(&server.go);
    end();
}

/* ---------------------------------------------------------- refused responses */

static void
play_small_and_large(struct peer *p)
{
    while (peer_head(p)) {
        bool large = strstr(p->head, "/large");

        peer_send(p, large ? "HTTP/1.1 500 No\r\nContent-Length: 20000\r\n\r\n"
                           : "HTTP/1.1 500 No\r\nContent-Length: 16000\r\n\r\n");
        peer_send_pattern(p, 0, large ? 20000 : 16000);
    }
}

static void
a_small_unwanted_body_is_drained(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_small_and_large), 1, 4);
    for (unsigned i = 0; i < 4; i++) {
        ask_init(&ask, origin, "GET", i == 2 ? "/large" : "/small", NULL, 0);
        ask.refuse = -EBADMSG;
        assert_int_equal(ask_run(http, &ask), -EBADMSG);
        assert_string_equal(ask.req.why, "the test refuses it.");
        assert_int_equal(ask.req.http_status, 500);
    }
    /* The request after the large response needs a new connection.  Requests after small responses
     * may start before the drain is done, and then need new connections too. */
    assert_true(server.n_accepted >= 2);
    end();
}

static void
play_garbage(struct peer *p)
{
    peer_head(p);
    peer_send(p, "SSH-2.0-OpenSSH_9.2\r\n");
    peer_gone(p);
}

static void
a_response_that_is_not_http_is_an_error(void **state)
{
    struct ask ask;

    (void)state;
    assert_int_equal(get_from(&ask, play_garbage, BIG), -EPROTO);
    assert_null(strstr(ask.req.why, "SSH"));
    end();
}

static void
play_endless_head(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\n");
    for (int i = 0; i < 4000; i++)
        peer_send(p, "X-Field: value\r\n");
    peer_gone(p);
}

static void
a_head_has_a_limit(void **state)
{
    struct ask ask;

    (void)state;
    assert_int_equal(get_from(&ask, play_endless_head, BIG), -EPROTO);
    end();
}

static void
play_many_fields(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\n");
    for (int i = 0; i < 200; i++)
        peer_send(p, "X-Field: value\r\n");
    peer_send(p, "Content-Length: 2\r\n\r\nok");
    peer_gone(p);
}

static void
a_length_after_many_fields_counts(void **state)
{
    struct ask ask;

    (void)state;
    assert_int_equal(get_from(&ask, play_many_fields, BIG), 0);
    assert_int_equal(ask.req.received_bytes, 2);
    end();
}

static void
run_waits_and_calls_no_done(void **state)
{
    struct ask ask;

    (void)state;
    begin(PLAYS(play_404), 1, 4);
    ask_init(&ask, origin, "HEAD", "/x", NULL, 0);
    assert_int_equal(kvt__http_run(http, &ask.req), 0);
    assert_int_equal(ask.req.http_status, 404);
    assert_int_equal(ask.n_done, 0);
    end();
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_lands_in_the_callers_memory),
        cmocka_unit_test(a_body_is_sent_from_the_callers_memory),
        cmocka_unit_test(a_response_to_head_has_no_body),
        cmocka_unit_test(a_204_has_no_body_either),
        cmocka_unit_test(the_body_of_a_204_is_no_later_answer),
        cmocka_unit_test(a_body_longer_than_room_never_begins),
        cmocka_unit_test(a_truncated_body_is_an_error),
        cmocka_unit_test(a_reset_in_the_body_is_an_error),
        cmocka_unit_test(bytes_after_a_body_close_the_connection),
        cmocka_unit_test(a_body_may_end_with_the_connection),
        cmocka_unit_test(a_chunked_body_is_put_together),
        cmocka_unit_test(a_chunked_body_without_its_end_is_an_error),
        cmocka_unit_test(an_early_answer_stops_the_sending),
        cmocka_unit_test(the_body_waits_for_100_but_not_for_long),
        cmocka_unit_test(endless_responses_do_not_delay_other_requests),
        cmocka_unit_test(a_refusal_instead_of_100_saves_the_body),
        cmocka_unit_test(a_small_unwanted_body_is_drained),
        cmocka_unit_test(a_response_that_is_not_http_is_an_error),
        cmocka_unit_test(a_head_has_a_limit),
        cmocka_unit_test(a_length_after_many_fields_counts),
        cmocka_unit_test(run_waits_and_calls_no_done),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
