/* SPDX-License-Identifier: Apache-2.0
 *
 * remote_serde: auto: the calibration, the choice by the measured rates, and the revision. */
#include "store-test.h"

#define MIB ((uint64_t)1 << 20)

static const struct kvt__chunk_shape layout = { KVT__ELEMENT_BF16, KVT__PACKING_2LTD, 1, 1, 25,
                                                1250, 2 };
static const char *const settings[] = { "max_remote_size=0.03", "remote_serde=auto", NULL };

static int
setup(void **state)
{
    static struct env e;

    env_init(&e);
    e.store = open_over(&e, "", settings);
    *state = &e;
    return 0;
}

/* Pretend that the storage moved 64 MiB at `storage`, and a thread encoded and decoded at `codec`,
 * both in MiB in a second, to seven tenths of the bytes. */
static void
measure(struct env *e, uint64_t storage, uint64_t codec)
{
    struct kvt__choice *choice = &e->store->levels[0].choice;

    for (int kind = 0; kind < 2; kind++) {
        choice->bytes[kind] = choice->decoded[kind] = 64 * MIB;
        choice->encoded[kind] = 64 * MIB * 7 / 10;
        choice->busy_ns[kind] = (int64_t)(64 * KVT__NS_PER_S / (int64_t)storage);
        choice->codec_ns[kind] = (int64_t)(64 * KVT__NS_PER_S / (int64_t)codec);
    }
    choice->rates.read = choice->rates.write = 0; /* no mean with the earlier rate */
    choice->rates.encode = choice->rates.decode = 0;
    kvt__choice_revise(&e->store->levels[0]);
}

/* PUT chunk i of numbers between 1 and 2, which are compressible. */
static int
put_kv(struct env *e, unsigned i)
{
    struct request r;

    request_init(&r, e, KVT__TIER_PUT, i);
    r.req.layout = layout;
    for (size_t k = 0; k < BYTES; k++)
        r.req.slot.payload[k] = k % 2 ? 0x3f : (unsigned char)(0x80 | (k * 7 + i));
    r.req.crc = kvt__crc32c(0, r.req.slot.payload, BYTES);
    kvt__store_run(e->store, &r.req);
    free(r.memory);
    return r.req.error.code;
}

static bool
is_read(struct env *e, unsigned i)
{
    struct request r;

    request_init(&r, e, KVT__TIER_GET, i);
    kvt__store_run(e->store, &r.req);
    bool is_right = !r.req.error.code && r.req.verified;
    for (size_t k = 0; is_right && k < BYTES; k++)
        is_right = r.req.slot.payload[k] == (k % 2 ? 0x3f : (unsigned char)(0x80 | (k * 7 + i)));
    free(r.memory);
    return is_right;
}

static void
a_slow_storage_gets_lossless_chunks_and_a_fast_one_naive_chunks(void **state)
{
    struct env *e = *state;

    measure(e, 100, 3000);
    assert_int_equal(put_kv(e, 1), 0);
    assert_false(file_there(e, 1));
    measure(e, 20000, 3000);
    assert_int_equal(put_kv(e, 2), 0);
    assert_true(file_there(e, 2));
    assert_true(is_read(e, 1));
    assert_true(is_read(e, 2));
    measure(e, 100, 3000);
    assert_int_equal(put_kv(e, 3), 0);
    assert_false(file_there(e, 3));
    assert_int_equal(put_kv(e, 2), -EEXIST);
    check_counted(e, 3, 0);
}

static void
a_small_difference_does_not_change_the_choice(void **state)
{
    struct env *e = *state;

    /* Equal: 0.3 * (2 / storage) == 2 / codec / threads. */
    uint64_t n = e->store->codec_threads, equal = 3000 * n * 3 / 10;

    measure(e, equal * 11 / 10, 3000);
    assert_true(atomic_load(&e->store->levels[0].choice.encodes));
    measure(e, equal * 2, 3000);
    assert_false(atomic_load(&e->store->levels[0].choice.encodes));
    measure(e, equal * 9 / 10, 3000);
    assert_false(atomic_load(&e->store->levels[0].choice.encodes));
    measure(e, equal / 2, 3000);
    assert_true(atomic_load(&e->store->levels[0].choice.encodes));
}

static void
naive_storage_still_encodes_some_chunks(void **state)
{
    struct env *e = *state;
    unsigned n_naive = 0;

    measure(e, 20000, 3000);
    for (unsigned i = 0; i < 128; i++) {
        assert_int_equal(put_kv(e, i), 0);
        n_naive += file_there(e, i);
        assert_true(is_read(e, i));
    }
    assert_int_equal(n_naive, 126);
    assert_int_equal(e->store->levels[0].choice.decoded[KVT__PAUSE_WRITES], 2 * BYTES);
}

static void
a_process_begins_with_the_choice_of_the_index(void **state)
{
    struct env *e = *state;
    /* Between the thresholds of both choices. */
    uint64_t equal = 3000 * e->store->codec_threads * 3 / 10;

    measure(e, equal * 2, 3000);
    measure(e, equal * 11 / 10, 3000);
    assert_false(atomic_load(&e->store->levels[0].choice.encodes));
    reopen_over(e, "", settings);
    kvt__choice_calibrate(&e->store->levels[0]);
    assert_false(atomic_load(&e->store->levels[0].choice.encodes));
}

static void
few_operations_change_nothing(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(put_kv(e, i), 0);
    kvt__choice_revise(&e->store->levels[0]);
    assert_int_equal(kvt__table_get_rates(e->store->levels[0].index).choice, 0);
    assert_true(e->store->levels[0].choice.bytes[KVT__PAUSE_WRITES] > 20 * 3000);
    assert_true(e->store->levels[0].choice.busy_ns[KVT__PAUSE_WRITES] > 0);
    assert_int_equal(e->store->levels[0].choice.n[KVT__PAUSE_WRITES], 0);
}

static void
a_paused_storage_costs_no_encoding(void **state)
{
    struct env *e = *state;
    struct kvt__level *level = &e->store->levels[0];

    assert_true(kvt__table_pause(level->index, KVT__PAUSE_WRITES, 60 * KVT__NS_PER_S));
    assert_int_equal(put_kv(e, 1), -EIO);
    assert_int_equal(level->choice.decoded[KVT__PAUSE_WRITES], 0);
    assert_true(kvt__table_resume(level->index, KVT__PAUSE_WRITES));
    assert_int_equal(put_kv(e, 1), 0);
    assert_int_equal(level->choice.decoded[KVT__PAUSE_WRITES], BYTES);
}

static void
a_calibration_measures_all_rates_and_leaves_no_object(void **state)
{
    struct env *e = *state;
    char text[192];

    kvt__choice_calibrate(&e->store->levels[0]);
    struct kvt__table_rates r = kvt__table_get_rates(e->store->levels[0].index);
    assert_true(r.read && r.write && r.encode && r.decode && r.choice);
    assert_int_equal(r.kept_permille, 700);
    assert_int_equal(disk_bytes(e), 0);
    kvt__choice_text(&r, text, sizeof text);
    assert_non_null(strstr(text, "GB/s"));
    reopen_over(e, "", settings);
    struct kvt__table_rates again = kvt__table_get_rates(e->store->levels[0].index);
    assert_memory_equal(&again, &r, sizeof r);
    kvt__choice_calibrate(&e->store->levels[0]); /* begins with the rates of the index */
    again = kvt__table_get_rates(e->store->levels[0].index);
    assert_memory_equal(&again, &r, sizeof r);
}

static void
without_auto_nothing_is_measured(void **state)
{
    static const char *const lossless[] = { "max_remote_size=0.03", "remote_serde=lossless", NULL };
    struct env *e = *state;

    reopen_over(e, "", lossless);
    kvt__choice_calibrate(&e->store->levels[0]);
    assert_int_equal(put_kv(e, 1), 0);
    kvt__choice_revise(&e->store->levels[0]);
    assert_int_equal(kvt__table_get_rates(e->store->levels[0].index).choice, 0);
    assert_int_equal(e->store->levels[0].choice.bytes[KVT__PAUSE_WRITES], 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_slow_storage_gets_lossless_chunks_and_a_fast_one_naive_chunks),
        TEST(a_small_difference_does_not_change_the_choice),
        TEST(naive_storage_still_encodes_some_chunks),
        TEST(a_process_begins_with_the_choice_of_the_index),
        TEST(few_operations_change_nothing),
        TEST(a_paused_storage_costs_no_encoding),
        TEST(a_calibration_measures_all_rates_and_leaves_no_object),
        TEST(without_auto_nothing_is_measured),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
