/* SPDX-License-Identifier: Apache-2.0
 *
 * Name lookups and attempts to connect, with the test's own getaddrinfo(). */
#include "unit/http/pair.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "http/private.h"

#define MAX_ADDRESSES 6
static const char *addresses[MAX_ADDRESSES]; /* the addresses of every name */
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
    for (int i = MAX_ADDRESSES; i--;) {
        struct sockaddr_in in = { .sin_family = AF_INET };
        struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };

        if (!addresses[i])
            continue;
        struct addrinfo *node = calloc(1, sizeof *node + sizeof in6);
        bool is6 = inet_pton(AF_INET6, addresses[i], &in6.sin6_addr) == 1;
        in.sin_addr.s_addr = inet_addr(addresses[i]);
        memcpy(node + 1, is6 ? (void *)&in6 : &in, is6 ? sizeof in6 : sizeof in);
        node->ai_family = is6 ? AF_INET6 : AF_INET;
        node->ai_addr = (struct sockaddr *)(node + 1);
        node->ai_addrlen = is6 ? sizeof in6 : sizeof in;
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

/* Start the test with these addresses for the name store.example. */
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
    assert_int_equal(get(&ask), 0); /* during the new lookup */
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

/* Return the resolver's n-th address of the origin, after the end of all lookups. */
static struct kvt__http_address
address_now(size_t n)
{
    struct kvt__http_address address;
    bool looking;

    do {
        pthread_mutex_lock(&http->dns_lock);
        looking = origin->lookup_pending;
        address = origin->addresses[n];
        pthread_mutex_unlock(&http->dns_lock);
        sched_yield();
    } while (looking);
    return address;
}

static void
an_address_that_refused_stays_last_after_a_lookup(void **state)
{
    struct ask ask;

    (void)state;
    begin_at("127.0.0.4", "127.0.0.1", NULL);
    assert_int_equal(get(&ask), 0);
    int64_t bad_until_ns = address_now(0).bad_until_ns;
    assert_true(bad_until_ns > kvt__now_ns());
    assert_int_equal(get(&ask), 0); /* the name may have moved: look up again */
    assert_int_equal(address_now(0).bad_until_ns, bad_until_ns);
    assert_int_equal(n_lookups, 2);
    end();
}

static void
a_repeated_address_is_used_once(void **state)
{
    struct ask ask;

    (void)state;
    begin_at("127.0.0.1", "127.0.0.1", "127.0.0.3");
    assert_int_equal(get(&ask), 0);
    assert_int_equal(origin->n_addresses, 2);
    end();
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

/* The connect timeout of an address: longer than any test. */
#define PATIENT_NS (3600 * KVT__NS_PER_S)

static void
begin_patient_at(const char *first, const char *other, const char *third)
{
    struct kvt__http_params params = { .n_threads = 1, .max_requests = 4,
                                       .connect_ns = PATIENT_NS };

    begin_at(first, other, third);
    kvt__http_close(http);
    assert_int_equal(kvt__http_open(&params, &http), 0);
    origin = origin_at(http, "store.example", server.port, false);
}

/* Submit a request, and put the clock forward by the delay between two attempts. */
static void
get_after_a_delay(struct ask *ask)
{
    ask_init(ask, origin, "GET", "/x", into, BIG);
    kvt__http_submit(http, &ask->req);
    settle(origin);
    address_now(0); /* the end of the lookup */
    put_forward(origin, 1);
    assert_int_equal(ask_wait(ask), 0);
}

static void
an_address_that_is_silent_does_not_hold_up_the_next(void **state)
{
    struct full full;
    struct ask ask;

    (void)state;
    begin_patient_at("127.0.0.6", "127.0.0.1", NULL);
    full_start(&full, "127.0.0.6", server.port);
    get_after_a_delay(&ask);
    /* Later connections begin with the other address. */
    assert_true(origin->addresses[0].bad_until_ns > kvt__now_ns());
    assert_int_equal(origin->addresses[1].bad_until_ns, 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(get(&ask), 0);
    assert_int_equal(server.n_accepted, 5);
    end();
    full_stop(&full);
}

static void
an_address_that_is_silent_fails_after_the_connect_timeout(void **state)
{
    struct full full;
    struct ask ask;

    (void)state;
    begin_patient_at(NULL, NULL, NULL);
    full_start(&full, "127.0.0.6", server.port);
    ask_init(&ask, origin_at(http, "127.0.0.6", server.port, false), "GET", "/x", NULL, 0);
    ask.req.deadline_ns = 0;
    kvt__http_submit(http, &ask.req);
    put_forward(origin, 3590);
    assert_int_equal(ask.n_done, 0);
    put_forward(origin, 11);
    assert_int_equal(ask_wait(&ask), -ETIMEDOUT);
    end();
    full_stop(&full);
}

static void
four_attempts_of_a_connection_are_under_way_at_most(void **state)
{
    static const char *const silent[MAX_ADDRESSES] = {
        "127.0.0.6", "127.0.0.7", "127.0.0.8", "127.0.0.9", "127.0.0.10", "127.0.0.11" };
    struct full full[MAX_ADDRESSES];
    struct ask ask;

    (void)state;
    begin_patient_at(silent[0], silent[1], silent[2]);
    for (int i = 0; i < MAX_ADDRESSES; i++) {
        addresses[i] = silent[i];
        full_start(&full[i], silent[i], server.port);
    }
    unsigned before = count_descriptors();
    ask_init(&ask, origin, "GET", "/x", NULL, 0);
    ask.req.deadline_ns = 0;
    kvt__http_submit(http, &ask.req);
    while (count_descriptors() == before) /* the name is being resolved */
        settle(origin);
    for (int i = 0; i < 3 * MAX_ADDRESSES; i++)
        put_forward(origin, 1);
    assert_int_equal(count_descriptors(), before + 4);
    kvt__http_stop(http);
    assert_int_equal(ask_wait(&ask), -ECANCELED);
    end();
    for (int i = 0; i < MAX_ADDRESSES; i++) {
        full_stop(&full[i]);
        addresses[i] = NULL;
    }
}

#define MAX_WATCHED 16

/* List the descriptors in the client's epoll; return the number. */
static unsigned
list_watched(struct pollfd out[MAX_WATCHED])
{
    char path[64], line[256];
    unsigned n = 0;

    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", http->threads[0].epoll);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (n < MAX_WATCHED && sscanf(line, "tfd: %d", &out[n].fd) == 1)
            out[n++].events = POLLOUT;
    fclose(f);
    return n;
}

static unsigned
count_watched(void)
{
    struct pollfd watched[MAX_WATCHED];

    return list_watched(watched);
}

static sem_t held, let_go;

/* Hold up the client's thread. */
static int
hold_up(struct kvt__http_request *req, char *out, size_t room)
{
    (void)req;
    (void)out;
    (void)room;
    sem_post(&held);
    sem_wait(&let_go);
    return kvt__fail(ECANCELED, "the test held it up.");
}

/* The thread learns of two failed attempts in a single turn: the next attempts still
 * begin one by one. */
static void
attempts_that_fail_together_do_not_delay_the_next(void **state)
{
    static const char *const silent[MAX_ADDRESSES] = {
        "127.0.0.6", "127.0.0.7", "127.0.0.8", "127.0.0.9", "127.0.0.10", "127.0.0.1" };
    struct pollfd watched[MAX_WATCHED];
    struct full full[5];
    struct ask ask, holds;
    unsigned n_failed;

    (void)state;
    begin_patient_at(silent[0], silent[1], silent[2]);
    memcpy(addresses, silent, sizeof silent);
    for (int i = 0; i < 5; i++)
        full_start(&full[i], silent[i], server.port);
    ask_init(&ask, origin, "GET", "/x", into, BIG);
    ask.req.deadline_ns = 0;
    kvt__http_submit(http, &ask.req);
    settle(origin);
    address_now(0); /* the end of the lookup */
    while (count_watched() < 5)
        put_forward(origin, 1);
    ask_init(&holds, origin_of(http, &server), "GET", "/x", NULL, 0);
    holds.req.write_head = hold_up;
    kvt__http_submit(http, &holds.req);
    sem_wait(&held);
    full_stop(&full[0]);
    full_stop(&full[1]);
    do { /* until the kernel has sent SYN again */
        unsigned n = list_watched(watched);

        assert_true(poll(watched, n, -1) > 0);
        n_failed = 0;
        for (unsigned i = 0; i < n; i++)
            n_failed += !!(watched[i].revents & POLLERR);
    } while (n_failed < 2);
    sem_post(&let_go);
    assert_int_equal(ask_wait(&holds), -ECANCELED);
    put_forward(origin, 1);
    assert_int_equal(ask_wait(&ask), 0);
    end();
    for (int i = 2; i < 5; i++)
        full_stop(&full[i]);
    memset(addresses, 0, sizeof addresses);
}

/* A child's copy of a socket keeps a closed socket in the epoll. */
static void
ended_attempts_are_not_watched(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct full full;
        struct ask ask;

        begin_patient_at("127.0.0.6", NULL, NULL);
        full_start(&full, "127.0.0.6", server.port);
        ask_init(&ask, origin, "GET", "/x", NULL, 0);
        ask.req.deadline_ns = 0;
        kvt__http_submit(http, &ask.req);
        while (count_watched() == 1) /* the name is being resolved */
            settle(origin);
        pid_t child = start_idle_child();
        if (i)
            put_forward(origin, 3601);
        else
            kvt__http_stop(http);
        assert_int_equal(ask_wait(&ask), i ? -ETIMEDOUT : -ECANCELED);
        assert_int_equal(count_watched(), 1);
        end_idle_child(child);
        end();
        full_stop(&full);
    }
}

static void
the_resolver_decides_which_family_comes_first(void **state)
{
    struct ask ask;

    (void)state;
    begin_at("::1", "127.0.0.1", "127.0.0.3");
    script_start_at(&second, PLAYS(play_close), "::1", server.port);
    for (int i = 0; i < 4; i++)
        assert_int_equal(get(&ask), 0);
    assert_int_equal(second.n_accepted, 4);
    assert_int_equal(server.n_accepted, 0);
    script_stop(&second); /* now ::1 refuses: the other family serves */
    assert_int_equal(get(&ask), 0);
    assert_int_equal(server.n_accepted, 1);
    end();
}

static void
the_families_alternate(void **state)
{
    struct full full;
    struct ask ask;

    (void)state;
    begin_patient_at("127.0.0.6", "127.0.0.1", "::1");
    full_start(&full, "127.0.0.6", server.port);
    script_start_at(&second, PLAYS(play_close), "::1", server.port);
    get_after_a_delay(&ask);
    assert_int_equal(second.n_accepted, 1);
    assert_int_equal(server.n_accepted, 0);
    end();
    script_stop(&second);
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
    origin = origin_at(http, "[::1]", refusing_port("::1"), false);
    assert_int_equal(get(&ask), -ECONNREFUSED);
    assert_non_null(strstr(ask.req.why, "[::1]:"));
    end();
    script_stop(&second);
}

static void
a_request_fails_if_all_addresses_refuse(void **state)
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
        cmocka_unit_test(an_address_that_refused_stays_last_after_a_lookup),
        cmocka_unit_test(a_repeated_address_is_used_once),
        cmocka_unit_test(the_next_address_is_tried_when_one_refuses),
        cmocka_unit_test(an_address_that_is_silent_does_not_hold_up_the_next),
        cmocka_unit_test(an_address_that_is_silent_fails_after_the_connect_timeout),
        cmocka_unit_test(four_attempts_of_a_connection_are_under_way_at_most),
        cmocka_unit_test(attempts_that_fail_together_do_not_delay_the_next),
        cmocka_unit_test(ended_attempts_are_not_watched),
        cmocka_unit_test(the_resolver_decides_which_family_comes_first),
        cmocka_unit_test(the_families_alternate),
        cmocka_unit_test(addresses_may_be_long),
        cmocka_unit_test(a_request_fails_if_all_addresses_refuse),
        cmocka_unit_test(a_name_that_is_not_found_is_an_error),
        cmocka_unit_test(old_addresses_serve_while_the_resolver_fails),
        cmocka_unit_test(origins_are_found_again),
    };

    sem_init(&looked_up, 0, 0);
    sem_init(&held, 0, 0);
    sem_init(&let_go, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
