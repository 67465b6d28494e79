/* SPDX-License-Identifier: Apache-2.0
 *
 * Times to live of an engine's chunks: the upkeep of a running engine deletes the chunks, also
 * after a restart of the engine and after the loss of the index.  A hit ends before the chunks. */
#include "engine/seq.h"
#include "system/system-test.h"

#define TTL_S 100
#define N_FOREVER 2 /* chunks without a time to live, before the others */

static _Atomic time_t moved_s; /* seconds that the time of day is ahead */
static _Thread_local time_t moved_monotonic_s; /* the same of this thread's CLOCK_MONOTONIC */

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int
__wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    int err = __real_clock_gettime(clock, out);

    out->tv_sec += clock == CLOCK_MONOTONIC ? moved_monotonic_s : moved_s;
    return err;
}

static void
write_until(const struct fixture *f, size_t first, uint32_t n, uint32_t ttl)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct io io;

    make_io(&io, seq, 0, first, n, 1);
    io.io.ttl_seconds = ttl;
    fill_io(f, &io);
    store_and_flush(f, &io.io, 1);
    device_settle();
    kvt_seq_free(seq);
}

static void
assert_hit(const struct fixture *f, uint32_t n)
{
    struct outcome got = load_prompt(f);

    assert_int_equal(got.promised, n);
    assert_int_equal(got.loaded, n);
}

/* Wait until the upkeep has deleted files: within a minute. */
static void
wait_for_files(const struct fixture *f, size_t n)
{
    for (int ms = 0; usage_of(f).n_files != n; ms += 10) {
        if (ms > 60000)
            fail_msg("%zu files in place of %zu", usage_of(f).n_files, n);
        usleep(10000);
    }
}

static void
a_running_engine_deletes_expired_chunks(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, NULL);
    write_until(f, 0, N_FOREVER, 0);
    write_until(f, N_FOREVER, N_CHUNKS - N_FOREVER, TTL_S);
    assert_hit(f, N_CHUNKS);
    reopen(f, NULL);
    assert_hit(f, N_CHUNKS);
    moved_s += TTL_S / 2;
    write_until(f, N_FOREVER, 1, TTL_S); /* lives longer now */
    moved_s += TTL_S / 2;
    assert_hit(f, N_FOREVER + 1);
    wait_for_files(f, N_FOREVER + 1);
    assert_comes_to(f, "expired_chunks", N_CHUNKS - N_FOREVER - 1);
    write_until(f, N_FOREVER, N_CHUNKS - N_FOREVER, TTL_S);
    assert_hit(f, N_CHUNKS);
}

static void
an_engine_without_the_index_deletes_chunks_with_a_time_to_live(void **state)
{
    struct fixture *f = *state;
    char command[400];

    fixture_open(f, NULL);
    write_until(f, 0, N_FOREVER, 0);
    write_until(f, N_FOREVER, N_CHUNKS - N_FOREVER, TTL_S);
    kvt_engine_close(f->engine);
    snprintf(command, sizeof command, "rm -r %s/.kvtier", f->dir.path);
    assert_int_equal(system(command), 0);
    assert_int_equal(usage_of(f).n_files, N_CHUNKS);
    f->engine = NULL;
    fixture_open(f, NULL);
    wait_for_files(f, N_FOREVER);
    assert_hit(f, N_FOREVER);
}

/* The configuration limits the life of all chunks, in host memory too. */
static void
max_ttl_seconds_limits_the_life_of_each_chunk(void **state)
{
    static const char *const settings[] = { "max_ttl_seconds=100", "local_cpu=true", NULL };
    struct fixture *f = *state;

    fixture_open(f, settings);
    write_until(f, 0, 1, 0);
    write_until(f, 1, 1, 10000);
    write_until(f, 2, 1, TTL_S / 2);
    write_until(f, 0, 2, 0); /* are stored already */
    assert_hit(f, 3);
    moved_s += TTL_S / 2;
    assert_hit(f, 2);
    moved_s += TTL_S / 2;
    assert_hit(f, 0);
    wait_for_files(f, 0);
    assert_comes_to(f, "expired_chunks", 6); /* in the directory and in host memory */
    assert_comes_to(f, "pool_used", 0);
}

/* Move the clocks of lookups. */
static void
move_clocks(time_t s)
{
    moved_s += s;
    moved_monotonic_s += s;
}

/* A lookup repeats its hit as long as a load can end before the first end of a chunk's life. */
static void
a_hit_is_repeated_until_a_load_needs_the_rest_of_the_life(void **state)
{
    static const char *const settings[] = { "pin_timeout_sec=2000", NULL };
    struct fixture *f = *state;
    uint32_t ttl = 96;

    fixture_open(f, settings);
    move_clocks(17 - kvt__wall_ns() / KVT__NS_PER_S % 16); /* ends are multiples of 16 s */
    write_until(f, 0, N_FOREVER, 0);
    write_until(f, N_FOREVER, 1, 10 * ttl);
    write_until(f, N_FOREVER + 1, N_CHUNKS - N_FOREVER - 1, ttl);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_CHUNKS * CHUNK);
    assert_true(seq->promise.deadline_ns > kvt__now_ns() + ttl / 2 * KVT__NS_PER_S);
    move_clocks(ttl - 26); /* 24 s or 25 s before the end */
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_CHUNKS * CHUNK);
    move_clocks(12);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), (N_FOREVER + 1) * CHUNK);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
}

/* Open a worker, f->engine, and a scheduler. */
static void
open_two(struct fixture *f, struct kvt_engine **scheduler)
{
    static const char *const settings[] = { "local_cpu=true", "enable_async_loading=true", NULL };
    struct opening opening = { .role = KVT_ROLE_WORKER, .settings = settings };
    char instance[64];

    snprintf(instance, sizeof instance, "test-expiry-%d", (int)getpid());
    opening.instance = instance;
    f->engine = must_open(f, &opening);
    set_view(f->engine, 0, f->memory);
    opening.role = KVT_ROLE_SCHEDULER;
    *scheduler = must_open(f, &opening);
}

/* Read a chunk of the prompt into the worker's memory. */
static void
read_ahead(struct fixture *f, size_t chunk)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct io io;

    make_io(&io, seq, 0, chunk, 1, 1);
    io.io.blocks = NULL;
    io.io.n_blocks = 0;
    assert_int_equal(kvt_engine_prefetch(f->engine, &io.io, 1), 0);
    assert_comes_to(f, "prefetch_chunks", chunk + 1);
    kvt_seq_free(seq);
}

/* The workers read the chunks of a hit for a while; then the first chunk has too little time. */
static void
a_hit_has_no_chunk_whose_life_has_ended_during_the_reads(void **state)
{
    struct fixture *f = *state;
    struct kvt_engine *scheduler;
    struct kvt_seq *seq = NULL;
    uint64_t hit;
    int err;

    fixture_open(f, NULL);
    move_clocks(17 - kvt__wall_ns() / KVT__NS_PER_S % 16);
    write_until(f, 0, 1, 0);
    write_until(f, 1, 1, 96);
    write_until(f, 2, N_CHUNKS - 2, 960);
    kvt_engine_close(f->engine);
    open_two(f, &scheduler);
    assert_int_equal(kvt_seq_new(scheduler, f->tokens, N_TOKENS, NULL, &seq), 0);
    for (size_t c = 0; c < N_CHUNKS; c++) {
        assert_int_equal(kvt_engine_lookup(scheduler, seq, 0, N_TOKENS, &hit), -EAGAIN);
        read_ahead(f, c);
    }
    moved_s += 86;
    while ((err = kvt_engine_lookup(scheduler, seq, 0, N_TOKENS, &hit)) == -EAGAIN)
        usleep(1000);
    assert_int_equal(err, 0);
    assert_int_equal(hit, CHUNK);
    kvt_engine_release(scheduler, seq);
    kvt_seq_free(seq);
    kvt_engine_close(scheduler);
}

/* Another process stores the chunks again, and does not see the copies in private memory. */
static void
a_chunk_that_lives_longer_in_storage_is_read_into_memory_again(void **state)
{
    static const char *const settings[] = { "local_cpu=true", "enable_async_loading=true", NULL };
    struct fixture *f = *state, other = *f;

    fixture_open(f, settings);
    move_clocks(17 - kvt__wall_ns() / KVT__NS_PER_S % 16);
    write_until(f, 0, N_CHUNKS, 96);
    fixture_open(&other, NULL);
    write_until(&other, 0, N_CHUNKS, 960);
    kvt_engine_close(other.engine);
    moved_s += 86;
    assert_hit(f, N_CHUNKS);
    assert_comes_to(f, "prefetch_chunks", N_CHUNKS);
}

/* Storage that other hosts share takes no chunk with an end. */
static void
host_memory_keeps_chunks_that_shared_storage_refuses(void **state)
{
    struct fixture *f = *state;

    fixture_open_shared(f, "local_cpu=true");
    write_until(f, 0, N_CHUNKS, TTL_S);
    assert_hit(f, N_CHUNKS);
    assert_int_equal(usage_of(f).n_files, 0);
}

/* The local disk has chunks with an end, storage of all hosts has the chunks without end. */
static void
a_chunk_that_lives_longer_in_other_storage_is_read_from_there(void **state)
{
    char url[400], setting[300];
    const char *const other[] = { url, NULL }, *const both[] = {
        url, setting, "max_local_disk_size=0.1", "local_cpu=true", NULL };
    struct fixture *f = *state;
    struct temp_dir disk;

    temp_dir_make(&disk);
    snprintf(url, sizeof url, "remote_url=fault://shared=1/fs://%s", f->dir.path);
    snprintf(setting, sizeof setting, "local_disk=%s", disk.path);
    fixture_open(f, both);
    move_clocks(17 - kvt__wall_ns() / KVT__NS_PER_S % 16);
    write_until(f, 0, N_CHUNKS, 96);
    reopen(f, other);
    write_until(f, 0, N_CHUNKS, 0);
    reopen(f, both);
    moved_s += 86;
    assert_hit(f, N_CHUNKS);
    moved_s += 16;
    assert_hit(f, N_CHUNKS);
    temp_dir_remove(&disk);
}

static void
a_time_to_live_above_180_days_is_refused(void **state)
{
    struct fixture *f = *state;
    struct io io;

    fixture_open(f, NULL);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    make_io(&io, seq, 0, 0, 1, 1);
    io.io.ttl_seconds = KVT_TTL_MAX_S + 1;
    assert_int_equal(kvt_engine_store(f->engine, &io.io, 1), -EINVAL);
    assert_non_null(strstr(kvt_last_error(), "ttl_seconds is 15552001"));
    io.io.ttl_seconds = KVT_TTL_MAX_S;
    assert_int_equal(kvt_engine_store(f->engine, &io.io, 1), 0);
    kvt_seq_free(seq);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_running_engine_deletes_expired_chunks),
        TEST(an_engine_without_the_index_deletes_chunks_with_a_time_to_live),
        TEST(max_ttl_seconds_limits_the_life_of_each_chunk),
        TEST(a_hit_is_repeated_until_a_load_needs_the_rest_of_the_life),
        TEST(a_hit_has_no_chunk_whose_life_has_ended_during_the_reads),
        TEST(a_chunk_that_lives_longer_in_storage_is_read_into_memory_again),
        TEST(host_memory_keeps_chunks_that_shared_storage_refuses),
        TEST(a_chunk_that_lives_longer_in_other_storage_is_read_from_there),
        TEST(a_time_to_live_above_180_days_is_refused),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
