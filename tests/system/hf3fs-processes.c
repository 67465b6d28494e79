/* SPDX-License-Identifier: Apache-2.0
 *
 * Several processes with one directory of 3FS.  A killed process leaves whole chunks or no
 * chunks, and nothing in the daemon or in shared memory; the other processes continue. */
#include <signal.h>

#include "own-shm.h"
#include "shm-names.h"
#include "system/hf3fs-test.h"

#define N_PROMPTS 8u
#define ROUNDS 40u

/* ------------------------------------------------------------------- killed processes */

/* A child that writes until the parent kills it: new prompts, or again and again the prompts of
 * all processes.  The child reports each written prompt, and may then wait. */
struct writer {
    struct world *w;
    uint32_t first;
    bool of_all, waits;
    pid_t pid;
    int begun[2], go[2];
};

static void
write_for_ever(void *arg)
{
    struct writer *x = arg;
    char byte;

    open_3fs(x->w, NULL);
    for (uint32_t i = 0;; i++) {
        set_tokens(&x->w->f, x->of_all ? i % N_PROMPTS : x->first + i);
        write_chunks(&x->w->f, 0, N_CHUNKS);
        if (!i && (write(x->begun[1], "", 1) != 1 ||
                   (x->waits && read(x->go[0], &byte, 1) != 1)))
            abort();
    }
}

static void
start_writer(struct writer *x)
{
    char byte;

    assert_int_equal(pipe2(x->begun, O_CLOEXEC), 0);
    assert_int_equal(pipe2(x->go, O_CLOEXEC), 0);
    x->pid = start_child(write_for_ever, x);
    assert_int_equal(read(x->begun[0], &byte, 1), 1);
}

static void
kill_writer(struct writer *x)
{
    kill(x->pid, SIGKILL);
    assert_true(WIFSIGNALED(end_child(x->pid)));
    for (int i = 0; i < 2; i++) {
        close(x->begun[i]);
        close(x->go[i]);
    }
}

static size_t
n_damaged(const struct world *w)
{
    struct fixture below = backing_fixture(w);

    return usage_of(&below).n_damaged;
}

static size_t
n_temporary(const struct world *w)
{
    struct fixture below = backing_fixture(w);

    return n_temporary_files(&below);
}

static void
load_all(struct world *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        set_tokens(&w->f, i);
        struct outcome got = load_prompt(&w->f);
        assert_int_equal(got.loaded, got.promised);
    }
    assert_int_equal(counter(&w->f, "load_corrupt"), 0);
}

/* ------------------------------------------------------------------------- tests */

static void
killed_writers_leave_whole_chunks_and_nothing_else(void **state)
{
    struct world *w = *state;
    static struct shm_names before;

    shm_names_read(&before, NULL);
    for (unsigned round = 0; round < rounds(8); round++) {
        struct writer x = { .w = w, .first = round * 3 };

        start_writer(&x);
        usleep(round * 17000);
        kill_writer(&x);
    }
    daemon_forgets_all();
    /* If a process is killed after naming its memory and before telling the daemon, the name
     * stays.  The interval is short, but longer with a slow daemon or a sanitizer; a leak would
     * leave a name of each process. */
    assert_true(shm_names_left(&before) <= rounds(8) / 2);
    assert_int_equal(n_damaged(w), 0);
    open_3fs(w, NULL);
    assert_int_equal(n_temporary(w), 0);
    load_all(w, 24);
}

/* The process is killed during a write; the daemon writes the bytes to a temporary file. */
static void
a_killed_process_does_not_stop_others(void **state)
{
    struct world *w = *state;
    struct writer x = { .w = w, .first = 1, .waits = true };

    start_writer(&x);
    open_3fs(w, NULL);
    set_tokens(&w->f, 0);
    write_chunks(&w->f, 0, N_CHUNKS);
    double iovs = usrbiod_count(&usrbiod, "iovs"), rings = usrbiod_count(&usrbiod, "rings");
    assert_int_equal((int)iovs, 2);
    usrbiod_command(&usrbiod, "fault write stuck");
    assert_int_equal(write(x.go[1], "", 1), 1);
    while (usrbiod_count(&usrbiod, "in_flight") < N_CHUNKS)
        usleep(1000);
    kill_writer(&x);
    daemon_comes_to("iovs", 1);
    daemon_comes_to("rings", (unsigned)rings / 2);
    usrbiod_command(&usrbiod, "clear");
    usrbiod_command(&usrbiod, "release");
    daemon_comes_to("live_inodes", 0);
    assert_int_equal(n_temporary(w), N_CHUNKS);
    set_tokens(&w->f, 3);
    write_chunks(&w->f, 0, N_CHUNKS);
    assert_int_equal(load_prompt(&w->f).loaded, N_CHUNKS);
    load_all(w, 4);
    close_3fs(w);
    assert_int_equal(n_damaged(w), 0);
    open_3fs(w, NULL); /* as the process's replacement does */
    assert_int_equal(n_temporary(w), 0);
    load_all(w, 4);
}

/* Store and load, at random, prompts that other processes store and load too; then exit with 0. */
static void
work(void *arg)
{
    struct writer *x = arg;
    struct fixture *f = &x->w->f;
    uint64_t random = x->first;
    unsigned n_loaded = 0;

    open_3fs(x->w, NULL);
    for (unsigned i = 0; i < rounds(ROUNDS); i++)
        n_loaded += store_or_load(f, &random, N_PROMPTS);
    assert_true(n_loaded > 0 || rounds(ROUNDS) < ROUNDS);
    assert_int_equal(counter(f, "store_failed"), 0);
    assert_int_equal(counter(f, "load_corrupt"), 0);
    kvt_engine_close(f->engine);
    device_free(f->memory);
}

static void
two_engines_continue_while_others_are_killed(void **state)
{
    struct world *w = *state;
    struct writer workers[2], x = { .w = w, .of_all = true };
    unsigned n_ended = 0;
    int status;

    usrbiod_command(&usrbiod, "fault write delay_ms=5 p=0.3");
    for (uint32_t i = 0; i < 2; i++) {
        workers[i] = (struct writer){ .w = w, .first = i + 1 };
        workers[i].pid = start_child(work, &workers[i]);
    }
    for (unsigned i = 0; n_ended < 2; i++) {
        start_writer(&x);
        usleep(i % 7 * 9000);
        kill_writer(&x);
        for (int j = 0; j < 2; j++)
            if (workers[j].pid && waitpid(workers[j].pid, &status, WNOHANG) > 0) {
                assert_int_equal(status, 0);
                workers[j].pid = 0;
                n_ended++;
            }
    }
    daemon_forgets_all();
    assert_int_equal(n_damaged(w), 0);
    open_3fs(w, NULL);
    assert_int_equal(n_temporary(w), 0);
    load_all(w, N_PROMPTS);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(killed_writers_leave_whole_chunks_and_nothing_else),
        TEST(a_killed_process_does_not_stop_others),
        TEST(two_engines_continue_while_others_are_killed),
        cmocka_unit_test(only_the_selected_client_was_used),
    };

    (void)own_shm(NULL); /* tests elsewhere leave names behind */
    hf3fs_watch_log();
    return usrbiod_run_tests(&usrbiod, "processes over 3FS", tests,
                             sizeof tests / sizeof *tests, NULL, NULL);
}
