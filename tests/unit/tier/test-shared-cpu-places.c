/* SPDX-License-Identifier: Apache-2.0
 *
 * Places of chunks in shared host memory: no overlap, the eviction of windows, chunks that
 * cannot be evicted, and units that are free again. */
#include "shared-cpu-test.h"

enum { N = 48 /* units */ };

static void
equal_chunks_take_the_place_of_the_oldest(void **state)
{
    struct handle h = open_memory(*state, N);

    for (uint64_t i = 0; i < 10 * N / 4; i++) {
        assert_int_equal(put(&h, i, 4), 0);
        wait_for_tick();
        assert_int_equal(read_and_check(&h, i, 4), 1);
        uint32_t n = recount(&h);
        assert_int_equal(n, i < N / 4 ? i + 1 : N / 4);
        assert_int_equal(has(&h, 0), i < N / 4); /* the oldest chunk is evicted first */
    }
    fill_completely(&h, 1 << 20);
    kvt__table_close(h.table);
}

/* Chunks that are stored within one tick of the coarse clock have an order too. */
static void
the_chunk_before_stays_while_older_chunks_can_be_evicted(void **state)
{
    struct handle h = open_memory(*state, N);

    for (uint64_t i = 0; i < 200; i++) {
        forget_all(&h);
        for (uint64_t n = 0; n < N / 4; n++)
            assert_int_equal(put(&h, 1000 * i + n, 4), 0);
        assert_int_equal(put(&h, 1000 * i + 100, 1), 0);
        assert_int_equal(put(&h, 1000 * i + 101, 4), 0);
        assert_int_equal(put(&h, 1000 * i + 102, 9), 0);
        assert_int_equal(read_and_check(&h, 1000 * i + 101, 4), 1);
    }
    kvt__table_close(h.table);
}

static void
mixed_chunks_never_overlap(void **state)
{
    static const uint32_t sizes[] = { 1, 7, 2, 16, 3, N };
    struct handle h = open_memory(*state, N);

    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t n = mix(i) % 100;
        uint32_t n_units = sizes[n % 6];
        int err = put(&h, n, n_units);

        assert_true(!err || err == -EEXIST);
        assert_int_equal(read_and_check(&h, n, n_units), 1);
        if (i % 7 == 0)
            forget(&h, mix(~i) % 100);
        if (i % 50 == 0) {
            recount(&h);
            for (n = 0; n < 100; n++)
                assert_true(read_and_check(&h, n, sizes[n % 6]) >= 0);
        }
    }
    fill_completely(&h, 1 << 20);
    kvt__table_close(h.table);
}

static void
leased_chunks_stay(void **state)
{
    struct handle h = open_memory(*state, N);
    struct kvt__lease leases[N];

    for (uint64_t i = 0; i < N; i++) {
        assert_int_equal(put(&h, i, 1), 0);
        if (i % 8 == 0)
            leases[i] = lease(&h, i);
    }
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(put(&h, 100 + i, 7), 0); /* the windows between the leased chunks */
    for (uint64_t i = 0; i < N; i += 8)
        assert_int_equal(read_and_check(&h, i, 1), 1);
    assert_int_equal(put(&h, 300, 8), -ENOSPC);
    kvt__table_unlease(h.table, &leases[8]);
    assert_int_equal(put(&h, 301, 8), 0);
    assert_false(has(&h, 8));
    recount(&h);
    fill_completely(&h, 1 << 20);
    kvt__table_close(h.table);
}

static void
claimed_chunks_stay(void **state)
{
    struct handle h = open_memory(*state, N);
    struct kvt__claim claim;
    struct sc_evicted evicted;

    assert_int_equal(claim_n(&h, 1, 4, &claim), 0);
    assert_int_equal(kvt__sc_acquire_place(&h.m, claim.entry, bytes_of(4), &evicted), 0);
    unsigned char *payload = kvt__sc_payload(&h.m, claim.entry, bytes_of(4));
    fill_payload(1, payload, bytes_of(4));
    for (uint64_t i = 0; i < 200; i++)
        assert_int_equal(put(&h, 100 + i, 4), 0);
    assert_int_equal(put(&h, 500, N), -ENOSPC);
    assert_true(is_payload(1, payload, bytes_of(4)));
    assert_true(kvt__table_publish(h.table, &claim));
    assert_int_equal(read_and_check(&h, 1, 4), 1);
    fill_completely(&h, 1 << 20);
    kvt__table_close(h.table);
}

/* The policy evicts first the chunks that a stopped process has pinned. */
static void
pinned_chunks_without_use_do_not_end_the_eviction(void **state)
{
    struct handle h = open_memory(*state, N);
    const unsigned char *payload;

    for (uint64_t i = 0; i < N / 4; i++) {
        assert_int_equal(put(&h, i, 4), 0);
        wait_for_tick();
    }
    for (uint64_t i = 0; i < N / 4 - 2; i++)
        assert_true(pin(&h, i, &payload) >= 0);
    for (uint64_t i = 100; i < 110; i++)
        assert_int_equal(put(&h, i, 4), 0);
    for (uint64_t i = 0; i < N / 4 - 2; i++)
        assert_int_equal(read_and_check(&h, i, 4), 1);
    kvt__table_close(h.table);
}

/* A put claims the entry that was freed last; the old place of this entry is free. */
static void
freed_place_is_usable_at_once(void **state)
{
    struct handle h = open_memory(*state, N);

    for (uint64_t i = 0; i < N / 4; i++) {
        assert_int_equal(put(&h, i, 4), 0);
        (void)lease(&h, i);
    }
    assert_int_equal(put(&h, 100, 4), -ENOSPC);
    for (uint64_t i = 0; i < N / 4; i++) {
        forget(&h, i);
        assert_int_equal(put(&h, 200 + i, 4), 0);
        (void)lease(&h, 200 + i);
        assert_int_equal(recount(&h), N / 4);
    }
    kvt__table_close(h.table);
}

/* A search without result moves the start of the next search behind the leased chunks. */
static void
few_free_units_among_many_leased_chunks_are_found(void **state)
{
    enum { MANY = 2000 };
    struct handle h = open_memory(*state, MANY);
    unsigned n_failed = 0;

    for (uint64_t i = 0; i < MANY; i++) {
        assert_int_equal(put(&h, i, 1), 0);
        (void)lease(&h, i);
    }
    forget(&h, MANY - 20);
    while (put(&h, MANY, 1) == -ENOSPC)
        assert_true(n_failed++ < 2 * MANY / 128);
    assert_int_equal(read_and_check(&h, MANY, 1), 1);
    recount(&h);
    kvt__table_close(h.table);
}

static void
evicted_chunks_are_counted(void **state)
{
    struct handle h = open_memory(*state, N);
    struct sc_evicted evicted;
    struct kvt__claim claim;

    for (uint64_t i = 0; i < N; i++)
        assert_int_equal(put(&h, i, 1), 0);
    assert_int_equal(claim_n(&h, 100, 5, &claim), 0);
    assert_int_equal(kvt__sc_acquire_place(&h.m, claim.entry, bytes_of(5), &evicted), 0);
    assert_int_equal(evicted.n, 5);
    assert_int_equal(evicted.bytes, 5 * bytes_of(1));
    kvt__table_abort(h.table, &claim);
    assert_int_equal(claim_n(&h, 101, N, &claim), 0);
    assert_int_equal(kvt__sc_acquire_place(&h.m, claim.entry, N * SC_UNIT + 1, &evicted), -EFBIG);
    kvt__table_abort(h.table, &claim);
    kvt__table_close(h.table);
}

static void
a_chunk_of_whole_units_takes_no_other_unit(void **state)
{
    struct handle h = open_memory(*state, N);
    struct sc_evicted evicted;
    struct kvt__claim claim;

    assert_int_equal(claim_n(&h, 1, N, &claim), 0);
    assert_int_equal(kvt__sc_acquire_place(&h.m, claim.entry, N * SC_UNIT, &evicted), 0);
    assert_non_null(kvt__sc_payload(&h.m, claim.entry, N * SC_UNIT));
    assert_null(kvt__sc_payload(&h.m, claim.entry, N * SC_UNIT + 1));
    kvt__table_abort(h.table, &claim);
    kvt__table_close(h.table);
}

/* Windows end where the memory of the host ends. */
static void
only_populated_units_are_used(void **state)
{
    struct handle h = open_populated(*state, N, 10);

    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(put(&h, i, 1 + i % 4), 0);
        for (uint32_t unit = 10; unit < N; unit++)
            assert_int_equal(h.m.units[unit], 0);
    }
    assert_int_equal(put(&h, 200, 11), -ENOSPC);
    assert_int_equal(put(&h, 201, 10), 0);
    assert_int_equal(recount(&h), 1);
    kvt__table_close(h.table);
    h = open_memory(*state, N);
    assert_int_equal(put(&h, 202, N - 10), 0);
    assert_int_equal(read_and_check(&h, 201, 10), 1);
    fill_completely(&h, 1 << 20);
    kvt__table_close(h.table);
}

/* ------------------------------------------------------------------- garbage */

/* All calls end and use only the memory; chunks may be wrong. */
static void
use_garbage(struct handle *h, uint64_t seed)
{
    for (uint64_t i = 0; i < 40; i++) {
        uint64_t n = mix(seed + i) % 30;
        struct kvt__record seen;

        (void)put(h, n, 1 + (uint32_t)(n % 9));
        (void)read_and_check(h, n, 1 + (uint32_t)(n % 9));
        if (i % 5 == 0)
            forget(h, n);
        if (find(h, n + 1, &seen) &&
            kvt__sc_pin(&h->m, seen.entry, seen.word) >= 0)
            (void)kvt__sc_payload(&h->m, seen.entry, seen.bytes);
    }
}

static uint64_t
garbage(uint64_t random)
{
    switch (random % 5) {
    case 0: return UINT64_MAX;
    case 1: return random >> 8;
    case 2: return sc_place((uint32_t)(random >> 8) % (2 * N), (uint32_t)(random >> 20) % N);
    case 3: return sc_place(UINT32_MAX - (uint32_t)(random >> 60), UINT32_MAX);
    default: return (random >> 8) % N;
    }
}

static void
garbage_in_any_word(void **state)
{
    struct handle h = open_memory(*state, N);
    unsigned owner = kvt__table_owner(h.table);

    for (uint64_t round = 0; round < 300; round++) {
        uint64_t random = mix(round), bits = round % 64;

        for (uint32_t i = 0; bits & 1 && i < 200; i++)
            h.m.places[i] = garbage(mix(random + i));
        for (uint32_t i = 0; bits & 2 && i < N; i++)
            h.m.units[i] = (uint32_t)garbage(mix(random + i));
        for (unsigned i = 0; bits & 4 && i < SC_N_PINS; i++)
            h.m.pins[owner].place[i] = garbage(mix(random + i));
        for (unsigned i = 0; bits & 4 && i < SC_N_PINS / 64; i++)
            h.m.pins[owner].used[i] = mix(random + i);
        if (bits & 8)
            h.m.header->next_unit = (uint32_t)garbage(random);
        if (bits & 16)
            h.m.header->populated_bytes = mix(random) >> random % 60;
        use_garbage(&h, random);
        if (bits & 32)
            forget_all(&h);
    }
    forget_all(&h);
    kvt__sc_clear_owner(&h.m);
    h.m.header->populated_bytes = N * SC_UNIT;
    fill_completely(&h, 1 << 20);
    kvt__table_close(h.table);
}

/* A lock word that names no living owner is free. */
static void
garbage_in_a_lock_word(void **state)
{
    static const uint32_t words[] = { UINT32_MAX, 0x1ff, 200, 1 << 9, 1 << 31 | 77 };
    struct handle h = open_memory(*state, N);

    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        h.m.header->lock = words[i];
        assert_int_equal(put(&h, i, 1), 0);
        assert_int_equal(read_and_check(&h, i, 1), 1);
    }
    kvt__table_close(h.table);
}

static int64_t waited_ns; /* all times of waits for a lock, as asked for */

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);

/* The only system calls are waits for a lock word, and wakes. */
long
__wrap_syscall(long number, ...)
{
    va_list ap;

    va_start(ap, number);
    uint32_t *word = va_arg(ap, uint32_t *);
    int op = va_arg(ap, int);
    uint32_t value = va_arg(ap, uint32_t);
    const struct timespec *time = va_arg(ap, const struct timespec *);
    va_end(ap);
    waited_ns += time ? time->tv_nsec : 0;
    return __real_syscall(number, word, op, value, time, NULL, 0);
}

/* A stopped process holds the lock, or the lock word is garbage and names a living process. */
static void
a_held_lock_is_waited_for_once(void **state)
{
    struct handle h = open_memory(*state, N), other = open_memory(*state, N);

    h.m.header->lock = kvt__table_owner(other.table) + 1;
    waited_ns = 0;
    assert_int_equal(put(&h, 0, 1), -ETIMEDOUT);
    assert_true(waited_ns >= KVT__NS_PER_MS);
    waited_ns = 0;
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(put(&h, i, 1), -ETIMEDOUT);
    assert_in_range(waited_ns, 0, 10);
    h.m.header->lock += 1 << 10; /* another acquisition */
    assert_int_equal(put(&h, 0, 1), -ETIMEDOUT);
    assert_true(waited_ns >= KVT__NS_PER_MS);
    kvt__table_unlock_word(&h.m.header->lock);
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(put(&h, i, 1), 0);
    kvt__table_close(other.table);
    kvt__table_close(h.table);
}

/* The death of the process ends the lock that puts do not wait for. */
static void
a_held_lock_ends_with_its_process(void **state)
{
    struct handle h = open_memory(*state, N), other = open_memory(*state, N);

    assert_int_equal(kvt__table_lock_word(other.table, &h.m.header->lock, 1, &h.m.timed_out), 0);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(put(&h, i, 1), -ETIMEDOUT);
    kvt__table_close(other.table);
    assert_int_equal(put(&h, 0, 1), 0);
    assert_int_equal(read_and_check(&h, 0, 1), 1);
    kvt__table_close(h.table);
}

/* A view finds the number of units in the size of the area. */
static void
each_size_has_its_units(void **state)
{
    static const uint32_t sizes[] = { 1, 2, 1023, 1024, 1025, 5000, 65536 };

    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct handle h = open_populated(*state, sizes[i], 0);
        struct kvt__table_params params = { .writer = true };

        kvt__sc_set_params(&params, sizes[i] * SC_UNIT);
        assert_int_equal(h.m.n_units, sizes[i]);
        assert_int_equal(h.m.payload_at + sizes[i] * SC_UNIT, params.area_bytes);
        assert_true(h.m.n_entries >= sizes[i]);
        kvt__table_close(h.table);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHM_TEST(equal_chunks_take_the_place_of_the_oldest),
        SHM_TEST(the_chunk_before_stays_while_older_chunks_can_be_evicted),
        SHM_TEST(mixed_chunks_never_overlap),
        SHM_TEST(leased_chunks_stay),
        SHM_TEST(claimed_chunks_stay),
        SHM_TEST(pinned_chunks_without_use_do_not_end_the_eviction),
        SHM_TEST(freed_place_is_usable_at_once),
        SHM_TEST(few_free_units_among_many_leased_chunks_are_found),
        SHM_TEST(evicted_chunks_are_counted),
        SHM_TEST(a_chunk_of_whole_units_takes_no_other_unit),
        SHM_TEST(only_populated_units_are_used),
        SHM_TEST(garbage_in_any_word),
        SHM_TEST(garbage_in_a_lock_word),
        SHM_TEST(a_held_lock_is_waited_for_once),
        SHM_TEST(a_held_lock_ends_with_its_process),
        SHM_TEST(each_size_has_its_units),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
