/* SPDX-License-Identifier: Apache-2.0
 *
 * Storing processes are killed at random instants, a thousand times, mostly while another
 * process stores.  A later process can load every promised chunk, with the right bytes; no
 * file is left over, and the limit holds. */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "system/system-test.h"

#define N_PROMPTS 60u
#define BUDGET (UINT64_C(10) << 20) /* some 370 of 600 chunks */
#define KILLS 200u
#define VERIFY_EVERY 100u
#define LONGEST_NS 5000000u

static const char *const settings[] = {
    "max_local_cpu_size=0.004", "max_remote_size=0.009765625",
    "extra_config={\"disk_io_threads\": 2}", NULL };

struct task {
    struct fixture f;
    int ready_fd;
};

static void
store_for_ever(void *arg)
{
    struct task *task = arg;
    struct fixture f = task->f;
    uint64_t random = (uint64_t)getpid() << 32 ^ (uint64_t)time(NULL);

    fixture_open(&f, settings);
    if (write(task->ready_fd, "", 1) < 0 && errno != EPIPE)
        _exit(1);
    for (;;) {
        set_tokens(&f, (uint32_t)(next_random(&random) % N_PROMPTS));
        store_chunks(&f, 0, 1 + (uint32_t)(next_random(&random) % N_CHUNKS));
        if (next_random(&random) % 2 && kvt_engine_flush(f.engine, -1))
            _exit(1);
    }
}

/* Assert that every promised chunk can be loaded; return the number of chunks. */
static unsigned
verify(struct fixture *f)
{
    unsigned n = 0;

    fixture_open(f, settings);
    assert_true(index_totals(f).used_bytes <= BUDGET);
    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        set_tokens(f, p);
        struct outcome got = load_prompt(f);
        if (got.loaded != got.promised)
            fail_msg("prompt %u: %u of %u promised chunks, status %d", p, got.loaded,
                     got.promised, got.first_error);
        n += got.loaded;
    }
    return n;
}

/* The index knows all files of the directory, and nothing else is in the directory.  A claim
 * of a killed process leaves an unread entry, perhaps without a file, until a probe of the
 * name. */
static void
compare_with_directory(const struct fixture *f, unsigned n_loaded)
{
    struct kvt__table_totals totals = read_index(f, true);
    struct usage usage = usage_of(f);

    print_message("%u chunks loaded; directory: %zu files, %llu bytes; index: %llu "
                  "entries, %llu bytes\n", n_loaded, usage.n_files,
                  (unsigned long long)usage.bytes, (unsigned long long)totals.n_entries,
                  (unsigned long long)totals.used_bytes);
    assert_in_range(usage.n_files, totals.n_entries - totals.n_unread, totals.n_entries);
    assert_in_range(totals.used_bytes, usage.bytes, BUDGET);
    if (!totals.n_unread)
        assert_int_equal(totals.used_bytes, usage.bytes);
    assert_int_equal(usage.n_damaged, 0);
    assert_int_equal(n_temporary_files(f), 0);
}

static void
end(pid_t *child)
{
    if (*child) {
        kill(*child, SIGKILL);
        assert_true(WIFSIGNALED(end_child(*child)));
    }
    *child = 0;
}

/* Start a storing process; if `wait`, wait until the process's engine is open. */
static pid_t
start(struct task *task, bool wait)
{
    int ends[2];
    char byte;

    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    task->ready_fd = ends[1];
    pid_t pid = start_child(store_for_ever, task);
    close(ends[1]);
    if (wait)
        assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return pid;
}

static void
a_killed_process_leaves_complete_chunks_only(void **state)
{
    unsigned kills = rounds(KILLS), n = 0;
    pid_t children[2] = { 0 };
    uint64_t random = 1;
    struct task task;

    (void)state;
    fixture_init(&task.f);
    for (unsigned k = 1; k <= kills; k++) {
        uint64_t r = next_random(&random);
        struct timespec life = { 0, (long)(r % LONGEST_NS) };

        children[k % 2] = start(&task, r >> 40 & 3);
        nanosleep(&life, NULL);
        end(&children[(k + 1) % 2]); /* kill the older process while the other stores */
        if (k % VERIFY_EVERY && k != kills)
            continue;
        end(&children[k % 2]);
        n = verify(&task.f);
        if (k != kills)
            kvt_engine_close(task.f.engine);
    }
    assert_true(n > 0);
    compare_with_directory(&task.f, n);
    assert_int_equal(counter(&task.f, "load_corrupt"), 0);
    fixture_fini(&task.f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_process_leaves_complete_chunks_only),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
