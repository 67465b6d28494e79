/* SPDX-License-Identifier: Apache-2.0
 *
 * Storage from which other hosts delete.  A chunk in such storage is promised only when the
 * chunk is verified in host memory.  fault://shared=1 marks a directory as such storage. */
#include "system/system-test.h"

#include "engine/seq.h"

/* Room for 12 chunks to stay. */
#define SMALL "max_local_cpu_size=0.0005"
/* Longer than any test, so that no timeout ends a wait. */
#define PATIENT "lookup_timeout_ms=600000", "blocking_timeout_secs=600"

struct world {
    struct fixture f; /* the worker's engine, or an engine with both roles */
    struct kvt_engine *scheduler;
    char url[400];
};

static int
setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);

    assert_non_null(w);
    *state = w;
    fixture_init(&w->f);
    snprintf(w->url, sizeof w->url, "remote_url=fault://shared=1/fs://%s", w->f.dir.path);
    return 0;
}

static int
teardown(void **state)
{
    struct world *w = *state;

    kvt_engine_close(w->scheduler);
    fixture_fini(&w->f);
    free(w);
    return 0;
}

static void
close_all(struct world *w)
{
    kvt_engine_close(w->scheduler);
    kvt_engine_close(w->f.engine);
    w->scheduler = w->f.engine = NULL;
}

/* Write the chunks with an engine that is then closed: the chunks are only in storage. */
static void
write_all(struct world *w)
{
    const char *settings[] = { w->url, NULL };

    fixture_open(&w->f, settings);
    write_chunks(&w->f, 0, N_CHUNKS);
    close_all(w);
}

static void
open_both(struct world *w, const char *const *more)
{
    const char *settings[16] = { w->url, "local_cpu=true" };

    for (size_t n = 2; more && *more; more++)
        settings[n++] = *more;
    fixture_open(&w->f, settings);
}

/* Open a scheduler and a worker, as an inference engine does. */
static void
open_two(struct world *w, const struct kvt_group *groups, uint32_t n_groups,
         const char *const *more)
{
    const char *settings[16] = { w->url, "local_cpu=true" };
    char instance[64];

    for (size_t n = 2; more && *more; more++)
        settings[n++] = *more;
    snprintf(instance, sizeof instance, "test-wait-%d", (int)getpid());
    struct opening opening = { .role = KVT_ROLE_WORKER, .groups = groups,
                               .n_groups = n_groups, .settings = settings,
                               .instance = instance };
    w->f.engine = must_open(&w->f, &opening);
    for (uint32_t g = 0; g < n_groups; g++)
        set_view(w->f.engine, g, w->f.memory);
    opening.role = KVT_ROLE_SCHEDULER;
    w->scheduler = must_open(&w->f, &opening);
}

static void
open_one_group(struct world *w, const char *const *more)
{
    struct kvt_group group = opaque_group();

    open_two(w, &group, 1, more);
}

static struct kvt_seq *
scheduler_seq(const struct world *w)
{
    struct kvt_seq *seq = NULL;

    assert_int_equal(kvt_seq_new(w->scheduler, w->f.tokens, N_TOKENS, NULL, &seq), 0);
    return seq;
}

/* Have the worker prefetch the chunks that the scheduler wants; return their number. */
static size_t
prefetch_wanted(const struct world *w, struct kvt_seq *seq)
{
    struct kvt_chunk_range ranges[4];
    size_t n = kvt_engine_wanted(w->scheduler, seq, ranges), sum = 0;

    for (size_t i = 0; i < n; i++) {
        struct io io;

        make_io(&io, seq, ranges[i].group, ranges[i].first_chunk, ranges[i].n_chunks, 1);
        io.io.blocks = NULL;
        io.io.n_blocks = 0;
        assert_int_equal(kvt_engine_prefetch(w->f.engine, &io.io, 1), 0);
        sum += ranges[i].n_chunks;
    }
    return sum;
}

/* Return the final promise of a lookup whose wanted chunks the worker prefetches. */
static uint64_t
promise(const struct world *w, struct kvt_seq *seq)
{
    uint64_t hit = 0;
    int err;

    while ((err = kvt_engine_lookup(w->scheduler, seq, 0, N_TOKENS, &hit)) == -EAGAIN) {
        prefetch_wanted(w, seq);
        usleep(200);
    }
    assert_int_equal(err, 0);
    return hit;
}

static void
end(const struct world *w, struct kvt_seq *seq)
{
    kvt_engine_release(w->scheduler, seq);
    kvt_seq_free(seq);
}

/* Return true if a chunk file begins with `word`. */
static bool
begins_with(const char *path, uint64_t word)
{
    struct kvt__trailer trailer;
    unsigned char bytes[KVT__TRAILER_BYTES];
    uint64_t found = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    off_t size = lseek(fd, 0, SEEK_END);
    bool good = pread(fd, bytes, sizeof bytes, size - (off_t)sizeof bytes) ==
                    sizeof bytes && kvt__trailer_get(bytes, &trailer) &&
                pread(fd, &found, sizeof found, (off_t)trailer.payload_at) == sizeof found;
    close(fd);
    return good && found == word;
}

/* Find the file of a chunk of the fixture's prompt by the bytes of store_chunks(). */
static void
path_of_chunk(const struct world *w, uint32_t chunk, char path[800])
{
    struct kvt_seq *seq = new_seq(&w->f, N_TOKENS);
    struct kvt_chunk wanted;
    char dir[300];
    uint64_t state;
    bool found = false;

    assert_int_equal(kvt_seq_chunks(seq, chunk, 1, &wanted), 0);
    kvt_seq_free(seq);
    memcpy(&state, wanted.prefix, sizeof state);
    uint64_t word = next_random(&state);
    snprintf(dir, sizeof dir, "%s/kvtier", w->f.dir.path);
    DIR *d = opendir(dir);
    for (struct dirent *e; !found && (e = readdir(d));) {
        snprintf(path, 800, "%s/%s", dir, e->d_name);
        found = strstr(e->d_name, ".data") && begins_with(path, word);
    }
    closedir(d);
    assert_true(found);
}

/* ------------------------------------------------------------------------- tests */

static void
a_hit_is_reported_when_its_chunks_are_in_memory(void **state)
{
    static const char *const patient[] = { PATIENT, NULL };
    struct world *w = *state;
    uint64_t hit;

    write_all(w);
    open_one_group(w, patient);
    struct kvt_seq *seq = scheduler_seq(w);
    for (int i = 0; i < 100; i++)
        assert_int_equal(kvt_engine_lookup(w->scheduler, seq, 0, N_TOKENS, &hit), -EAGAIN);
    assert_int_equal(hit, 0);
    assert_int_equal(prefetch_wanted(w, seq), N_CHUNKS);
    assert_int_equal(prefetch_wanted(w, seq), 0); /* each chunk is returned once */
    assert_int_equal(promise(w, seq), N_TOKENS);
    assert_comes_to(&w->f, "prefetch_chunks", N_CHUNKS);
    end(w, seq);
    seq = scheduler_seq(w); /* and the next time at once */
    assert_int_equal(kvt_engine_lookup(w->scheduler, seq, 0, N_TOKENS, &hit), 0);
    assert_int_equal(hit, N_TOKENS);
    end(w, seq);
}

static void
an_engine_of_both_roles_reads_ahead_without_a_worker(void **state)
{
    static const char *const patient[] = { PATIENT, NULL };
    struct world *w = *state;

    write_all(w);
    open_both(w, patient);
    assert_int_equal(load_prompt(&w->f).loaded, N_CHUNKS);
    assert_comes_to(&w->f, "prefetch_chunks", N_CHUNKS);
    assert_int_equal(counter(&w->f, "memory_hits"), N_CHUNKS);
}

static void
the_promise_is_leased_in_memory(void **state)
{
    static const char *const small[] = { SMALL, PATIENT, NULL };
    struct world *w = *state;

    write_all(w);
    open_one_group(w, small);
    struct kvt_seq *seq = scheduler_seq(w);
    assert_int_equal(promise(w, seq), N_TOKENS);
    for (uint32_t prompt = 1; prompt < 8; prompt++) {
        set_tokens(&w->f, prompt);
        write_chunks(&w->f, 0, 4);
    }
    set_tokens(&w->f, 0);
    wipe(&w->f);
    struct io io;
    make_io(&io, seq, 0, 0, N_CHUNKS, 1);
    struct kvt_load *load = load_and_wait(&w->f, &io.io, 1);
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        assert_true(!kvt_load_status(load, 0, c) && chunk_is_right(&w->f, &io, c));
    kvt_load_free(load);
    assert_int_equal(counter(&w->f, "memory_hits"), N_CHUNKS);
    end(w, seq);
}

static void
without_a_reading_worker_the_lookup_returns(void **state)
{
    static const char *const hasty[] = { "lookup_timeout_ms=20", NULL };
    struct world *w = *state;
    uint64_t hit = 1;
    int err;

    write_all(w);
    open_one_group(w, hasty);
    struct kvt_seq *seq = scheduler_seq(w);
    while ((err = kvt_engine_lookup(w->scheduler, seq, 0, N_TOKENS, &hit)) == -EAGAIN)
        usleep(200);
    assert_int_equal(err, 0);
    assert_int_equal(hit, 0);
    /* The next lookup waits for nothing. */
    assert_int_equal(kvt_engine_lookup(w->scheduler, seq, 0, N_TOKENS, &hit), 0);
    end(w, seq);
}

static void
a_late_lookup_returns_the_guaranteed_hit(void **state)
{
    static const char *const hasty[] = { "lookup_timeout_ms=100", NULL };
    struct world *w = *state;
    uint64_t hit = 1;
    struct io io;
    int err;

    write_all(w);
    open_one_group(w, hasty);
    struct kvt_seq *seq = scheduler_seq(w);
    make_io(&io, seq, 0, 0, 3, 1);
    assert_int_equal(kvt_engine_prefetch(w->f.engine, &io.io, 1), 0);
    while (counter(&w->f, "prefetch_chunks") < 3)
        usleep(200);
    while ((err = kvt_engine_lookup(w->scheduler, seq, 0, N_TOKENS, &hit)) == -EAGAIN)
        usleep(200);
    assert_int_equal(err, 0);
    assert_int_equal(hit, 3 * CHUNK);
    end(w, seq);
}

/* The request has waited for longer than lookup_timeout_ms, but a chunk has just come. */
static void
a_lookup_waits_while_chunks_arrive(void **state)
{
    static const char *const patient[] = { PATIENT, NULL };
    struct world *w = *state;
    struct kvt_chunk_range range;
    uint64_t hit;
    struct io io;

    write_all(w);
    open_one_group(w, patient);
    struct kvt_seq *seq = scheduler_seq(w);
    assert_int_equal(kvt_engine_lookup(w->scheduler, seq, 0, N_TOKENS, &hit), -EAGAIN);
    assert_int_equal(kvt_engine_wanted(w->scheduler, seq, &range), 1);
    make_io(&io, seq, 0, 0, 3, 1);
    assert_int_equal(kvt_engine_prefetch(w->f.engine, &io.io, 1), 0);
    while (counter(&w->f, "prefetch_chunks") < 3)
        usleep(200);
    seq->promise.deadline_ns = 0;
    assert_int_equal(kvt_engine_lookup(w->scheduler, seq, 0, N_TOKENS, &hit), -EAGAIN);
    assert_true(seq->promise.deadline_ns > 0);
    seq->promise.deadline_ns = 0;
    w->scheduler->last_arrival_ns = INT64_MIN / 2; /* the host may have booted just now */
    assert_int_equal(kvt_engine_lookup(w->scheduler, seq, 0, N_TOKENS, &hit), 0);
    assert_int_equal(hit, 3 * CHUNK);
    end(w, seq);
}

/* Another host has deleted or damaged chunks after the index learned of them. */
static void
evicted_chunks_shorten_the_hit(void **state)
{
    static const char *const patient[] = { PATIENT, NULL };
    struct world *w = *state;
    char path[800];

    write_all(w);
    open_one_group(w, patient);
    path_of_chunk(w, 6, path);
    assert_int_equal(unlink(path), 0);
    struct kvt_seq *seq = scheduler_seq(w);
    assert_int_equal(promise(w, seq), 6 * CHUNK);
    end(w, seq);
    path_of_chunk(w, 2, path);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "damage", 6, 9000), 6);
    close(fd);
    close_all(w);
    open_one_group(w, patient);
    seq = scheduler_seq(w);
    assert_int_equal(promise(w, seq), 2 * CHUNK);
    end(w, seq);
    assert_int_equal(counter(&w->f, "load_missing"), 0); /* no load failed */
    assert_comes_to(&w->f, "load_corrupt", 1); /* found by the prefetch */
}

static void
of_too_much_for_memory_the_beginning_is_promised(void **state)
{
    static const char *const small[] = { "max_local_cpu_size=0.00035", PATIENT, NULL };
    struct world *w = *state;

    write_all(w);
    open_one_group(w, small); /* for 8 chunks */
    struct kvt_seq *seq = scheduler_seq(w);
    uint64_t hit = promise(w, seq);
    assert_in_range(hit, 4 * CHUNK, (N_CHUNKS - 1) * CHUNK);
    assert_comes_to(&w->f, "prefetch_chunks", hit / CHUNK);
    end(w, seq);
}

/* Memory has room for one of two prompts: the lookup of the second prompt does not wait long. */
static void
memory_full_of_promises_ends_the_waiting(void **state)
{
    static const char *const settings[] = { SMALL, PATIENT, NULL };
    struct world *w = *state;
    uint64_t second;

    write_all(w);
    set_tokens(&w->f, 1);
    write_all(w);
    open_one_group(w, settings);
    struct kvt_seq *b = scheduler_seq(w);
    set_tokens(&w->f, 0);
    struct kvt_seq *a = scheduler_seq(w);
    assert_int_equal(promise(w, a), N_TOKENS);
    w->scheduler->lookup_timeout_ns = 100 * KVT__NS_PER_MS; /* no chunk can come any more */
    second = promise(w, b);
    assert_in_range(second, 0, 4 * CHUNK);
    end(w, a);
    end(w, b);
}

/* Prefetches wait for their slots: all of a prompt goes through the few there are. */
static void
more_chunks_than_slots_all_come(void **state)
{
    static const char *const small[] = { SMALL, PATIENT, "cache_policy=MRU", NULL };
    struct world *w = *state;

    write_all(w);
    open_one_group(w, small);
    for (uint32_t prompt = 1; prompt < 4; prompt++) { /* memory is full */
        set_tokens(&w->f, prompt);
        write_chunks(&w->f, 0, 8);
    }
    set_tokens(&w->f, 0);
    struct kvt_seq *seq = scheduler_seq(w);
    assert_int_equal(promise(w, seq), N_TOKENS);
    end(w, seq);
}

/* Without local_cpu memory is only for transfers, prefetched chunks included. */
static void
without_local_cpu_only_verified_chunks_are_a_hit(void **state)
{
    static const char *const without[] = { "local_cpu=false", PATIENT, NULL };
    struct world *w = *state;
    char path[800];

    write_all(w);
    open_both(w, without);
    path_of_chunk(w, 5, path);
    assert_int_equal(unlink(path), 0);
    struct outcome got = load_prompt(&w->f);
    assert_int_equal(got.promised, 5);
    assert_int_equal(got.loaded, 5);
    assert_int_equal(counter(&w->f, "memory_hits"), 5);
    assert_comes_to(&w->f, "prefetch_chunks", N_CHUNKS - 1);
    set_tokens(&w->f, 1);
    write_chunks(&w->f, 0, 4); /* stay nowhere but in storage */
    assert_int_equal(load_prompt(&w->f).loaded, 4);
    assert_comes_to(&w->f, "prefetch_chunks", N_CHUNKS - 1 + 4);
}

static void
a_directory_of_this_host_is_promised_at_once(void **state)
{
    struct world *w = *state;
    uint64_t hit;

    snprintf(w->url, sizeof w->url, "remote_url=fs://%s", w->f.dir.path);
    write_all(w);
    open_one_group(w, NULL);
    struct kvt_seq *seq = scheduler_seq(w);
    assert_int_equal(kvt_engine_lookup(w->scheduler, seq, 0, N_TOKENS, &hit), 0);
    assert_int_equal(hit, N_TOKENS);
    end(w, seq);
}

static void
with_async_loading_the_lookup_waits_for_the_hit(void **state)
{
    static const char *const patient[] = { "enable_async_loading=true", PATIENT, NULL };
    /* Host memory has room for 8 chunks; the others are promised from the directory. */
    static const char *const small[] = { "enable_async_loading=true", PATIENT,
                                         "max_local_cpu_size=0.00035", NULL };
    struct world *w = *state;
    uint64_t hit;
    int err;

    snprintf(w->url, sizeof w->url, "remote_url=fs://%s", w->f.dir.path);
    write_all(w);
    open_one_group(w, small);
    struct kvt_seq *seq = scheduler_seq(w);
    assert_int_equal(kvt_engine_lookup(w->scheduler, seq, 0, N_TOKENS, &hit), -EAGAIN);
    w->scheduler->lookup_timeout_ns = 20 * KVT__NS_PER_MS; /* the worker reads nothing */
    while ((err = kvt_engine_lookup(w->scheduler, seq, 0, N_TOKENS, &hit)) == -EAGAIN)
        usleep(200);
    assert_int_equal(err, 0);
    assert_int_equal(hit, N_TOKENS);
    assert_int_equal(counter(&w->f, "prefetch_chunks"), 0);
    end(w, seq);
    close_all(w);
    open_one_group(w, patient);
    seq = scheduler_seq(w);
    assert_int_equal(promise(w, seq), N_TOKENS);
    assert_comes_to(&w->f, "prefetch_chunks", N_CHUNKS);
    end(w, seq);
}

/* local_disk has the first half, storage of other hosts all. */
static void
only_chunks_absent_from_this_hosts_storage_are_prefetched(void **state)
{
    static const char *const patient[] = { PATIENT, NULL };
    struct world *w = *state;
    struct temp_dir disk;
    char setting[300];
    const char *local[] = { "remote_url=", "local_cpu=false", setting,
                            "max_local_disk_size=1", NULL };
    const char *more[] = { patient[0], patient[1], setting, "max_local_disk_size=1", NULL };

    temp_dir_make(&disk);
    snprintf(setting, sizeof setting, "local_disk=%s", disk.path);
    fixture_open(&w->f, local);
    write_chunks(&w->f, 0, 5);
    close_all(w);
    write_all(w);
    open_one_group(w, more);
    struct kvt_seq *seq = scheduler_seq(w);
    assert_int_equal(promise(w, seq), N_TOKENS);
    assert_comes_to(&w->f, "prefetch_chunks", N_CHUNKS - 5);
    end(w, seq);
    close_all(w);
    temp_dir_remove(&disk);
}

/* Open an engine with a full group and a group with a window of 100 tokens. */
static void
open_windows(struct world *w, const char *const *more)
{
    struct kvt_group groups[2] = { opaque_group(), opaque_group() };

    groups[1].kind = KVT_GROUP_SLIDING;
    groups[1].window_tokens = 100;
    groups[1].layers = "3,4,5";
    open_two(w, groups, 2, more);
}

static void
the_window_of_a_hit_is_waited_for_too(void **state)
{
    static const char *const patient[] = { PATIENT, NULL };
    struct world *w = *state;
    struct kvt_chunk_range ranges[2];
    uint64_t hit;

    open_windows(w, NULL);
    struct kvt_seq *seq = new_seq(&w->f, N_TOKENS);
    for (uint32_t g = 0; g < 2; g++) {
        struct io io;

        make_io(&io, seq, g, 0, N_CHUNKS, 1);
        fill_io(&w->f, &io);
        store_and_flush(&w->f, &io.io, 1);
    }
    kvt_seq_free(seq);
    close_all(w);
    open_windows(w, patient);
    seq = scheduler_seq(w);
    assert_int_equal(kvt_engine_lookup(w->scheduler, seq, 0, N_TOKENS, &hit), -EAGAIN);
    assert_int_equal(kvt_engine_wanted(w->scheduler, seq, ranges), 2);
    assert_int_equal(ranges[0].n_chunks, N_CHUNKS);
    assert_int_equal(ranges[1].first_chunk, N_CHUNKS - 2);
    assert_int_equal(ranges[1].n_chunks, 2);
    end(w, seq);
    seq = scheduler_seq(w);
    assert_int_equal(promise(w, seq), N_TOKENS);
    assert_comes_to(&w->f, "prefetch_chunks", N_CHUNKS + 2);
    end(w, seq);
}

/* The full group's chunk 7 is missing: the hit needs the windows that end before chunk 7. */
static void
a_shorter_hit_has_another_window(void **state)
{
    static const char *const patient[] = { PATIENT, NULL };
    struct world *w = *state;
    char path[800];

    open_windows(w, NULL);
    struct kvt_seq *seq = new_seq(&w->f, N_TOKENS);
    struct io io;
    make_io(&io, seq, 0, 0, N_CHUNKS, 1);
    fill_io(&w->f, &io);
    store_and_flush(&w->f, &io.io, 1);
    path_of_chunk(w, 7, path);
    make_io(&io, seq, 1, 0, N_CHUNKS, 1);
    fill_io(&w->f, &io);
    store_and_flush(&w->f, &io.io, 1);
    kvt_seq_free(seq);
    close_all(w);
    assert_int_equal(unlink(path), 0);
    open_windows(w, patient);
    seq = scheduler_seq(w);
    assert_int_equal(promise(w, seq), 7 * CHUNK);
    end(w, seq);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_hit_is_reported_when_its_chunks_are_in_memory),
        TEST(an_engine_of_both_roles_reads_ahead_without_a_worker),
        TEST(the_promise_is_leased_in_memory),
        TEST(without_a_reading_worker_the_lookup_returns),
        TEST(a_late_lookup_returns_the_guaranteed_hit),
        TEST(a_lookup_waits_while_chunks_arrive),
        TEST(evicted_chunks_shorten_the_hit),
        TEST(of_too_much_for_memory_the_beginning_is_promised),
        TEST(memory_full_of_promises_ends_the_waiting),
        TEST(more_chunks_than_slots_all_come),
        TEST(without_local_cpu_only_verified_chunks_are_a_hit),
        TEST(a_directory_of_this_host_is_promised_at_once),
        TEST(with_async_loading_the_lookup_waits_for_the_hit),
        TEST(only_chunks_absent_from_this_hosts_storage_are_prefetched),
        TEST(the_window_of_a_hit_is_waited_for_too),
        TEST(a_shorter_hit_has_another_window),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests_name("waiting", tests, NULL, NULL);
}
