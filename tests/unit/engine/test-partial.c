/* SPDX-License-Identifier: Apache-2.0
 *
 * The partial chunk at a sequence's end: named as in LMCache; stored, found and loaded like a full
 * chunk; no longer found after more tokens have extended the sequence. */
#include "engine-test.h"

#define PROMPT (2 * CHUNK + 40) /* the last chunk has two blocks */

static const char *const partial[] = { "save_unfull_chunk=true", NULL };

static int
setup(void **state)
{
    static struct fixture f;

    fixture_init(&f);
    fixture_open(&f, partial);
    *state = &f;
    return 0;
}

/* Store chunks first .. first + n - 1 of the first n_tokens from blocks 1 ... */
static void
store_chunks(struct fixture *f, size_t n_tokens, uint32_t first, uint32_t n)
{
    struct kvt_seq *seq = new_seq(f, n_tokens);
    struct io io;

    for (uint32_t b = 1; b <= 2 * n; b++)
        fill_block(f, b, first);
    make_io(&io, seq, 0, first, n, 1);
    store_and_flush(f, &io.io, 1);
    kvt_seq_free(seq);
}

/* Return the hit of a lookup for the first n_tokens, and end its leases. */
static uint64_t
hit(const struct fixture *f, size_t n_tokens, uint64_t have, uint64_t max)
{
    struct kvt_seq *seq = new_seq(f, n_tokens);
    uint64_t found = lookup(f, seq, have, max);

    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    return found;
}

/* --------------------------------------------------------------------- names */

/* An engine with chunks of four tokens; other programs computed the expected hashes. */
static struct kvt_engine *
open_small(const struct fixture *f, const char *algorithm)
{
    const char *const settings[] = { "chunk_size=4", algorithm, "hash_seed=0", NULL };
    struct kvt_group group = opaque_group();

    group.block_tokens = 4;
    return open_engine(f, KVT_ROLE_SCHEDULER, &group, 1, settings);
}

static void
the_partial_chunk_is_named_as_in_python(void **state)
{
    static const struct {
        const char *algorithm;
        uint64_t whole, tails[3]; /* chunk 1; the partial chunk after it, by length */
    } vectors[] = {
        { "pre_caching_hash_algorithm=builtin", -UINT64_C(0x18a850cb1ebd618e),
          { -UINT64_C(0x779d7803dd31812d), 0x34202f3cef35860f, 0xdbdda3fbd0dd02c } },
        { "pre_caching_hash_algorithm=sha256_cbor", 0xec342acc6eb7fa96,
          { 0x53f0c928beca77a9, 0x9240f3787b31d491, 0x72c8a20d98472503 } },
    };
    static const int32_t tokens[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
    struct kvt_chunk found[2];

    for (size_t v = 0; v < 2; v++) {
        struct kvt_engine *engine = open_small(*state, vectors[v].algorithm);

        for (uint32_t n = 1; n <= 3; n++) {
            struct kvt_seq *seq = NULL;

            assert_int_equal(kvt_seq_new(engine, tokens, 8 + n, NULL, &seq), 0);
            assert_int_equal(kvt_seq_chunks(seq, 1, 2, found), 0);
            assert_true(found[0].name_hash[0] == vectors[v].whole);
            assert_true(found[1].name_hash[0] == vectors[v].tails[n - 1]);
            assert_int_equal(found[0].n_tokens, 4);
            assert_int_equal(found[1].n_tokens, n);
            assert_int_equal(kvt_seq_chunks(seq, 0, 4, found), -EINVAL);
            kvt_seq_free(seq);
        }
        kvt_engine_close(engine);
    }
}

static void
an_item_in_the_partial_chunk_changes_name_and_prefix(void **state)
{
    static const int32_t tokens[] = { 0, 1, 2, 3, 4, 5, 6, 99, 99, 9 };
    struct kvt_mm_item item = { "img-1", 7, 2 };
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct kvt_engine *engine = open_small(*state, "pre_caching_hash_algorithm=builtin");
    struct kvt_chunk with[2], without[2];
    struct kvt_seq *seq = NULL;

    extra.mm = &item;
    extra.n_mm = 1;
    assert_int_equal(kvt_seq_new(engine, tokens, 10, &extra, &seq), 0);
    assert_int_equal(kvt_seq_chunks(seq, 1, 2, with), 0);
    assert_true(with[0].name_hash[0] == 0x38b9fe9f13a0374c);
    assert_true((int64_t)with[1].name_hash[0] == -0x4d5170643e5e5b07);
    kvt_seq_free(seq);
    assert_int_equal(kvt_seq_new(engine, tokens, 10, NULL, &seq), 0);
    assert_int_equal(kvt_seq_chunks(seq, 1, 2, without), 0);
    assert_memory_not_equal(with[1].prefix, without[1].prefix, 16);
    kvt_seq_free(seq);
    kvt_engine_close(engine);
}

static void
a_sequence_continues_after_its_whole_chunks(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *grown = new_seq(f, 0);

    for (size_t at = 0, n; at < N_TOKENS; at += n) {
        n = at % 37 + 1 < N_TOKENS - at ? at % 37 + 1 : N_TOKENS - at;
        assert_int_equal(kvt_seq_append(grown, f->tokens + at, n), 0);
        assert_int_equal(lookup(f, grown, 0, N_TOKENS), 0);
        struct kvt_seq *fresh = new_seq(f, at + n);
        struct kvt_chunk a[16], b[16];
        size_t n_chunks = (at + n + CHUNK - 1) / CHUNK;
        assert_int_equal(kvt_seq_chunks(grown, 0, n_chunks, a), 0);
        assert_int_equal(kvt_seq_chunks(fresh, 0, n_chunks, b), 0);
        assert_memory_equal(a, b, n_chunks * sizeof *a);
        kvt_seq_free(fresh);
    }
    kvt_seq_free(grown);
}

/* -------------------------------------------------------------------- lookups */

static void
load_all_and_check(struct fixture *f)
{
    struct kvt_seq *seq = new_seq(f, PROMPT);
    struct io io;

    assert_int_equal(lookup(f, seq, 0, PROMPT - 1), PROMPT - 1);
    set_blocks(f, 0);
    make_io(&io, seq, 0, 0, 3, 40);
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    for (uint32_t c = 0; c < 3; c++)
        assert_int_equal(kvt_load_status(load, 0, c), 0);
    for (uint32_t b = 0; b < 6; b++)
        assert_true(block_holds(f, 40 + b, 1 + b, 0));
    kvt_load_free(load);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
}

static void
a_partial_chunk_is_found_after_a_restart(void **state)
{
    struct fixture *f = *state;

    store_chunks(f, PROMPT, 0, 3);
    assert_int_equal(counter(f, "store_chunks"), 3);
    reopen(f, partial);
    load_all_and_check(f);
    assert_int_equal(counter(f, "unverified_chunks"), 0);
}

static void
tiers_are_probed_if_the_index_lacks_the_partial_chunk(void **state)
{
    static const char *const headers[] = { "save_unfull_chunk=true",
                                           "save_chunk_meta=true", NULL };
    struct fixture *f = *state;

    for (int i = 0; i < 2; i++) {
        reopen(f, i ? headers : partial);
        store_chunks(f, PROMPT, 0, 3);
        kvt_engine_close(f->engine);
        lose_index(f->dir.path);
        fixture_open(f, partial);
        load_all_and_check(f);
        assert_int_equal(counter(f, "unverified_chunks"), 0);
    }
}

static void
a_hit_ends_at_max_tokens(void **state)
{
    struct fixture *f = *state;

    store_chunks(f, PROMPT, 0, 3);
    assert_int_equal(hit(f, PROMPT, 0, UINT64_MAX), PROMPT);
    assert_int_equal(hit(f, PROMPT, 0, PROMPT), PROMPT);
    assert_int_equal(hit(f, PROMPT, 0, PROMPT - 1), PROMPT - 1);
    assert_int_equal(hit(f, PROMPT, 0, 2 * CHUNK + 1), 2 * CHUNK + 1);
    assert_int_equal(hit(f, PROMPT, 0, 2 * CHUNK), 2 * CHUNK);
    assert_int_equal(hit(f, 2 * CHUNK, 0, 2 * CHUNK - 1), 2 * CHUNK - 1);
    assert_int_equal(hit(f, PROMPT, 0, 0), 0);
}

static void
a_hit_counts_only_beyond_what_the_engine_has(void **state)
{
    struct fixture *f = *state;

    store_chunks(f, PROMPT, 2, 1);
    assert_int_equal(hit(f, PROMPT, 0, PROMPT - 1), 0);
    assert_int_equal(hit(f, PROMPT, 2 * CHUNK, PROMPT - 1), PROMPT - 1);
    assert_int_equal(hit(f, PROMPT, 2 * CHUNK + BLOCK, PROMPT - 1), PROMPT - 1);
    assert_int_equal(hit(f, PROMPT, PROMPT - 1, PROMPT - 1), 0);
}

static void
no_tier_is_probed_for_an_indexed_partial_chunk(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *seq = new_seq(f, PROMPT);
    uint64_t found;

    assert_int_equal(kvt_engine_lookup(f->engine, seq, PROMPT - 1, PROMPT - 1, &found), 0);
    assert_int_equal(found, 0);
    kvt_seq_free(seq);
}

static void
without_the_partial_chunk_the_whole_chunks_are_found(void **state)
{
    struct fixture *f = *state;

    store_chunks(f, N_TOKENS, 0, 3);
    assert_int_equal(hit(f, PROMPT, 0, PROMPT - 1), 2 * CHUNK);
    store_chunks(f, PROMPT + 1, 2, 1);
    assert_int_equal(hit(f, PROMPT, 0, PROMPT - 1), 2 * CHUNK);
}

static void
without_the_setting_no_partial_chunk_is_looked_up(void **state)
{
    struct fixture *f = *state;

    store_chunks(f, PROMPT, 0, 3);
    reopen(f, NULL);
    assert_int_equal(hit(f, PROMPT, 0, PROMPT - 1), 2 * CHUNK);
    assert_int_equal(hit(f, 2 * CHUNK, 0, 2 * CHUNK - 1), CHUNK);
}

static void
a_growing_sequence_hits_up_to_its_current_end(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *seq = new_seq(f, PROMPT);

    store_chunks(f, PROMPT, 0, 3);
    assert_int_equal(lookup(f, seq, 0, PROMPT), PROMPT);
    assert_int_equal(kvt_seq_append(seq, f->tokens + PROMPT, 1), 0);
    assert_int_equal(lookup(f, seq, 0, PROMPT + 1), 2 * CHUNK);
    kvt_engine_release(f->engine, seq);
    store_chunks(f, PROMPT + 1, 2, 1);
    assert_int_equal(lookup(f, seq, 0, PROMPT + 1), PROMPT + 1);
    assert_int_equal(kvt_seq_append(seq, f->tokens + PROMPT + 1,
                                    3 * CHUNK - PROMPT - 1), 0);
    assert_int_equal(lookup(f, seq, 0, 3 * CHUNK), 2 * CHUNK);
    kvt_engine_release(f->engine, seq);
    store_chunks(f, 3 * CHUNK, 2, 1);
    assert_int_equal(lookup(f, seq, 0, 3 * CHUNK), 3 * CHUNK);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
}

/* Store more chunks of other prompts than the store has room for. */
static void
store_others(struct fixture *f)
{
    for (int round = 0; round < 4; round++) {
        f->tokens[0]++;
        store_chunks(f, N_TOKENS, 0, 10);
    }
    f->tokens[0] -= 4;
}

static void
a_partial_chunk_is_leased_until_the_sequence_grows(void **state)
{
    static const char *const small[] = { "save_unfull_chunk=true",
                                         "max_remote_size=0.0005", NULL };
    struct fixture *f = *state;

    reopen(f, small); /* 18 chunks */
    struct kvt_seq *seq = new_seq(f, PROMPT);
    store_chunks(f, PROMPT, 0, 3);
    assert_int_equal(lookup(f, seq, 0, PROMPT - 1), PROMPT - 1);
    store_others(f);
    assert_true(counter(f, "evicted_chunks") > 0);
    assert_int_equal(hit(f, PROMPT, 0, PROMPT - 1), PROMPT - 1);
    assert_int_equal(kvt_seq_append(seq, f->tokens, 0), 0);
    store_others(f);
    assert_int_equal(hit(f, PROMPT, 0, PROMPT - 1), PROMPT - 1);
    assert_int_equal(kvt_seq_append(seq, f->tokens + PROMPT, 1), 0);
    store_others(f);
    store_others(f);
    assert_int_equal(hit(f, PROMPT, 0, PROMPT - 1), 2 * CHUNK);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
}

/* ------------------------------------------------------------ sliding windows */

#define N_CHUNKS 4u
#define LONG (3 * CHUNK + 37)

struct model {
    struct fixture f;
    uint32_t window;
    bool has[2][N_CHUNKS]; /* stored, by group */
};

static void
open_model(struct model *m)
{
    struct kvt_group groups[2] = { opaque_group(), opaque_group() };

    groups[1].kind = KVT_GROUP_SLIDING;
    groups[1].window_tokens = m->window;
    groups[1].layers = "3,4,5";
    m->f.engine = open_engine(&m->f, KVT_ROLE_BOTH, groups, 2, partial);
    set_view(m->f.engine, 0, m->f.memory);
    set_view(m->f.engine, 1, m->f.memory);
}

/* Return true if the store has all chunks that the computation of token `end` needs. */
static bool
can_serve(const struct model *m, uint64_t first, uint64_t end)
{
    for (uint64_t t = first; t < end; t++)
        if (!m->has[0][t / CHUNK] || (t + m->window > end && !m->has[1][t / CHUNK]))
            return false;
    return true;
}

static uint64_t
search_exhaustively(const struct model *m, uint64_t have, uint64_t max)
{
    uint64_t first = have / CHUNK * CHUNK;

    for (uint64_t n = (max + CHUNK - 1) / CHUNK; n * CHUNK > first; n--) {
        uint64_t end = n * CHUNK < max ? n * CHUNK : max;
        if (end > have && can_serve(m, first, end))
            return end;
    }
    return 0;
}

static void
ask(const struct model *m, uint64_t have, uint64_t max)
{
    uint64_t found = hit(&m->f, LONG, have, max), right = search_exhaustively(m, have, max);

    if (found != right)
        fail_msg("window %u, have %llu, at most %llu: %llu tokens, not %llu", m->window,
                 (unsigned long long)have, (unsigned long long)max,
                 (unsigned long long)found, (unsigned long long)right);
}

static void
store_in_random_order(uint32_t window, uint32_t random)
{
    struct model m = { .window = window };

    fixture_init(&m.f);
    open_model(&m);
    for (uint32_t left = 2 * N_CHUNKS; left; left--) {
        random = random * 1664525 + 1013904223;
        uint32_t skip = (random >> 16) % left, at = 0;
        while (m.has[at / N_CHUNKS][at % N_CHUNKS] || skip--)
            at++;
        struct kvt_seq *seq = new_seq(&m.f, LONG);
        struct io io;
        make_io(&io, seq, at / N_CHUNKS, at % N_CHUNKS, 1, 1);
        store_and_flush(&m.f, &io.io, 1);
        kvt_seq_free(seq);
        m.has[at / N_CHUNKS][at % N_CHUNKS] = true;
        for (uint32_t have = 0; have < LONG; have += BLOCK) {
            ask(&m, have, LONG);
            ask(&m, have, LONG - 1);
            ask(&m, have, 3 * CHUNK + random % 37);
            ask(&m, have, random % LONG);
        }
    }
    fixture_fini(&m.f);
}

static void
with_a_window_lookups_equal_an_exhaustive_search(void **state)
{
    static const uint32_t windows[] = { 2, 37, 38, 39, CHUNK, CHUNK + 37, CHUNK + 38,
                                        1000 };

    (void)state;
    for (uint32_t i = 0; i < sizeof windows / sizeof *windows; i++)
        store_in_random_order(windows[i], i);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(the_partial_chunk_is_named_as_in_python),
        T(an_item_in_the_partial_chunk_changes_name_and_prefix),
        T(a_sequence_continues_after_its_whole_chunks),
        T(a_partial_chunk_is_found_after_a_restart),
        T(tiers_are_probed_if_the_index_lacks_the_partial_chunk),
        T(a_hit_ends_at_max_tokens),
        T(a_hit_counts_only_beyond_what_the_engine_has),
        T(no_tier_is_probed_for_an_indexed_partial_chunk),
        T(without_the_partial_chunk_the_whole_chunks_are_found),
        T(without_the_setting_no_partial_chunk_is_looked_up),
        T(a_growing_sequence_hits_up_to_its_current_end),
        T(a_partial_chunk_is_leased_until_the_sequence_grows),
        cmocka_unit_test(with_a_window_lookups_equal_an_exhaustive_search),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
