/* SPDX-License-Identifier: Apache-2.0
 *
 * From names to connections, with a resolver of this program's own. */
#include "unit/http/pair.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

static const char *addresses[3]; /* what every name resolves to */
static atomic_int n_lookups;
static sem_t looked_up;

int
getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
            struct addrinfo **out)
{
    struct addrinfo *list = NULL;

    (void)name;
    (void)service;
    (void)hints;
    for (int i = 3; i--;) {
        struct sockaddr_in in = { .sin_family = AF_INET };

        if (!addresses[i])
            continue;
        struct addrinfo *node = calloc(1, sizeof *node + sizeof in);
        in.sin_addr.s_addr = inet_addr(addresses[i]);
        memcpy(node + 1, &in, sizeof in);
        node->ai_family = AF_INET;
        node->ai_addr = (struct sockaddr *)(node + 1);
        node->ai_addrlen = sizeof in;
        node->ai_next = list;
        list = node;
    }
    *out = list;
    n_lookups++;
    sem_post(&looked_up);
    return list ? 0 : EAI_NONAME;
}

void
freeaddrinfo(struct addrinfo *list)
{
    for (struct addrinfo *next; list; list = next) {
        next = list->ai_next;
        free(list);
    }
}

static struct script second;

static void
play_close(struct peer *p)
{
    peer_head(p);
    peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    peer_gone(p);
}

/* store.example is at these addresses. */
static void
begin_at(const char *first, const char *other, const char *third)
{
    addresses[0] = first;
    addresses[1] = other;
    addresses[2] = third;
    n_lookups = 0;
    begin(PLAYS(play_close), 1, 4);
    origin = origin_at(http, "store.example", server.port, false);
}

static void
a_name_is_looked_up_once_for_some_seconds(void **state)
{
    struct ask ask;

    (void)state;
    begin_at("127.0.0.1", NULL, NULL);
    for (int i = 0; i < 5; i++)
        assert_int_equal(get(&ask), 0);
    assert_int_equal(n_lookups, 1);
    sem_wait(&looked_up);
    clock_ahead_s += 6;
    assert_int_equal(get(&ask), 0); /* while it is looked up again */
    sem_wait(&looked_up);
    assert_int_equal(n_lookups, 2);
    end();
}

static void
addresses_need_no_resolver(void **state)
{
    static const char *const hosts[] = { "127.0.0.1", "store.example" };
    struct ask ask;

    (void)state;
    begin_at(NULL, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        struct kvt__http_target target = { .host = hosts[i], .port = server.port,
                                           .address = i ? "127.0.0.1" : NULL };
        assert_int_equal(kvt__http_origin(http, &target, &origin), 0);
        assert_int_equal(get(&ask), 0);
    }
    assert_int_equal(n_lookups, 0);
    end();
}

static void
all_addresses_are_used_in_turn(void **state)
{
    struct ask ask;

    (void)state;
    begin_at("127.0.0.1", "127.0.0.3", NULL);
    script_start_at(&second, PLAYS(play_close), "127.0.0.3", server.port);
    for (int i = 0; i < 6; i++)
        assert_int_equal(get(&ask), 0);
    assert_int_equal(server.n_accepted, 3);
    assert_int_equal(second.n_accepted, 3);
    end();
    script_stop(&second);
}

static void
the_next_address_is_tried_when_one_refuses(void **state)
{
    struct kvt__http_stats stats;
    struct ask ask;

    (void)state;
    begin_at("127.0.0.4", "127.0.0.5", "127.0.0.1");
    for (unsigned i = 1; i <= 6; i++) {
        assert_int_equal(get(&ask), 0);
        assert_int_equal(server.n_accepted, i);
    }
    kvt__http_stats(http, &stats);
    assert_int_equal(stats.connections, 6);
    end();
}

static void
the_next_address_is_tried_when_one_is_silent(void **state)
{
    struct full full;
    struct ask ask;

    (void)state;
    begin_at("127.0.0.6", "127.0.0.1", NULL);
    full_start(&full, "127.0.0.6", server.port);
    ask_init(&ask, origin, "GET", "/x", NULL, 0);
    kvt__http_submit(http, &ask.req);
    put_forward(origin_of(http, &server), 4);
    assert_int_equal(ask_wait(&ask), 0);
    for (int i = 0; i < 4; i++) /* it is left out for a while */
        assert_int_equal(get(&ask), 0);
    end();
    full_stop(&full);
}

static void
addresses_may_be_long(void **state)
{
    struct ask ask;

    (void)state;
    script_start_at(&second, PLAYS(play_close), "::1", 0);
    begin(PLAYS(play_close), 1, 4);
    origin = origin_at(http, "[::1]", second.port, false);
    assert_int_equal(get(&ask), 0);
    origin = origin_at(http, "[::1]", free_port(), false);
    assert_int_equal(get(&ask), -ECONNREFUSED);
    assert_non_null(strstr(ask.req.why, "[::1]:"));
    end();
    script_stop(&second);
}

static void
when_all_refuse_it_fails(void **state)
{
    struct ask ask;

    (void)state;
    begin_at("127.0.0.4", "127.0.0.5", NULL);
    assert_int_equal(get(&ask), -ECONNREFUSED);
    assert_non_null(strstr(ask.req.why, "store.example:"));
    assert_int_equal(get(&ask), -ECONNREFUSED);
    assert_int_equal(ask.n_heads, 0);
    end();
}

static void
a_name_that_is_not_found_is_an_error(void **state)
{
    struct ask ask;

    (void)state;
    begin_at(NULL, NULL, NULL);
    assert_int_equal(get(&ask), -EHOSTUNREACH);
    assert_non_null(strstr(ask.req.why, "store.example"));
    addresses[0] = "127.0.0.1";
    assert_int_equal(get(&ask), 0);
    end();
}

static void
old_addresses_serve_while_the_resolver_fails(void **state)
{
    struct ask ask;

    (void)state;
    begin_at("127.0.0.1", NULL, NULL);
    assert_int_equal(get(&ask), 0);
    addresses[0] = NULL;
    for (int i = 0; i < 3; i++) {
        clock_ahead_s += 100;
        assert_int_equal(get(&ask), 0);
        assert_int_equal(n_lookups, 2 + i);
    }
    end();
}

static void
origins_are_found_again(void **state)
{
    struct kvt__http_target target = { .host = "Store.example" };

    (void)state;
    begin_at(NULL, NULL, NULL);
    target.port = server.port;
    struct kvt__http_origin *again;
    assert_int_equal(kvt__http_origin(http, &target, &again), 0);
    assert_ptr_equal(again, origin);
    target.address = "127.0.0.1";
    assert_int_equal(kvt__http_origin(http, &target, &again), 0);
    assert_ptr_not_equal(again, origin);
    end();
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_is_looked_up_once_for_some_seconds),
        cmocka_unit_test(addresses_need_no_resolver),
        cmocka_unit_test(all_addresses_are_used_in_turn),
        cmocka_unit_test(the_next_address_is_tried_when_one_refuses),
        cmocka_unit_test(the_next_address_is_tried_when_one_is_silent),
        cmocka_unit_test(addresses_may_be_long),
        cmocka_unit_test(when_all_refuse_it_fails),
        cmocka_unit_test(a_name_that_is_not_found_is_an_error),
        cmocka_unit_test(old_addresses_serve_while_the_resolver_fails),
        cmocka_unit_test(origins_are_found_again),
    };

    sem_init(&looked_up, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
