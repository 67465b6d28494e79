/* SPDX-License-Identifier: Apache-2.0
 *
 * A lane from inside: lane.c keeps its streams and their order, cut.c makes steps of what
 * is asked for, open-lane.c makes it and ends it. */
#ifndef KVT_GPU_LANE_H
#define KVT_GPU_LANE_H

#include "gpu/inside.h"

#define KVT__PART_ALIGN ((uint64_t)512)
#define KVT__SLAB_STEPS 16

/* Steps and their memory of the host. */
struct kvt__step_slab {
    struct kvt__step_slab *next;
    unsigned char *pinned;
    struct kvt__step steps[KVT__SLAB_STEPS];
};

struct kvt__lane {
    struct kvt__gpu *gpu;
    bool gather;

    pthread_mutex_t order; /* of what is put on the streams; guards these: */
    void *kernels;         /* stream */
    void *copies;          /* stream */
    void *asked;           /* event: what the caller's stream had */
    bool after;            /* scatter: it was recorded */
    void *ready;           /* event: from one stream of the lane to the other */
    void *table;           /* of the device, for one step after the other */
    unsigned char *staging;
    size_t part_bytes;
    size_t next_part;
    struct kvt__part parts[KVT__N_PARTS];
    struct kvt__step_slab *slabs;

    pthread_mutex_t lock; /* of these: */
    pthread_cond_t begun;
    struct kvt__step *idle;
    struct kvt__step *first; /* under way */
    struct kvt__step **last;
    bool started;
    bool stop;
    pthread_t thread;
};

/* More steps, with their memory of the host.  0 or -errno with a sentence. */
int kvt__lane_grow(struct kvt__lane *lane);

/* All steps that the copies need, in a list; or none.  The lane's order is held. */
int kvt__lane_cut(struct kvt__lane *lane, struct kvt__gpu_copy *const *copies, size_t n,
                  struct kvt__step **steps);

/* Steps are idle again. */
void kvt__lane_give_back(struct kvt__lane *lane, struct kvt__step *steps);

/* The lane's thread; arg: the lane. */
void *kvt__lane_run(void *arg);

#endif
