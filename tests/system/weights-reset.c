/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights of KV that change during requests: sequences made before and after a reset, in
 * files and in host memory, and empty fingerprints. */
#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/xattr.h>

#include "system/system-test.h"

#define TAIL 40u /* tokens of a partial chunk of two blocks */

/* Close the fixture's engine and open an engine for weights with this fingerprint. */
static void
open_for(struct fixture *f, const char *fingerprint, const char *const *settings)
{
    struct opening o = { .fingerprint = fingerprint, .settings = settings };

    kvt_engine_close(f->engine);
    f->engine = must_open(f, &o);
    set_view(f->engine, 0, f->memory);
}

static void
expect(const struct fixture *f, uint32_t n, uint32_t weights)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);

    assert_int_equal(lookup(f, seq, 0, N_TOKENS), n * CHUNK);
    if (n)
        load_seeded(f, seq, NULL, 0, n, weights);
    kvt_seq_free(seq);
}

/* ----------------------------------------------------------------- empty fingerprints */

/* A template without a value produces this setting. */
static void
an_empty_setting_does_not_hide_the_weights(void **state)
{
    static const char *const empty[] = { "model_fingerprint=", NULL };
    struct fixture *f = *state;

    open_for(f, "one", empty);
    store_weights(f, 4, 1);
    open_for(f, "two", empty);
    expect(f, 0, 0);
    open_for(f, "one", NULL);
    expect(f, 4, 1);
}

static void
an_empty_fingerprint_means_random_weights(void **state)
{
    struct fixture *f = *state, other;

    open_for(f, NULL, NULL);
    other = *f;
    other.engine = NULL;
    open_for(&other, NULL, NULL);
    store_weights(f, 4, 1);
    assert_int_equal(kvt_engine_reset(f->engine, ""), 0);
    expect(f, 0, 0);
    store_weights(f, 4, 2);
    expect(f, 4, 2);
    expect(&other, 4, 1);
    assert_int_equal(kvt_engine_reset(other.engine, ""), 0);
    expect(&other, 0, 0);
    kvt_engine_close(other.engine);
}

/* --------------------------------------------------------- sequences before and after */

/* All chunks of the sequence `before` belong to the old weights, also later chunks. */
static void
check_partial_chunks(struct fixture *f, const char *fingerprint)
{
    struct kvt_seq *before = new_seq(f, 2 * CHUNK + TAIL), *after;

    store_seeded(f, before, NULL, 0, 2, 1);
    assert_int_equal(lookup(f, before, 0, N_TOKENS), 2 * CHUNK);
    kvt_engine_release(f->engine, before);
    assert_int_equal(kvt_engine_reset(f->engine, fingerprint), 0);
    store_seeded(f, before, NULL, 2, 1, 1);
    after = new_seq(f, 2 * CHUNK + TAIL);
    assert_int_equal(lookup(f, after, 0, N_TOKENS), 0);
    assert_int_equal(lookup(f, before, 0, N_TOKENS), 2 * CHUNK + TAIL);
    assert_int_equal(kvt_seq_append(before, f->tokens + 2 * CHUNK + TAIL, CHUNK), 0);
    assert_int_equal(lookup(f, before, 0, N_TOKENS), 2 * CHUNK);
    load_seeded(f, before, NULL, 0, 2, 1);
    store_seeded(f, before, NULL, 2, 2, 1);
    assert_int_equal(kvt_seq_append(after, f->tokens + 2 * CHUNK + TAIL, CHUNK), 0);
    assert_int_equal(lookup(f, after, 0, N_TOKENS), 0);
    store_seeded(f, after, NULL, 0, 4, 2);
    assert_int_equal(lookup(f, after, 0, N_TOKENS), 3 * CHUNK + TAIL);
    load_seeded(f, after, NULL, 0, 4, 2);
    kvt_seq_free(before);
    kvt_seq_free(after);
}

static void
partial_chunks_keep_the_weights_of_their_sequence(void **state)
{
    static const char *const partial[] = { "save_unfull_chunk=true", NULL };

    open_for(*state, "one", partial);
    check_partial_chunks(*state, NULL);
}

static void
partial_chunks_of_named_weights_do_too(void **state)
{
    static const char *const partial[] = { "save_unfull_chunk=true", NULL };

    open_for(*state, "one", partial);
    check_partial_chunks(*state, "two");
}

static void
partial_chunks_in_host_memory_do_too(void **state)
{
    static const char *const partial[] = { "save_unfull_chunk=true", "local_cpu=true",
                                           "remote_url=", NULL };

    open_for(*state, "one", partial);
    check_partial_chunks(*state, "two");
}

/* Host memory knows identities and no names, so both are there. */
static void
host_memory_holds_the_kv_of_both_weights(void **state)
{
    static const char *const memory[] = { "local_cpu=true", "remote_url=",
                                          "max_local_cpu_size=0.05", NULL };
    struct fixture *f = *state;

    open_for(f, "one", memory);
    struct kvt_seq *before = new_seq(f, N_TOKENS);
    store_seeded(f, before, NULL, 0, 5, 1);
    for (uint32_t weights = 2; weights < 6; weights++) {
        assert_int_equal(kvt_engine_reset(f->engine, weights % 2 ? NULL : "two"), 0);
        expect(f, weights == 4 ? 3 : 0, 2);
        store_weights(f, 3, weights == 4 ? 2 : weights);
        expect(f, 3, weights == 4 ? 2 : weights);
        assert_int_equal(lookup(f, before, 0, N_TOKENS), 5 * CHUNK);
        load_seeded(f, before, NULL, 0, 5, 1);
    }
    assert_int_equal(kvt_engine_reset(f->engine, "one"), 0);
    expect(f, 5, 1);
    kvt_seq_free(before);
}

/* A lookup before the reset starts a prefetch, which ends after the reset. */
static void
chunks_read_ahead_during_a_reset_have_the_old_weights(void **state)
{
    static const char *const ahead[] = { "local_cpu=true", "enable_async_loading=true",
                                         "lookup_timeout_ms=60000", NULL };
    struct fixture *f = *state;
    uint64_t hit;

    open_for(f, "one", ahead);
    store_weights(f, 5, 1);
    open_for(f, "one", ahead);
    struct kvt_seq *before = new_seq(f, N_TOKENS);
    assert_int_equal(kvt_engine_lookup(f->engine, before, 0, N_TOKENS, &hit), -EAGAIN);
    reset_weights(f);
    struct kvt_seq *after = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, after, 0, N_TOKENS), 0);
    assert_int_equal(lookup(f, before, 0, N_TOKENS), 5 * CHUNK);
    store_seeded(f, after, NULL, 0, 4, 2);
    load_seeded(f, before, NULL, 0, 5, 1);
    assert_int_equal(lookup(f, after, 0, N_TOKENS), 4 * CHUNK);
    load_seeded(f, after, NULL, 0, 4, 2);
    kvt_seq_free(before);
    kvt_seq_free(after);
}

/* The file name contains the tags. */
static void
chunks_with_tags_are_read_ahead(void **state)
{
    static const char *const ahead[] = { "local_cpu=true", "enable_async_loading=true",
                                         "lookup_timeout_ms=60000", NULL };
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct fixture *f = *state;
    struct kvt_seq *seq = NULL;
    struct io io;

    extra.tags = "user%a";
    open_for(f, "one", ahead);
    assert_int_equal(kvt_seq_new(f->engine, f->tokens, N_TOKENS, &extra, &seq), 0);
    make_io(&io, seq, 0, 0, 3, 1);
    io.io.tags = extra.tags;
    store_and_flush(f, &io.io, 1);
    kvt_seq_free(seq);
    open_for(f, "one", ahead);
    assert_int_equal(kvt_seq_new(f->engine, f->tokens, N_TOKENS, &extra, &seq), 0);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 3 * CHUNK);
    assert_comes_to(f, "prefetch_chunks", 3);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
}

/* Chunks of two named weights share a file.  A lease of the file does not prevent a store;
 * the promised load returns the right bytes or fails. */
static void
a_promise_does_not_starve_other_weights(void **state)
{
    struct fixture *f = *state, other;
    struct io io;

    open_for(f, "one", NULL);
    other = *f;
    other.engine = NULL;
    open_for(&other, "two", NULL);
    store_weights(f, 3, 1);
    struct kvt_seq *promised = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, promised, 0, N_TOKENS), 3 * CHUNK);
    store_weights(&other, 3, 2);
    assert_int_equal(counter(&other, "store_failed"), 0);
    wipe(f);
    make_io(&io, promised, 0, 0, 3, 1);
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    assert_int_equal(kvt_load_status(load, 0, 0), -ENOENT);
    kvt_load_free(load);
    kvt_engine_release(f->engine, promised);
    kvt_seq_free(promised);
    expect(&other, 3, 2);
    store_weights(f, 3, 1);
    expect(f, 3, 1);
    expect(&other, 0, 0);
    kvt_engine_close(other.engine);
}

/* ------------------------------------------------------------------ chunks of LMCache */

/* Make a file LMCache's: the header and the payload. */
static int
take_identity(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    size_t n = strlen(path);

    (void)ftw;
    if (type != FTW_F || n < 5 || strcmp(path + n - 5, ".data"))
        return 0;
    assert_int_equal(truncate(path, st->st_size - KVT__TRAILER_BYTES), 0);
    (void)removexattr(path, KVT__XATTR_NAME);
    return 0;
}

static void
open_plain(struct fixture *f, const char *fingerprint)
{
    struct kvt_group group = plain_group();
    struct opening o = { .fingerprint = fingerprint, .groups = &group, .n_groups = 1 };

    f->engine = must_open(f, &o);
    set_view(f->engine, 0, f->memory);
}

/* The name of an LMCache chunk does not contain the weights.  An engine that was opened with the
 * weights accepts the chunk; an engine that was reset to the weights does not. */
static void
a_chunk_of_lmcache_is_not_promised_after_a_reset(void **state)
{
    struct fixture *f = *state, other = *f;

    open_plain(f, "one");
    store_weights(f, 3, 1);
    kvt_engine_close(f->engine);
    assert_int_equal(nftw(f->dir.path, take_identity, 16, FTW_PHYS), 0);
    lose_index(f->dir.path);
    open_plain(f, "one");
    expect(f, 3, 1);
    assert_int_equal(counter(f, "unverified_chunks"), 3);
    open_plain(&other, "two");
    assert_int_equal(kvt_engine_reset(other.engine, "one"), 0);
    expect(&other, 0, 0);
    expect(f, 3, 1);
    store_weights(&other, 3, 2);
    expect(&other, 3, 2);
    expect(f, 3, 2);
    assert_int_equal(counter(f, "unverified_chunks"), 6);
    kvt_engine_close(other.engine);
}

/* --------------------------------------------------------------------------- threads */

struct race {
    const struct fixture *f;
    atomic_bool over;
};

static void *
reset_often(void *arg)
{
    static const char *const names[] = { NULL, "one", "two" };
    struct race *race = arg;

    for (unsigned i = 0; !atomic_load(&race->over); i++)
        assert_int_equal(kvt_engine_reset(race->f->engine, names[i % 3]), 0);
    return NULL;
}

/* Every chunk of a sequence has the weights of the engine at one moment. */
static void
resets_on_another_thread_tear_nothing(void **state)
{
    struct fixture *f = *state;
    struct race race = { .f = f };
    struct kvt_chunk one, two, seen;
    pthread_t thread;
    unsigned n_named = 0;

    open_for(f, "one", NULL);
    struct kvt_seq *seq = new_seq(f, CHUNK);
    assert_int_equal(kvt_seq_chunks(seq, 0, 1, &one), 0);
    kvt_seq_free(seq);
    assert_int_equal(kvt_engine_reset(f->engine, "two"), 0);
    seq = new_seq(f, CHUNK);
    assert_int_equal(kvt_seq_chunks(seq, 0, 1, &two), 0);
    kvt_seq_free(seq);
    assert_int_equal(pthread_create(&thread, NULL, reset_often, &race), 0);
    for (unsigned i = 0; i < 20000 || !n_named; i++) { /* the resets go on */
        seq = new_seq(f, CHUNK);
        assert_int_equal(kvt_seq_chunks(seq, 0, 1, &seen), 0);
        kvt_seq_free(seq);
        bool named = !memcmp(seen.prefix, one.prefix, 16) ||
                     !memcmp(seen.prefix, two.prefix, 16);
        assert_int_equal(seen.name_hash[0] == one.name_hash[0], named);
        n_named += named;
    }
    atomic_store(&race.over, true);
    pthread_join(thread, NULL);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(an_empty_setting_does_not_hide_the_weights),
        T(an_empty_fingerprint_means_random_weights),
        T(partial_chunks_keep_the_weights_of_their_sequence),
        T(partial_chunks_of_named_weights_do_too),
        T(partial_chunks_in_host_memory_do_too),
        T(host_memory_holds_the_kv_of_both_weights),
        T(chunks_read_ahead_during_a_reset_have_the_old_weights),
        T(chunks_with_tags_are_read_ahead),
        T(a_promise_does_not_starve_other_weights),
        T(a_chunk_of_lmcache_is_not_promised_after_a_reset),
        T(resets_on_another_thread_tear_nothing),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
