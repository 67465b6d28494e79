/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor's threads and queues.  A lock guards the queues, and another lock guards the
 * timers; neither lock is held while a job or a timer runs.
 *
 * A split job is not in a queue of jobs: kvt__exec_run_split() links the split, which is on its
 * caller's stack, into a list of shared splits while parts have not begun.  A worker takes a
 * single part and then chooses again by priority, so loads do not wait for workers that help with
 * a store. */
#include "io/exec.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"

struct queue {
    struct kvt__job *first;
    struct kvt__job **last; /* the pointer that gets the next job */
};

struct kvt__exec {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct queue queues[KVT__N_PRIOS];
    struct kvt__split *shared[KVT__N_PRIOS]; /* splits with parts that have not begun */
    pthread_cond_t shared_end;  /* the last part of a split has ended */
    size_t n_expected; /* announced jobs that have not been submitted */
    bool stop;

    pthread_mutex_t timer_lock;
    pthread_cond_t timer_changed; /* on the monotonic clock */
    struct kvt__timer timers;     /* head of a ring sorted by at_ns */
    bool timer_stop;
    pthread_t timer_thread;

    size_t n_threads;
    pthread_t threads[];
};

/* For a worker thread: its executor, and the priority of the current job or part. */
static _Thread_local struct {
    struct kvt__exec *exec;
    enum kvt__prio prio;
} current;

/* ------------------------------------------------------------------------- parts */

static void
end_sharing_locked(struct kvt__exec *exec, enum kvt__prio prio, struct kvt__split *split)
{
    struct kvt__split **at = &exec->shared[prio];

    while (*at != split)
        at = &(*at)->next;
    *at = split->next;
}

/* Run the next part of a split, with the lock released meanwhile. */
static void
run_part_locked(struct kvt__exec *exec, enum kvt__prio prio, struct kvt__split *split)
{
    size_t i = split->n_begun++;

    if (split->n_begun == split->n)
        end_sharing_locked(exec, prio, split);
    split->n_running++;
    pthread_mutex_unlock(&exec->lock);
    int err = split->run(split, i);
    pthread_mutex_lock(&exec->lock);
    if (err && !split->error.code) {
        kvt__error_set(&split->error, err);
        if (split->n_begun < split->n)
            end_sharing_locked(exec, prio, split);
        split->n_begun = split->n;
    }
    if (!--split->n_running && split->n_begun == split->n)
        pthread_cond_broadcast(&exec->shared_end); /* then the split's memory becomes invalid */
}

bool
kvt__exec_is_worker(const struct kvt__exec *exec)
{
    return current.exec == exec;
}

size_t
kvt__exec_n_workers(void)
{
    return current.exec ? current.exec->n_threads : 1;
}

static int
run_alone(struct kvt__split *split)
{
    int err = 0;

    for (size_t i = 0; i < split->n && !err; i++)
        err = split->run(split, i);
    return err;
}

int
kvt__exec_run_split(struct kvt__split *split)
{
    struct kvt__exec *exec = current.exec;
    enum kvt__prio prio = current.prio;

    if (!exec || exec->n_threads == 1 || split->n <= 1)
        return run_alone(split);
    pthread_mutex_lock(&exec->lock);
    struct kvt__split **last = &exec->shared[prio];
    while (*last)
        last = &(*last)->next;
    split->next = NULL;
    *last = split;
    /* Wake all workers: each part may have a worker.  A single signal could also wake a worker
     * that then takes a new job instead of a part. */
    pthread_cond_broadcast(&exec->work);
    while (split->n_begun < split->n)
        run_part_locked(exec, prio, split);
    while (split->n_running)
        pthread_cond_wait(&exec->shared_end, &exec->lock);
    pthread_mutex_unlock(&exec->lock);
    return kvt__error_raise(&split->error);
}

/* -------------------------------------------------------------------------- jobs */

static struct kvt__job *
take_job(struct queue *q)
{
    struct kvt__job *job = q->first;

    if (!job)
        return NULL;
    q->first = job->next;
    if (!q->first)
        q->last = &q->first;
    return job;
}

/* Run the most urgent job or part, with the lock released meanwhile.  At equal priority, a job
 * comes before a part, because a part's split already has a thread.  Return false if there is no
 * job and no part. */
static bool
work_locked(struct kvt__exec *exec)
{
    for (enum kvt__prio prio = 0; prio < KVT__N_PRIOS; prio++) {
        struct kvt__job *job = take_job(&exec->queues[prio]);

        current.prio = prio;
        if (job) {
            pthread_mutex_unlock(&exec->lock);
            job->run(job);
            pthread_mutex_lock(&exec->lock);
            return true;
        }
        if (exec->shared[prio]) {
            run_part_locked(exec, prio, exec->shared[prio]);
            return true;
        }
    }
    return false;
}

static void *
worker_main(void *arg)
{
    struct kvt__exec *exec = arg;

    current.exec = exec;
    pthread_mutex_lock(&exec->lock);
    for (;;) {
        if (work_locked(exec))
            continue;
        if (exec->stop && !exec->n_expected)
            break;
        pthread_cond_wait(&exec->work, &exec->lock);
    }
    pthread_mutex_unlock(&exec->lock);
    return NULL;
}

static void
add_job_locked(struct kvt__exec *exec, enum kvt__prio prio, struct kvt__job *job)
{
    struct queue *q = &exec->queues[prio];

    job->next = NULL;
    *q->last = job;
    q->last = &job->next;
}

void
kvt__exec_submit(struct kvt__exec *exec, enum kvt__prio prio,
                 struct kvt__job *job)
{
    pthread_mutex_lock(&exec->lock);
    add_job_locked(exec, prio, job);
    pthread_cond_signal(&exec->work);
    pthread_mutex_unlock(&exec->lock);
}

void
kvt__exec_expect(struct kvt__exec *exec)
{
    pthread_mutex_lock(&exec->lock);
    exec->n_expected++;
    pthread_mutex_unlock(&exec->lock);
}

void
kvt__exec_submit_expected(struct kvt__exec *exec, enum kvt__prio prio,
                          struct kvt__job *job)
{
    pthread_mutex_lock(&exec->lock);
    add_job_locked(exec, prio, job);
    exec->n_expected--;
    if (exec->stop) /* all workers wait for the last expected job */
        pthread_cond_broadcast(&exec->work);
    else
        pthread_cond_signal(&exec->work);
    pthread_mutex_unlock(&exec->lock);
}

/* ------------------------------------------------------------------------ timers */

static void
unlink_timer(struct kvt__timer *timer)
{
    timer->prev->next = timer->next;
    timer->next->prev = timer->prev;
    timer->set = false;
}

static void *
timer_main(void *arg)
{
    struct kvt__exec *exec = arg;

    pthread_mutex_lock(&exec->timer_lock);
    while (!exec->timer_stop) {
        struct kvt__timer *first = exec->timers.next;

        if (first == &exec->timers) {
            pthread_cond_wait(&exec->timer_changed, &exec->timer_lock);
        } else if (first->at_ns > kvt__now_ns()) {
            struct timespec until = kvt__timespec(first->at_ns);
            pthread_cond_timedwait(&exec->timer_changed, &exec->timer_lock, &until);
        } else {
            unlink_timer(first);
            pthread_mutex_unlock(&exec->timer_lock);
            first->run(first);
            pthread_mutex_lock(&exec->timer_lock);
        }
    }
    pthread_mutex_unlock(&exec->timer_lock);
    return NULL;
}

void
kvt__timer_set(struct kvt__exec *exec, struct kvt__timer *timer)
{
    pthread_mutex_lock(&exec->timer_lock);
    assert(!timer->set);
    struct kvt__timer *after = exec->timers.prev;
    while (after != &exec->timers && after->at_ns > timer->at_ns)
        after = after->prev;
    timer->prev = after;
    timer->next = after->next;
    after->next->prev = timer;
    after->next = timer;
    timer->set = true;
    if (exec->timers.next == timer)
        pthread_cond_signal(&exec->timer_changed);
    pthread_mutex_unlock(&exec->timer_lock);
}

bool
kvt__timer_clear(struct kvt__exec *exec, struct kvt__timer *timer)
{
    pthread_mutex_lock(&exec->timer_lock);
    bool was_set = timer->set;
    if (was_set)
        unlink_timer(timer);
    pthread_mutex_unlock(&exec->timer_lock);
    return was_set;
}

/* ----------------------------------------------------------------------- opening */

static void
init_timer_side(struct kvt__exec *exec)
{
    kvt__cond_init(&exec->timer_changed);
    pthread_mutex_init(&exec->timer_lock, NULL);
    exec->timers.prev = exec->timers.next = &exec->timers;
}

static void
stop_threads(struct kvt__exec *exec, size_t n)
{
    pthread_mutex_lock(&exec->lock);
    exec->stop = true;
    pthread_cond_broadcast(&exec->work);
    pthread_mutex_unlock(&exec->lock);
    for (size_t i = 0; i < n; i++)
        pthread_join(exec->threads[i], NULL);
}

static void
free_exec(struct kvt__exec *exec)
{
    pthread_cond_destroy(&exec->timer_changed);
    pthread_mutex_destroy(&exec->timer_lock);
    pthread_cond_destroy(&exec->shared_end);
    pthread_cond_destroy(&exec->work);
    pthread_mutex_destroy(&exec->lock);
    free(exec);
}

int
kvt__exec_open(size_t n_threads, struct kvt__exec **out)
{
    struct kvt__exec *exec;
    size_t started = 0;
    int err = 0;

    assert(n_threads);
    exec = calloc(1, sizeof *exec + n_threads * sizeof exec->threads[0]);
    if (!exec)
        return kvt__fail(ENOMEM, "executor with %zu threads", n_threads);
    pthread_mutex_init(&exec->lock, NULL);
    pthread_cond_init(&exec->work, NULL);
    pthread_cond_init(&exec->shared_end, NULL);
    for (int i = 0; i < KVT__N_PRIOS; i++)
        exec->queues[i].last = &exec->queues[i].first;
    exec->n_threads = n_threads;
    init_timer_side(exec);

    while (!err && started < n_threads) {
        err = kvt__thread_start(&exec->threads[started], "kvt-io", worker_main, exec);
        started += !err;
    }
    if (!err)
        err = kvt__thread_start(&exec->timer_thread, "kvt-timer", timer_main, exec);
    if (err) {
        stop_threads(exec, started);
        free_exec(exec);
        return err;
    }
    *out = exec;
    return 0;
}

void
kvt__exec_close(struct kvt__exec *exec)
{
    if (!exec)
        return;
    stop_threads(exec, exec->n_threads);
    pthread_mutex_lock(&exec->timer_lock);
    exec->timer_stop = true;
    pthread_cond_signal(&exec->timer_changed);
    pthread_mutex_unlock(&exec->timer_lock);
    pthread_join(exec->timer_thread, NULL);
    free_exec(exec);
}
