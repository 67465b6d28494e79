/* SPDX-License-Identifier: Apache-2.0
 *
 * Many concurrent loads over a pool of a few slots; loads cancelled at random instants; an
 * engine closed during loads and stores. */
#define N_BLOCKS 1280u

#include <pthread.h>
#include <sched.h>

#include "system/system-test.h"

#define N_LOADS 60u
#define BLOCKS_A_LOAD (N_CHUNKS * CHUNK_BLOCKS)

/* Some four slots. */
static const char *const settings[] = { "max_local_cpu_size=0.00016", NULL };

struct loads {
    struct fixture f;
    struct kvt_seq *seq;
    struct io ios[N_LOADS]; /* the whole prompt, each into its own blocks */
    struct kvt_load *loads[N_LOADS];
};

static int
setup(void **state)
{
    static struct loads l;

    fixture_init(&l.f);
    fixture_open(&l.f, settings);
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        write_chunks(&l.f, c, 1);
    }
    assert_int_equal(counter(&l.f, "store_chunks"), N_CHUNKS);
    l.seq = new_seq(&l.f, N_TOKENS);
    for (uint32_t i = 0; i < N_LOADS; i++)
        make_io(&l.ios[i], l.seq, 0, 0, N_CHUNKS, (int32_t)(i * BLOCKS_A_LOAD));
    l.ios[0].blocks[0] = -1; /* block 0 is the null block */
    wipe(&l.f);
    *state = &l;
    return 0;
}

static int
teardown(void **state)
{
    struct loads *l = *state;

    kvt_seq_free(l->seq);
    fixture_fini(&l->f);
    return 0;
}

static void
start(struct loads *l, uint32_t i)
{
    if (kvt_engine_load(l->f.engine, &l->ios[i].io, 1, i, &l->loads[i]))
        fail_msg("%s", kvt_last_error());
}

static struct kvt_load *
next_done(const struct loads *l)
{
    struct pollfd fd = { .fd = kvt_engine_eventfd(l->f.engine), .events = POLLIN };
    struct kvt_load *done;

    while (!kvt_engine_poll(l->f.engine, &done, 1))
        poll(&fd, 1, -1);
    return done;
}

static void
many_loads_over_a_small_pool_all_end(void **state)
{
    struct loads *l = *state;

    for (uint32_t i = 0; i < N_LOADS; i++)
        start(l, i);
    for (uint32_t n = 0; n < N_LOADS; n++) {
        struct kvt_load *done = next_done(l);
        uint64_t i = kvt_load_cookie(done);

        for (uint32_t c = 0; c < N_CHUNKS; c++) {
            assert_int_equal(kvt_load_status(done, 0, c), 0);
            if (i || c)
                assert_true(chunk_is_right(&l->f, &l->ios[i], c));
        }
        kvt_load_free(done);
    }
    assert_int_equal(counter(&l->f, "load_chunks"), N_LOADS * N_CHUNKS);
    assert_int_equal(counter(&l->f, "loads_pending"), 0);
    assert_int_equal(counter(&l->f, "pool_used"), 0);
}

/* The engine computes all tokens from the first missing chunk on. */
static void
queued_chunks_after_a_missing_chunk_are_not_read(void **state)
{
    struct loads *l = *state;
    struct io io;
    struct kvt_load *load;
    unsigned n_skipped = 0;

    set_tokens(&l->f, 99); /* no chunk of this prompt was stored */
    struct kvt_seq *seq = new_seq(&l->f, N_TOKENS);
    set_tokens(&l->f, 0);
    make_io(&io, seq, 0, 0, N_CHUNKS, 1);
    assert_int_equal(kvt_engine_load(l->f.engine, &io.io, 1, 0, &load), 0);
    assert_ptr_equal(next_done(l), load);
    assert_int_equal(kvt_load_status(load, 0, 0), -ENOENT);
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        n_skipped += kvt_load_status(load, 0, c) == -ECANCELED;
    kvt_load_free(load);
    kvt_seq_free(seq);
    /* A slot may take other chunks before the end of the first chunk is noted. */
    assert_in_range(n_skipped, 1, N_CHUNKS - 1);
    assert_int_equal(counter(&l->f, "load_missing"), N_CHUNKS - n_skipped);
}

/* --------------------------------------------------------------------- deadline */

void __real_kvt__timer_set(struct kvt__exec *exec, struct kvt__timer *timer);
void __wrap_kvt__timer_set(struct kvt__exec *exec, struct kvt__timer *timer);

/* An engine whose deadlines pass, and whose loads are polled, before kvt_engine_load() returns. */
static struct kvt_engine *hasty;
static int statuses[N_CHUNKS]; /* of the polled load */

void
__wrap_kvt__timer_set(struct kvt__exec *exec, struct kvt__timer *timer)
{
    struct kvt_load *load;

    if (!hasty) {
        __real_kvt__timer_set(exec, timer);
        return;
    }
    timer->run(timer);
    assert_int_equal(kvt_engine_poll(hasty, &load, 1), 1);
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        statuses[c] = kvt_load_status(load, 0, c);
    kvt_load_free(load);
}

static void
a_load_whose_deadline_passes_at_once_has_no_chunk(void **state)
{
    struct loads *l = *state;

    hasty = l->f.engine;
    start(l, 0);
    hasty = NULL;
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        assert_int_equal(statuses[c], -ETIMEDOUT);
    assert_int_equal(counter(&l->f, "load_late"), N_CHUNKS);
}

/* ------------------------------------------------------------------ cancelling */

/* Fill a load's blocks with known bytes after the load has been returned. */
static void
write_canary(const struct loads *l, uint64_t i)
{
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        device_set(block_at(&l->f, layer, (uint32_t)i * BLOCKS_A_LOAD), 0x11 + (int)i,
                   (size_t)BLOCKS_A_LOAD * BLOCK_BYTES);
}

static void
check_canary(const struct loads *l, uint64_t i)
{
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        assert_true(device_is(block_at(&l->f, layer, (uint32_t)i * BLOCKS_A_LOAD),
                              0x11 + (int)i, (size_t)BLOCKS_A_LOAD * BLOCK_BYTES));
}

/* Cancel loads at random instants, the last load first. */
static void *
cancel_all(void *arg)
{
    struct loads *l = arg;
    uint64_t random = 5;

    for (uint32_t i = N_LOADS; i-- > 0;) {
        kvt_load_cancel(l->loads[i]);
        for (uint64_t n = next_random(&random) % 64; n; n--)
            sched_yield();
    }
    return NULL;
}

static void
no_block_is_written_after_its_load_was_returned(void **state)
{
    struct loads *l = *state;
    unsigned n_cancelled = 0, n_loaded = 0;

    for (unsigned round = 0; round < rounds(20); round++) {
        struct kvt_load *done[N_LOADS];
        pthread_t canceller;

        wipe(&l->f);
        for (uint32_t i = 0; i < N_LOADS; i++)
            start(l, i);
        kvt_load_cancel(l->loads[N_LOADS - 1]); /* certainly before the read */
        assert_int_equal(pthread_create(&canceller, NULL, cancel_all, l), 0);
        for (uint32_t n = 0; n < N_LOADS; n++) {
            done[n] = next_done(l);
            uint64_t i = kvt_load_cookie(done[n]);

            for (uint32_t c = i ? 0 : 1; c < N_CHUNKS; c++) {
                int status = kvt_load_status(done[n], 0, c);

                if (!status)
                    assert_true(chunk_is_right(&l->f, &l->ios[i], c));
                else
                    assert_int_equal(status, -ECANCELED);
                n_loaded += !status;
                n_cancelled += status != 0;
            }
            write_canary(l, i);
        }
        pthread_join(canceller, NULL);
        while (counter(&l->f, "loads_pending"))
            sched_yield();
        for (uint32_t n = 0; n < N_LOADS; n++) {
            check_canary(l, kvt_load_cookie(done[n]));
            kvt_load_free(done[n]);
        }
    }
    assert_true(n_cancelled > 0);
    assert_true(n_loaded > 0);
}

static void
a_load_may_be_freed_while_reads_are_in_flight(void **state)
{
    struct loads *l = *state;

    for (unsigned round = 0; round < rounds(50); round++) {
        for (uint32_t i = 0; i < N_LOADS; i++) {
            start(l, i);
            kvt_load_cancel(l->loads[i]);
            kvt_load_free(next_done(l));
        }
    }
    while (counter(&l->f, "loads_pending"))
        sched_yield();
    assert_int_equal(kvt_engine_poll(l->f.engine, l->loads, N_LOADS), 0);
}

/* -------------------------------------------------------------------- closing */

static void
an_engine_closes_with_loads_and_stores_in_flight(void **state)
{
    struct loads *l = *state;
    uint64_t random = 3;

    for (unsigned round = 0; round < rounds(40); round++) {
        struct kvt_load *done[4];
        struct fixture writer = l->f;

        for (uint32_t i = 0; i < N_LOADS / 2; i++)
            start(l, i);
        for (uint64_t n = next_random(&random) % 256; n; n--)
            sched_yield();
        set_tokens(&writer, round + 1);
        writer.memory += (size_t)(N_BLOCKS - 64) * BLOCK_BYTES;
        store_chunks(&writer, 0, N_CHUNKS);
        for (uint32_t i = 0; i < 5; i++)
            kvt_load_cancel(l->loads[N_LOADS / 2 - 1 - i]);
        size_t n = kvt_engine_poll(l->f.engine, done, 4);
        while (n)
            kvt_load_free(done[--n]);
        kvt_seq_free(l->seq);
        kvt_engine_close(l->f.engine);
        fixture_open(&l->f, settings);
        l->seq = new_seq(&l->f, N_TOKENS);
    }
    assert_int_equal(n_temporary_files(&l->f), 0);
    assert_int_equal(load_prompt(&l->f).loaded, N_CHUNKS);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(many_loads_over_a_small_pool_all_end),
        T(queued_chunks_after_a_missing_chunk_are_not_read),
        T(a_load_whose_deadline_passes_at_once_has_no_chunk),
        T(no_block_is_written_after_its_load_was_returned),
        T(a_load_may_be_freed_while_reads_are_in_flight),
        T(an_engine_closes_with_loads_and_stores_in_flight),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
