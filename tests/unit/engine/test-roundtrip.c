/* SPDX-License-Identifier: Apache-2.0
 *
 * Stored blocks are loaded with equal bytes: in the same engine, after a restart, into other
 * blocks, in part. */
#include "engine-test.h"

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
    io.blocks[0] = -1; /* the engine has computed the block */
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
a_stored_chunk_is_not_written_again(void **state)
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
    assert_int_equal(kvt_engine_flush(f->engine, INT64_MAX), 0); /* practically without end */
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

/* Requests of equal tokens and different kinds; the KV of each kind has different bytes. */
struct kind {
    const char *salt, *lora, *tags;
};

static const struct kind kinds[] = {
    { NULL, NULL, NULL },
    { "one", NULL, NULL },
    { "two", NULL, NULL },
    { NULL, NULL, "user%a" },
    { NULL, NULL, "user%b" },
    { NULL, "sql", "lora%sql" },
    { NULL, "chat", "lora%chat" },
    { "one", NULL, "user%a" },
};

#define N_KINDS (sizeof kinds / sizeof *kinds)

static struct kvt_seq *
seq_of(const struct fixture *f, const struct kind *kind)
{
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct kvt_seq *seq = NULL;

    extra.cache_salt = kind->salt;
    extra.lora = kind->lora;
    extra.tags = kind->tags;
    assert_int_equal(kvt_seq_new(f->engine, f->tokens, N_TOKENS, &extra, &seq), 0);
    return seq;
}

/* Store the first three chunks of a kind; the bytes depend on the kind's number. */
static void
store_kind(const struct fixture *f, uint32_t i)
{
    struct kvt_seq *seq = seq_of(f, &kinds[i]);
    struct io io;

    for (uint32_t b = 1; b <= 6; b++)
        fill_block(f, b, i + 1);
    make_io(&io, seq, 0, 0, 3, 1);
    io.io.tags = kinds[i].tags;
    store_and_flush(f, &io.io, 1);
    kvt_seq_free(seq);
}

/* They are found and come back with the bytes of this kind. */
static void
expect_kind(const struct fixture *f, uint32_t i)
{
    struct kvt_seq *seq = seq_of(f, &kinds[i]);
    struct io io;

    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 3 * CHUNK);
    set_blocks(f, 0);
    make_io(&io, seq, 0, 0, 3, 40);
    io.io.tags = kinds[i].tags;
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    for (uint32_t c = 0; c < 3; c++)
        assert_int_equal(kvt_load_status(load, 0, c), 0);
    for (uint32_t b = 0; b < 6; b++)
        assert_true(block_holds(f, 40 + b, 1 + b, i + 1));
    kvt_load_free(load);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
}

static uint64_t
hit_of_kind(const struct fixture *f, const struct kind *kind)
{
    struct kvt_seq *seq = seq_of(f, kind);
    uint64_t hit = lookup(f, seq, 0, N_TOKENS);

    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    return hit;
}

static void
salts_adapters_and_tags_separate_equal_tokens(void **state)
{
    struct fixture *f = *state;

    for (uint32_t i = 0; i < N_KINDS; i++) {
        store_kind(f, i);
        for (uint32_t k = i + 1; k < N_KINDS; k++)
            assert_int_equal(hit_of_kind(f, &kinds[k]), 0);
    }
}

static void
equal_tokens_of_different_requests_are_stored_side_by_side(void **state)
{
    struct fixture *f = *state;

    for (uint32_t i = 0; i < N_KINDS; i++)
        store_kind(f, i);
    assert_int_equal(counter(f, "store_chunks"), 3 * N_KINDS);
    for (uint32_t i = 0; i < N_KINDS; i++)
        expect_kind(f, i);
    reopen(f, NULL);
    for (uint32_t i = 0; i < N_KINDS; i++)
        expect_kind(f, i);
}

/* The tags do not fit the key text, or the file could not be found by name. */
static void
tags_invalid_in_key_text_are_refused(void **state)
{
    static char long_tags[300] = "user%";
    const char *const bad[] = { "user", "%a", "a%b@", "@a%b", "a%b@@c%d", "a%b@c",
                                "kvt%x", "a%b@kvt%x", "a%b ", "a%b\nERROR", "a\r%b",
                                "a%\x1b[2J", "a%\x7f", long_tags };
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct fixture *f = *state;
    struct kvt_seq *seq = NULL;
    struct io io;

    memset(long_tags + 5, 'x', 230); /* beside @kvt%0123456789abcdef */
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        extra.tags = bad[i];
        assert_int_equal(kvt_seq_new(f->engine, f->tokens, N_TOKENS, &extra, &seq),
                         -EINVAL);
        assert_non_null(strstr(kvt_last_error(), "tags"));
        assert_null(strchr(kvt_last_error(), '\n')); /* a client cannot write log lines */
    }
    seq = new_seq(f, N_TOKENS);
    make_io(&io, seq, 0, 0, 3, 1);
    io.io.tags = long_tags;
    assert_int_equal(kvt_engine_store(f->engine, &io.io, 1), -EINVAL);
    assert_int_equal(kvt_engine_prefetch(f->engine, &io.io, 1), -EINVAL);
    long_tags[234] = '\0';
    extra.tags = long_tags; /* fits key text, but not every file name */
    assert_int_equal(kvt_engine_store(f->engine, &io.io, 1), 0);
    kvt_seq_free(seq);
    assert_int_equal(kvt_seq_new(f->engine, f->tokens, N_TOKENS, &extra, &seq), 0);
    kvt_seq_free(seq);
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
files_without_an_index_are_found_by_asking_for_them(void **state)
{
    struct fixture *f = *state;

    store_prefix(f, 4);
    kvt_engine_close(f->engine);
    lose_index(f->dir.path);
    fixture_open(f, NULL);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 4 * CHUNK);
    kvt_seq_free(seq);
}

/* Each rank has a part of the KV. */
static void
a_chunk_absent_in_one_rank_is_no_hit(void **state)
{
    struct fixture *f = *state;

    for (uint32_t rank = 0; rank < 2; rank++) {
        const struct opening opening = { .world_size = 2, .rank = rank };

        kvt_engine_close(f->engine);
        f->engine = must_open(f, &opening);
        set_view(f->engine, 0, f->memory);
        store_prefix(f, 3 - rank);
        struct kvt_seq *seq = new_seq(f, N_TOKENS);
        assert_int_equal(lookup(f, seq, 0, N_TOKENS), rank * 2 * CHUNK);
        kvt_seq_free(seq);
    }
}

static void
chunks_beyond_the_lookup_are_not_in_memory(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    uint8_t in_memory[11];

    store_prefix(f, 4);
    for (int i = 0; i < 2; i++) {
        memset(in_memory, 1, sizeof in_memory);
        kvt_seq_in_memory(seq, 0, sizeof in_memory, in_memory);
        for (size_t c = 0; c < sizeof in_memory; c++)
            assert_int_equal(in_memory[c], 0); /* the chunks are in storage */
        assert_int_equal(lookup(f, seq, 0, N_TOKENS), 4 * CHUNK);
    }
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
#define T(name) cmocka_unit_test_setup_teardown(name, fixture_setup_open, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(an_empty_store_promises_nothing),
        T(stored_chunks_are_promised_and_loaded_after_a_restart),
        T(a_hit_leaves_the_last_token_to_compute),
        T(a_hit_counts_only_beyond_what_the_engine_has),
        T(skipped_and_null_blocks_are_never_written),
        T(a_chunk_with_a_null_block_is_not_stored),
        T(a_stored_chunk_is_not_written_again),
        T(blocks_may_change_as_soon_as_store_returns),
        T(other_tokens_find_only_the_common_prefix),
        T(salts_adapters_and_tags_separate_equal_tokens),
        T(equal_tokens_of_different_requests_are_stored_side_by_side),
        T(tags_invalid_in_key_text_are_refused),
        T(a_sequence_hashes_alike_however_its_tokens_arrive),
        T(files_without_an_index_are_found_by_asking_for_them),
        T(a_chunk_absent_in_one_rank_is_no_hit),
        T(chunks_beyond_the_lookup_are_not_in_memory),
        T(a_worker_and_a_scheduler_share_the_index),
        T(arguments_out_of_range_change_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
