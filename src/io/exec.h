/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor: a few threads that run jobs by priority, and one that runs jobs
 * at their deadline even when all others hang in I/O.  Any thread may submit;
 * submitting never blocks and allocates nothing. */
#ifndef KVT_IO_EXEC_H
#define KVT_IO_EXEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* Run timer->run at timer->at_ns. */
void kvt__timer_set(struct kvt__exec *exec, struct kvt__timer *timer);

/* Take it back.  False: it ran or is just running. */
bool kvt__timer_clear(struct kvt__exec *exec, struct kvt__timer *timer);

#endif
