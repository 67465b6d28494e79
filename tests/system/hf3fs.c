/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine whose chunks lie in 3FS: what another host has stored, deleted or damaged
 * there, a daemon that is restarted, and processes that are killed. */
#include "files.h"
#include "hf3fs-client.h"
#include "index-dir.h"
#include "servers/usrbiod-server.h"
#include "shm-names.h"
#include "system/system-test.h"
#include "tier/file/file.h"

static struct usrbiod usrbiod;
static unsigned n_dirs;

struct world {
    struct fixture f;
    char dir[400], base_path[450], backing[400];
};

static int
setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);

    assert_non_null(w);
    *state = w;
    fixture_init(&w->f);
    if (!usrbiod.pid)
        assert_true(usrbiod_run(&usrbiod, NULL));
    snprintf(w->dir, sizeof w->dir, "%s/%u", usrbiod.mount, n_dirs);
    snprintf(w->backing, sizeof w->backing, "%s/%u", usrbiod.backing, n_dirs++);
    snprintf(w->base_path, sizeof w->base_path, "hf3fs_base_path=%s", w->dir);
    return 0;
}

static void
open_3fs(struct world *w, const char *more)
{
    const char *settings[] = { "remote_url=", "remote_storage_plugins=hf3fs.primary",
                               w->base_path, "hf3fs_iov_size=104857600", more, NULL };

    fixture_open(&w->f, settings);
}

static void
close_3fs(struct world *w)
{
    kvt_engine_close(w->f.engine);
    w->f.engine = NULL;
}

/* What this host knows of the directory, too. */
static void
forget(struct world *w)
{
    int fd = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int index = fd < 0 ? -1 : kvt__shared_index_dir(fd, w->dir);

    if (index >= 0) {
        index_dir_remove(index);
        close(index);
    }
    if (fd >= 0)
        close(fd);
}

static int
teardown(void **state)
{
    struct world *w = *state;

    close_3fs(w);
    if (usrbiod.pid)
        usrbiod_tell(&usrbiod, "clear");
    forget(w);
    fixture_fini(&w->f);
    free(w);
    return 0;
}

static void
what_is_stored_is_found_after_a_restart_and_on_another_host(void **state)
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
what_another_host_deletes_after_the_promise_is_loaded(void **state)
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
    usrbiod_tell(&usrbiod, "fault read corrupt p=0.4");
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
    usrbiod_tell(&usrbiod, "fault read result=-EIO p=0.2");
    usrbiod_tell(&usrbiod, "fault read short=100 p=0.3");
    for (int i = 0; i < 5; i++) {
        open_3fs(w, NULL);
        struct outcome got = load_prompt(&w->f);
        assert_int_equal(got.loaded, got.promised);
        close_3fs(w);
    }
    usrbiod_tell(&usrbiod, "clear");
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

/* They go from the blocks straight to memory of the rings, which are there from the first
 * chunk on. */
static void
what_does_not_stay_in_memory_is_stored_without_a_copy(void **state)
{
    struct world *w = *state;

    open_3fs(w, "local_cpu=false");
    write_chunks(&w->f, 0, 1);
    uint64_t moved = counter(&w->f, "hf3fs_bytes");
    uint64_t copied = counter(&w->f, "hf3fs_copied_bytes");
    assert_true(moved > 0);
    assert_int_equal(copied, moved);
    write_chunks(&w->f, 1, N_CHUNKS - 1);
    assert_true(counter(&w->f, "hf3fs_bytes") > moved);
    assert_int_equal(counter(&w->f, "hf3fs_copied_bytes"), copied);
    close_3fs(w);
    open_3fs(w, NULL);
    assert_int_equal(load_prompt(&w->f).loaded, N_CHUNKS);
}

/* Questions by key, with one thread for all that waits. */
static void
a_look_that_hangs_keeps_no_other_waiting(void **state)
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
    usrbiod_tell(&usrbiod, "fault lookup stuck name=slow");
    assert_int_equal(kvt_store_submit(store, ops, 2), 0);
    while (!kvt_store_poll(store, &done, 1))
        usleep(1000);
    assert_ptr_equal(done, &quick);
    assert_int_equal(quick.status, -ENOENT);
    usrbiod_tell(&usrbiod, "clear");
    usrbiod_tell(&usrbiod, "release");
    while (!kvt_store_poll(store, &done, 1))
        usleep(1000);
    assert_ptr_equal(done, &slow);
    kvt_store_close(store);
    kvt_config_free(config);
}

/* A child that writes until it is killed; what it announced to the daemon goes, what it
 * published is whole, and nothing of it stays in shared memory.  begun: told when it has
 * written. */
static void
write_for_ever(struct world *w, int begun, uint32_t first)
{
    open_3fs(w, NULL);
    for (uint32_t prompt = first;; prompt++) {
        set_tokens(&w->f, prompt); /* that nobody has written */
        write_chunks(&w->f, 0, N_CHUNKS);
        if (prompt == first && write(begun, "", 1) != 1)
            abort();
    }
}

static void
kill_a_writer(struct world *w, uint32_t first, unsigned after_us)
{
    int begun[2];
    char byte;

    assert_int_equal(pipe2(begun, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        write_for_ever(w, begun[1], first);
    assert_int_equal(read(begun[0], &byte, 1), 1);
    usleep(after_us);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close(begun[0]);
    close(begun[1]);
}

static void
killed_writers_leave_whole_chunks_and_nothing_else(void **state)
{
    struct world *w = *state;
    static struct shm_names before;

    shm_names_take(&before, NULL);
    for (unsigned round = 0; round < rounds(8); round++)
        kill_a_writer(w, round * 1000, round * 17000);
    for (int i = 0; i < 60000 && usrbiod_count(&usrbiod, "iovs") +
                                 usrbiod_count(&usrbiod, "rings") > 0; i++)
        usleep(1000); /* the daemon hears of it late */
    assert_int_equal((int)usrbiod_count(&usrbiod, "iovs"), 0);
    assert_int_equal((int)usrbiod_count(&usrbiod, "rings"), 0);
    assert_true(shm_names_go(&before));
    open_3fs(w, NULL);
    for (uint32_t i = 0; i < 24; i++) {
        set_tokens(&w->f, i / 3 * 1000 + i % 3);
        struct outcome got = load_prompt(&w->f);
        assert_int_equal(got.loaded, got.promised);
    }
    assert_int_equal(counter(&w->f, "load_corrupt"), 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_stored_is_found_after_a_restart_and_on_another_host),
        TEST(what_another_host_deletes_after_the_promise_is_loaded),
        TEST(damaged_bytes_are_never_served),
        TEST(errors_shorten_hits_and_fail_no_load),
        TEST(a_restart_of_the_daemon_loses_nothing),
        TEST(what_does_not_stay_in_memory_is_stored_without_a_copy),
        TEST(a_look_that_hangs_keeps_no_other_waiting),
        TEST(killed_writers_leave_whole_chunks_and_nothing_else),
        cmocka_unit_test(all_was_done_by_the_client_asked_for),
    };

    hf3fs_listen();
    return usrbiod_run_tests(&usrbiod, "engine over 3FS", tests,
                             sizeof tests / sizeof *tests, NULL, NULL);
}
