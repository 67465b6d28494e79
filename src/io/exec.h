/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor: a few threads that run jobs by priority and help with each other's, and one
 * that runs jobs at their deadline even when all others hang in I/O.  Any thread may
 * submit; submitting never blocks and allocates nothing. */
#ifndef KVT_IO_EXEC_H
#define KVT_IO_EXEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct kvt__exec;

/* Served in this order; in one class first come, first served. */
enum kvt__prio {
    KVT__PRIO_LOOKUP,
    KVT__PRIO_LOAD,
    KVT__PRIO_PREFETCH,
    KVT__PRIO_STORE,
    KVT__N_PRIOS
};

/* Part of what is to be done.  Belongs to the executor from submit until run is
 * called, which may free it. */
struct kvt__job {
    void (*run)(struct kvt__job *job);
    struct kvt__job *next;
};

/* A job with a time.  Belongs to the executor from set until run is called or
 * kvt__timer_clear() returns true. */
struct kvt__timer {
    void (*run)(struct kvt__timer *timer); /* must not block */
    int64_t at_ns;                         /* monotonic */
    struct kvt__timer *prev, *next;
    bool set;
};

/* What one job has to do in parts, in any order and several at a time. */
struct kvt__split {
    int (*run)(struct kvt__split *split, size_t i); /* 0, or -errno with a sentence */
    size_t n;

    /* The executor's; zeroed. */
    struct kvt__split *next;
    size_t n_begun, n_running;
    struct kvt__error error;
};

/* n_threads >= 1. */
int kvt__exec_open(size_t n_threads, struct kvt__exec **out);

/* Run what is queued and what is expected, then stop.  Timers not yet due are never run.
 * Blocks. */
void kvt__exec_close(struct kvt__exec *exec);

void kvt__exec_submit(struct kvt__exec *exec, enum kvt__prio prio,
                      struct kvt__job *job);

/* Another thread will submit a job, by kvt__exec_submit_expected(), when something is
 * over that no thread of the executor waits for. */
void kvt__exec_expect(struct kvt__exec *exec);
void kvt__exec_submit_expected(struct kvt__exec *exec, enum kvt__prio prio,
                               struct kvt__job *job);

/* Return true if the calling thread is a thread of the executor. */
bool kvt__exec_is_here(const struct kvt__exec *exec);

/* How many threads the executor has that the calling thread is one of; 1: it is of none. */
size_t kvt__exec_width(void);

/* Run all parts: here, and on those threads of the calling thread's executor that have no
 * job of the same priority or a better one.  None comes: all run here.  After one that
 * fails no other begins.  Blocks; when it returns no part runs.  0, or what the first one
 * to fail said, with its sentence. */
int kvt__exec_run_split(struct kvt__split *split);

/* Run timer->run at timer->at_ns. */
void kvt__timer_set(struct kvt__exec *exec, struct kvt__timer *timer);

/* Take it back.  False: it ran or is just running. */
bool kvt__timer_clear(struct kvt__exec *exec, struct kvt__timer *timer);

#endif
