/* SPDX-License-Identifier: Apache-2.0
 *
 * The states of a promise: lookups that keep an answer, and leases that end once in each
 * state. */
#include "system/system-test.h"

#include "engine/seq.h"
#include "system/held.h"

#define N_STORED 4u
#define LIMIT "max_remote_size=0.0005" /* 18 chunks */

static int
setup(void **state)
{
    set_held(HELD_OFF);
    return fixture_setup(state);
}

static int
teardown(void **state)
{
    let_go();
    return fixture_teardown(state);
}

/* Open an engine whose storage has the first chunks of the prompt. */
static void
open_stored(struct fixture *f)
{
    static const char *const settings[] = { LIMIT, NULL };

    fixture_open(f, settings);
    set_tokens(f, 0);
    write_chunks(f, 0, N_STORED);
}

/* Open an engine whose storage hangs until let_go().  more: another setting, or NULL. */
static void
open_hanging_with(struct fixture *f, const char *async, const char *more)
{
    char url[512];
    const char *const settings[] = { url, LIMIT, async, "local_cpu=true",
                                     "lookup_timeout_ms=600000",
                                     "blocking_timeout_secs=600", more, NULL };

    open_stored(f);
    kvt_engine_close(f->engine);
    snprintf(url, sizeof url, "remote_url=fault://hang=1/fs://%s", f->dir.path);
    hold();
    fixture_open(f, settings);
}

static void
open_hanging(struct fixture *f, const char *async)
{
    open_hanging_with(f, async, NULL);
}

/* Store enough other chunks to evict every chunk without a lease. */
static void
evict(struct fixture *f)
{
    static uint32_t prompt;

    wait_for_tick();
    for (int i = 0; i < 8; i++) {
        set_tokens(f, ++prompt);
        write_chunks(f, 0, N_CHUNKS);
    }
    set_tokens(f, 0);
}

/* Return how many of the prompt's stored chunks the storage still has. */
static size_t
n_left(const struct fixture *f)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    size_t n = 0;

    for (size_t c = 0; c < N_STORED; c++)
        n += kvt__hit_has(seq, c, 0, KVT__IN_STORAGE, false);
    kvt_seq_free(seq);
    return n;
}

static size_t
n_leases(const struct kvt_seq *seq)
{
    size_t n = 0;

    for (size_t i = 0; i < seq->promise.max_leased_chunks; i++)
        n += seq->promise.leases[i].level != 0;
    return n;
}

static void
end(const struct fixture *f, struct kvt_seq *seq)
{
    kvt_engine_release(f->engine, seq);
    assert_int_equal(seq->promise.state, KVT__PROMISE_NONE);
    assert_int_equal(n_leases(seq), 0);
    kvt_seq_free(seq);
}

/* ------------------------------------------------------------------------- HELD */

static void
each_lease_ends_once(void **state)
{
    struct fixture *f = *state;

    open_stored(f);
    struct kvt_seq *a = new_seq(f, N_TOKENS), *b = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, a, 0, N_TOKENS), N_STORED * CHUNK);
    assert_int_equal(lookup(f, b, 0, N_TOKENS), N_STORED * CHUNK);
    assert_int_equal(b->promise.state, KVT__PROMISE_HELD);
    kvt_engine_release(f->engine, a);
    end(f, a);
    evict(f);
    assert_int_equal(n_left(f), N_STORED); /* the second sequence has leases */
    end(f, b);
    evict(f);
    assert_int_equal(n_left(f), 0);
}

static void
an_answer_is_held_until_the_release(void **state)
{
    struct fixture *f = *state;

    open_stored(f);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_STORED * CHUNK);
    write_chunks(f, N_STORED, 2);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_STORED * CHUNK);
    assert_int_equal(lookup(f, seq, CHUNK, N_TOKENS), N_STORED * CHUNK);
    assert_int_equal(seq->promise.first, 0);
    kvt_engine_release(f->engine, seq);
    assert_int_equal(lookup(f, seq, 2 * CHUNK, N_TOKENS), (N_STORED + 2) * CHUNK);
    assert_int_equal(n_leases(seq), N_STORED);
    end(f, seq);
}

static void
a_lookup_of_another_hit_ends_the_promise(void **state)
{
    struct fixture *f = *state;

    open_stored(f);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, CHUNK, N_TOKENS), N_STORED * CHUNK);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_STORED * CHUNK); /* an earlier first */
    assert_int_equal(n_leases(seq), N_STORED);
    assert_int_equal(lookup(f, seq, 0, 2 * CHUNK), 2 * CHUNK); /* another maximum */
    assert_int_equal(n_leases(seq), 2);
    write_chunks(f, N_STORED, 2);
    assert_int_equal(lookup(f, seq, 2 * CHUNK, N_TOKENS), (N_STORED + 2) * CHUNK);
    end(f, seq);
    evict(f);
    assert_int_equal(n_left(f), 0);
}

static void
half_of_the_lease_ends_the_promise(void **state)
{
    struct fixture *f = *state;

    open_stored(f);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_STORED * CHUNK);
    assert_in_range(seq->promise.deadline_ns, seq->promise.lease_until_ns - f->engine->lease_ns / 2,
                    seq->promise.lease_until_ns);
    write_chunks(f, N_STORED, 2);
    seq->promise.deadline_ns = 0;
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), (N_STORED + 2) * CHUNK);
    end(f, seq);
    evict(f);
    assert_int_equal(n_left(f), 0);
}

static void
an_answer_without_a_hit_is_not_held(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, NULL);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 0);
    assert_int_equal(seq->promise.state, KVT__PROMISE_NONE);
    write_chunks(f, 0, N_STORED);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_STORED * CHUNK);
    end(f, seq);
}

/* The engine asks for no chunk: its tokens reach the caller's maximum. */
static void
a_lookup_of_nothing_has_no_leases(void **state)
{
    static const uint64_t have[] = { N_TOKENS, N_TOKENS + 1, UINT64_C(1) << 40, UINT64_MAX };
    struct fixture *f = *state;

    open_stored(f);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    for (size_t i = 0; i < sizeof have / sizeof *have; i++) {
        assert_int_equal(lookup(f, seq, have[i], N_TOKENS), 0);
        assert_true(seq->promise.max_leased_chunks <= N_CHUNKS);
        assert_int_equal(lookup(f, seq, have[i], 0), 0);
    }
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_STORED * CHUNK);
    end(f, seq);
}

/* The path of the only chunk file. */
static void
only_file(const struct fixture *f, char path[800])
{
    char dir[300];

    snprintf(dir, sizeof dir, "%s/kvtier", f->dir.path);
    DIR *d = opendir(dir);
    path[0] = '\0';
    for (struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, ".data"))
            snprintf(path, 800, "%s/%s", dir, e->d_name);
    closedir(d);
    assert_true(*path);
}

static void
a_load_that_fails_in_the_middle_ends_with_the_release(void **state)
{
    static const char *const settings[] = { LIMIT, NULL };
    struct fixture *f = *state;
    char path[800];
    struct io io;

    fixture_open(f, settings);
    write_chunks(f, 2, 1);
    only_file(f, path);
    write_chunks(f, 0, N_STORED);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_STORED * CHUNK);
    assert_int_equal(unlink(path), 0);
    make_io(&io, seq, 0, 0, N_STORED, 1);
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    assert_int_equal(kvt_load_status(load, 0, 1), 0);
    assert_int_equal(kvt_load_status(load, 0, 2), -ENOENT);
    kvt_load_free(load);
    kvt_engine_release(f->engine, seq);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 2 * CHUNK);
    assert_int_equal(n_leases(seq), 2);
    end(f, seq);
    evict(f);
    assert_int_equal(n_left(f), 0);
}

/* A load finds a chunk missing, so the index forgets the leased chunk. */
static void
a_release_ends_no_lease_of_a_chunk_that_was_stored_again(void **state)
{
    static const char *const settings[] = { LIMIT, NULL };
    struct fixture *f = *state;
    char path[800];
    struct io io;

    fixture_open(f, settings);
    write_chunks(f, 2, 1);
    only_file(f, path);
    write_chunks(f, 0, N_STORED);
    struct kvt_seq *a = new_seq(f, N_TOKENS), *b = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, a, 0, N_TOKENS), N_STORED * CHUNK);
    assert_int_equal(unlink(path), 0);
    make_io(&io, a, 0, 0, N_STORED, 1);
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    assert_int_equal(kvt_load_status(load, 0, 2), -ENOENT);
    kvt_load_free(load);
    write_chunks(f, 2, 1);
    assert_int_equal(lookup(f, b, 0, N_TOKENS), N_STORED * CHUNK);
    end(f, a);
    evict(f);
    assert_int_equal(n_left(f), N_STORED);
    end(f, b);
    evict(f);
    assert_int_equal(n_left(f), 0);
}

/* --------------------------------------------------------------------- FETCHING */

/* Begin a lookup whose requests hang. */
static struct kvt_seq *
begin_lookup(struct fixture *f, uint64_t max_tokens)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    uint64_t hit;

    assert_int_equal(kvt_engine_lookup(f->engine, seq, 0, max_tokens, &hit), -EAGAIN);
    assert_int_equal(seq->promise.state, KVT__PROMISE_FETCHING);
    wait_until_held();
    return seq;
}

/* End a lookup while requests hang, then let them end. */
static void
check_abort(struct fixture *f, struct kvt_seq *seq)
{
    end(f, seq);
    let_go();
    evict(f);
    assert_int_equal(n_left(f), 0);
    assert_int_equal(counter(f, "load_failed"), 0);
}

static void
an_abort_while_the_tiers_are_searched(void **state)
{
    struct fixture *f = *state;

    open_hanging(f, "enable_async_loading=false");
    struct kvt_seq *seq = begin_lookup(f, N_TOKENS);
    assert_true(seq->promise.is_searching);
    assert_int_equal(n_leases(seq), 0);
    check_abort(f, seq);
}

static void
an_abort_while_chunks_are_read(void **state)
{
    struct fixture *f = *state;

    open_hanging(f, "enable_async_loading=true");
    struct kvt_seq *seq = begin_lookup(f, N_STORED * CHUNK);
    assert_false(seq->promise.is_searching);
    assert_int_equal(n_leases(seq), N_STORED);
    check_abort(f, seq);
}

/* The reads have taken a third of the lease, or the caller has not repeated the lookup in time. */
static void
the_lease_of_an_answer_is_as_long_after_reads(void **state)
{
    struct fixture *f = *state;

    for (unsigned late = 0; late < 2; late++) {
        open_hanging(f, "enable_async_loading=true");
        struct kvt_seq *seq = begin_lookup(f, N_STORED * CHUNK);
        int64_t *until = &seq->promise.lease_until_ns, lease = f->engine->lease_ns;
        assert_true(*until >= seq->promise.begun_ns + f->engine->load_timeout_ns + lease);
        *until = late ? kvt__now_ns() + lease * 2 / 3 : *until - lease / 3;
        let_go();
        assert_int_equal(lookup(f, seq, 0, N_STORED * CHUNK), N_STORED * CHUNK);
        assert_true(*until >= kvt__now_ns() + lease);
        end(f, seq);
        kvt_engine_close(f->engine);
        f->engine = NULL;
    }
}

/* The times of a promise count from the first lookup that has not been answered. */
static void
a_lookup_after_an_answer_without_a_hit_waits_for_chunks(void **state)
{
    struct fixture *f = *state;

    open_hanging(f, "enable_async_loading=true");
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    uint64_t hit;
    assert_int_equal(lookup(f, seq, 0, CHUNK - 1), 0);
    assert_int_equal(seq->promise.state, KVT__PROMISE_NONE);
    if (seq->promise.begun_ns) /* the answer is an hour old */
        seq->promise.begun_ns -= 3600 * KVT__NS_PER_S;
    assert_int_equal(kvt_engine_lookup(f->engine, seq, 0, N_STORED * CHUNK, &hit), -EAGAIN);
    assert_int_equal(seq->promise.state, KVT__PROMISE_FETCHING);
    wait_until_held();
    check_abort(f, seq);
}

/* The append ends the answer, because the partial chunk has become another chunk. */
static void
a_lookup_after_an_append_waits_for_chunks(void **state)
{
    struct fixture *f = *state;
    size_t n = CHUNK + 8;
    uint64_t hit;

    open_hanging_with(f, "enable_async_loading=true", "save_unfull_chunk=true");
    let_go();
    struct kvt_seq *seq = new_seq(f, n);
    assert_int_equal(lookup(f, seq, 0, n), CHUNK);
    assert_int_equal(seq->promise.state, KVT__PROMISE_HELD);
    if (seq->promise.begun_ns) /* the answer is an hour old */
        seq->promise.begun_ns -= 3600 * KVT__NS_PER_S;
    hold();
    assert_int_equal(kvt_seq_append(seq, f->tokens + n, N_STORED * CHUNK - n), 0);
    assert_int_equal(kvt_engine_lookup(f->engine, seq, 0, N_STORED * CHUNK, &hit), -EAGAIN);
    assert_int_equal(seq->promise.state, KVT__PROMISE_FETCHING);
    let_go();
    assert_int_equal(lookup(f, seq, 0, N_STORED * CHUNK), N_STORED * CHUNK);
    end(f, seq);
}

static void
a_chunk_appended_while_chunks_are_read(void **state)
{
    struct fixture *f = *state;

    open_hanging(f, "enable_async_loading=true");
    struct kvt_seq *seq = begin_lookup(f, N_STORED * CHUNK);
    assert_int_equal(kvt_seq_append(seq, f->tokens, CHUNK), 0);
    let_go();
    assert_int_equal(lookup(f, seq, 0, N_STORED * CHUNK), N_STORED * CHUNK);
    assert_int_equal(n_leases(seq), N_STORED);
    end(f, seq);
}

/* The caller frees the sequence without a release, and closes the engine. */
static void
a_sequence_freed_while_the_tiers_are_searched(void **state)
{
    struct fixture *f = *state;

    open_hanging(f, "enable_async_loading=false");
    kvt_seq_free(begin_lookup(f, N_TOKENS));
    struct kvt_seq *next = begin_lookup(f, N_TOKENS);
    let_go();
    assert_int_equal(lookup(f, next, 0, N_TOKENS), N_STORED * CHUNK);
    kvt_engine_close(f->engine);
    f->engine = NULL;
    kvt_seq_free(next);
}

static void
use_in_child(void *arg)
{
    struct kvt_seq *seq = arg;
    struct kvt_chunk_range range;
    uint64_t hit;

    assert_int_equal(kvt_engine_lookup(seq->engine, seq, 0, N_TOKENS, &hit), -ESTALE);
    assert_int_equal(kvt_engine_wanted(seq->engine, seq, &range), 0);
    kvt_engine_release(seq->engine, seq);
    kvt_seq_free(seq);
}

static void
a_forked_child_releases_no_lease_of_its_parent(void **state)
{
    struct fixture *f = *state;

    open_hanging(f, "enable_async_loading=false");
    struct kvt_seq *seq = begin_lookup(f, N_TOKENS);
    assert_int_equal(end_child(start_child(use_in_child, seq)), 0);
    let_go();
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_STORED * CHUNK);
    assert_int_equal(end_child(start_child(use_in_child, seq)), 0);
    evict(f);
    assert_int_equal(n_left(f), N_STORED);
    end(f, seq);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_lease_ends_once),
        TEST(an_answer_is_held_until_the_release),
        TEST(a_lookup_of_another_hit_ends_the_promise),
        TEST(half_of_the_lease_ends_the_promise),
        TEST(an_answer_without_a_hit_is_not_held),
        TEST(a_lookup_of_nothing_has_no_leases),
        TEST(a_load_that_fails_in_the_middle_ends_with_the_release),
        TEST(a_release_ends_no_lease_of_a_chunk_that_was_stored_again),
        TEST(an_abort_while_the_tiers_are_searched),
        TEST(an_abort_while_chunks_are_read),
        TEST(the_lease_of_an_answer_is_as_long_after_reads),
        TEST(a_lookup_after_an_answer_without_a_hit_waits_for_chunks),
        TEST(a_lookup_after_an_append_waits_for_chunks),
        TEST(a_chunk_appended_while_chunks_are_read),
        TEST(a_sequence_freed_while_the_tiers_are_searched),
        TEST(a_forked_child_releases_no_lease_of_its_parent),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests_name("promise", tests, NULL, NULL);
}
