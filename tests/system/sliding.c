/* SPDX-License-Identifier: Apache-2.0
 *
 * A full-attention group beside a sliding-window group: a lookup returns the longest prefix that
 * both groups can serve.  The oracle is a search over every length and every token. */
#include "system/system-test.h"

#include "engine/seq.h"

static const char *const small[] = { "max_local_cpu_size=0.002", NULL };

struct model {
    struct fixture f;
    uint32_t window;
    bool has[2][N_CHUNKS]; /* stored, by group */
};

static void
open_model(struct model *m, const char *const *settings)
{
    struct kvt_group groups[2] = { opaque_group(), opaque_group() };

    groups[1].kind = KVT_GROUP_SLIDING;
    groups[1].window_tokens = m->window;
    groups[1].layers = "3,4,5";
    m->f.engine = open_engine(&m->f, KVT_ROLE_BOTH, groups, 2, settings);
    set_view(m->f.engine, 0, m->f.memory);
    set_view(m->f.engine, 1, m->f.memory);
}

static void
store_one(struct model *m, uint32_t group, uint32_t chunk)
{
    struct kvt_seq *seq = new_seq(&m->f, N_TOKENS);
    struct io io;

    make_io(&io, seq, group, chunk, 1, 1);
    fill_io(&m->f, &io);
    store_and_flush(&m->f, &io.io, 1);
    m->has[group][chunk] = true;
    kvt_seq_free(seq);
}

/* Return true if a request that has the `first` chunks can be served a hit of n chunks. */
static bool
can_serve(const struct model *m, uint32_t first, uint32_t n)
{
    uint32_t end = n * CHUNK;

    for (uint32_t t = first * CHUNK; t < end; t++) {
        if (!m->has[0][t / CHUNK])
            return false;
        if (t + m->window > end && !m->has[1][t / CHUNK])
            return false; /* the next token still attends to t */
    }
    return true;
}

static uint64_t
search_exhaustively(const struct model *m, uint64_t have, uint64_t max)
{
    uint32_t first = (uint32_t)(have / CHUNK);

    for (uint32_t n = (uint32_t)(max / CHUNK); n > first; n--)
        if (can_serve(m, first, n) && n * CHUNK > have)
            return n * CHUNK;
    return 0;
}

/* Load the chunks of a hit: all of the full group, the window of the sliding group. */
static void
load_hit(const struct model *m, struct kvt_seq *seq, uint64_t have, uint64_t hit)
{
    uint32_t first = (uint32_t)(have / CHUNK), end = (uint32_t)(hit / CHUNK);
    uint64_t oldest = hit >= m->window - 1 ? hit - (m->window - 1) : 0;
    uint32_t start = (uint32_t)(oldest / CHUNK) > first ? (uint32_t)(oldest / CHUNK)
                                                        : first;
    struct io full, sliding;

    make_io(&full, seq, 0, first, end - first, 1);
    make_io(&sliding, seq, 1, start, end - start, 1 + (int32_t)N_TOKENS / (int32_t)BLOCK);
    struct kvt_group_io ios[2] = { full.io, sliding.io };
    wipe(&m->f);
    struct kvt_load *load = load_and_wait(&m->f, ios, 2);
    for (uint32_t c = 0; c < end - first; c++) {
        assert_int_equal(kvt_load_status(load, 0, c), 0);
        assert_true(chunk_is_right(&m->f, &full, c));
    }
    for (uint32_t c = 0; c < end - start; c++) {
        assert_int_equal(kvt_load_status(load, 1, c), 0);
        assert_true(chunk_is_right(&m->f, &sliding, c));
    }
    kvt_load_free(load);
}

static void
ask(const struct model *m, uint64_t have, uint64_t max)
{
    struct kvt_seq *seq = new_seq(&m->f, N_TOKENS);
    uint64_t hit = lookup(&m->f, seq, have, max), right = search_exhaustively(m, have, max);

    if (hit != right)
        fail_msg("window %u, have %llu, at most %llu: %llu tokens, not %llu", m->window,
                 (unsigned long long)have, (unsigned long long)max,
                 (unsigned long long)hit, (unsigned long long)right);
    if (hit)
        load_hit(m, seq, have, hit);
    kvt_engine_release(m->f.engine, seq);
    kvt_seq_free(seq);
}

static void
random_stores_and_lookups(uint32_t window, uint64_t random, bool forget_index)
{
    struct model m = { .window = window };

    fixture_init(&m.f);
    open_model(&m, small);
    for (unsigned step = 0; step < 12; step++) {
        uint64_t r = next_random(&random);
        uint32_t full = (uint32_t)(r % 3);

        /* Mostly the full group's next chunks, and windows at cut points. */
        for (uint32_t c = 0; full && c < N_CHUNKS; c++)
            if (!m.has[0][c]) {
                store_one(&m, 0, c);
                full--;
            }
        store_one(&m, r >> 8 & 7 ? 1 : 0, (uint32_t)(r >> 16) % N_CHUNKS);
        if (forget_index) {
            kvt_engine_close(m.f.engine);
            lose_index(m.f.dir.path);
            open_model(&m, small);
        }
        for (unsigned i = 0; i < 4; i++) {
            r = next_random(&random);
            uint64_t have = r >> 40 & 1 ? (r >> 8) % (N_TOKENS / 2) : 0;
            ask(&m, have, have + (r >> 20) % (N_TOKENS + 1 - have));
        }
        ask(&m, 0, N_TOKENS);
    }
    fixture_fini(&m.f);
}

static const uint32_t windows[] = { 2, BLOCK, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 2,
                                    100, 2 * CHUNK + 1, 300, N_TOKENS, 10000 };
#define N_WINDOWS (sizeof windows / sizeof *windows)

static void
lookups_equal_an_exhaustive_search(void **state)
{
    (void)state;
    for (unsigned i = 0; i < rounds(3) * N_WINDOWS; i++)
        random_stores_and_lookups(windows[i % N_WINDOWS], i, false);
}

static void
they_do_so_without_an_index_too(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_WINDOWS; i++)
        random_stores_and_lookups(windows[i], 1000 + i, true);
}

static void
a_window_at_one_cut_point_serves_that_hit_and_no_other(void **state)
{
    struct model m = { .window = 100 };

    (void)state;
    fixture_init(&m.f);
    open_model(&m, small);
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        store_one(&m, 0, c);
    ask(&m, 0, N_TOKENS);
    store_one(&m, 1, 5);
    store_one(&m, 1, 6); /* 99 tokens before 448 reach into chunk 5 */
    struct kvt_seq *seq = new_seq(&m.f, N_TOKENS);
    assert_int_equal(lookup(&m.f, seq, 0, N_TOKENS), 7 * CHUNK);
    kvt_engine_release(m.f.engine, seq);
    assert_int_equal(lookup(&m.f, seq, 0, 7 * CHUNK - 1), 0);
    assert_int_equal(lookup(&m.f, seq, 5 * CHUNK, 6 * CHUNK), 6 * CHUNK);
    kvt_seq_free(seq);
    fixture_fini(&m.f);
}

/* The full group has all chunks, the other all but the last three. */
static void
a_hit_leases_only_the_needed_chunks(void **state)
{
    static const char *const in_memory[] = { "local_cpu=true", NULL };
    struct model m = { .window = 100 };
    uint8_t leased[N_CHUNKS];
    struct kvt_seq *seq;

    (void)state;
    fixture_init(&m.f);
    open_model(&m, in_memory);
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        store_one(&m, 0, c);
    for (uint32_t c = 0; c < N_CHUNKS - 3; c++)
        store_one(&m, 1, c);
    seq = new_seq(&m.f, N_TOKENS);
    assert_int_equal(lookup(&m.f, seq, 0, N_TOKENS), (N_CHUNKS - 3) * CHUNK);
    kvt_seq_in_memory(seq, 0, N_CHUNKS, leased);
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        assert_int_equal(leased[c], c < N_CHUNKS - 3);
    /* The window's 99 tokens before the hit's end, 448, are in chunks 5 and 6. */
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        assert_int_equal(!!seq->promise.leases[kvt__lease_index(seq->engine, c, 0, 0)].level, c < 7);
        assert_int_equal(!!seq->promise.leases[kvt__lease_index(seq->engine, c, 0, 1)].level,
                         c == 5 || c == 6);
    }
    kvt_engine_release(m.f.engine, seq);
    kvt_seq_free(seq);
    fixture_fini(&m.f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookups_equal_an_exhaustive_search),
        cmocka_unit_test(they_do_so_without_an_index_too),
        cmocka_unit_test(a_window_at_one_cut_point_serves_that_hit_and_no_other),
        cmocka_unit_test(a_hit_leases_only_the_needed_chunks),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
