/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor: a few worker threads, which run jobs by priority and help with the parts of each
 * other's jobs, and a timer thread, which runs timers on time even if all workers hang in I/O.
 * Any thread may call these functions.  They do not block and allocate nothing, unless the
 * function's comment says otherwise. */
#ifndef KVT_IO_EXEC_H
#define KVT_IO_EXEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct kvt__exec;

/* Priorities, the most urgent first.  Jobs of equal priority run in the order of submission. */
enum kvt__prio {
    KVT__PRIO_LOOKUP,
    KVT__PRIO_LOAD,
    KVT__PRIO_PREFETCH,
    KVT__PRIO_STORE,
    KVT__N_PRIOS
};

/* A job, embedded in the caller's struct.  The executor owns the job from submit until the call of
 * run(), which may free the job. */
struct kvt__job {
    void (*run)(struct kvt__job *job); /* on a worker thread; may block */
    struct kvt__job *next; /* private to the executor */
};

/* A timer, embedded in the caller's struct.  The executor owns the timer from kvt__timer_set()
 * until run() is called or kvt__timer_clear() returns true. */
struct kvt__timer {
    void (*run)(struct kvt__timer *timer); /* on the timer thread; must not block */
    int64_t at_ns;                         /* monotonic */
    struct kvt__timer *prev, *next;        /* private to the executor, as is set */
    bool set;
};

/* The work of a job in n parts, which may run in any order and at the same time. */
struct kvt__split {
    int (*run)(struct kvt__split *split, size_t i); /* run part i: 0, or -errno with a sentence */
    size_t n;

    /* Private to the executor; the caller zeroes these fields. */
    struct kvt__split *next;
    size_t n_begun, n_running;
    struct kvt__error error;
};

/* Start n_threads workers, at least 1, and the timer thread.  Return 0, or -errno with a
 * sentence. */
int kvt__exec_open(size_t n_threads, struct kvt__exec **out);

/* Run all queued and expected jobs, then end the threads and free the executor; NULL is allowed.
 * Timers that are not due are never run.  Blocks; must not be called on a thread of the
 * executor. */
void kvt__exec_close(struct kvt__exec *exec);

/* Queue a job. */
void kvt__exec_submit(struct kvt__exec *exec, enum kvt__prio prio,
                      struct kvt__job *job);

/* Announce a job that another thread submits later, when an asynchronous operation has ended:
 * kvt__exec_close() waits for the job.  Each announced job must be submitted by
 * kvt__exec_submit_expected(). */
void kvt__exec_expect(struct kvt__exec *exec);
void kvt__exec_submit_expected(struct kvt__exec *exec, enum kvt__prio prio,
                               struct kvt__job *job);

/* Return true if the calling thread is a worker of this executor. */
bool kvt__exec_is_worker(const struct kvt__exec *exec);

/* Return the number of workers of the calling thread's executor; 1 if the calling thread is not a
 * worker. */
size_t kvt__exec_n_workers(void);

/* Run all parts on the calling thread, and on each worker of the same executor that has no job of
 * equal or higher priority.  The calling thread alone can run all parts, so progress does not
 * depend on other workers.  After a failed part, no further part begins.  Blocks until no part
 * runs.  Return 0, or the error of the first failed part, with the part's sentence. */
int kvt__exec_run_split(struct kvt__split *split);

/* Call timer->run() at the monotonic time timer->at_ns.  The timer must not be set. */
void kvt__timer_set(struct kvt__exec *exec, struct kvt__timer *timer);

/* Clear the timer.  Return false if the timer was not set: run() is running, has run, or the timer
 * was never set. */
bool kvt__timer_clear(struct kvt__exec *exec, struct kvt__timer *timer);

#endif
