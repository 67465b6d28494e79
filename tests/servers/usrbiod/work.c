/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads: workers move bytes, a thread runs the timers, and a watcher waits for each submit
 * semaphore.  No thread sleeps during an I/O. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "usrbiod.h"

/* ------------------------------------------------------------------------ workers */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct job *first, **last = &first, *stuck;
static bool stop;
static pthread_t *workers;
static unsigned n_workers;

void
work_push(struct job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&lock);
    *last = job;
    last = &job->next;
    pthread_cond_signal(&more);
    pthread_mutex_unlock(&lock);
}

/* Park a job until the next release.  If a release came after the fault was found, run the job at
 * once. */
void
job_park(struct job *job, unsigned generation)
{
    pthread_mutex_lock(&lock);
    bool parked = generation == fault_generation();
    if (parked) {
        job->next = stuck;
        stuck = job;
        count_stuck(1);
    }
    pthread_mutex_unlock(&lock);
    if (!parked)
        work_push(job);
}

size_t
work_release(void)
{
    size_t n = 0;

    fault_release();
    pthread_mutex_lock(&lock);
    struct job *list = stuck;
    stuck = NULL;
    pthread_mutex_unlock(&lock);
    while (list) {
        struct job *job = list;

        list = job->next;
        count_stuck(-1);
        work_push(job);
        n++;
    }
    return n;
}

static void *
work(void *arg)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        struct job *job = first;

        if (!job && stop)
            break;
        if (!job) {
            pthread_cond_wait(&more, &lock);
            continue;
        }
        first = job->next;
        if (!first)
            last = &first;
        pthread_mutex_unlock(&lock);
        job_run(job);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return arg;
}

int
work_start(void)
{
    workers = calloc(opt.n_workers, sizeof *workers);
    if (!workers)
        return ENOMEM;
    for (; n_workers < opt.n_workers; n_workers++) {
        int err = pthread_create(&workers[n_workers], NULL, work, NULL);
        if (err)
            return err;
    }
    return 0;
}

void
work_stop(void)
{
    pthread_mutex_lock(&lock);
    stop = true;
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&lock);
    while (n_workers)
        pthread_join(workers[--n_workers], NULL);
    free(workers);
}

/* ------------------------------------------------------------------------- timers */

struct timer {
    int64_t at_ns;
    struct job *job;
};

static pthread_mutex_t timer_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t timer_changed; /* waits use the monotonic clock */
static struct timer *heap;           /* the first timer is the earliest */
static size_t n_heap, heap_room;
static bool timer_stop, timer_hurry;
static pthread_t timer_thread;

static void
sift_up(struct timer t)
{
    size_t at = n_heap++;

    for (; at && heap[(at - 1) / 2].at_ns > t.at_ns; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = t;
}

static struct job *
take_first(void)
{
    struct job *job = heap[0].job;
    struct timer t = heap[--n_heap];
    size_t at = 0, child;

    while ((child = 2 * at + 1) < n_heap) {
        child += child + 1 < n_heap && heap[child + 1].at_ns < heap[child].at_ns;
        if (heap[child].at_ns >= t.at_ns)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = t;
    return job;
}

void
timers_add(struct job *job, int64_t at_ns)
{
    pthread_mutex_lock(&timer_lock);
    if (n_heap == heap_room) {
        size_t n = heap_room ? heap_room * 2 : 256;
        struct timer *bigger = reallocarray(heap, n, sizeof *heap);

        if (!bigger)
            abort();
        heap = bigger;
        heap_room = n;
    }
    sift_up((struct timer){ at_ns, job });
    if (heap[0].job == job || timer_hurry)
        pthread_cond_signal(&timer_changed);
    pthread_mutex_unlock(&timer_lock);
}

static void
run_due(struct job *job)
{
    if (job->moved)
        job_finish(job);
    else
        work_push(job);
}

static void *
run_timers(void *arg)
{
    pthread_mutex_lock(&timer_lock);
    while (n_heap || !timer_stop) {
        if (!n_heap) {
            pthread_cond_wait(&timer_changed, &timer_lock);
        } else if (heap[0].at_ns > now_ns() && !timer_hurry) {
            struct timespec until = { heap[0].at_ns / 1000000000,
                                      heap[0].at_ns % 1000000000 };
            pthread_cond_timedwait(&timer_changed, &timer_lock, &until);
        } else {
            struct job *job = take_first();

            pthread_mutex_unlock(&timer_lock);
            run_due(job);
            pthread_mutex_lock(&timer_lock);
        }
    }
    pthread_mutex_unlock(&timer_lock);
    return arg;
}

int
timers_start(void)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&timer_changed, &attr);
    pthread_condattr_destroy(&attr);
    return pthread_create(&timer_thread, NULL, run_timers, NULL);
}

void
timers_hurry(void)
{
    pthread_mutex_lock(&timer_lock);
    timer_hurry = true;
    pthread_cond_signal(&timer_changed);
    pthread_mutex_unlock(&timer_lock);
}

void
timers_stop(void)
{
    pthread_mutex_lock(&timer_lock);
    timer_stop = true;
    pthread_cond_signal(&timer_changed);
    pthread_mutex_unlock(&timer_lock);
    pthread_join(timer_thread, NULL);
    free(heap);
}

/* ----------------------------------------------------------------------- watchers */

static pthread_t watchers[N_PRIOS];
static unsigned n_watchers;
static atomic_bool watch_end;

/* Take jobs after each post, and at no other time. */
static void *
watch(void *arg)
{
    int priority = (int)(intptr_t)arg;
    struct effect e;

    for (;;) {
        if (sem_wait(sems_get(priority)) < 0)
            continue;
        if (atomic_load(&watch_end))
            return NULL;
        count_post();
        if (fault_find(OP_SUBMIT, "", 0, &e) && e.lost_wakeup)
            continue;
        while (table_scan(priority))
            continue;
    }
}

int
watch_start(void)
{
    for (; n_watchers < N_PRIOS; n_watchers++) {
        int err = pthread_create(&watchers[n_watchers], NULL, watch,
                                 (void *)(intptr_t)n_watchers);
        if (err)
            return err;
    }
    return 0;
}

void
watch_stop(void)
{
    atomic_store(&watch_end, true);
    for (unsigned i = 0; i < n_watchers; i++)
        sem_post(sems_get((int)i));
    while (n_watchers)
        pthread_join(watchers[--n_watchers], NULL);
}
