/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool: position, size and life of slots. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "kvt-test.h"

#include "base/error.h"
#include "kvtier.h"
#include "mem/available.h"
#include "mem/pool.h"

#define MIB ((size_t)1 << 20)

static struct kvt__pool *
open_pool(size_t bytes, size_t phase)
{
    struct kvt__pool_params params = { .bytes = bytes, .phase = phase,
                                       .key = "max_local_cpu_size" };
    struct kvt__pool *pool = NULL;

    if (kvt__pool_open(&params, &pool))
        fail_msg("%s", kvt__why());
    kvt__pool_wait_populated(pool, bytes);
    return pool;
}

static void
payloads_have_the_requested_phase(void **state)
{
    static const size_t phases[] = { 0, 28, 64, 4095 };

    (void)state;
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) {
        struct kvt__pool *pool = open_pool(MIB, phases[i]);
        struct kvt__slot slots[8];

        for (size_t s = 0; s < 8; s++) {
            assert_true(kvt__pool_acquire(pool, s * 1111 + 1, 0, &slots[s]));
            assert_int_equal((uintptr_t)slots[s].payload % 4096, phases[i]);
            assert_int_equal(slots[s].bytes, s * 1111 + 1);
        }
        for (size_t s = 0; s < 8; s++)
            kvt__pool_release(pool, &slots[s]);
        kvt__pool_close(pool);
    }
}

/* Fill each slot and its room with the slot's number, then check all slots. */
static void
slots_and_their_rooms_never_overlap(void **state)
{
    struct kvt__pool *pool = open_pool(2 * MIB, 28);
    struct kvt__slot slots[64];
    size_t n = 0;

    (void)state;
    while (n < 64 && kvt__pool_acquire(pool, n * 700 + 1, 0, &slots[n])) {
        memset(slots[n].payload - KVT__SLOT_MARGIN, (int)n + 1,
               slots[n].bytes + 2 * KVT__SLOT_MARGIN);
        n++;
    }
    assert_in_range(n, 20, 64);
    for (size_t s = 0; s < n; s++) {
        const unsigned char *start = slots[s].payload - KVT__SLOT_MARGIN;

        for (size_t i = 0; i < slots[s].bytes + 2 * KVT__SLOT_MARGIN; i++)
            assert_int_equal(start[i], s + 1);
        kvt__pool_release(pool, &slots[s]);
        assert_null(slots[s].payload);
    }
    assert_int_equal(kvt__pool_used(pool), 0);
    kvt__pool_close(pool);
}

static void
a_full_pool_refuses_until_a_slot_is_released(void **state)
{
    struct kvt__pool *pool = open_pool(MIB, 0);
    const size_t bytes = MIB / 4 - 2 * KVT__SLOT_MARGIN;
    struct kvt__slot slots[4], more;

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_true(kvt__pool_acquire(pool, bytes, 0, &slots[i]));
    assert_int_equal(kvt__pool_used(pool), MIB);
    assert_false(kvt__pool_acquire(pool, 1, 0, &more));
    kvt__pool_release(pool, &slots[2]);
    assert_false(kvt__pool_acquire(pool, bytes + 1, 0, &more));
    assert_true(kvt__pool_acquire(pool, bytes, 0, &slots[2]));
    for (int i = 0; i < 4; i++)
        kvt__pool_release(pool, &slots[i]);
    kvt__pool_close(pool);
}

static void
keep_free_leaves_that_much(void **state)
{
    struct kvt__pool *pool = open_pool(MIB, 0);
    const size_t bytes = MIB / 4 - 2 * KVT__SLOT_MARGIN; /* a slot uses a quarter of the pool */
    struct kvt__slot a, b, c;

    (void)state;
    assert_false(kvt__pool_acquire(pool, bytes, MIB - MIB / 4 + 1, &a));
    assert_true(kvt__pool_acquire(pool, bytes, MIB - MIB / 4, &a));
    assert_true(kvt__pool_acquire(pool, bytes, MIB / 2, &b));
    assert_false(kvt__pool_acquire(pool, bytes, MIB / 2, &c));
    assert_false(kvt__pool_acquire(pool, bytes, SIZE_MAX, &c));
    kvt__pool_release(pool, &a);
    assert_true(kvt__pool_acquire(pool, bytes, MIB / 2, &c));
    kvt__pool_release(pool, &b);
    kvt__pool_release(pool, &c);
    kvt__pool_close(pool);
}

static void
pool_fits_equals_the_largest_allocation(void **state)
{
    struct kvt__pool *pool = open_pool(MIB, 28);
    struct kvt__slot slot;
    size_t most = MIB - 2 * KVT__SLOT_MARGIN - 28;

    (void)state;
    assert_int_equal(kvt__pool_bytes(pool), MIB);
    assert_true(kvt__pool_fits(pool, most));
    assert_false(kvt__pool_fits(pool, most + 1));
    assert_false(kvt__pool_fits(pool, SIZE_MAX));
    assert_true(kvt__pool_acquire(pool, most, 0, &slot));
    kvt__pool_release(pool, &slot);
    assert_false(kvt__pool_acquire(pool, most + 1, 0, &slot));
    assert_false(kvt__pool_acquire(pool, SIZE_MAX, 0, &slot));
    kvt__pool_close(pool);
}

static void
a_pool_larger_than_memory_is_enomem_with_both_sizes(void **state)
{
    struct kvt__pool_params params = { .bytes = SIZE_MAX / 2,
                                       .key = "max_local_cpu_size" };
    struct kvt__pool *pool = NULL;
    char asked[64];

    (void)state;
    assert_in_range(kvt_memory_available(), MIB, UINT64_MAX - 1);
    assert_int_equal(kvt__pool_open(&params, &pool), -ENOMEM);
    assert_null(pool);
    snprintf(asked, sizeof asked, "%zu MiB asked", params.bytes >> 20);
    assert_non_null(strstr(kvt__why(), "max_local_cpu_size"));
    assert_non_null(strstr(kvt__why(), asked));
    assert_non_null(strstr(kvt__why(), "MiB of memory available"));
}

#define POPULATE_WRITE 23

/* The populating thread of a pool waits here before the second step. */
static struct {
    bool is_on;
    int n_steps;
    sem_t reached, passed;
} gate;

int __real_madvise(void *at, size_t n, int advice);
int __wrap_madvise(void *at, size_t n, int advice);

int
__wrap_madvise(void *at, size_t n, int advice)
{
    if (advice == POPULATE_WRITE && gate.is_on && ++gate.n_steps == 2) {
        sem_post(&gate.reached);
        sem_wait(&gate.passed);
    }
    return __real_madvise(at, n, advice);
}

static void *
close_pool(void *pool)
{
    kvt__pool_close(pool);
    return NULL;
}

static void
a_pool_closes_while_it_is_populated(void **state)
{
    struct kvt__pool_params params = { .bytes = 256 * MIB, .key = "x" };
    struct kvt__pool *pool = NULL;
    pthread_t closer;

    (void)state;
    sem_init(&gate.reached, 0, 0);
    sem_init(&gate.passed, 0, 0);
    gate.is_on = true;
    assert_int_equal(kvt__pool_open(&params, &pool), 0);
    kvt__pool_wait_populated(pool, 1);
    sem_wait(&gate.reached);
    assert_false(kvt__pool_is_populated(pool));
    assert_int_equal(pthread_create(&closer, NULL, close_pool, pool), 0);
    sem_post(&gate.passed);
    pthread_join(closer, NULL);
    gate.is_on = false;
    sem_destroy(&gate.reached);
    sem_destroy(&gate.passed);
    kvt__pool_close(NULL);
}

/* Missing huge pages must fail the open: a later access would raise SIGBUS. */
static void
missing_huge_pages_are_an_error(void **state)
{
    size_t page = kvt__huge_page_bytes();
    struct kvt__pool_params params = { .bytes = 0, .huge_pages = true,
                                       .key = "max_local_cpu_size" };
    struct kvt__pool *pool = NULL;
    struct kvt__slot slot;

    (void)state;
    params.bytes = kvt__huge_free_bytes() + (kvt_memory_available() / page + 1) * page;
    int err = kvt__pool_open(&params, &pool);
    if (err == -EINVAL)
        skip(); /* qemu-user does not support huge pages */
    assert_int_equal(err, -ENOMEM);
    assert_null(pool);
    assert_non_null(strstr(kvt__why(), "max_local_cpu_size"));
    assert_non_null(strstr(kvt__why(), "vm.nr_hugepages"));
    params.bytes = page;
    err = kvt__pool_open(&params, &pool);
    if (err) {
        assert_int_equal(err, -ENOMEM);
        assert_int_equal(kvt__huge_free_bytes(), 0);
        return;
    }
    kvt__pool_wait_populated(pool, page);
    assert_true(kvt__pool_acquire(pool, page / 2, 0, &slot));
    memset(slot.payload, 1, slot.bytes);
    kvt__pool_release(pool, &slot);
    kvt__pool_close(pool);
}

/* ----------------------------------------------------------------- threads */

#define N_THREADS 4

struct user {
    struct kvt__pool *pool;
    unsigned number;
    int n_bad;
};

static bool
all_are(const unsigned char *at, size_t n, unsigned char c)
{
    while (n--)
        if (*at++ != c)
            return false;
    return true;
}

static void *
user_main(void *arg)
{
    struct user *u = arg;
    struct kvt__slot slots[3] = { 0 };

    for (unsigned i = 0; i < 600; i++) {
        struct kvt__slot *slot = &slots[i % 3];
        unsigned char mark = (unsigned char)(u->number * 64 + i % 64);

        if (slot->payload) {
            mark = slot->payload[0];
            u->n_bad += !all_are(slot->payload, slot->bytes, mark);
            kvt__pool_release(u->pool, slot);
        } else if (kvt__pool_acquire(u->pool, (i * 7919) % 60000 + 1, 0, slot)) {
            memset(slot->payload, mark, slot->bytes);
        }
    }
    for (int i = 0; i < 3; i++)
        if (slots[i].payload)
            kvt__pool_release(u->pool, &slots[i]);
    return NULL;
}

static void
threads_get_slots_of_their_own(void **state)
{
    struct kvt__pool_params params = { .bytes = MIB, .phase = 28, .key = "x" };
    struct user users[N_THREADS];
    pthread_t threads[N_THREADS];
    struct kvt__pool *pool = NULL;

    (void)state;
    assert_int_equal(kvt__pool_open(&params, &pool), 0);
    for (unsigned i = 0; i < N_THREADS; i++) {
        users[i] = (struct user){ pool, i, 0 };
        assert_int_equal(pthread_create(&threads[i], NULL, user_main, &users[i]), 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < N_THREADS; i++)
        assert_int_equal(users[i].n_bad, 0);
    assert_int_equal(kvt__pool_used(pool), 0);
    kvt__pool_close(pool);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(payloads_have_the_requested_phase),
        cmocka_unit_test(slots_and_their_rooms_never_overlap),
        cmocka_unit_test(a_full_pool_refuses_until_a_slot_is_released),
        cmocka_unit_test(keep_free_leaves_that_much),
        cmocka_unit_test(pool_fits_equals_the_largest_allocation),
        cmocka_unit_test(a_pool_larger_than_memory_is_enomem_with_both_sizes),
        cmocka_unit_test(a_pool_closes_while_it_is_populated),
        cmocka_unit_test(missing_huge_pages_are_an_error),
        cmocka_unit_test(threads_get_slots_of_their_own),
    };

    return cmocka_run_group_tests_name("mem pool", tests, NULL, NULL);
}
