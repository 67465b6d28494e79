/* SPDX-License-Identifier: Apache-2.0
 *
 * KV in the memory of a GPU, and files of gds_path; the library, the file system or the GPU fails.
 * A load then reports the failure of each chunk and does not change the blocks, a store leaves no
 * file, and later stores and loads succeed. */
#include <sched.h>

#include "engine-test.h"
#include "gds-fakes.h"

#include "engine/load.h"

#define N (N_TOKENS / CHUNK)
#define N_THREADS 4 /* threads of the executor */
#define FIRST 33u /* first block of the loads */

static char gds_path[300];
static const char *settings[] = { "remote_url=", gds_path, "gpu_copies=batch",
                                  "disk_io_threads=4", NULL };
static struct fixture f;

static int
setup(void **state)
{
    (void)state;
    gds_set("");
    fixture_init(&f);
    snprintf(gds_path, sizeof gds_path, "gds_path=%s", f.dir.path);
    fixture_open_plain(&f, settings);
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    gds_set("");
    gpu_fake->lose(0);
    fixture_fini(&f);
    expect_gds_at_rest();
    assert_int_equal(gds->count, 0);
    return 0;
}

/* Open a new engine: the failures of earlier operations no longer count. */
static void
open_anew(void)
{
    gds_set("");
    kvt_engine_close(f.engine);
    fixture_open_plain(&f, settings);
}

static uint32_t
promised(void)
{
    struct kvt_seq *seq = new_seq(&f, N_TOKENS);
    uint32_t n = (uint32_t)(lookup(&f, seq, 0, N_TOKENS) / CHUNK);

    kvt_engine_release(f.engine, seq);
    kvt_seq_free(seq);
    return n;
}

/* Fill the blocks of the loads with a mark, before the loads. */
static void
mark_blocks(void)
{
    for (uint32_t b = 0; b < 2 * N; b++)
        fill_block(&f, FIRST + b, 99);
}

static bool
blocks_are_as_marked(void)
{
    for (uint32_t b = 0; b < 2 * N; b++)
        if (!block_holds(&f, FIRST + b, FIRST + b, 99))
            return false;
    return true;
}

/* Begin to load all chunks, also without a promise. */
static struct kvt_load *
begin_load(void)
{
    struct kvt_seq *seq = new_seq(&f, N_TOKENS);
    struct kvt_load *load = NULL;
    struct io io;

    mark_blocks();
    make_io(&io, seq, 0, 0, N, (int32_t)FIRST);
    if (kvt_engine_load(f.engine, &io.io, 1, 42, &load))
        fail_msg("%s", kvt_last_error());
    kvt_seq_free(seq);
    return load;
}

/* Wait for a load.  Return the status of the first chunk; each other chunk has this status or was
 * cancelled after the failure. */
static int
end_load(struct kvt_load *load)
{
    struct pollfd fd = { .fd = kvt_engine_eventfd(f.engine), .events = POLLIN };
    struct kvt_load *done = NULL;

    while (!kvt_engine_poll(f.engine, &done, 1))
        poll(&fd, 1, 1000);
    assert_ptr_equal(done, load);
    int status = kvt_load_status(done, 0, 0);
    for (uint32_t c = 0; c < N; c++)
        if (kvt_load_status(done, 0, c) != -ECANCELED || !status)
            assert_int_equal(kvt_load_status(done, 0, c), status);
    for (uint32_t b = 0; !status && b < 2 * N; b++)
        assert_true(block_holds(&f, FIRST + b, 1 + b, 0));
    if (status)
        assert_true(blocks_are_as_marked());
    kvt_load_free(done);
    return status;
}

static int
load(void)
{
    return end_load(begin_load());
}

/* ------------------------------------------------------------------------ failures */

/* The library reports failures in three forms. */
static const char *const reads[] = {
    "read=5", "read=5030",               /* an errno, or the library's number there */
    "read=5,form=1", "read=5036,form=1", /* the negative number */
    "short=1",
    "file=5031",                         /* the file is not even registered */
};

static void
failed_reads_are_reported_and_change_no_block(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
        store_prefix(&f, N);
        gds_set(reads[i]);
        assert_int_equal(load(), -EIO);
        assert_true(counter(&f, "load_failed") > 0);
        assert_int_equal(gds->in_flight, 0);
        open_anew();
        assert_int_equal(load(), 0); /* the chunks are still stored */
    }
}

static const struct {
    const char *switches;
    bool full; /* full storage is no failure of the tier */
} writes[] = {
    { "write=5", false },           { "write=5030", false },
    { "write=5,form=1", false },    { "write=5036,form=1", false },
    { "write=28", true },           { "file=5008", false },
};

static size_t
n_temporary_files(void)
{
    char command[400];
    int n = -1;

    snprintf(command, sizeof command, "ls '%s/.kvtier/tmp' | wc -l", f.dir.path);
    FILE *from = popen(command, "r");
    assert_non_null(from);
    assert_int_equal(fscanf(from, "%d", &n), 1);
    pclose(from);
    return (size_t)n;
}

#define FEW 4u /* chunks: after eight failures the storage is paused */

static void
writes_that_fail_leave_nothing(void **state)
{
    for (size_t i = 0; i < sizeof writes / sizeof *writes; i++) {
        gds_set(writes[i].switches);
        store_prefix(&f, FEW);
        assert_int_equal(counter(&f, "store_failed"), writes[i].full ? 0 : FEW);
        assert_int_equal(counter(&f, "store_dropped"), writes[i].full ? FEW : 0);
        assert_int_equal(promised(), 0);
        assert_int_equal(n_temporary_files(), 0);
        open_anew();
        assert_int_equal(promised(), 0);
        store_prefix(&f, N);
        assert_int_equal(load(), 0);
        teardown(state);
        setup(state);
    }
}

static void
wait_for_a_request(void)
{
    while (!gds->in_flight)
        sched_yield();
}

/* The driver fails all calls from now on.  The requests of the library continue: the library does
 * not notice the failure. */
static void
a_lost_gpu_ends_the_load(void **state)
{
    (void)state;
    store_prefix(&f, N);
    gds_set("meet=1000"); /* which never happens */
    struct kvt_load *under_way = begin_load();
    wait_for_a_request();
    gpu_fake->lose(719);
    gds_set("");
    assert_int_equal(end_load(under_way), -EIO);
    gpu_fake->lose(0); /* or it would keep what is closed now */
    open_anew();
    assert_int_equal(load(), 0);
}

static void
a_lost_gpu_stores_no_chunk(void **state)
{
    struct kvt_seq *seq = new_seq(&f, N_TOKENS);
    struct io io;

    (void)state;
    make_io(&io, seq, 0, 0, N, 1);
    gpu_fake->lose(719);
    int err = kvt_engine_store(f.engine, &io.io, 1);
    assert_true(!err || err == -EIO); /* the store may notice the failure later */
    assert_int_equal(kvt_engine_flush(f.engine, -1), 0);
    assert_int_equal(counter(&f, "store_chunks"), 0);
    kvt_seq_free(seq);
    gpu_fake->lose(0); /* or it would keep what is closed now */
    open_anew();
    assert_int_equal(promised(), 0);
    store_prefix(&f, N);
    assert_int_equal(load(), 0);
}

/* -------------------------------------------------------------------- deadlines */

/* Let the load reach its deadline now, as the thread of timers does.  Storage that has
 * answered nothing counts as hanging. */
static void
reach_deadline(struct kvt_load *load)
{
    assert_true(kvt__timer_clear(f.engine->exec, &load->deadline));
    f.engine->load_timeout_ns = 0;
    kvt__load_on_deadline(&load->deadline);
}

/* No other user gets the memory of a request before the end of the request; the fake library checks
 * this.  Bytes that arrive late do not reach the blocks. */
static void
a_request_that_ends_after_the_deadline_keeps_its_memory(void **state)
{
    (void)state;
    store_prefix(&f, N);
    gds_set("meet=1000"); /* which never happens */
    gds->n_moves = 0;
    struct kvt_load *late = begin_load();
    while (gds->in_flight < N_THREADS)
        sched_yield();
    reach_deadline(late);
    assert_int_equal(end_load(late), -ETIMEDOUT);
    assert_int_equal(gds->n_moves, N_THREADS);
    int next = load(); /* no thread is free, or the storage is paused */
    assert_true(next == -ETIMEDOUT || next == -EIO);
    assert_int_equal(gds->in_flight, N_THREADS);
    mark_blocks();
    gds_set("");
    while (counter(&f, "loads_pending"))
        sched_yield();
    assert_true(blocks_are_as_marked());
    assert_int_equal(gds->in_flight, 0);
    while (counter(&f, "load_late") < N_THREADS) /* counted after the end of the read */
        sched_yield();
    open_anew();
    assert_int_equal(load(), 0);
}

/* A store that hangs keeps its slot; the caller's blocks are free long before. */
static void
a_store_that_hangs_keeps_its_memory(void **state)
{
    struct kvt_seq *seq = new_seq(&f, N_TOKENS);
    struct io io;

    (void)state;
    gds_set("meet=1000");
    for (uint32_t b = 1; b <= 2 * N; b++)
        fill_block(&f, b, 0);
    make_io(&io, seq, 0, 0, N, 1);
    assert_int_equal(kvt_engine_store(f.engine, &io.io, 1), 0);
    device_settle();
    wait_for_a_request();
    for (uint32_t b = 1; b <= 2 * N; b++)
        fill_block(&f, b, 50); /* the engine reuses the blocks */
    assert_int_equal(kvt_engine_flush(f.engine, 100), -ETIMEDOUT);
    gds_set("");
    assert_int_equal(kvt_engine_flush(f.engine, -1), 0);
    kvt_seq_free(seq);
    assert_int_equal(load(), 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(failed_reads_are_reported_and_change_no_block),
        TEST(writes_that_fail_leave_nothing),
        TEST(a_lost_gpu_ends_the_load),
        TEST(a_lost_gpu_stores_no_chunk),
        TEST(a_request_that_ends_after_the_deadline_keeps_its_memory),
        TEST(a_store_that_hangs_keeps_its_memory),
    };

    if (!load_fakes(argc, argv))
        return 77;
    setenv("KVTIER_TEST_DRIVER", argv[3], 1);
    behave_well();
    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    int failed = cmocka_run_group_tests_name("engine, gds, faults", tests, NULL, NULL);
    forget_fakes();
    return failed;
}
