/* SPDX-License-Identifier: Apache-2.0
 *
 * Two processes store and load overlapping prefixes in one directory, with a limit far too small
 * for all chunks. */
#include <signal.h>

#include "system/system-test.h"

#define N_PROMPTS 12u
#define BUDGET (UINT64_C(2) << 20) /* some 75 of 120 chunks */
#define ROUNDS 1000u

static const char *const settings[] = {
    "max_local_cpu_size=0.004", "max_remote_size=0.001953125",
    "extra_config={\"disk_io_threads\": 2}", NULL };

struct task {
    struct fixture fixture;
    uint64_t random;
};

/* Store and load at random; exit with 0 if all bytes were right. */
static void
work(void *arg)
{
    struct task *task = arg;
    struct fixture *f = &task->fixture;
    unsigned n_loaded = 0;

    fixture_open(f, settings);
    /* In the first rounds the other process may have evicted every chunk: then continue. */
    for (unsigned i = 0; i < rounds(ROUNDS) || (!n_loaded && i < 50 * ROUNDS); i++) {
        n_loaded += store_or_load(f, &task->random, N_PROMPTS);
        assert_true(index_totals(f).used_bytes <= BUDGET);
    }
    assert_true(n_loaded > 0);
    assert_int_equal(counter(f, "store_failed"), 0);
    assert_int_equal(counter(f, "load_corrupt"), 0);
    kvt_engine_close(f->engine);
    device_free(f->memory);
}

static void
two_processes_share_a_directory_and_its_budget(void **state)
{
    struct task tasks[2];
    pid_t children[2];

    (void)state;
    fixture_init(&tasks[0].fixture);
    tasks[1].fixture = tasks[0].fixture;
    for (unsigned i = 0; i < 2; i++) {
        tasks[i].random = i + 1;
        children[i] = start_child(work, &tasks[i]);
    }
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(end_child(children[i]), 0);
    struct fixture *f = &tasks[0].fixture;
    fixture_open(f, settings);
    struct kvt__table_totals totals = read_index(f, true);
    struct usage usage = usage_of(f);
    assert_int_equal(totals.used_bytes, usage.bytes);
    assert_int_equal(totals.n_entries, usage.n_files);
    assert_true(usage.bytes <= BUDGET);
    assert_int_equal(usage.n_damaged, 0);
    assert_int_equal(n_temporary_files(f), 0);
    fixture_fini(f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_processes_share_a_directory_and_its_budget),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
