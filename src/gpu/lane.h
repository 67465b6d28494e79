/* SPDX-License-Identifier: Apache-2.0
 *
 * Internal structure of a lane: lane.c orders the streams and queues steps, cut.c cuts copies
 * into steps, open-lane.c opens and closes the lane. */
#ifndef KVT_GPU_LANE_H
#define KVT_GPU_LANE_H

#include "gpu/private.h"

#define KVT__PART_ALIGN ((uint64_t)512)
#define KVT__SLAB_STEPS 16

/* Steps, and the pinned host memory of these steps. */
struct kvt__step_slab {
    struct kvt__step_slab *next;
    unsigned char *pinned;
    struct kvt__step steps[KVT__SLAB_STEPS];
};

struct kvt__lane {
    struct kvt__gpu *gpu;
    bool gather;

    pthread_mutex_t order; /* orders the work on the streams; guards the fields from kernels to
                            * slabs */
    void *kernels;         /* stream */
    void *copies;          /* stream */
    void *caller_event;    /* event: the work on the caller's stream at the last call */
    bool has_caller_event; /* `caller_event` was recorded */
    void *handover;        /* event: a stream of the lane waits for the work of the other stream */
    void *table;           /* device memory for the tables of the steps, one after another */
    unsigned char *staging;
    size_t part_bytes;
    size_t next_part;
    struct kvt__staging_part parts[KVT__N_STAGING_PARTS];
    struct kvt__step_slab *slabs;

    pthread_mutex_t lock;  /* guards idle, first, last and stop */
    pthread_cond_t wakeup; /* a step was queued, or stop was set */
    struct kvt__step *idle;
    struct kvt__step *first; /* queued steps, the oldest first */
    struct kvt__step **last; /* the `next` of the newest queued step, or &first */
    bool started;            /* the thread exists */
    bool stop;
    pthread_t thread;
};

/* Allocate more idle steps, with pinned host memory.  The caller holds `order`, or no other
 * thread uses the lane yet.  0 or -errno with a sentence. */
int kvt__lane_grow(struct kvt__lane *lane);

/* Free a slab.  d NULL: do not free the driver's objects, whose context no longer exists. */
void kvt__step_slab_free(struct kvt__step_slab *slab, const struct kvt__driver *d);

/* Cut the copies into idle steps and set *steps to the list of these steps.  The caller holds
 * `order`, and queues the steps or returns the steps with kvt__lane_return_steps().  0; -errno with
 * a sentence: all steps stay idle. */
int kvt__lane_cut(struct kvt__lane *lane, struct kvt__gpu_copy *const *copies, size_t n,
                  struct kvt__step **steps);

/* Put a list of steps back into the idle list. */
void kvt__lane_return_steps(struct kvt__lane *lane, struct kvt__step *steps);

/* Main function of the lane's thread.  arg: the lane. */
void *kvt__lane_run(void *arg);

#endif
