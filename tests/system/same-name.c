/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks that have one file name and different identities: equal tokens with other
 * adapters, or with other named weights.  The later chunk replaces the file; the earlier
 * chunk is a miss and takes no bytes of the budget. */
#include "system/system-test.h"

static int
setup(void **state)
{
    static const char *const settings[] = { "max_remote_size=0.0005", NULL };

    fixture_setup(state);
    fixture_open(*state, settings);
    read_index(*state, true);
    return 0;
}

static void
expect_the_index_to_be_true(const struct fixture *f)
{
    struct kvt__table_totals totals = index_totals(f);
    struct usage usage = usage_of(f);

    assert_int_equal(totals.n_entries, usage.n_files);
    assert_int_equal(totals.used_bytes, usage.bytes);
}

static struct kvt_seq *
adapted(const struct fixture *f, const char *adapter)
{
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct kvt_seq *seq = NULL;

    extra.lora = adapter;
    assert_int_equal(kvt_seq_new(f->engine, f->tokens, N_TOKENS, &extra, &seq), 0);
    return seq;
}

/* Store five chunks; the bytes depend on the first letter of the adapter's name. */
static void
store_adapted(const struct fixture *f, const char *adapter)
{
    struct kvt_seq *seq = adapted(f, adapter);

    store_seeded(f, seq, NULL, 0, 5, (unsigned char)*adapter);
    kvt_seq_free(seq);
}

/* Load the promised chunks, check the adapter's bytes, and return the number of chunks. */
static uint32_t
load_adapted(const struct fixture *f, const char *adapter)
{
    struct kvt_seq *seq = adapted(f, adapter);
    uint32_t n = load_seeded_hit(f, seq, NULL, (unsigned char)*adapter);

    kvt_seq_free(seq);
    return n;
}

static void
equal_tokens_of_two_adapters_replace_each_other(void **state)
{
    const struct fixture *f = *state;

    store_adapted(f, "one");
    assert_int_equal(load_adapted(f, "one"), 5);
    store_adapted(f, "two");
    expect_the_index_to_be_true(f);
    assert_int_equal(load_adapted(f, "two"), 5);
    assert_int_equal(load_adapted(f, "one"), 0);
    store_adapted(f, "one");
    assert_int_equal(load_adapted(f, "one"), 5);
    assert_int_equal(load_adapted(f, "two"), 0);
    expect_the_index_to_be_true(f);
}

static void
a_chunk_stored_again_after_a_reset_counts_once(void **state)
{
    struct fixture *f = *state;

    store_chunks(f, 0, N_CHUNKS); /* the limit has room for 18 */
    assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
    assert_int_equal(kvt_engine_reset(f->engine, "new"), 0);
    assert_int_equal(load_prompt(f).promised, 0);
    write_chunks(f, 0, N_CHUNKS);
    expect_the_index_to_be_true(f);
    set_tokens(f, 1);
    write_chunks(f, 0, 5);
    assert_int_equal(counter(f, "evicted_chunks"), 0);
    set_tokens(f, 0);
    assert_int_equal(load_prompt(f).loaded, N_CHUNKS);
    expect_the_index_to_be_true(f);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(equal_tokens_of_two_adapters_replace_each_other),
        T(a_chunk_stored_again_after_a_reset_counts_once),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
