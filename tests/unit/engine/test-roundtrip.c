/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks that were stored come back: in the same engine, after a restart, into
 * other blocks, in part. */
#include "engine-test.h"

static int
setup(void **state)
{
    static struct fixture f;

    fixture_init(&f);
    fixture_open(&f, NULL);
    *state = &f;
    return 0;
}

static void
an_empty_store_promises_nothing(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *seq = new_seq(f, N_TOKENS);

    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 0);
    kvt_seq_free(seq);
}

static void
stored_chunks_are_promised_and_loaded_after_a_restart(void **state)
{
    struct fixture *f = *state;
    struct io io;

    store_prefix(f, 5);
    assert_int_equal(counter(f, "store_chunks"), 5);
    reopen(f, NULL);
    set_blocks(f, 0);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS - 1), 5 * CHUNK);
    make_io(&io, seq, 0, 0, 5, 40);
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    assert_int_equal(kvt_load_cookie(load), 42);
    for (uint32_t c = 0; c < 5; c++)
        assert_int_equal(kvt_load_status(load, 0, c), 0);
    for (uint32_t b = 0; b < 10; b++)
        assert_true(block_holds(f, 40 + b, 1 + b, 0));
    assert_int_equal(kvt_load_bytes(load), 10u * N_LAYERS * BLOCK_BYTES);
    kvt_load_free(load);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
}

static void
a_hit_leaves_the_last_token_to_compute(void **state)
{
    struct fixture *f = *state;

    store_prefix(f, 2);
    struct kvt_seq *seq = new_seq(f, 2 * CHUNK);
    assert_int_equal(lookup(f, seq, 0, 2 * CHUNK - 1), CHUNK);
    kvt_seq_free(seq);
}

static void
a_hit_counts_only_beyond_what_the_engine_has(void **state)
{
    struct fixture *f = *state;

    store_prefix(f, 3);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 3 * CHUNK, N_TOKENS), 0);
    assert_int_equal(lookup(f, seq, 2 * CHUNK + BLOCK, N_TOKENS), 3 * CHUNK);
    kvt_seq_free(seq);
}

static void
skipped_and_null_blocks_are_never_written(void **state)
{
    struct fixture *f = *state;
    struct io io;

    store_prefix(f, 2);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 2 * CHUNK);
    set_blocks(f, 0x5a);
    make_io(&io, seq, 0, 0, 2, 30);
    io.blocks[0] = -1; /* the engine has it */
    io.blocks[3] = 0;  /* the null block */
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    assert_int_equal(kvt_load_status(load, 0, 0), 0);
    assert_int_equal(kvt_load_status(load, 0, 1), 0);
    assert_true(block_holds(f, 31, 2, 0));
    assert_true(block_holds(f, 32, 3, 0));
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        assert_true(device_is(block_at(f, layer, 0), 0x5a, BLOCK_BYTES));
        assert_true(device_is(block_at(f, layer, 30), 0x5a, BLOCK_BYTES));
        assert_true(device_is(block_at(f, layer, 33), 0x5a, BLOCK_BYTES));
    }
    kvt_load_free(load);
    kvt_seq_free(seq);
}

static void
a_chunk_with_a_null_block_is_not_stored(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct io io;

    make_io(&io, seq, 0, 0, 2, 1);
    io.blocks[1] = 0;
    store_and_flush(f, &io.io, 1);
    assert_int_equal(counter(f, "store_chunks"), 1);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 0);
    kvt_seq_free(seq);
}

static void
what_is_stored_already_is_not_written_again(void **state)
{
    struct fixture *f = *state;

    store_prefix(f, 3);
    store_prefix(f, 4);
    assert_int_equal(counter(f, "store_chunks"), 4);
    assert_int_equal(counter(f, "store_known"), 3);
}

static void
blocks_may_change_as_soon_as_store_returns(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct io io;

    for (uint32_t b = 1; b <= 8; b++)
        fill_block(f, b, 9);
    make_io(&io, seq, 0, 0, 4, 1);
    assert_int_equal(kvt_engine_store(f->engine, &io.io, 1), 0);
    device_settle();
    set_blocks(f, 0xff);
    assert_int_equal(kvt_engine_flush(f->engine, INT64_MAX), 0); /* as for ever */
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    for (uint32_t b = 1; b <= 8; b++)
        assert_true(block_holds(f, b, b, 9));
    kvt_load_free(load);
    kvt_seq_free(seq);
}

static void
other_tokens_find_only_the_common_prefix(void **state)
{
    struct fixture *f = *state;

    store_prefix(f, 6);
    f->tokens[3 * CHUNK + 5] ^= 1;
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 3 * CHUNK);
    kvt_seq_free(seq);
}

static void
a_salt_and_an_adapter_separate_equal_tokens(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct kvt_seq *seq = NULL;

    store_prefix(f, 2);
    extra.cache_salt = "tenant";
    assert_int_equal(kvt_seq_new(f->engine, f->tokens, N_TOKENS, &extra, &seq), 0);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 0);
    kvt_seq_free(seq);
    extra.cache_salt = NULL;
    extra.lora = "adapter";
    assert_int_equal(kvt_seq_new(f->engine, f->tokens, N_TOKENS, &extra, &seq), 0);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 0);
    kvt_seq_free(seq);
}

static void
equal_tokens_under_two_salts_are_stored_side_by_side(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct kvt_seq *seq[2];
    struct io io;

    for (int i = 0; i < 2; i++) {
        extra.cache_salt = i ? "one" : "two";
        assert_int_equal(kvt_seq_new(f->engine, f->tokens, N_TOKENS, &extra, &seq[i]), 0);
        make_io(&io, seq[i], 0, 0, 3, 1);
        store_and_flush(f, &io.io, 1);
    }
    store_prefix(f, 3); /* and without */
    assert_int_equal(counter(f, "store_chunks"), 9);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(lookup(f, seq[i], 0, N_TOKENS), 3 * CHUNK);
        make_io(&io, seq[i], 0, 0, 3, 40);
        struct kvt_load *load = load_and_wait(f, &io.io, 1);
        for (uint32_t c = 0; c < 3; c++)
            assert_int_equal(kvt_load_status(load, 0, c), 0);
        kvt_load_free(load);
        kvt_engine_release(f->engine, seq[i]);
        kvt_seq_free(seq[i]);
    }
}

static void
a_sequence_hashes_alike_however_its_tokens_arrive(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *whole = new_seq(f, N_TOKENS), *grown = new_seq(f, 10);
    struct kvt_chunk a[10], b[10];

    for (size_t at = 10; at < N_TOKENS;) {
        size_t n = at % 97 + 1;
        if (n > N_TOKENS - at)
            n = N_TOKENS - at;
        assert_int_equal(kvt_seq_append(grown, f->tokens + at, n), 0);
        at += n;
    }
    assert_int_equal(kvt_seq_tokens(grown), N_TOKENS);
    assert_int_equal(kvt_seq_chunks(whole, 0, 10, a), 0);
    assert_int_equal(kvt_seq_chunks(grown, 0, 10, b), 0);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(kvt_seq_chunks(whole, 5, 6, a), -EINVAL);
    kvt_seq_free(whole);
    kvt_seq_free(grown);
}

static void
after_a_reset_nothing_stored_before_is_a_hit(void **state)
{
    struct fixture *f = *state;

    store_prefix(f, 3);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(kvt_engine_reset(f->engine), 0);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 0);
    kvt_seq_free(seq);
    store_prefix(f, 3);
    seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 3 * CHUNK);
    kvt_seq_free(seq);
}

static void
after_a_reset_and_the_loss_of_the_index_nothing_stored_before_is_a_hit(void **state)
{
    struct fixture *f = *state;
    char path[300];

    store_prefix(f, 3);
    assert_int_equal(kvt_engine_reset(f->engine), 0);
    kvt_engine_close(f->engine);
    snprintf(path, sizeof path, "%s/.kvtier/index", f->dir.path);
    assert_int_equal(unlink(path), 0);
    fixture_open(f, NULL);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 0);
    kvt_seq_free(seq);
    store_prefix(f, 2);
    seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 2 * CHUNK);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
}

static struct kvt_seq *
tagged_seq(const struct fixture *f)
{
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct kvt_seq *seq = NULL;

    extra.tags = "user%a";
    assert_int_equal(kvt_seq_new(f->engine, f->tokens, N_TOKENS, &extra, &seq), 0);
    return seq;
}

/* A reset by an engine that has not met the tags yet. */
static void
a_reset_counts_for_chunks_with_tags_too(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *seq = tagged_seq(f);
    struct io io;

    make_io(&io, seq, 0, 0, 3, 1);
    io.io.tags = "user%a";
    store_and_flush(f, &io.io, 1);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 3 * CHUNK);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    reopen(f, NULL);
    assert_int_equal(kvt_engine_reset(f->engine), 0);
    seq = tagged_seq(f);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 0);
    kvt_seq_free(seq);
}

static void
files_without_an_index_are_found_by_asking_for_them(void **state)
{
    struct fixture *f = *state;
    char path[512];

    store_prefix(f, 4);
    kvt_engine_close(f->engine);
    snprintf(path, sizeof path, "%s/.kvtier/index", f->dir.path);
    assert_int_equal(unlink(path), 0);
    fixture_open(f, NULL);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 4 * CHUNK);
    kvt_seq_free(seq);
}

static void
a_worker_and_a_scheduler_share_the_index(void **state)
{
    struct fixture *f = *state;
    struct kvt_group group = opaque_group();
    struct fixture other = { .dir = f->dir };

    memcpy(other.tokens, f->tokens, sizeof other.tokens);
    other.engine = open_engine(&other, KVT_ROLE_SCHEDULER, &group, 1, NULL);
    store_prefix(f, 3);
    struct kvt_seq *seq = new_seq(&other, N_TOKENS);
    assert_int_equal(lookup(&other, seq, 0, N_TOKENS), 3 * CHUNK);
    kvt_seq_free(seq);
    kvt_engine_close(other.engine);
}

static void
arguments_out_of_range_change_nothing(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct kvt_load *load = NULL;
    struct io io;

    make_io(&io, seq, 0, 0, 2, 1);
    io.io.group = 1;
    assert_int_equal(kvt_engine_store(f->engine, &io.io, 1), -EINVAL);
    make_io(&io, seq, 0, 0, 2, 1);
    io.blocks[2] = N_BLOCKS;
    assert_int_equal(kvt_engine_store(f->engine, &io.io, 1), -EINVAL);
    assert_int_equal(kvt_engine_load(f->engine, &io.io, 1, 0, &load), -EINVAL);
    assert_null(load);
    make_io(&io, seq, 0, 0, 2, 1);
    io.io.n_blocks--;
    assert_int_equal(kvt_engine_store(f->engine, &io.io, 1), -EINVAL);
    assert_int_equal(counter(f, "store_chunks"), 0);
    kvt_seq_free(seq);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(an_empty_store_promises_nothing),
        T(stored_chunks_are_promised_and_loaded_after_a_restart),
        T(a_hit_leaves_the_last_token_to_compute),
        T(a_hit_counts_only_beyond_what_the_engine_has),
        T(skipped_and_null_blocks_are_never_written),
        T(a_chunk_with_a_null_block_is_not_stored),
        T(what_is_stored_already_is_not_written_again),
        T(blocks_may_change_as_soon_as_store_returns),
        T(other_tokens_find_only_the_common_prefix),
        T(a_salt_and_an_adapter_separate_equal_tokens),
        T(equal_tokens_under_two_salts_are_stored_side_by_side),
        T(a_sequence_hashes_alike_however_its_tokens_arrive),
        T(after_a_reset_nothing_stored_before_is_a_hit),
        T(after_a_reset_and_the_loss_of_the_index_nothing_stored_before_is_a_hit),
        T(a_reset_counts_for_chunks_with_tags_too),
        T(files_without_an_index_are_found_by_asking_for_them),
        T(a_worker_and_a_scheduler_share_the_index),
        T(arguments_out_of_range_change_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
