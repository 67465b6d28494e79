/* SPDX-License-Identifier: Apache-2.0
 *
 * The measured speed of loads from a storage. */
#include "still-clock.h"
#include "store-test.h"

#define MIB ((uint64_t)1 << 20)
#define MS KVT__NS_PER_MS

static int
setup(void **state)
{
    now_ns = 1000 * KVT__NS_PER_S;
    return env_setup(state);
}

static struct kvt__level *
level_of(struct env *e)
{
    return &e->store->levels[0];
}

static struct kvt__table_speed
speed_of(const struct env *e)
{
    return kvt__store_speed(e->store, 1);
}

/* Read n chunks of 1 MiB at the same time, in ms. */
static void
read_together(struct env *e, int n, int64_t ms)
{
    for (int i = 0; i < n; i++)
        kvt__speed_begin(level_of(e), MIB);
    now_ns += ms * MS;
    for (int i = 0; i < n; i++)
        kvt__speed_end(level_of(e), MIB, true);
    now_ns += KVT__NS_PER_S; /* idle time does not count */
}

static void
check_rate(const struct env *e, uint64_t mib_per_s)
{
    assert_in_range(speed_of(e).bytes_per_s, mib_per_s * MIB * 99 / 100,
                    mib_per_s * MIB * 101 / 100);
}

static void
reads_at_the_same_time_add_up(void **state)
{
    assert_int_equal(speed_of(*state).bytes_per_s, 0);
    read_together(*state, 4, 40);
    check_rate(*state, 100);
}

static void
reads_without_a_result_have_a_time(void **state)
{
    struct kvt__level *level = level_of(*state);

    assert_int_equal(speed_of(*state).reading_since_ns, 0);
    kvt__speed_begin(level, MIB);
    assert_int_equal(speed_of(*state).reading_since_ns, now_ns);
    now_ns += 10 * MS;
    kvt__speed_begin(level, MIB);
    kvt__speed_begin(level, MIB);
    assert_int_equal(speed_of(*state).reading_since_ns, now_ns - 10 * MS);
    kvt__speed_end(level, MIB, true);
    assert_int_equal(speed_of(*state).reading_since_ns, now_ns);
    now_ns += 10 * MS;
    kvt__speed_end(level, MIB, false); /* a failure is no result */
    assert_int_equal(speed_of(*state).reading_since_ns, now_ns - 10 * MS);
    kvt__speed_end(level, MIB, false);
    assert_int_equal(speed_of(*state).reading_since_ns, 0);
}

static void
reads_of_different_sizes_have_a_latency(void **state)
{
    for (int i = 0; i < 10; i++) {
        read_together(*state, 2, 50 + 2 * 10);
        read_together(*state, 20, 50 + 20 * 10);
    }
    check_rate(*state, 100);
    assert_in_range(speed_of(*state).latency_ns, 49 * MS, 51 * MS);
}

static void
reads_of_equal_time_have_a_latency_and_a_rate(void **state)
{
    for (int i = 0; i < 100; i++) {
        read_together(*state, i % 2 ? 20 : 1, 70);
        assert_in_range(speed_of(*state).bytes_per_s, MIB, (uint64_t)1e12);
        assert_true(speed_of(*state).latency_ns <= 71 * MS);
    }
}

static void
a_burst_from_a_cache_counts_until_the_next_read(void **state)
{
    read_together(*state, 4, 40);
    for (int i = 0; i < 100; i++)
        read_together(*state, 20, 0);
    assert_int_equal(speed_of(*state).bytes_per_s, (uint64_t)1e12);
    read_together(*state, 4, 40);
    check_rate(*state, 100);
}

static void
failed_reads_measure_nothing(void **state)
{
    kvt__speed_begin(level_of(*state), MIB);
    now_ns += 10 * MS;
    kvt__speed_end(level_of(*state), MIB, false);
    assert_int_equal(speed_of(*state).bytes_per_s, 0);
    read_together(*state, 1, 10); /* the failure's time does not count */
    check_rate(*state, 100);
}

static void
a_storage_that_slows_down_has_a_result_within_a_second(void **state)
{
    struct env *e = *state;
    int64_t begin;

    for (int i = 0; i < 20; i++)
        read_together(e, 4, 40);
    begin = now_ns;
    for (int i = 0; i < 8; i++)
        kvt__speed_begin(level_of(e), MIB);
    while (speed_of(e).bytes_per_s > 20 * MIB) { /* a read of 8 takes 300 ms now */
        now_ns += 300 * MS;
        kvt__speed_end(level_of(e), MIB, true);
        assert_true(now_ns - begin < KVT__NS_PER_S);
        kvt__speed_begin(level_of(e), MIB);
    }
}

static void
endless_reads_have_results_that_follow_the_storage(void **state)
{
    struct env *e = *state;

    for (int i = 0; i < 4; i++)
        kvt__speed_begin(level_of(e), MIB);
    for (int i = 0; i < 1000; i++) { /* never idle: 10 s with 100 MiB/s, then 20 s with 10 MiB/s */
        now_ns += i < 1000 - 200 ? 10 * MS : 100 * MS;
        kvt__speed_end(level_of(e), MIB, true);
        if (i == 700)
            assert_in_range(speed_of(e).bytes_per_s, 90 * MIB, 110 * MIB);
        kvt__speed_begin(level_of(e), MIB);
    }
    assert_in_range(speed_of(e).bytes_per_s, 9 * MIB, 11 * MIB);
}

static void
the_next_process_begins_with_the_speed(void **state)
{
    struct env *e = *state;

    read_together(e, 4, 40);
    kvt__store_close(e->store);
    e->store = open_over(e, "", NULL);
    check_rate(e, 100);
    read_together(e, 4, 44);
    assert_in_range(speed_of(e).bytes_per_s, 91 * MIB, 100 * MIB);
}

static void
the_times_of_models_are_kept_by_key(void **state)
{
    struct env *e = *state;
    struct kvt__table_prefill one = { .key = 5, .ns_per_token = 7, .model = "one" };
    struct kvt__table_prefill two = { .key = 6, .ns_per_token = 8, .model = "two" };
    struct kvt__table_prefill third = { .key = 5 + KVT__TABLE_PREFILLS, .ns_per_token = 9 };

    kvt__store_set_prefill(e->store, &one);
    kvt__store_set_prefill(e->store, &two);
    assert_true(kvt__store_get_prefill(e->store, 5).ns_per_token == 7);
    assert_string_equal(kvt__store_get_prefill(e->store, 6).model, "two");
    kvt__store_set_prefill(e->store, &third); /* in the place of the first */
    assert_int_equal(kvt__store_get_prefill(e->store, 5).key, 0);
    assert_true(kvt__store_get_prefill(e->store, third.key).ns_per_token == 9);
}

static void
a_read_of_the_store_is_measured(void **state)
{
    struct env *e = *state;

    assert_int_equal(put(e, 1), 0);
    assert_int_equal(speed_of(e).bytes_per_s, 0);
    assert_int_equal(get(e, 2), -ENOENT);
    assert_int_equal(speed_of(e).bytes_per_s, 0);
    assert_int_equal(get(e, 1), 0);
    assert_true(speed_of(e).bytes_per_s > 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(reads_at_the_same_time_add_up),
        TEST(reads_without_a_result_have_a_time),
        TEST(reads_of_different_sizes_have_a_latency),
        TEST(reads_of_equal_time_have_a_latency_and_a_rate),
        TEST(a_burst_from_a_cache_counts_until_the_next_read),
        TEST(failed_reads_measure_nothing),
        TEST(a_storage_that_slows_down_has_a_result_within_a_second),
        TEST(endless_reads_have_results_that_follow_the_storage),
        TEST(the_next_process_begins_with_the_speed),
        TEST(the_times_of_models_are_kept_by_key),
        TEST(a_read_of_the_store_is_measured),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
