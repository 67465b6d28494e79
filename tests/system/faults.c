/* SPDX-License-Identifier: Apache-2.0
 *
 * Storage that fails, returns wrong bytes, is slow or hangs.  Every load ends by its deadline,
 * and every chunk reported as loaded holds exactly the right bytes. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "system/held.h"
#include "system/system-test.h"

#define N_PROMPTS 4u

static void
open_with_pool(struct fixture *f, const char *faults, const char *pool,
               const char *const *more)
{
    char url[512];
    const char *settings[8] = { url, pool };

    for (size_t i = 2; more && *more; i++)
        settings[i] = *more++;
    snprintf(url, sizeof url, "remote_url=fault://%s/fs://%s", faults, f->dir.path);
    fixture_open(f, settings);
}

static void
open_with(struct fixture *f, const char *faults, const char *const *more)
{
    open_with_pool(f, faults, "max_local_cpu_size=0.004", more);
}

static void
close_engine(struct fixture *f)
{
    kvt_engine_close(f->engine);
    f->engine = NULL;
}

static void
store_all(struct fixture *f)
{
    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        set_tokens(f, p);
        write_chunks(f, 0, N_CHUNKS);
    }
}

/* load_prompt() fails the test if a chunk with wrong bytes is reported as loaded. */
static unsigned
load_all(struct fixture *f)
{
    unsigned n = 0;

    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        set_tokens(f, p);
        n += load_prompt(f).loaded;
    }
    return n;
}

static void
loaded_bytes_are_right_despite_read_faults(void **state)
{
    struct fixture *f = *state;
    unsigned n_loaded = 0, n_failed = 0, n_corrupt = 0;
    char faults[200];

    for (unsigned seed = 1; seed <= rounds(12); seed++) {
        snprintf(faults, sizeof faults, "seed=%u,read_error=0.3,bit_flip=0.1,"
                 "short_read=0.1,probe_error=0.2,delay=0.1,delay_ms=1", seed);
        open_with(f, faults, NULL);
        store_all(f);
        for (int i = 0; i < 3; i++)
            n_loaded += load_all(f);
        n_failed += (unsigned)counter(f, "load_failed");
        n_corrupt += (unsigned)counter(f, "load_corrupt");
        assert_int_equal(counter(f, "pool_used"), 0);
        close_engine(f);
    }
    assert_true(n_loaded > 0);
    assert_true(n_failed > 0);
    assert_true(n_corrupt > 0);
}

static void
leftovers_of_failed_writes_are_never_loaded(void **state)
{
    struct fixture *f = *state;
    unsigned n_loaded = 0;
    char faults[200];

    for (unsigned seed = 1; seed <= rounds(12); seed++) {
        snprintf(faults, sizeof faults, "seed=%u,write_error=0.2,enospc=0.2,"
                 "write_corrupt=0.2", seed);
        open_with(f, faults, NULL);
        store_all(f);
        assert_true(counter(f, "store_failed") + counter(f, "store_dropped") > 0 ||
                    seed > 1);
        close_engine(f);
        fixture_open(f, NULL);
        n_loaded += load_all(f);
        struct usage usage = usage_of(f);
        struct kvt__table_totals totals = index_totals(f);
        assert_int_equal(totals.used_bytes, usage.bytes);
        assert_int_equal(totals.n_entries, usage.n_files);
        close_engine(f);
    }
    assert_true(n_loaded > 0);
    assert_int_equal(n_temporary_files(f), 0);
}

static void
stores_resume_after_failed_file_removals(void **state)
{
    const char *const small[] = { "max_remote_size=0.0005", NULL }; /* 18 files */
    struct fixture *f = *state;

    open_with(f, "seed=3,remove_error=0.5", small);
    store_all(f);
    store_all(f);
    assert_true(counter(f, "evicted_chunks") > 0);
    assert_true(usage_of(f).bytes <= 536870);
    load_all(f);
    close_engine(f);
}

/* --------------------------------------------------------------------- hanging */

static int
setup(void **state)
{
    set_held(HELD_OFF);
    return fixture_setup(state);
}

/* Let all hanging operations continue, also after a failed test. */
static int
teardown(void **state)
{
    let_go();
    return fixture_teardown(state);
}

static void
wait_until_done(const struct fixture *f, const struct kvt_load *load)
{
    struct pollfd fd = { .fd = kvt_engine_eventfd(f->engine), .events = POLLIN };
    struct kvt_load *done;

    while (!kvt_engine_poll(f->engine, &done, 1))
        poll(&fd, 1, -1);
    assert_ptr_equal(done, load);
}

/* Start a probe that hangs.  The caller frees the sequence. */
static struct kvt_seq *
start_probe(struct fixture *f)
{
    uint64_t hit;

    set_tokens(f, 1);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    set_tokens(f, 0);
    assert_int_equal(kvt_engine_lookup(f->engine, seq, 0, N_TOKENS, &hit), -EAGAIN);
    wait_until_held();
    return seq;
}

static void
a_load_over_hanging_storage_ends_at_its_deadline(void **state)
{
    const char *const deadline[] = { "blocking_timeout_secs=1", NULL };
    struct fixture *f = *state;
    struct io io;

    set_tokens(f, 0);
    fixture_open(f, NULL);
    write_chunks(f, 0, N_CHUNKS);
    close_engine(f);

    hold();
    open_with(f, "hang=1", deadline);
    struct kvt_seq *probed = start_probe(f); /* the storage hangs before the load begins */
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_TOKENS);
    make_io(&io, seq, 0, 0, N_CHUNKS, 1);
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        assert_int_equal(kvt_load_status(load, 0, c), -ETIMEDOUT);
    /* A tier that does not answer is paused: lookups promise no chunk until an answer. */
    assert_int_equal(counter(f, "tier_pauses"), 1);
    struct kvt_seq *next = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, next, 0, N_TOKENS), 0);
    kvt_seq_free(next);
    set_blocks(f, 0x5c);
    kvt_load_free(load);
    let_go();
    while (counter(f, "loads_pending")) /* the reads are good, and come too late */
        sched_yield();
    assert_true(device_is(f->memory, 0x5c, (size_t)N_LAYERS * N_BLOCKS * BLOCK_BYTES));
    assert_int_equal(counter(f, "load_late"), N_CHUNKS);
    assert_int_equal(counter(f, "pool_used"), 0);
    kvt_engine_release(f->engine, seq);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_TOKENS);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    kvt_seq_free(probed);
}

/* Hanging reads hold slots of the pool: other loads return the chunks for which slots remain. */
static void
a_pool_held_by_hanging_reads_gives_partial_results(void **state)
{
    const char *const small[] = { "blocking_timeout_secs=1", NULL };
    struct fixture *f = *state;
    struct io ios[3];
    struct kvt_load *load;
    unsigned n_late = 0;

    fixture_open(f, NULL);
    write_chunks(f, 0, N_CHUNKS);
    close_engine(f);

    hold();
    open_with_pool(f, "seed=5,hang=0.3", "max_local_cpu_size=0.00016", small);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    wipe(f);
    for (int i = 0; i < 3; i++) {
        make_io(&ios[i], seq, 0, 0, N_CHUNKS, 1 + 20 * i);
        assert_int_equal(kvt_engine_load(f->engine, &ios[i].io, 1, (uint64_t)i, &load), 0);
    }
    for (int n = 0; n < 3; n++) {
        struct pollfd fd = { .fd = kvt_engine_eventfd(f->engine), .events = POLLIN };

        while (!kvt_engine_poll(f->engine, &load, 1))
            poll(&fd, 1, -1);
        for (uint32_t c = 0; c < N_CHUNKS; c++) {
            int status = kvt_load_status(load, 0, c);

            if (!status)
                assert_true(chunk_is_right(f, &ios[kvt_load_cookie(load)], c));
            else
                assert_int_equal(status, -ETIMEDOUT);
            n_late += status != 0;
        }
        kvt_load_free(load);
    }
    assert_true(n_late > 0);
    kvt_seq_free(seq);
}

static void
a_cancelled_load_does_not_wait_for_hanging_storage(void **state)
{
    struct fixture *f = *state;
    struct kvt_load *load, *done;
    struct io io;

    fixture_open(f, NULL);
    write_chunks(f, 0, N_CHUNKS);
    close_engine(f);

    hold();
    open_with(f, "hang=1", NULL);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    make_io(&io, seq, 0, 0, N_CHUNKS, 1);
    assert_int_equal(kvt_engine_load(f->engine, &io.io, 1, 0, &load), 0);
    kvt_load_cancel(load);
    assert_int_equal(kvt_engine_poll(f->engine, &done, 1), 1);
    assert_ptr_equal(done, load);
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        assert_int_equal(kvt_load_status(load, 0, c), -ECANCELED);
    kvt_load_free(load);
    kvt_seq_free(seq);
}

/* Reads hold all slots, and chunks of the cancelled load wait in front of a chunk in memory. */
static void
a_cancelled_load_does_not_block_later_loads(void **state)
{
    const char *const more[] = { "local_cpu=true", "disk_io_threads=32", NULL };
    struct fixture *f = *state;
    struct kvt_load *first, *second;
    struct io all, one;

    set_tokens(f, 0);
    fixture_open(f, NULL);
    write_chunks(f, 0, N_CHUNKS);
    close_engine(f);
    hold();
    open_with_pool(f, "hang=1", "max_local_cpu_size=0.00016", more);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    set_tokens(f, 1);
    store_chunks(f, 0, 1); /* stays in host memory, and the write hangs */
    struct kvt_seq *stored = new_seq(f, N_TOKENS);
    make_io(&all, seq, 0, 0, N_CHUNKS, 1);
    make_io(&one, stored, 0, 0, 1, 40);
    wipe(f);
    assert_int_equal(kvt_engine_load(f->engine, &all.io, 1, 0, &first), 0);
    assert_int_equal(kvt_engine_load(f->engine, &one.io, 1, 0, &second), 0);
    wait_until_n_held(1 + (unsigned)counter(f, "loads_pending"));
    kvt_load_cancel(first);
    wait_until_done(f, first);
    wait_until_done(f, second);
    assert_int_equal(kvt_load_status(second, 0, 0), 0);
    assert_true(chunk_is_right(f, &one, 0));
    assert_int_equal(counter(f, "memory_hits"), 1);
    kvt_load_free(first);
    kvt_load_free(second);
    kvt_seq_free(seq);
    kvt_seq_free(stored);
}

static void
a_lookup_over_hanging_storage_returns_known_chunks(void **state)
{
    const char *const soon[] = { "lookup_timeout_ms=20", NULL };
    struct fixture *f = *state;

    fixture_open(f, NULL);
    write_chunks(f, 0, 3);
    close_engine(f);
    hold();
    open_with(f, "hang=1", soon);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 3 * CHUNK);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq); /* during the hanging probe */
}

struct flush {
    struct kvt_engine *engine;
    int err;
    atomic_bool done;
};

static void *
flush_main(void *arg)
{
    struct flush *flush = arg;

    flush->err = kvt_engine_flush(flush->engine, -1);
    atomic_store(&flush->done, true);
    return NULL;
}

/* At each instant at least one store is in progress. */
static void
a_flush_does_not_wait_for_later_stores(void **state)
{
    const char *const two[] = { "disk_io_threads=2", NULL };
    struct fixture *f = *state;
    pthread_t thread;

    open_with(f, "hang=1", two);
    hold();
    set_tokens(f, 0);
    store_chunks(f, 0, 1);
    wait_until_held();
    struct flush flush = { .engine = f->engine };
    assert_int_equal(pthread_create(&thread, NULL, flush_main, &flush), 0);
    for (uint32_t i = 1; i < 500 && !atomic_load(&flush.done); i++) {
        set_tokens(f, i);
        store_chunks(f, 0, 1);
        wait_until_n_held(2);
        let_oldest_go();
    }
    bool done = atomic_load(&flush.done);
    let_go();
    pthread_join(thread, NULL);
    assert_true(done);
    assert_int_equal(flush.err, 0);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(loaded_bytes_are_right_despite_read_faults),
        T(leftovers_of_failed_writes_are_never_loaded),
        T(stores_resume_after_failed_file_removals),
        T(a_load_over_hanging_storage_ends_at_its_deadline),
        T(a_pool_held_by_hanging_reads_gives_partial_results),
        T(a_flush_does_not_wait_for_later_stores),
        T(a_cancelled_load_does_not_wait_for_hanging_storage),
        T(a_cancelled_load_does_not_block_later_loads),
        T(a_lookup_over_hanging_storage_returns_known_chunks),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
