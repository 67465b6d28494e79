/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks in host memory: found without storage, loaded without a read, evicted to make room,
 * and lost with the worker process. */
#include <signal.h>
#include <sys/prctl.h>

#include "engine/call.h"
#include "system/held.h"
#include "system/system-test.h"

/* Room for 12 chunks of 24 KiB (32 KiB each with metadata), and a quarter of the memory for
 * transfers. */
#define SMALL "max_local_cpu_size=0.0005"

static const char *const memory_only[] = { "remote_url=", "local_cpu=true", NULL };
static const char *const small_memory[] = { "remote_url=", "local_cpu=true", SMALL, NULL };
static const char *const both[] = { "local_cpu=true", NULL };

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    set_held(HELD_OFF);
    fixture_init(f);
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    let_go();
    fixture_fini(*state);
    free(*state);
    return 0;
}

static void
reopen_wiped(struct fixture *f, const char *const *settings)
{
    reopen(f, settings);
    wipe(f);
}

static void
store_all(struct fixture *f)
{
    store_chunks(f, 0, N_CHUNKS);
    assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
}

/* How many chunks a lookup promises; all of them must load right. */
static unsigned
load_all(struct fixture *f)
{
    wipe(f);
    struct outcome got = load_prompt(f);

    assert_int_equal(got.first_error, 0);
    return got.loaded;
}

static void
without_storage_stored_chunks_are_found_in_memory(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, memory_only);
    store_all(f);
    assert_int_equal(load_all(f), N_CHUNKS);
    assert_int_equal(counter(f, "memory_hits"), N_CHUNKS);
    assert_int_equal(counter(f, "load_bytes"), 0);
    assert_int_equal(counter(f, "store_chunks"), N_CHUNKS);
    reopen_wiped(f, memory_only);
    assert_int_equal(load_all(f), 0);
}

static void
a_chunk_just_stored_is_loaded_without_a_read(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, both);
    store_all(f);
    assert_int_equal(load_all(f), N_CHUNKS);
    assert_int_equal(counter(f, "memory_hits"), N_CHUNKS);
    assert_int_equal(counter(f, "load_bytes"), 0);
}

static void
read_chunks_stay_in_memory(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, both);
    store_all(f);
    reopen_wiped(f, both);
    assert_int_equal(load_all(f), N_CHUNKS);
    assert_int_equal(counter(f, "memory_hits"), 0);
    assert_int_equal(counter(f, "load_bytes"),
                     N_CHUNKS * CHUNK_BLOCKS * N_LAYERS * BLOCK_BYTES);
    assert_int_equal(load_all(f), N_CHUNKS);
    assert_int_equal(counter(f, "memory_hits"), N_CHUNKS);
}

static void
prefetched_chunks_are_loaded_without_a_read(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq *seq;
    struct io io;

    fixture_open(f, both);
    store_all(f);
    reopen_wiped(f, both);
    seq = new_seq(f, N_TOKENS);
    make_io(&io, seq, 0, 0, N_CHUNKS, 1);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_TOKENS);
    io.io.blocks = NULL;
    io.io.n_blocks = 0;
    assert_int_equal(kvt_engine_prefetch(f->engine, &io.io, 1), 0);
    while (counter(f, "prefetch_chunks") < N_CHUNKS)
        usleep(200);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    assert_int_equal(load_all(f), N_CHUNKS);
    assert_int_equal(counter(f, "prefetch_chunks"), N_CHUNKS);
    assert_int_equal(counter(f, "memory_hits"), N_CHUNKS);
}

static void
a_prefetch_of_absent_chunks_does_nothing(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, both);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct io io;
    make_io(&io, seq, 0, 0, N_CHUNKS, 1);
    assert_int_equal(kvt_engine_prefetch(f->engine, &io.io, 1), 0);
    io.chunks[3].n_tokens = CHUNK + 1;
    assert_int_equal(kvt_engine_prefetch(f->engine, &io.io, 1), -EINVAL);
    kvt_seq_free(seq);
    kvt_engine_close(f->engine); /* ends them */
    f->engine = NULL;
}

/* ------------------------------------------------ prefetches that wait for a slot */

static void
prefetch_all(const struct fixture *f)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct io io;

    make_io(&io, seq, 0, 0, N_CHUNKS, 1);
    assert_int_equal(kvt_engine_prefetch(f->engine, &io.io, 1), 0);
    kvt_seq_free(seq);
}

/* Store three prompts, the fixture's last, and open an engine whose reads hang. */
static void
open_hanging(struct fixture *f)
{
    char url[512];
    const char *const settings[] = { url, "local_cpu=true", SMALL, NULL };

    fixture_open(f, both);
    for (uint32_t prompt = 3; prompt--; ) {
        set_tokens(f, prompt);
        store_all(f);
    }
    snprintf(url, sizeof url, "remote_url=fault://hang=1/fs://%s", f->dir.path);
    reopen(f, settings);
    hold();
}

/* Prefetch all prompts.  The chunks of the fixture's prompt wait, because the reads of the
 * others hang. */
static void
begin_to_wait(struct fixture *f)
{
    open_hanging(f);
    for (uint32_t prompt = 3; prompt--; ) {
        set_tokens(f, prompt);
        prefetch_all(f);
    }
    wait_until_held();
}

/* Return how many items have not ended, and the first waiting one. */
static size_t
n_prefetches(struct kvt_engine *e, struct kvt__item **first_waiting)
{
    pthread_mutex_lock(&e->calls.lock);
    size_t n = e->calls.n_loads;
    *first_waiting = e->calls.prefetches.first;
    pthread_mutex_unlock(&e->calls.lock);
    return n;
}

static void
chunks_that_are_being_read_are_not_prefetched_again(void **state)
{
    struct fixture *f = *state;
    struct kvt__item *waiting;

    open_hanging(f);
    prefetch_all(f);
    prefetch_all(f);
    assert_int_equal(n_prefetches(f->engine, &waiting), N_CHUNKS);
    assert_null(waiting);
    let_go();
    while (n_prefetches(f->engine, &waiting))
        usleep(200);
    assert_int_equal(counter(f, "prefetch_chunks"), N_CHUNKS);
}

static void
a_prefetch_that_waited_too_long_reads_nothing(void **state)
{
    struct fixture *f = *state;
    struct kvt__item *waiting;

    begin_to_wait(f);
    assert_int_equal(n_prefetches(f->engine, &waiting), 3 * N_CHUNKS);
    assert_non_null(waiting);
    pthread_mutex_lock(&f->engine->calls.lock);
    while (waiting->next)
        waiting = waiting->next;
    assert_ptr_equal(waiting, &waiting->call->items[N_CHUNKS - 1]);
    waiting->call->deadline_ns = 0;
    pthread_mutex_unlock(&f->engine->calls.lock);
    let_go();
    while (n_prefetches(f->engine, &waiting))
        usleep(200);
    assert_null(waiting);
    assert_int_equal(counter(f, "prefetch_chunks"), 2 * N_CHUNKS);
    assert_int_equal(load_all(f), N_CHUNKS);
}

static void *
close_engine(void *engine)
{
    kvt_engine_close(engine);
    return NULL;
}

static void
a_close_waits_only_for_prefetches_in_flight(void **state)
{
    struct fixture *f = *state;
    struct kvt__item *waiting;
    pthread_t closer;
    size_t n;

    begin_to_wait(f);
    assert_int_equal(pthread_create(&closer, NULL, close_engine, f->engine), 0);
    do
        n = n_prefetches(f->engine, &waiting);
    while (waiting);
    assert_in_range(n, 1, 2 * N_CHUNKS);
    let_go();
    assert_int_equal(pthread_join(closer, NULL), 0);
    f->engine = NULL;
    fixture_open(f, both);
    assert_int_equal(load_all(f), N_CHUNKS);
}

static void
the_least_recently_used_chunk_is_evicted_first(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, small_memory);
    for (uint32_t prompt = 0; prompt < 6; prompt++) {
        set_tokens(f, prompt);
        store_chunks(f, 0, 4);
        assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
        wait_for_tick();
    }
    set_tokens(f, 5);
    assert_int_equal(load_all(f), 4);
    set_tokens(f, 4);
    assert_int_equal(load_all(f), 4);
    set_tokens(f, 0);
    assert_int_equal(load_all(f), 0);
    assert_int_equal(counter(f, "evicted_chunks"), 12);
    assert_int_equal(counter(f, "store_dropped"), 0);
}

static void
a_promised_chunk_stays_however_much_is_stored(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, small_memory);
    store_chunks(f, 0, 4);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 4 * CHUNK);
    for (uint32_t prompt = 1; prompt < 10; prompt++) {
        set_tokens(f, prompt);
        store_chunks(f, 0, 4);
    }
    wipe(f);
    set_tokens(f, 0);
    struct outcome got = load_prompt(f);
    assert_int_equal(got.loaded, 4);
    assert_int_equal(got.first_error, 0);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
}

static void
with_all_memory_leased_loads_and_stores_continue(void **state)
{
    static const char *const settings[] = { "local_cpu=true", SMALL, NULL };
    struct fixture *f = *state;

    fixture_open(f, settings);
    store_all(f);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_TOKENS);
    for (uint32_t prompt = 1; prompt < 8; prompt++) {
        set_tokens(f, prompt);
        for (uint32_t c = 0; c < N_CHUNKS; c += 2) {
            store_chunks(f, c, 2);
            assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
        }
        assert_int_equal(load_all(f), N_CHUNKS);
    }
    assert_int_equal(counter(f, "store_dropped"), 0);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
}

/* No file is written before all stores have returned: the chunks fill the memory. */
static void
slow_storage_drops_stores_without_blocking(void **state)
{
    struct fixture *f = *state;
    char url[400];
    const char *settings[] = { url, "local_cpu=true", SMALL, NULL };

    snprintf(url, sizeof url, "remote_url=fault://delay_ms=20/fs://%s", f->dir.path);
    fixture_open(f, settings);
    hold();
    for (uint32_t prompt = 0; prompt < 8; prompt++) {
        set_tokens(f, prompt);
        store_chunks(f, 0, N_CHUNKS);
    }
    let_go();
    assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
    assert_true(counter(f, "store_dropped") > 0);
    assert_int_equal(counter(f, "store_dropped") + counter(f, "store_chunks"),
                     8 * N_CHUNKS);
    for (uint32_t prompt = 0; prompt < 8; prompt++) {
        set_tokens(f, prompt);
        load_all(f);
    }
    assert_int_equal(counter(f, "load_corrupt"), 0);
}

/* Memory is populated in the background: a full populated part must not cause evictions. */
static void
nothing_is_pushed_out_before_the_limit(void **state)
{
    static const char *const settings[] = { "remote_url=", "local_cpu=true",
                                            "max_local_cpu_size=2", NULL };
    struct fixture *f = *state;

    fixture_open(f, settings);
    for (uint32_t prompt = 0; prompt < 1000; prompt++) {
        struct kvt_seq *seq;
        struct io io;

        set_tokens(f, prompt);
        seq = new_seq(f, N_TOKENS);
        make_io(&io, seq, 0, 0, N_CHUNKS, 1); /* the content does not matter */
        assert_int_equal(kvt_engine_store(f->engine, &io.io, 1), 0);
        kvt_seq_free(seq);
    }
    assert_int_equal(counter(f, "evicted_chunks"), 0);
    assert_int_equal(counter(f, "store_dropped") + counter(f, "store_chunks"),
                     1000 * N_CHUNKS);
}

static void
a_reset_invalidates_chunks_in_memory(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, memory_only);
    store_all(f);
    assert_int_equal(kvt_engine_reset(f->engine, NULL), 0);
    assert_int_equal(load_all(f), 0);
    store_all(f);
    assert_int_equal(load_all(f), N_CHUNKS);
}

/* Return the message of a failing open. */
static const char *
refusal(struct fixture *f, const char *const *settings)
{
    struct opening opening = { .settings = settings };

    assert_int_equal(try_open(f->dir.path, &opening, &f->engine), -EINVAL);
    return kvt_last_error();
}

static void
without_memory_and_storage_the_error_names_the_settings(void **state)
{
    static const char *const none[] = { "remote_url=", "local_cpu=false", NULL };
    static const char *const tiny[] = { "remote_url=", "local_cpu=true",
                                        "max_local_cpu_size=0.0000687", NULL };

    assert_non_null(strstr(refusal(*state, none), "local_cpu"));
    assert_non_null(strstr(refusal(*state, tiny), "max_local_cpu_size"));
}

/* --------------------------------------------------------------- two processes */

/* The thread sanitizer does not follow threads that a forked child starts. */
static void
skip_where_forks_have_no_threads(void)
{
#ifdef __SANITIZE_THREAD__
    skip();
#endif
}

/* The directory's name is part of the instance's: these tests may run twice at a time,
 * built in two ways. */
static struct kvt_engine *
open_in(const struct fixture *f, const char *what, uint32_t role)
{
    char instance[400];
    struct opening opening = { .role = role, .settings = memory_only,
                               .instance = instance };

    snprintf(instance, sizeof instance, "%s-%s", what, f->dir.path);
    return must_open(f, &opening);
}

/* Start a worker process that stores a prompt and then waits for SIGKILL. */
static pid_t
start_worker(struct fixture *f, const char *instance)
{
    int ready[2];
    char byte;

    fflush(NULL);
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        f->engine = open_in(f, instance, KVT_ROLE_WORKER);
        set_view(f->engine, 0, f->memory);
        store_all(f);
        if (write(ready[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return child;
}

static uint64_t
promised(struct fixture *f)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    uint64_t hit = lookup(f, seq, 0, N_TOKENS);

    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    return hit;
}

static void
a_scheduler_finds_chunks_in_its_workers_memory(void **state)
{
    struct fixture *f = *state;
    struct fixture other = *f;
    skip_where_forks_have_no_threads();
    pid_t worker = start_worker(f, "test-memory-a");

    f->engine = open_in(f, "test-memory-a", KVT_ROLE_SCHEDULER);
    assert_int_equal(promised(f), N_TOKENS);
    other.engine = open_in(f, "test-memory-b", KVT_ROLE_SCHEDULER);
    assert_int_equal(promised(&other), 0);
    kvt_engine_close(other.engine);
    kill(worker, SIGKILL);
    waitpid(worker, NULL, 0);
}

static void
chunks_in_memory_are_absent_after_the_worker_ends(void **state)
{
    struct fixture *f = *state;
    skip_where_forks_have_no_threads();
    pid_t worker = start_worker(f, "test-memory-c");

    f->engine = open_in(f, "test-memory-c", KVT_ROLE_SCHEDULER);
    assert_int_equal(promised(f), N_TOKENS);
    kill(worker, SIGKILL);
    waitpid(worker, NULL, 0);
    assert_int_equal(promised(f), 0);
    worker = start_worker(f, "test-memory-c");
    assert_int_equal(promised(f), N_TOKENS);
    kill(worker, SIGKILL);
    waitpid(worker, NULL, 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(without_storage_stored_chunks_are_found_in_memory),
        TEST(a_chunk_just_stored_is_loaded_without_a_read),
        TEST(read_chunks_stay_in_memory),
        TEST(prefetched_chunks_are_loaded_without_a_read),
        TEST(a_prefetch_of_absent_chunks_does_nothing),
        TEST(chunks_that_are_being_read_are_not_prefetched_again),
        TEST(a_prefetch_that_waited_too_long_reads_nothing),
        TEST(a_close_waits_only_for_prefetches_in_flight),
        TEST(the_least_recently_used_chunk_is_evicted_first),
        TEST(a_promised_chunk_stays_however_much_is_stored),
        TEST(with_all_memory_leased_loads_and_stores_continue),
        TEST(slow_storage_drops_stores_without_blocking),
        TEST(nothing_is_pushed_out_before_the_limit),
        TEST(a_reset_invalidates_chunks_in_memory),
        TEST(without_memory_and_storage_the_error_names_the_settings),
        TEST(a_scheduler_finds_chunks_in_its_workers_memory),
        TEST(chunks_in_memory_are_absent_after_the_worker_ends),
    };

    return cmocka_run_group_tests_name("host memory", tests, NULL, NULL);
}
