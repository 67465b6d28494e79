/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine with chunks in 3FS: chunks stored, deleted or damaged by another host, and restarts
 * of the daemon. */
#include "own-shm.h"
#include "shm-names.h"
#include "system/hf3fs-test.h"

static void
stored_chunks_are_found_after_a_restart_and_on_another_host(void **state)
{
    struct world *w = *state;

    open_3fs(w, NULL);
    write_chunks(&w->f, 0, N_CHUNKS);
    close_3fs(w);
    open_3fs(w, NULL);
    assert_int_equal(load_prompt(&w->f).loaded, N_CHUNKS);
    close_3fs(w);
    forget(w);
    open_3fs(w, NULL);
    assert_int_equal(load_prompt(&w->f).loaded, N_CHUNKS);
}

/* Promised when verified in memory, which local_cpu: false has as well. */
static void
chunks_deleted_by_another_host_after_the_hit_are_loaded(void **state)
{
    struct world *w = *state;
    char command[600];
    struct io io;

    open_3fs(w, "local_cpu=false");
    write_chunks(&w->f, 0, N_CHUNKS);
    struct kvt_seq *seq = new_seq(&w->f, N_TOKENS);
    assert_int_equal(lookup(&w->f, seq, 0, N_TOKENS), N_TOKENS);
    snprintf(command, sizeof command, "find %s -name '*.data' -delete", w->backing);
    assert_int_equal(system(command), 0);
    make_io(&io, seq, 0, 0, N_CHUNKS, 1);
    wipe(&w->f);
    struct kvt_load *load = load_and_wait(&w->f, &io.io, 1);
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        assert_true(!kvt_load_status(load, 0, c) && chunk_is_right(&w->f, &io, c));
    kvt_load_free(load);
    kvt_engine_release(w->f.engine, seq);
    kvt_seq_free(seq);
}

static void
damaged_bytes_are_never_served(void **state)
{
    struct world *w = *state;

    open_3fs(w, NULL);
    write_chunks(&w->f, 0, N_CHUNKS);
    close_3fs(w);
    usrbiod_command(&usrbiod, "fault read corrupt p=0.4");
    for (int i = 0; i < 5; i++) { /* load_prompt() fails the test on a wrong byte */
        open_3fs(w, NULL);
        struct outcome got = load_prompt(&w->f);
        assert_int_equal(got.loaded, got.promised);
        close_3fs(w);
    }
}

static void
errors_shorten_hits_and_fail_no_load(void **state)
{
    struct world *w = *state;

    open_3fs(w, NULL);
    write_chunks(&w->f, 0, N_CHUNKS);
    close_3fs(w);
    usrbiod_command(&usrbiod, "fault read result=-EIO p=0.2");
    usrbiod_command(&usrbiod, "fault read short=100 p=0.3");
    for (int i = 0; i < 5; i++) {
        open_3fs(w, "lookup_timeout_ms=300"); /* a failed read is waited for so long */
        struct outcome got = load_prompt(&w->f);
        assert_int_equal(got.loaded, got.promised);
        close_3fs(w);
    }
    usrbiod_command(&usrbiod, "clear");
    open_3fs(w, NULL);
    assert_int_equal(load_prompt(&w->f).loaded, N_CHUNKS);
}

static void
a_restart_of_the_daemon_loses_nothing(void **state)
{
    struct world *w = *state;

    open_3fs(w, "local_cpu=false");
    for (int i = 0; i < 3; i++) {
        set_tokens(&w->f, (uint32_t)i);
        write_chunks(&w->f, 0, N_CHUNKS);
        usrbiod_kill(&usrbiod);
        assert_true(usrbiod_run(&usrbiod, NULL));
        assert_int_equal(load_prompt(&w->f).loaded, N_CHUNKS);
    }
}

/* Return the bytes on disk of the files in a directory. */
static uint64_t
bytes_in(const char *path)
{
    char command[500];
    unsigned long long bytes = 0;

    snprintf(command, sizeof command, "find %s -name '*.data' -printf '%%b\\n' | "
             "awk '{ n += $1 * 512 } END { print n + 0 }'", path);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    assert_int_equal(fscanf(out, "%llu", &bytes), 1);
    pclose(out);
    return bytes;
}

/* Without a limit the engine deletes no file: other hosts use the directory too. */
static void
the_limit_evicts_the_least_recently_used_chunks(void **state)
{
    struct world *w = *state;
    const double gib = 0.0005;
    uint64_t limit = (uint64_t)(gib * (1 << 30));

    open_3fs(w, NULL);
    for (uint32_t i = 0; bytes_in(w->backing) < 3 * limit; i++) {
        set_tokens(&w->f, i);
        write_chunks(&w->f, 0, N_CHUNKS);
    }
    assert_int_equal(counter(&w->f, "evicted_chunks"), 0);
    close_3fs(w);
    open_3fs(w, "max_remote_size=0.0005");
    set_tokens(&w->f, 5000);
    write_chunks(&w->f, 0, N_CHUNKS);
    assert_true(counter(&w->f, "evicted_chunks") > 0);
    assert_true(bytes_in(w->backing) <= limit);
    close_3fs(w);
    open_3fs(w, "max_remote_size=0.0005");
    assert_int_equal(load_prompt(&w->f).loaded, N_CHUNKS);
}

/* They go from the blocks straight to memory of the rings, which are there after the first
 * chunk at the latest. */
static void
without_host_memory_stores_make_no_copy(void **state)
{
    struct world *w = *state;

    open_3fs(w, "local_cpu=false");
    write_chunks(&w->f, 0, 1);
    uint64_t moved = counter(&w->f, "hf3fs_bytes");
    uint64_t copied = counter(&w->f, "hf3fs_copied_bytes");
    assert_true(moved > 0);
    assert_true(copied == moved || !copied); /* before the rings were there, or after */
    write_chunks(&w->f, 1, N_CHUNKS - 1);
    assert_true(counter(&w->f, "hf3fs_bytes") > moved);
    assert_int_equal(counter(&w->f, "hf3fs_copied_bytes"), copied);
    close_3fs(w);
    open_3fs(w, NULL);
    assert_int_equal(load_prompt(&w->f).loaded, N_CHUNKS);
}

/* A load without a lookup, and so without a prefetch, does not copy chunks to memory either. */
static void
direct_loads_make_no_copy(void **state)
{
    struct world *w = *state;
    struct io io;

    open_3fs(w, "local_cpu=false");
    write_chunks(&w->f, 0, N_CHUNKS);
    uint64_t copied = counter(&w->f, "hf3fs_copied_bytes");
    uint64_t moved = counter(&w->f, "hf3fs_bytes");
    struct kvt_seq *seq = new_seq(&w->f, N_TOKENS);
    make_io(&io, seq, 0, 0, N_CHUNKS, 1);
    wipe(&w->f);
    struct kvt_load *load = load_and_wait(&w->f, &io.io, 1);
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        assert_true(!kvt_load_status(load, 0, c) && chunk_is_right(&w->f, &io, c));
    assert_true(counter(&w->f, "hf3fs_bytes") > moved);
    assert_int_equal(counter(&w->f, "hf3fs_copied_bytes"), copied);
    kvt_load_free(load);
    kvt_seq_free(seq);
}

/* Stats by key; one thread does all blocking operations. */
static void
a_hanging_check_does_not_delay_other_checks(void **state)
{
    struct world *w = *state;
    const char *settings[] = { "remote_storage_plugins=hf3fs.primary", w->base_path,
                               "disk_io_threads=1", NULL };
    struct kvt_config *config = config_with(settings);
    struct kvt_op slow = { sizeof slow, .kind = KVT_OP_STAT, .key = "slow@1@0@1@half" };
    struct kvt_op quick = { sizeof quick, .kind = KVT_OP_STAT, .key = "quick@1@0@1@half" };
    struct kvt_op *ops[] = { &slow, &quick }, *done = NULL;
    struct kvt_store *store;

    assert_int_equal(kvt_store_open(config, &store), 0);
    usrbiod_command(&usrbiod, "fault lookup stuck name=slow");
    assert_int_equal(kvt_store_submit(store, ops, 2), 0);
    while (!kvt_store_poll(store, &done, 1))
        usleep(1000);
    assert_ptr_equal(done, &quick);
    assert_int_equal(quick.status, -ENOENT);
    usrbiod_command(&usrbiod, "clear");
    usrbiod_command(&usrbiod, "release");
    while (!kvt_store_poll(store, &done, 1))
        usleep(1000);
    assert_ptr_equal(done, &slow);
    kvt_store_close(store);
    kvt_config_free(config);
}

/* The daemon's completion after the deadline goes to memory that the engine does not read. */
static void
a_load_that_is_stuck_ends_at_its_deadline(void **state)
{
    struct world *w = *state;
    struct io io;

    open_3fs(w, NULL);
    write_chunks(&w->f, 0, N_CHUNKS);
    close_3fs(w);
    open_3fs(w, "blocking_timeout_secs=1");
    struct kvt_seq *seq = new_seq(&w->f, N_TOKENS);
    make_io(&io, seq, 0, 0, N_CHUNKS, 1);
    usrbiod_command(&usrbiod, "fault read stuck");
    struct kvt_load *load = load_and_wait(&w->f, &io.io, 1);
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        assert_int_equal(kvt_load_status(load, 0, c), -ETIMEDOUT);
    kvt_load_free(load);
    wipe(&w->f);
    usrbiod_command(&usrbiod, "clear");
    usrbiod_command(&usrbiod, "release");
    while (counter(&w->f, "loads_pending"))
        usleep(1000);
    for (size_t i = 0; i < (size_t)N_LAYERS * N_BLOCKS * BLOCK_BYTES; i++)
        assert_int_equal(w->f.memory[i], 0xee);
    kvt_seq_free(seq);
    close_3fs(w);
    open_3fs(w, NULL);
    assert_int_equal(load_prompt(&w->f).loaded, N_CHUNKS);
}

/* -------------------------------------------------------- leftovers of restarts */

/* Return the number of mappings of unlinked files of /dev/shm. */
static size_t
n_shared_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[4096];
    size_t n = 0;

    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        n += strstr(line, " /dev/shm/") && !strstr(line, "/dev/shm/sem.");
    fclose(maps);
    return n;
}

static size_t
n_descriptors(void)
{
    size_t n = 0;

    for (int fd = 0; fd < 4096; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Kill the daemon while writes and reads hang in the daemon. */
static void
restart_under_way(struct world *w, uint32_t prompt)
{
    set_tokens(&w->f, prompt);
    usrbiod_command(&usrbiod, "fault write stuck");
    store_chunks(&w->f, 0, N_CHUNKS);
    while (usrbiod_count(&usrbiod, "stuck") < 1)
        usleep(1000);
    usrbiod_kill(&usrbiod);
    assert_true(usrbiod_run(&usrbiod, NULL));
    assert_int_equal(kvt_engine_flush(w->f.engine, -1), 0);
    assert_int_equal(load_prompt(&w->f).loaded, N_CHUNKS);
}

/* The library keeps duplicates of the descriptors of open files until the kernel reuses the
 * descriptors' numbers. */
static void
a_restart_under_way_leaves_nothing_of_the_old_run(void **state)
{
    size_t more = strcmp(hf3fs_client(), "own") ? 2 * N_CHUNKS : 0;
    static struct shm_names names;
    struct world *w = *state;

    shm_names_read(&names, NULL);
    open_3fs(w, "local_cpu=false");
    write_chunks(&w->f, 0, N_CHUNKS);
    size_t n_maps = n_shared_mappings(), n_fds = n_descriptors();
    for (uint32_t i = 1; i < 4; i++)
        restart_under_way(w, i);
    for (int i = 0; i < 60000 && (n_shared_mappings() > n_maps ||
                                  n_descriptors() > n_fds + more); i++)
        usleep(1000); /* the client's thread releases the state of the last run */
    assert_int_equal(n_shared_mappings(), n_maps);
    assert_true(n_descriptors() <= n_fds + more);
    assert_true(shm_names_disappear(&names));
    assert_int_equal(counter(&w->f, "store_failed"), 0);
    struct fixture below = backing_fixture(w);
    assert_int_equal(n_temporary_files(&below), 0);
    close_3fs(w);
    daemon_forgets_all();
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(stored_chunks_are_found_after_a_restart_and_on_another_host),
        TEST(chunks_deleted_by_another_host_after_the_hit_are_loaded),
        TEST(damaged_bytes_are_never_served),
        TEST(errors_shorten_hits_and_fail_no_load),
        TEST(a_restart_of_the_daemon_loses_nothing),
        TEST(without_host_memory_stores_make_no_copy),
        TEST(the_limit_evicts_the_least_recently_used_chunks),
        TEST(direct_loads_make_no_copy),
        TEST(a_hanging_check_does_not_delay_other_checks),
        TEST(a_load_that_is_stuck_ends_at_its_deadline),
        TEST(a_restart_under_way_leaves_nothing_of_the_old_run),
        cmocka_unit_test(only_the_selected_client_was_used),
    };

    (void)own_shm(NULL); /* tests elsewhere leave names behind */
    hf3fs_watch_log();
    return usrbiod_run_tests(&usrbiod, "engine over 3FS", tests,
                             sizeof tests / sizeof *tests, NULL, NULL);
}
