/* SPDX-License-Identifier: Apache-2.0
 *
 * Pauses: no process with a tier's index uses a tier that has failed repeatedly, until the pause is
 * over.  The clocks of the test stand still until the test moves the clocks. */
#include "store-test.h"

#define FAILURES 8 /* consecutive failures that pause a tier */
#define PAUSE_S 10 /* length of a pause after failures */

static int64_t now_s = 1000000; /* seconds of each clock */
static struct kvt__store *looked_at; /* store to search for hangs at each read of a clock */

int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int
__wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    struct kvt__store *store = looked_at;

    (void)clock;
    looked_at = NULL;
    if (store)
        kvt__store_pause_hung_tiers(store, KVT__NS_PER_S);
    looked_at = store;
    *out = (struct timespec){ .tv_sec = now_s };
    return 0;
}

/* A second handle of the directory; all of its operations of a kind fail. */
static void
open_failing(struct env *bad, const struct env *e, const char *kind)
{
    char prefix[64];

    *bad = *e;
    snprintf(prefix, sizeof prefix, "fault://%s=1/", kind);
    memset(&bad->counters, 0, sizeof bad->counters);
    bad->store = open_over(bad, prefix, NULL);
}

static void
nothing_is_promised_or_read_while_reads_fail(void **state)
{
    struct env *e = *state, bad;

    assert_int_equal(put(e, 1), 0);
    open_failing(&bad, e, "read_error");
    for (unsigned i = 0; i < FAILURES; i++) {
        assert_true(find(&bad, 1));
        assert_true(find(e, 1));
        assert_int_equal(get(&bad, 1), -EIO);
    }
    assert_int_equal(bad.counters.value[KVT__N_tier_pauses], 1);
    assert_false(find(&bad, 1));
    assert_false(find(e, 1)); /* through the shared index */
    assert_int_equal(get(e, 1), -EIO);
    assert_int_equal(probe(e, 2), -ENOENT);
    assert_int_equal(put(e, 2), 0); /* writes continue */
    kvt__store_close(bad.store);
}

static void
a_success_after_the_pause_resumes_the_tier(void **state)
{
    struct env *e = *state, bad;

    assert_int_equal(put(e, 1), 0);
    open_failing(&bad, e, "read_error");
    struct kvt__table *index = e->store->levels[0].index;
    for (unsigned i = 0; i < FAILURES; i++)
        assert_int_equal(get(&bad, 1), -EIO);
    now_s += PAUSE_S - 1;
    assert_false(find(e, 1));
    now_s++;
    assert_true(find(e, 1));
    assert_int_equal(get(&bad, 1), -EIO);
    assert_false(find(e, 1)); /* after a pause, a single failure pauses the tier again */
    assert_int_equal(bad.counters.value[KVT__N_tier_pauses], 1);
    kvt__store_close(bad.store);
    now_s += PAUSE_S;
    assert_true(find(e, 1));
    assert_int_equal(get(e, 1), 0);
    assert_false(kvt__table_resume(index, KVT__PAUSE_READS));
}

static void
misses_and_damage_are_no_failures(void **state)
{
    struct env *e = *state, bad;

    for (unsigned i = 0; i < 3 * FAILURES; i++)
        assert_int_equal(get(e, 1000 + i), -ENOENT);
    for (unsigned i = 0; i < 3 * FAILURES; i++)
        assert_int_equal(put(e, i), 0);
    open_failing(&bad, e, "bit_flip");
    for (unsigned i = 0; i < 2 * FAILURES; i++)
        assert_int_equal(get(&bad, i), -EBADMSG);
    assert_int_equal(bad.counters.value[KVT__N_tier_pauses], 0);
    assert_true(find(e, 2 * FAILURES));
    kvt__store_close(bad.store);
}

static void
writes_that_fail_pause_writes_alone(void **state)
{
    struct env *e = *state, bad;

    assert_int_equal(put(e, 1), 0);
    open_failing(&bad, e, "write_error");
    for (unsigned i = 0; i <= FAILURES; i++)
        assert_int_equal(put(&bad, 100 + i), -EIO);
    assert_int_equal(put(e, 200), -EIO);
    assert_int_equal(bad.counters.value[KVT__N_tier_pauses], 1);
    assert_int_equal(get(e, 1), 0);
    assert_int_equal(disk_bytes(e), used(e)); /* no claim keeps bytes reserved */
    kvt__store_close(bad.store);
}

static void
a_pause_of_garbage_is_none(void **state)
{
    struct env *e = *state;
    struct kvt__table *index = e->store->levels[0].index;

    assert_int_equal(put(e, 1), 0);
    kvt__table_pause(index, KVT__PAUSE_READS, 2 * KVT__TABLE_PAUSE_MAX_NS);
    assert_true(find(e, 1));
    kvt__table_pause(index, KVT__PAUSE_READS, KVT__TABLE_PAUSE_MAX_NS / 2);
    assert_false(find(e, 1));
}

/* Another thread searches for hangs at any moment of a read. */
static void
a_read_after_a_long_rest_is_no_hang(void **state)
{
    struct env *e = *state;

    assert_int_equal(put(e, 1), 0);
    assert_int_equal(get(e, 1), 0);
    now_s += 3600;
    looked_at = e->store;
    assert_int_equal(get(e, 1), 0);
    looked_at = NULL;
    assert_int_equal(e->counters.value[KVT__N_tier_pauses], 0);
}

/* Begin and end an operation of the first level with this outcome. */
static void
operate(struct env *e, enum kvt__table_pause what, int outcome)
{
    struct kvt__level *level = &e->store->levels[0];

    assert_int_equal(kvt__circuit_begin(level, what), 0);
    kvt__circuit_end(level, what, outcome);
}

static void
a_response_to_one_read_is_no_hang_of_the_others(void **state)
{
    struct env *e = *state;
    struct kvt__level *level = &e->store->levels[0];

    assert_int_equal(kvt__circuit_begin(level, KVT__PAUSE_READS), 0);
    now_s += 100;
    operate(e, KVT__PAUSE_READS, 0);
    kvt__store_pause_hung_tiers(e->store, KVT__NS_PER_S);
    assert_int_equal(e->counters.value[KVT__N_tier_pauses], 0);
    now_s++;
    kvt__store_pause_hung_tiers(e->store, KVT__NS_PER_S);
    assert_int_equal(e->counters.value[KVT__N_tier_pauses], 1);
    kvt__circuit_end(level, KVT__PAUSE_READS, 0);
}

static void
a_success_ends_a_row_of_failures(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < 3 * FAILURES; i++)
        operate(e, KVT__PAUSE_READS, i % FAILURES ? -EIO : 0);
    assert_int_equal(e->counters.value[KVT__N_tier_pauses], 0);
}

static void
a_full_disk_of_several_is_no_failure(void **state)
{
    struct env *e = *state;
    struct kvt__tier *tier = e->store->levels[0].tier;

    tier->several_disks = true;
    for (unsigned i = 0; i < 2 * FAILURES; i++)
        operate(e, KVT__PAUSE_WRITES, i % 2 ? -ENOSPC : -EDQUOT);
    assert_int_equal(e->counters.value[KVT__N_tier_pauses], 0);
    tier->several_disks = false;
    for (unsigned i = 0; i < FAILURES; i++)
        operate(e, KVT__PAUSE_WRITES, -EDQUOT);
    assert_int_equal(e->counters.value[KVT__N_tier_pauses], 1);
}

/* Other processes share the index and the pause, and have descriptors and memory. */
static void
a_shortage_of_the_process_neither_pauses_nor_resumes(void **state)
{
    static const int shortages[] = { -EMFILE, -ENFILE, -ENOMEM };
    struct env *e = *state;
    struct kvt__table *index = e->store->levels[0].index;

    for (unsigned i = 0; i < 6 * FAILURES; i++)
        operate(e, KVT__PAUSE_READS, shortages[i % 3]);
    assert_int_equal(e->counters.value[KVT__N_tier_pauses], 0);
    for (unsigned i = 0; i < FAILURES; i++) {
        operate(e, KVT__PAUSE_READS, -EIO);
        if (i < FAILURES - 1) /* the failures stay in a row */
            operate(e, KVT__PAUSE_READS, -EMFILE);
    }
    assert_int_equal(e->counters.value[KVT__N_tier_pauses], 1);
    now_s += PAUSE_S;
    operate(e, KVT__PAUSE_READS, -EMFILE);
    assert_true(kvt__table_resume(index, KVT__PAUSE_READS));
}

/* A store that closes cancels its operations; other outcomes end before the storage answers. */
static void
an_operation_without_a_response_neither_pauses_nor_resumes(void **state)
{
    static const int outcomes[] = { -ECANCELED, -EINVAL, -ENAMETOOLONG, -ENOTSUP };
    struct env *e = *state;
    struct kvt__level *level = &e->store->levels[0];

    for (unsigned i = 0; i < sizeof outcomes / sizeof *outcomes; i++) {
        for (unsigned n = 0; n < 2; n++) /* begun before the pause */
            assert_int_equal(kvt__circuit_begin(level, KVT__PAUSE_READS), 0);
        for (unsigned n = 0; n < FAILURES - 1; n++)
            operate(e, KVT__PAUSE_READS, -EIO);
        kvt__circuit_end(level, KVT__PAUSE_READS, outcomes[i]); /* the failures stay in a row */
        operate(e, KVT__PAUSE_READS, -EIO);
        assert_int_equal(e->counters.value[KVT__N_tier_pauses], i + 1);
        kvt__circuit_end(level, KVT__PAUSE_READS, outcomes[i]);
        assert_true(kvt__level_is_paused(level, KVT__PAUSE_READS));
        now_s += PAUSE_S;
        operate(e, KVT__PAUSE_READS, 0);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, env_setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nothing_is_promised_or_read_while_reads_fail),
        TEST(a_success_after_the_pause_resumes_the_tier),
        TEST(misses_and_damage_are_no_failures),
        TEST(writes_that_fail_pause_writes_alone),
        TEST(a_pause_of_garbage_is_none),
        TEST(a_read_after_a_long_rest_is_no_hang),
        TEST(a_response_to_one_read_is_no_hang_of_the_others),
        TEST(a_success_ends_a_row_of_failures),
        TEST(a_full_disk_of_several_is_no_failure),
        TEST(a_shortage_of_the_process_neither_pauses_nor_resumes),
        TEST(an_operation_without_a_response_neither_pauses_nor_resumes),
    };

    return cmocka_run_group_tests_name("store circuit", tests, NULL, NULL);
}
