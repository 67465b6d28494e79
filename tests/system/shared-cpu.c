/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines of one host with shared host memory: chunks of one engine are hits of the others,
 * with and without storage, in one process and in several. */
#include "system/system-test.h"

/* Settings with the memory in a directory of the test on /dev/shm. */
struct shm {
    struct temp_dir dir;
    char path[300];
    const char *memory_only[8], *with_storage[8];
};

static struct shm shm;

static int
setup(void **state)
{
    temp_dir_make_in_memory(&shm.dir);
    snprintf(shm.path, sizeof shm.path, "shared_cpu_path=%s", shm.dir.path);
    const char *const settings[] = { "shared_cpu=true", "max_shared_cpu_size=0.0625",
                                     shm.path, "remote_url=" };
    memcpy(shm.memory_only, settings, sizeof settings);
    memcpy(shm.with_storage, settings, sizeof settings - sizeof *settings);
    return fixture_setup(state);
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    device_free(f->memory);
    temp_dir_remove(&f->dir);
    temp_dir_remove(&shm.dir);
    return 0;
}

#define SHARED_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

/* Open another engine over the fixture's directory, with its own blocks. */
static struct fixture
another(const struct fixture *f, const char *const *settings)
{
    struct fixture other = *f;

    other.memory = device_alloc((size_t)N_LAYERS * N_BLOCKS * BLOCK_BYTES);
    assert_non_null(other.memory);
    fixture_open(&other, settings);
    return other;
}

static void
close_another(struct fixture *other)
{
    kvt_engine_close(other->engine);
    device_free(other->memory);
}

/* The memory is allocated in the background: store until the memory has all chunks. */
static void
store_in_memory(const struct fixture *f)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    uint8_t in_memory[N_CHUNKS];

    for (unsigned i = 0;; i++) {
        write_chunks(f, 0, N_CHUNKS);
        uint64_t hit = lookup(f, seq, 0, N_TOKENS);
        kvt_seq_in_memory(seq, 0, N_CHUNKS, in_memory);
        kvt_engine_release(f->engine, seq);
        if (hit == N_TOKENS && !memchr(in_memory, 0, N_CHUNKS))
            break;
        assert_true(i < 60 * 1000);
        usleep(1000);
    }
    kvt_seq_free(seq);
}

/* Find all chunks in memory, and load the right bytes. */
static void
load_from_memory(const struct fixture *f)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    uint8_t in_memory[N_CHUNKS];

    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_TOKENS);
    kvt_seq_in_memory(seq, 0, N_CHUNKS, in_memory);
    for (size_t i = 0; i < N_CHUNKS; i++)
        assert_int_equal(in_memory[i], 1);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    assert_int_equal(load_prompt(f).loaded, N_CHUNKS);
}

static void
engines_of_a_process_share_chunks(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, shm.memory_only);
    struct fixture other = another(f, shm.memory_only);
    store_in_memory(f);
    load_from_memory(&other);
    load_from_memory(f);
    close_another(&other);
    load_from_memory(f);
    kvt_engine_close(f->engine);
    fixture_open(f, shm.memory_only); /* the memory outlives the engines */
    load_from_memory(f);
    kvt_engine_close(f->engine);
}

static void
use_as_worker(void *arg)
{
    struct fixture other = another(arg, shm.memory_only);

    load_from_memory(&other);
    set_tokens(&other, 1);
    store_in_memory(&other);
    close_another(&other);
}

static void
processes_share_chunks(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, shm.memory_only);
    store_in_memory(f);
    assert_int_equal(end_child(start_child(use_as_worker, f)), 0);
    load_from_memory(f);
    set_tokens(f, 1);
    load_from_memory(f);
    kvt_engine_close(f->engine);
}

static void
scheduler_promises_chunks_of_a_worker(void **state)
{
    struct fixture *f = *state, scheduler = *f;
    struct opening worker = { .role = KVT_ROLE_WORKER, .settings = shm.memory_only };
    struct opening looker = { .role = KVT_ROLE_SCHEDULER, .settings = shm.memory_only };
    struct kvt_seq *seq;
    struct io io;
    uint64_t hit = 0;

    scheduler.engine = must_open(f, &looker);
    f->engine = must_open(f, &worker);
    set_view(f->engine, 0, f->memory);
    seq = new_seq(&scheduler, N_TOKENS);
    for (unsigned i = 0; hit != N_TOKENS; i++) {
        write_chunks(f, 0, N_CHUNKS);
        hit = lookup(&scheduler, seq, 0, N_TOKENS);
        if (hit != N_TOKENS)
            kvt_engine_release(scheduler.engine, seq);
        assert_true(i < 60 * 1000);
    }
    make_io(&io, seq, 0, 0, N_CHUNKS, 1);
    wipe(f);
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        assert_int_equal(kvt_load_status(load, 0, c), 0);
        assert_true(chunk_is_right(f, &io, c));
    }
    kvt_load_free(load);
    kvt_engine_release(scheduler.engine, seq);
    kvt_seq_free(seq);
    kvt_engine_close(scheduler.engine);
    kvt_engine_close(f->engine);
}

/* A chunk that one engine reads from storage becomes a memory hit of the other engine. */
static void
chunks_that_are_read_from_storage_are_shared(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, NULL);
    write_chunks(f, 0, N_CHUNKS);
    reopen(f, shm.with_storage);
    struct fixture other = another(f, shm.with_storage);
    struct kvt_seq *seq = new_seq(&other, N_TOKENS);
    uint8_t in_memory[N_CHUNKS];

    for (unsigned i = 0;; i++) { /* until the memory is allocated */
        assert_int_equal(load_prompt(f).loaded, N_CHUNKS);
        assert_int_equal(lookup(&other, seq, 0, N_TOKENS), N_TOKENS);
        kvt_seq_in_memory(seq, 0, N_CHUNKS, in_memory);
        kvt_engine_release(other.engine, seq);
        if (!memchr(in_memory, 0, N_CHUNKS))
            break;
        assert_true(i < 60 * 1000);
        usleep(1000);
    }
    kvt_seq_free(seq);
    assert_int_equal(load_prompt(&other).loaded, N_CHUNKS);
    close_another(&other);
    kvt_engine_close(f->engine);
}

/* After the deletion of `lock`, both engines open a new index and share chunks again. */
static void
deleted_index_is_opened_again(void **state)
{
    struct fixture *f = *state;
    char path[400];

    fixture_open(f, shm.memory_only);
    struct fixture other = another(f, shm.memory_only);
    store_in_memory(f);
    load_from_memory(&other);
    snprintf(path, sizeof path, "%s/kvtier-%u/shared/lock", shm.dir.path,
             (unsigned)getuid());
    assert_int_equal(unlink(path), 0);
    for (unsigned i = 0; i < 60 * 1000 && access(path, F_OK); i++)
        usleep(1000);
    assert_int_equal(access(path, F_OK), 0);
    store_in_memory(f);
    store_in_memory(&other);
    load_from_memory(f);
    set_tokens(f, 2);
    store_in_memory(f);
    set_tokens(&other, 2);
    for (unsigned i = 0; i < 60 * 1000 && load_prompt(&other).loaded < N_CHUNKS; i++)
        usleep(1000);
    load_from_memory(&other);
    close_another(&other);
    kvt_engine_close(f->engine);
}

static void
use_in_child(void *arg)
{
    struct fixture *f = arg;
    struct kvt_seq *seq = NULL;

    assert_int_equal(kvt_seq_new(f->engine, f->tokens, 10, NULL, &seq), -ESTALE);
    kvt_engine_close(f->engine);
    use_as_worker(f); /* the child opens another engine */
}

static void
forked_child_touches_no_memory_of_the_parent(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, shm.memory_only);
    store_in_memory(f);
    assert_int_equal(end_child(start_child(use_in_child, f)), 0);
    load_from_memory(f);
    kvt_engine_close(f->engine);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHARED_TEST(engines_of_a_process_share_chunks),
        SHARED_TEST(processes_share_chunks),
        SHARED_TEST(scheduler_promises_chunks_of_a_worker),
        SHARED_TEST(chunks_that_are_read_from_storage_are_shared),
        SHARED_TEST(deleted_index_is_opened_again),
        SHARED_TEST(forked_child_touches_no_memory_of_the_parent),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
