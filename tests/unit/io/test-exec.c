/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor: the order of jobs and timers, and the jobs and timers that never run. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvt-test.h"

#include "base/clock.h"
#include "base/error.h"
#include "io/exec.h"

static struct kvt__exec *
open_exec(size_t n_threads)
{
    struct kvt__exec *exec = NULL;

    if (kvt__exec_open(n_threads, &exec))
        fail_msg("%s", kvt__why());
    return exec;
}

/* A job that holds its worker until the gate is open. */
struct gate {
    struct kvt__job job;
    sem_t entered;
    sem_t open;
};

static void
run_gate(struct kvt__job *job)
{
    struct gate *gate = (struct gate *)job;

    sem_post(&gate->entered);
    sem_wait(&gate->open);
}

static void
gate_init(struct gate *gate)
{
    memset(gate, 0, sizeof *gate);
    gate->job.run = run_gate;
    sem_init(&gate->entered, 0, 0);
    sem_init(&gate->open, 0, 0);
}

static void
gate_fini(struct gate *gate)
{
    sem_destroy(&gate->entered);
    sem_destroy(&gate->open);
}

/* The record of jobs and timers, in the order of their runs. */
struct trace {
    pthread_mutex_t lock;
    char text[256];
    size_t n;
    sem_t *when; /* posted after each run; NULL: not used */
};

static void
note(struct trace *trace, char c)
{
    pthread_mutex_lock(&trace->lock);
    if (trace->n < sizeof trace->text - 1)
        trace->text[trace->n++] = c;
    pthread_mutex_unlock(&trace->lock);
    if (trace->when)
        sem_post(trace->when);
}

struct noting {
    struct kvt__job job;
    struct kvt__timer timer;
    struct trace *trace;
    char c;
};

static void
run_noting_job(struct kvt__job *job)
{
    struct noting *n = (struct noting *)job;

    note(n->trace, n->c);
}

static void
run_noting_timer(struct kvt__timer *timer)
{
    struct noting *n = (struct noting *)((char *)timer -
                                         offsetof(struct noting, timer));

    note(n->trace, n->c);
}

static struct noting
noting(struct trace *trace, char c, int64_t at_ns)
{
    return (struct noting){ .job.run = run_noting_job, .timer.run = run_noting_timer,
                            .timer.at_ns = at_ns, .trace = trace, .c = c };
}

/* -------------------------------------------------------------------- jobs */

static void
jobs_run_by_priority_then_in_the_order_they_came(void **state)
{
    static const struct {
        enum kvt__prio prio;
        char c;
    } jobs[] = {
        { KVT__PRIO_STORE, 'g' }, { KVT__PRIO_PREFETCH, 'e' }, { KVT__PRIO_LOAD, 'c' },
        { KVT__PRIO_STORE, 'h' }, { KVT__PRIO_LOOKUP, 'a' },   { KVT__PRIO_LOAD, 'd' },
        { KVT__PRIO_LOOKUP, 'b' }, { KVT__PRIO_PREFETCH, 'f' },
    };
    struct trace trace = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct kvt__exec *exec = open_exec(1);
    struct noting notings[8];
    struct gate gate;

    (void)state;
    gate_init(&gate);
    kvt__exec_submit(exec, KVT__PRIO_STORE, &gate.job);
    sem_wait(&gate.entered);
    for (size_t i = 0; i < 8; i++) {
        notings[i] = noting(&trace, jobs[i].c, 0);
        kvt__exec_submit(exec, jobs[i].prio, &notings[i].job);
    }
    sem_post(&gate.open);
    kvt__exec_close(exec);
    assert_string_equal(trace.text, "abcdefgh");
    gate_fini(&gate);
}

#define N_SUBMITTERS 3
#define N_EACH 500

struct counting {
    struct kvt__job job;
    _Atomic int *n;
};

static void
run_counting(struct kvt__job *job)
{
    atomic_fetch_add(((struct counting *)job)->n, 1);
    free(job);
}

struct submitter {
    struct kvt__exec *exec;
    _Atomic int *n;
};

static void *
submitter_main(void *arg)
{
    struct submitter *s = arg;

    for (int i = 0; i < N_EACH; i++) {
        struct counting *c = calloc(1, sizeof *c);

        if (!c)
            abort();
        c->job.run = run_counting;
        c->n = s->n;
        kvt__exec_submit(s->exec, (enum kvt__prio)(i % KVT__N_PRIOS), &c->job);
    }
    return NULL;
}

static void
every_job_has_run_once_when_close_returns(void **state)
{
    struct kvt__exec *exec = open_exec(3);
    pthread_t threads[N_SUBMITTERS];
    _Atomic int n = 0;
    struct submitter submitter = { exec, &n };

    (void)state;
    for (int i = 0; i < N_SUBMITTERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, submitter_main,
                                        &submitter), 0);
    for (int i = 0; i < N_SUBMITTERS; i++)
        pthread_join(threads[i], NULL);
    kvt__exec_close(exec);
    assert_int_equal(n, N_SUBMITTERS * N_EACH);
}

/* A thread that submits an expected job after 50 ms, when close probably waits. */
struct late {
    struct kvt__exec *exec;
    struct counting *job;
};

static void *
late_main(void *arg)
{
    struct late *late = arg;

    usleep(50000);
    kvt__exec_submit_expected(late->exec, KVT__PRIO_LOAD, &late->job->job);
    return NULL;
}

static void
close_waits_for_jobs_that_are_expected(void **state)
{
    struct kvt__exec *exec = open_exec(2);
    struct late late[2];
    pthread_t threads[2];
    _Atomic int n = 0;

    (void)state;
    for (int i = 0; i < 2; i++) {
        late[i] = (struct late){ exec, calloc(1, sizeof *late[i].job) };
        assert_non_null(late[i].job);
        *late[i].job = (struct counting){ .job.run = run_counting, .n = &n };
        kvt__exec_expect(exec);
        assert_int_equal(pthread_create(&threads[i], NULL, late_main, &late[i]), 0);
    }
    kvt__exec_close(exec);
    assert_int_equal(n, 2);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

/* A job that submits the next until none is left. */
struct chain {
    struct kvt__job job;
    struct kvt__exec *exec;
    int left;
};

static void
run_chain(struct kvt__job *job)
{
    struct chain *chain = (struct chain *)job;

    if (--chain->left)
        kvt__exec_submit(chain->exec, KVT__PRIO_LOAD, job);
}

static void
jobs_that_jobs_submit_run_before_close_returns(void **state)
{
    struct kvt__exec *exec = open_exec(2);
    struct chain chain = { { run_chain, NULL }, exec, 1000 };

    (void)state;
    kvt__exec_submit(exec, KVT__PRIO_STORE, &chain.job);
    kvt__exec_close(exec);
    assert_int_equal(chain.left, 0);
    kvt__exec_close(NULL);
}

/* ------------------------------------------------------------------- timers */

/* A timer that holds the timer thread until the gate is open: the test sets all other timers
 * before the first of them can run, even if the test's thread waits for a core. */
struct timer_gate {
    struct kvt__timer timer; /* first */
    sem_t entered, open;
};

static void
run_timer_gate(struct kvt__timer *timer)
{
    struct timer_gate *gate = (struct timer_gate *)timer;

    sem_post(&gate->entered);
    sem_wait(&gate->open);
}

static void
timer_gate_enter(struct timer_gate *gate, struct kvt__exec *exec)
{
    *gate = (struct timer_gate){ .timer.run = run_timer_gate };
    sem_init(&gate->entered, 0, 0);
    sem_init(&gate->open, 0, 0);
    kvt__timer_set(exec, &gate->timer);
    sem_wait(&gate->entered);
}

static void
timer_gate_fini(struct timer_gate *gate)
{
    sem_destroy(&gate->entered);
    sem_destroy(&gate->open);
}

static void
timers_run_in_the_order_of_their_times(void **state)
{
    static const int order[] = { 3, 0, 4, 1, 2, 1, 5, 0 };
    struct kvt__exec *exec = open_exec(1);
    sem_t when;
    struct trace trace = { .lock = PTHREAD_MUTEX_INITIALIZER, .when = &when };
    struct noting notings[8];
    struct timer_gate gate;

    (void)state;
    sem_init(&when, 0, 0);
    timer_gate_enter(&gate, exec);
    int64_t start = kvt__now_ns() + 20 * KVT__NS_PER_MS;
    for (size_t i = 0; i < 8; i++) {
        notings[i] = noting(&trace, (char)('0' + order[i]),
                            start + order[i] * KVT__NS_PER_MS);
        kvt__timer_set(exec, &notings[i].timer);
    }
    sem_post(&gate.open);
    for (size_t i = 0; i < 8; i++)
        sem_wait(&when);
    assert_true(kvt__now_ns() >= start + 5 * KVT__NS_PER_MS);
    kvt__exec_close(exec);
    assert_string_equal(trace.text, "00112345");
    timer_gate_fini(&gate);
    sem_destroy(&when);
}

static void
a_timer_of_the_past_runs_at_once(void **state)
{
    struct kvt__exec *exec = open_exec(1);
    sem_t when;
    struct trace trace = { .lock = PTHREAD_MUTEX_INITIALIZER, .when = &when };
    struct noting far = noting(&trace, 'f', kvt__now_ns() + 3600 * KVT__NS_PER_S);
    struct noting past = noting(&trace, 'p', 0);

    (void)state;
    sem_init(&when, 0, 0);
    kvt__timer_set(exec, &far.timer);
    kvt__timer_set(exec, &past.timer);
    sem_wait(&when);
    assert_false(kvt__timer_clear(exec, &past.timer));
    kvt__exec_close(exec); /* far never runs */
    assert_string_equal(trace.text, "p");
    sem_destroy(&when);
}

static void
a_cleared_timer_never_runs(void **state)
{
    struct kvt__exec *exec = open_exec(1);
    sem_t when;
    struct trace trace = { .lock = PTHREAD_MUTEX_INITIALIZER, .when = &when };
    int64_t start = kvt__now_ns() + 30 * KVT__NS_PER_MS;
    struct noting a = noting(&trace, 'a', start);
    struct noting b = noting(&trace, 'b', start + KVT__NS_PER_MS);
    struct noting c = noting(&trace, 'c', start + 2 * KVT__NS_PER_MS);
    struct timer_gate gate;

    (void)state;
    sem_init(&when, 0, 0);
    timer_gate_enter(&gate, exec);
    kvt__timer_set(exec, &c.timer);
    kvt__timer_set(exec, &a.timer);
    kvt__timer_set(exec, &b.timer);
    assert_true(kvt__timer_clear(exec, &b.timer));
    assert_false(kvt__timer_clear(exec, &b.timer));
    sem_post(&gate.open);
    sem_wait(&when);
    sem_wait(&when);
    assert_string_equal(trace.text, "ac");
    kvt__timer_set(exec, &b.timer); /* a cleared timer may be set again */
    sem_wait(&when);
    assert_string_equal(trace.text, "acb");
    kvt__exec_close(exec);
    timer_gate_fini(&gate);
    sem_destroy(&when);
}

static void
a_timer_runs_though_all_workers_hang(void **state)
{
    struct kvt__exec *exec = open_exec(2);
    sem_t when;
    struct trace trace = { .lock = PTHREAD_MUTEX_INITIALIZER, .when = &when };
    struct noting timer = noting(&trace, 't', kvt__now_ns() + KVT__NS_PER_MS);
    struct gate gates[2];

    (void)state;
    sem_init(&when, 0, 0);
    for (int i = 0; i < 2; i++) {
        gate_init(&gates[i]);
        kvt__exec_submit(exec, KVT__PRIO_LOAD, &gates[i].job);
        sem_wait(&gates[i].entered);
    }
    kvt__timer_set(exec, &timer.timer);
    sem_wait(&when);
    for (int i = 0; i < 2; i++)
        sem_post(&gates[i].open);
    kvt__exec_close(exec);
    for (int i = 0; i < 2; i++)
        gate_fini(&gates[i]);
    sem_destroy(&when);
}

/* Each timer is either cleared or run, never both. */
static void
clearing_and_running_exclude_each_other(void **state)
{
    struct kvt__exec *exec = open_exec(1);
    sem_t when;
    struct trace trace = { .lock = PTHREAD_MUTEX_INITIALIZER, .when = &when };

    (void)state;
    sem_init(&when, 0, 0);
    for (int i = 0; i < 500; i++) {
        struct noting n = noting(&trace, 'x', kvt__now_ns() + i % 50 * 1000);

        kvt__timer_set(exec, &n.timer);
        if (!kvt__timer_clear(exec, &n.timer))
            sem_wait(&when);
    }
    kvt__exec_close(exec);
    assert_int_equal(sem_trywait(&when), -1);
    sem_destroy(&when);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_run_by_priority_then_in_the_order_they_came),
        cmocka_unit_test(every_job_has_run_once_when_close_returns),
        cmocka_unit_test(jobs_that_jobs_submit_run_before_close_returns),
        cmocka_unit_test(close_waits_for_jobs_that_are_expected),
        cmocka_unit_test(timers_run_in_the_order_of_their_times),
        cmocka_unit_test(a_timer_of_the_past_runs_at_once),
        cmocka_unit_test(a_cleared_timer_never_runs),
        cmocka_unit_test(a_timer_runs_though_all_workers_hang),
        cmocka_unit_test(clearing_and_running_exclude_each_other),
    };

    return cmocka_run_group_tests_name("io executor", tests, NULL, NULL);
}
