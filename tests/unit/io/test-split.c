/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs in parts: the threads that run the parts, the number of parts at a time, and the end: no
 * part runs after kvt__exec_run_split() has returned. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "kvt-test.h"

#include "base/error.h"
#include "io/exec.h"

#define MAX_PARTS 64

/* A job with n parts, and the record of the parts' runs. */
struct work {
    struct kvt__split split; /* first */
    struct kvt__job job;
    sem_t done;
    int err;
    char why[128];

    pthread_barrier_t together;
    sem_t entered, open;       /* for parts that wait */
    struct kvt__job *let_come; /* a more urgent job, which a part submits */
    struct kvt__exec *exec;
    pthread_mutex_t lock;
    char trace[MAX_PARTS + 2];
    pthread_t by[MAX_PARTS];   /* thread of each part */
    atomic_int n_run, n_running;
};

static void
run_work(struct kvt__job *job)
{
    struct work *w = (struct work *)((char *)job - offsetof(struct work, job));

    w->err = kvt__exec_run_split(&w->split);
    assert_int_equal(w->n_running, 0);
    snprintf(w->why, sizeof w->why, "%s", w->err ? kvt__why() : "");
    sem_post(&w->done);
}

static void
note(struct work *w, char c)
{
    pthread_mutex_lock(&w->lock);
    w->trace[strlen(w->trace)] = c;
    pthread_mutex_unlock(&w->lock);
}

/* Record the start of a part. */
static void
begin(struct work *w, size_t i)
{
    w->n_running++;
    w->n_run++;
    w->by[i] = pthread_self();
}

static int
end(struct work *w, int err)
{
    w->n_running--;
    return err;
}

static int
run_part(struct kvt__split *split, size_t i)
{
    struct work *w = (struct work *)split;

    begin(w, i);
    return end(w, 0);
}

static void
work_init(struct work *w, size_t n, int (*run)(struct kvt__split *, size_t))
{
    memset(w, 0, sizeof *w);
    w->split.n = n;
    w->split.run = run;
    w->job.run = run_work;
    sem_init(&w->done, 0, 0);
    sem_init(&w->entered, 0, 0);
    sem_init(&w->open, 0, 0);
    pthread_mutex_init(&w->lock, NULL);
}

static void
work_fini(struct work *w)
{
    sem_destroy(&w->done);
    sem_destroy(&w->entered);
    sem_destroy(&w->open);
    pthread_mutex_destroy(&w->lock);
}

static struct kvt__exec *
open_exec(size_t n_threads)
{
    struct kvt__exec *exec = NULL;

    if (kvt__exec_open(n_threads, &exec))
        fail_msg("%s", kvt__why());
    return exec;
}

/* --------------------------------------------------------------- threads of the parts */

static int
run_together(struct kvt__split *split, size_t i)
{
    struct work *w = (struct work *)split;

    begin(w, i);
    pthread_barrier_wait(&w->together);
    assert_int_equal(kvt__exec_n_workers(), 4);
    return end(w, 0);
}

static void
idle_threads_help(void **state)
{
    struct kvt__exec *exec = open_exec(4);
    struct work w;

    (void)state;
    work_init(&w, 8, run_together);
    pthread_barrier_init(&w.together, NULL, 4);
    kvt__exec_submit(exec, KVT__PRIO_LOAD, &w.job);
    sem_wait(&w.done);
    assert_int_equal(w.err, 0);
    assert_int_equal(w.n_run, 8);
    kvt__exec_close(exec);
    pthread_barrier_destroy(&w.together);
    work_fini(&w);
}

static int
run_and_wait(struct kvt__split *split, size_t i)
{
    struct work *w = (struct work *)split;

    begin(w, i);
    sem_post(&w->entered);
    sem_wait(&w->open);
    return end(w, 0);
}

static void
when_all_others_are_busy_the_caller_runs_all(void **state)
{
    struct kvt__exec *exec = open_exec(3);
    struct work busy[2], w;

    (void)state;
    for (int i = 0; i < 2; i++) {
        work_init(&busy[i], 1, run_and_wait);
        kvt__exec_submit(exec, KVT__PRIO_STORE, &busy[i].job);
        sem_wait(&busy[i].entered);
    }
    work_init(&w, 9, run_part);
    kvt__exec_submit(exec, KVT__PRIO_STORE, &w.job);
    sem_wait(&w.done);
    assert_int_equal(w.n_run, 9);
    for (int i = 1; i < 9; i++)
        assert_true(pthread_equal(w.by[i], w.by[0]));
    for (int i = 0; i < 2; i++)
        sem_post(&busy[i].open);
    kvt__exec_close(exec);
    for (int i = 0; i < 2; i++)
        work_fini(&busy[i]);
    work_fini(&w);
}

static void
a_thread_of_no_executor_runs_all(void **state)
{
    struct work w;

    (void)state;
    assert_int_equal(kvt__exec_n_workers(), 1);
    work_init(&w, 5, run_part);
    run_work(&w.job);
    assert_int_equal(w.n_run, 5);
    for (int i = 0; i < 5; i++)
        assert_true(pthread_equal(w.by[i], pthread_self()));
    work_fini(&w);
}

/* A part of a store.  The first part of the helping thread submits a load. */
static int
run_of_store(struct kvt__split *split, size_t i)
{
    struct work *w = (struct work *)split;

    begin(w, i);
    if (i == 0) {
        sem_wait(&w->open); /* until the load has run */
    } else {
        note(w, (char)('0' + i));
        if (i == 1)
            kvt__exec_submit(w->exec, KVT__PRIO_LOAD, w->let_come);
    }
    return end(w, 0);
}

struct load {
    struct kvt__job job;
    struct work *work;
};

static void
run_load(struct kvt__job *job)
{
    struct work *w = ((struct load *)job)->work;

    note(w, 'L');
    sem_post(&w->open);
}

static void
a_helper_of_a_store_runs_a_load_first(void **state)
{
    struct kvt__exec *exec = open_exec(2);
    struct work w;
    struct load load = { .job.run = run_load, .work = &w };

    (void)state;
    work_init(&w, 4, run_of_store);
    w.exec = exec;
    w.let_come = &load.job;
    kvt__exec_submit(exec, KVT__PRIO_STORE, &w.job);
    sem_wait(&w.done);
    kvt__exec_close(exec);
    assert_int_equal(w.n_run, 4);
    assert_memory_equal(w.trace, "1L", 2);
    work_fini(&w);
}

/* A job without a thread is more urgent than the parts of a job that has a thread. */
static void
jobs_run_before_parts_of_equal_priority(void **state)
{
    struct kvt__exec *exec = open_exec(2);
    struct work held, w, other;

    (void)state;
    work_init(&held, 1, run_and_wait);
    work_init(&w, 2, run_and_wait);
    work_init(&other, 1, run_and_wait);
    kvt__exec_submit(exec, KVT__PRIO_LOAD, &held.job);
    sem_wait(&held.entered);
    kvt__exec_submit(exec, KVT__PRIO_LOAD, &w.job);
    sem_wait(&w.entered); /* the first part runs */
    kvt__exec_submit(exec, KVT__PRIO_LOAD, &other.job);
    sem_post(&held.open);
    sem_wait(&other.entered);
    assert_int_equal(w.n_run, 1);
    sem_post(&w.open);
    sem_post(&w.open);
    sem_post(&other.open);
    kvt__exec_close(exec);
    assert_int_equal(w.n_run, 2);
    work_fini(&held);
    work_fini(&w);
    work_fini(&other);
}

/* ------------------------------------------------------------------------ failures */

static int
run_third_fails(struct kvt__split *split, size_t i)
{
    struct work *w = (struct work *)split;

    begin(w, i);
    return end(w, i == 2 ? kvt__fail(EIO, "part %zu is damaged.", i) : 0);
}

static void
after_a_part_that_failed_no_other_begins(void **state)
{
    struct kvt__exec *exec = open_exec(2);
    struct work busy, w;

    (void)state;
    work_init(&busy, 1, run_and_wait);
    kvt__exec_submit(exec, KVT__PRIO_LOAD, &busy.job);
    sem_wait(&busy.entered);
    work_init(&w, 9, run_third_fails);
    kvt__exec_submit(exec, KVT__PRIO_LOAD, &w.job);
    sem_wait(&w.done);
    assert_int_equal(w.err, -EIO);
    assert_string_equal(w.why, "part 2 is damaged.");
    assert_int_equal(w.n_run, 3);
    sem_post(&busy.open);
    kvt__exec_close(exec);
    assert_int_equal(w.n_run, 3);
    work_fini(&busy);
    work_init(&w, 9, run_third_fails);
    run_work(&w.job); /* the result is equal without an executor */
    assert_int_equal(w.n_run, 3);
    assert_string_equal(w.why, "part 2 is damaged.");
    work_fini(&w);
}

/* All parts fail, with different errors and sentences. */
static int
run_all_fail(struct kvt__split *split, size_t i)
{
    struct work *w = (struct work *)split;

    begin(w, i);
    pthread_barrier_wait(&w->together);
    return end(w, kvt__fail(100 + (int)i, "part %zu is damaged.", i));
}

static void
the_first_failure_keeps_its_message(void **state)
{
    struct kvt__exec *exec = open_exec(3);
    char right[64];

    (void)state;
    for (int round = 0; round < 20; round++) {
        struct work w;

        work_init(&w, 30, run_all_fail);
        pthread_barrier_init(&w.together, NULL, 3);
        kvt__exec_submit(exec, KVT__PRIO_LOAD, &w.job);
        sem_wait(&w.done);
        assert_in_range(-w.err, 100, 102);
        snprintf(right, sizeof right, "part %d is damaged.", -w.err - 100);
        assert_string_equal(w.why, right);
        assert_int_equal(w.n_run, 3);
        pthread_barrier_destroy(&w.together);
        work_fini(&w);
    }
    kvt__exec_close(exec);
}

/* --------------------------------------------------------------------------- many */

static void
every_part_of_many_jobs_runs_once_before_close_returns(void **state)
{
    static struct work works[200];
    struct kvt__exec *exec = open_exec(4);

    (void)state;
    for (size_t i = 0; i < 200; i++) {
        work_init(&works[i], i % 17, run_part);
        kvt__exec_submit(exec, (enum kvt__prio)(i % KVT__N_PRIOS), &works[i].job);
    }
    kvt__exec_close(exec);
    for (size_t i = 0; i < 200; i++) {
        assert_int_equal(works[i].err, 0);
        assert_int_equal(works[i].n_run, i % 17);
        work_fini(&works[i]);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idle_threads_help),
        cmocka_unit_test(when_all_others_are_busy_the_caller_runs_all),
        cmocka_unit_test(a_thread_of_no_executor_runs_all),
        cmocka_unit_test(a_helper_of_a_store_runs_a_load_first),
        cmocka_unit_test(jobs_run_before_parts_of_equal_priority),
        cmocka_unit_test(after_a_part_that_failed_no_other_begins),
        cmocka_unit_test(the_first_failure_keeps_its_message),
        cmocka_unit_test(every_part_of_many_jobs_runs_once_before_close_returns),
    };

    return cmocka_run_group_tests_name("io executor, parts", tests, NULL, NULL);
}
