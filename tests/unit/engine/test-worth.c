/* SPDX-License-Identifier: Apache-2.0
 *
 * load_policy: faster: the part of a hit that a scheduler loads, with speeds that the test writes
 * into the index, and with a clock that the test moves. */
#include <math.h>
#include <sys/stat.h>

#include "engine-test.h"
#include "engine/private.h"
#include "engine/seq.h"
#include "store/private.h"

#define N_CHUNKS (N_TOKENS / CHUNK)
#define CHUNK_BYTES (2 * N_LAYERS * BLOCK_BYTES)
#define MS KVT__NS_PER_MS

static int64_t passed_ns; /* time that the test adds to the monotonic clock */

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int
__wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    int err = __real_clock_gettime(clock, out);

    if (!err && clock == CLOCK_MONOTONIC)
        *out = kvt__timespec((int64_t)out->tv_sec * KVT__NS_PER_S + out->tv_nsec + passed_ns);
    return err;
}

/* Store ten chunks, and open a scheduler.  A scheduler reads nothing, so the speeds stay. */
static void
open_scheduler(struct fixture *f, const char *policy)
{
    const char *const settings[] = { policy, NULL };

    fixture_open(f, NULL);
    store_prefix(f, N_CHUNKS);
    kvt_engine_close(f->engine);
    f->engine = open_engine(f, KVT_ROLE_SCHEDULER, NULL, 0, settings);
}

static int
setup(void **state)
{
    fixture_setup(state);
    passed_ns = 0;
    open_scheduler(*state, "load_policy=faster");
    return 0;
}

/* A load of a chunk from storage number i takes chunk_ns, after latency_ns. */
static void
set_load_of(const struct fixture *f, size_t i, double chunk_ns, int64_t latency_ns)
{
    struct kvt__table_speed speed = { .latency_ns = (uint64_t)latency_ns,
                                      .bytes_per_s = (uint64_t)(CHUNK_BYTES * 1e9 / chunk_ns) };

    kvt__table_set_speed(kvt__level_index(&f->engine->store->levels[i]), &speed);
}

static void
set_load(const struct fixture *f, double chunk_ns, int64_t latency_ns)
{
    set_load_of(f, 0, chunk_ns, latency_ns);
}

/* Reads are in progress, and the last result was now. */
static void
set_reading(const struct fixture *f)
{
    kvt__table_set_reading(kvt__level_index(&f->engine->store->levels[0]), kvt__now_ns());
}

/* The computation of a chunk takes chunk_ns. */
static void
set_compute(const struct fixture *f, int64_t chunk_ns)
{
    kvt_engine_note_prefill(f->engine, N_TOKENS, 0, chunk_ns * (int64_t)N_CHUNKS);
}

/* Look up a sequence, and return the hit in chunks. */
static uint64_t
hit_of(const struct fixture *f, struct kvt_seq *seq)
{
    uint64_t hit = lookup(f, seq, 0, N_TOKENS);

    assert_int_equal(hit + kvt_seq_skipped_tokens(seq), N_TOKENS);
    return hit / CHUNK;
}

static void
end(const struct fixture *f, struct kvt_seq *seq)
{
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
}

static uint64_t
hit(const struct fixture *f)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    uint64_t n = hit_of(f, seq);

    end(f, seq);
    return n;
}

static void
without_a_measurement_the_hit_is_loaded(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(hit(f), N_CHUNKS);
    set_load(f, 1000 * MS, 0);
    assert_int_equal(hit(f), N_CHUNKS);
    set_load(f, INFINITY, 0); /* 0 bytes in a second */
    set_compute(f, MS);
    assert_int_equal(hit(f), N_CHUNKS);
}

static void
the_faster_way_is_chosen(void **state)
{
    struct fixture *f = *state;

    set_compute(f, 10 * MS);
    set_load(f, 9 * MS, 0);
    assert_int_equal(hit(f), N_CHUNKS);
    assert_int_equal(counter(f, "skipped_tokens_slower"), 0);
    set_load(f, 11 * MS, 0);
    assert_int_equal(hit(f), 0);
    assert_int_equal(counter(f, "skipped_tokens_slower"), N_TOKENS);
    assert_int_equal(counter(f, "skipped_tokens_stalled"), 0);
    assert_int_equal(counter(f, "hit_tokens"), N_TOKENS);
}

/* Store chunks 0 .. 5 in storage that other hosts share, and chunks 6 .. 9 on the local disk.
 * Return a worker: the scheduler has the worker's host memory. */
static struct kvt_engine *
open_over_two_storages(struct fixture *f)
{
    char shared[320], disk[320], instance[32];
    const char *settings[] = { "load_policy=faster", shared, NULL, NULL, NULL };
    const char *disk_only[] = { disk, "max_local_disk_size=0.1", "remote_url=", NULL };
    struct kvt_seq *seq;
    struct io io;

    kvt_engine_close(f->engine);
    snprintf(shared, sizeof shared, "%s/shared", f->dir.path);
    assert_int_equal(mkdir(shared, 0700), 0);
    snprintf(shared, sizeof shared, "remote_url=fault://shared=1/fs://%s/shared", f->dir.path);
    snprintf(instance, sizeof instance, "test-worth-%d", (int)getpid());
    snprintf(disk, sizeof disk, "local_disk=%s/disk", f->dir.path);
    fixture_open(f, settings);
    store_prefix(f, 6);
    kvt_engine_close(f->engine);
    fixture_open(f, disk_only);
    seq = new_seq(f, N_TOKENS);
    make_io(&io, seq, 0, 6, 4, 1);
    store_and_flush(f, &io.io, 1);
    kvt_seq_free(seq);
    kvt_engine_close(f->engine);
    settings[2] = disk;
    settings[3] = disk_only[1];
    struct opening o = { .role = KVT_ROLE_WORKER, .settings = settings, .instance = instance };
    struct kvt_engine *worker = must_open(f, &o);
    o.role = KVT_ROLE_SCHEDULER;
    f->engine = must_open(f, &o);
    return worker;
}

static void
chunks_without_room_in_host_memory_are_not_skipped_chunks(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *seq;
    uint64_t tokens;

    struct kvt_engine *worker = open_over_two_storages(f);
    f->engine->memory_bytes = 4 * kvt__slot_footprint(
        kvt__store_traits(f->engine->store)->phase, CHUNK_BYTES);
    set_compute(f, 10 * MS);
    set_load_of(f, 0, 100 * MS, 0); /* the local disk */
    set_load_of(f, 1, MS, 0);
    seq = new_seq(f, N_TOKENS);
    /* The hit has four chunks, which workers must read into host memory before. */
    assert_int_equal(kvt_engine_lookup(f->engine, seq, 0, N_TOKENS, &tokens), -EAGAIN);
    assert_int_equal(seq->promise.n, 4);
    assert_int_equal(kvt_seq_skipped_tokens(seq), 4 * CHUNK);
    end(f, seq);
    kvt_engine_close(worker);
}

static void
the_latency_decides_about_short_hits(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *seq = new_seq(f, N_TOKENS);

    set_compute(f, 10 * MS);
    set_load(f, MS, 30 * MS);
    assert_int_equal(lookup(f, seq, 0, 3 * CHUNK), 0);
    assert_int_equal(kvt_seq_skipped_tokens(seq), 3 * CHUNK);
    assert_int_equal(lookup(f, seq, 0, 4 * CHUNK), 4 * CHUNK);
    assert_int_equal(kvt_seq_skipped_tokens(seq), 0);
    assert_int_equal(lookup(f, seq, 7 * CHUNK, N_TOKENS), 0);
    assert_int_equal(kvt_seq_skipped_tokens(seq), 3 * CHUNK);
    end(f, seq);
}

static void
later_tokens_cost_more(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    uint64_t positions = (uint64_t)N_TOKENS * (N_TOKENS - 1) / 2;

    kvt_engine_note_prefill(f->engine, N_TOKENS, 0, 10 * MS);
    for (int i = 0; i < 9; i++) /* 1 ms for each chunk, and 1 to 10 ms by the position */
        kvt_engine_note_prefill(f->engine, N_TOKENS, positions, (10 + 55) * MS);
    set_load(f, 8 * MS, 0);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 0);
    assert_int_equal(lookup(f, seq, 6 * CHUNK, N_TOKENS), N_TOKENS);
    end(f, seq);
}

static void
a_load_in_progress_delays_the_next_load(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *first = new_seq(f, N_TOKENS), *second = new_seq(f, N_TOKENS);

    set_compute(f, 100 * MS);
    set_load(f, 60 * MS, 0);
    assert_int_equal(hit_of(f, first), N_CHUNKS);
    assert_int_equal(hit(f), N_CHUNKS); /* the first hit is not loaded yet */
    kvt_engine_begin_load(f->engine, first);
    assert_int_equal(hit_of(f, second), 0); /* 600 + 600 ms against 1000 ms */
    kvt_engine_release(f->engine, second);
    passed_ns += 300 * MS;
    assert_int_equal(hit_of(f, second), N_CHUNKS);
    kvt_engine_release(f->engine, second);
    end(f, first);
    passed_ns -= 300 * MS;
    assert_int_equal(hit_of(f, second), N_CHUNKS);
    end(f, second);
}

static void
a_late_load_stalls_the_storage_until_the_load_ends(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *first = new_seq(f, N_TOKENS);

    set_compute(f, 100 * MS);
    set_load(f, MS, MS);
    assert_int_equal(hit_of(f, first), N_CHUNKS);
    kvt_engine_begin_load(f->engine, first);
    set_reading(f);
    passed_ns += 300 * MS;
    assert_int_equal(hit(f), N_CHUNKS);
    passed_ns += 300 * MS; /* 0.6 s after the begin of a load of 11 ms */
    assert_int_equal(hit(f), 0);
    assert_int_equal(counter(f, "skipped_tokens_stalled"), N_TOKENS);
    assert_int_equal(counter(f, "skipped_tokens_slower"), 0);
    set_reading(f); /* a worker has read chunks */
    assert_int_equal(hit(f), N_CHUNKS);
    passed_ns += 700 * MS;
    assert_int_equal(hit(f), 0);
    end(f, first);
    assert_int_equal(hit(f), N_CHUNKS);
}

static void
a_late_load_without_reads_in_progress_stalls_no_storage(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *first = new_seq(f, N_TOKENS);

    set_compute(f, 100 * MS);
    set_load(f, MS, MS);
    assert_int_equal(hit_of(f, first), N_CHUNKS);
    kvt_engine_begin_load(f->engine, first);
    passed_ns += 10 * KVT__NS_PER_S; /* the workers have not begun, or nobody knows of the end */
    assert_int_equal(hit(f), N_CHUNKS);
    set_reading(f); /* the reads of another load */
    passed_ns += 300 * MS;
    assert_int_equal(hit(f), N_CHUNKS);
    end(f, first);
}

static void
storage_that_is_left_out_is_measured_from_time_to_time(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct kvt_chunk_range range;

    set_compute(f, 10 * MS);
    set_load(f, 100 * MS, 0);
    assert_int_equal(hit_of(f, seq), 0);
    assert_int_equal(kvt_engine_wanted(f->engine, seq, &range), 1);
    assert_int_equal(range.group, 0);
    assert_int_equal(range.first_chunk, 0);
    assert_int_equal(range.n_chunks, 2); /* at most 250 ms */
    assert_int_equal(kvt_engine_wanted(f->engine, seq, &range), 0);
    passed_ns += 1500 * MS;
    assert_int_equal(hit_of(f, seq), 0);
    assert_int_equal(kvt_engine_wanted(f->engine, seq, &range), 0);
    passed_ns += 600 * MS;
    assert_int_equal(hit_of(f, seq), 0);
    assert_int_equal(kvt_engine_wanted(f->engine, seq, &range), 1);
    end(f, seq);
}

static void
small_steps_do_not_count_beside_large_steps(void **state)
{
    struct fixture *f = *state;

    set_compute(f, 10 * MS);
    set_load(f, 11 * MS, 0);
    for (int i = 0; i < 100; i++) /* 100 ms for 10 tokens: the constant cost of a step */
        kvt_engine_note_prefill(f->engine, 10, 0, 100 * MS);
    assert_int_equal(hit(f), 0);
}

static void
steps_that_are_all_small_count_in_the_end(void **state)
{
    static const char *const faster[] = { "load_policy=faster", NULL };
    struct fixture *f = *state;

    set_compute(f, 10 * MS);
    set_load(f, 11 * MS, 0);
    assert_int_equal(hit(f), 0);
    kvt_engine_close(f->engine); /* the next engine computes at most a chunk in a step */
    f->engine = open_engine(f, KVT_ROLE_SCHEDULER, NULL, 0, faster);
    for (int i = 0; i < 1000; i++)
        kvt_engine_note_prefill(f->engine, CHUNK, 0, 20 * MS);
    assert_int_equal(hit(f), N_CHUNKS);
}

static void
the_next_scheduler_knows_the_computation(void **state)
{
    static const char *const faster[] = { "load_policy=faster", NULL };
    struct fixture *f = *state;

    set_compute(f, 10 * MS);
    set_load(f, 11 * MS, 0);
    kvt_engine_close(f->engine);
    f->engine = open_engine(f, KVT_ROLE_SCHEDULER, NULL, 0, faster);
    assert_int_equal(hit(f), 0);
}

static void
wrong_times_in_the_index_do_not_count(void **state)
{
    static const char *const faster[] = { "load_policy=faster", NULL };
    static const double wrong[] = { NAN, INFINITY, -1 };
    struct fixture *f = *state;

    for (size_t i = 0; i < 3; i++) {
        set_compute(f, MS);
        set_load(f, 100 * MS, 0);
        struct kvt__table *index = kvt__level_index(&f->engine->store->levels[0]);
        for (unsigned at = 0; at < KVT__TABLE_PREFILLS; at++) {
            struct kvt__table_prefill p = kvt__table_get_prefill(index, at);

            p.ns_per_token = wrong[i];
            p.ns_per_position = 1;
            if (p.key)
                kvt__table_set_prefill(index, &p);
        }
        kvt_engine_close(f->engine);
        f->engine = open_engine(f, KVT_ROLE_SCHEDULER, NULL, 0, faster);
        assert_int_equal(hit(f), N_CHUNKS);
    }
}

static void
by_default_all_is_loaded(void **state)
{
    struct fixture *f = *state;

    kvt_engine_close(f->engine);
    f->engine = open_engine(f, KVT_ROLE_SCHEDULER, NULL, 0, NULL);
    set_compute(f, MS);
    set_load(f, 1000 * MS, 0);
    assert_int_equal(hit(f), N_CHUNKS);
}

static void
the_command_line_sees_the_break_even_length(void **state)
{
    struct fixture *f = *state;
    struct kvt_config *config = open_config(f->dir.path, NULL);
    struct kvt_prefill_info info = KVT_INIT(struct kvt_prefill_info);
    struct kvt_tier_info tier = KVT_INIT(struct kvt_tier_info);
    struct kvt_store *store;

    set_compute(f, 10 * MS);
    set_load(f, 5 * MS, 50 * MS);
    assert_int_equal(kvt_store_open(config, &store), 0);
    assert_int_equal(kvt_store_tier(store, 0, &tier), 0);
    assert_int_equal(tier.load_latency_ns, 50 * MS);
    assert_in_range(tier.load_bytes_per_s, CHUNK_BYTES * 199, CHUNK_BYTES * 201);
    assert_int_equal(kvt_store_prefill(store, 0, 0, &info), 0);
    assert_string_equal(info.model, "test/model");
    assert_int_equal(info.bytes_per_token, CHUNK_BYTES / CHUNK);
    assert_in_range(info.break_even_tokens, 10 * CHUNK - 2, 10 * CHUNK + 2);
    assert_int_equal(kvt_store_prefill(store, 0, 1, &info), -ENOENT);
    assert_int_equal(kvt_store_prefill(store, 1, 0, &info), -ENOENT);
    set_load(f, 11 * MS, 0);
    assert_int_equal(kvt_store_prefill(store, 0, 0, &info), 0);
    assert_int_equal(info.break_even_tokens, 0);
    kvt_store_close(store);
    kvt_config_free(config);
}

/* Return the break-even length of the index's only model. */
static uint64_t
break_even(const struct fixture *f, struct kvt__table_speed speed,
           struct kvt__table_prefill prefill)
{
    struct kvt_config *config = open_config(f->dir.path, NULL);
    struct kvt_prefill_info info = KVT_INIT(struct kvt_prefill_info);
    struct kvt__table *index = kvt__level_index(&f->engine->store->levels[0]);
    struct kvt_store *store;

    prefill.key = 1;
    kvt__table_set_speed(index, &speed);
    kvt__table_set_prefill(index, &prefill);
    assert_int_equal(kvt_store_open(config, &store), 0);
    int err = kvt_store_prefill(store, 0, 0, &info);
    kvt_store_close(store);
    kvt_config_free(config);
    return err ? UINT64_MAX : info.break_even_tokens;
}

static void
the_break_even_length_follows_from_latency_rate_and_attention(void **state)
{
    static const struct kvt__table_speed speed = { .latency_ns = 5 * MS,
                                                   .bytes_per_s = 1000000000 };
    static const struct {
        double ns_per_token, ns_per_position;
        uint64_t n;
    } cases[] = {
        /* 16384 bytes of a token take 16384 ns */
        { 20000, 0, 1383 }, { 20000, 1e-30, 1383 }, { 20000, 0.5, 1272 }, { 16384, 0, 0 },
        { 16384, 1, 3163 }, { 10000, 1, 13509 }, { 10000, 1e-30, 0 }, { 1e-6, 0.5, 65840 },
    };
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(break_even(f, speed, (struct kvt__table_prefill){
            .ns_per_token = cases[i].ns_per_token, .bytes_per_token = 16384,
            .ns_per_position = cases[i].ns_per_position }), cases[i].n);
}

static void
wrong_figures_in_the_index_count_as_no_measurement(void **state)
{
    static const struct kvt__table_prefill right = { .ns_per_token = 20000 };
    static const struct kvt__table_speed fast = { .bytes_per_s = 1000000000 };
    static const struct kvt__table_speed wrong[] = {
        { .bytes_per_s = UINT64_MAX }, { .bytes_per_s = 1000000000, .latency_ns = UINT64_MAX } };
    struct fixture *f = *state;

    assert_int_equal(break_even(f, fast, right), 1);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(break_even(f, wrong[i], right), 0);
    for (size_t i = 0; i < 5; i++) {
        struct kvt__table_prefill one = right;

        one.ns_per_token = (double[]){ NAN, INFINITY, -1, 0, 1 }[i];
        one.bytes_per_token = i == 4 ? UINT64_MAX : 0;
        assert_int_equal(break_even(f, fast, one), UINT64_MAX);
    }
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, fixture_teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(without_a_measurement_the_hit_is_loaded),
        TEST(the_faster_way_is_chosen),
        TEST(chunks_without_room_in_host_memory_are_not_skipped_chunks),
        TEST(the_latency_decides_about_short_hits),
        TEST(later_tokens_cost_more),
        TEST(a_load_in_progress_delays_the_next_load),
        TEST(a_late_load_stalls_the_storage_until_the_load_ends),
        TEST(a_late_load_without_reads_in_progress_stalls_no_storage),
        TEST(storage_that_is_left_out_is_measured_from_time_to_time),
        TEST(small_steps_do_not_count_beside_large_steps),
        TEST(steps_that_are_all_small_count_in_the_end),
        TEST(the_next_scheduler_knows_the_computation),
        TEST(wrong_times_in_the_index_do_not_count),
        TEST(by_default_all_is_loaded),
        TEST(the_command_line_sees_the_break_even_length),
        TEST(the_break_even_length_follows_from_latency_rate_and_attention),
        TEST(wrong_figures_in_the_index_count_as_no_measurement),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
