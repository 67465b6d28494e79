/* SPDX-License-Identifier: Apache-2.0
 *
 * The tier of shared host memory, for the files of the tier. */
#ifndef KVT_TIER_SHARED_CPU_SHARED_CPU_H
#define KVT_TIER_SHARED_CPU_SHARED_CPU_H

#include "gpu/pin.h"
#include "tier/shared_cpu/memory.h"
#include "tier/tier.h"

/* The memory of an index that the store has opened.  After an index was replaced, its memory stays
 * until the tier is closed, because slots of the memory may still be in use. */
struct sc_opened {
    struct sc_tier *tier;
    struct sc_memory memory;
    struct sc_growth growth;
    bool grows;           /* the thread of growth was started and not stopped */
    bool pin_tried;       /* the driver was asked to pin the memory; guarded by pin_lock */
    struct kvt__pin pin;  /* pin of the memory for the GPU; guarded by pin_lock */
    struct sc_opened *next;
};

struct sc_tier {
    struct kvt__tier tier;
    char *path;           /* path of the tmpfs */
    int dir;              /* directory of the index */
    uint64_t payload_bytes;
    int64_t ttl_ns;       /* a start deletes chunks without a use for this time; 0: no chunks */
    bool transfers;
    bool only_existing;   /* open existing memory and create no memory */
    struct kvt__counters *counters; /* NULL: nothing is counted */
    struct kvt__mem_claim claim;    /* claim for the memory that this process has just made */
    _Atomic(struct sc_opened *) opened; /* list, the memory of the newest index first */

    pthread_mutex_t pin_lock; /* held while the driver pins the memory */
    bool has_gpu;             /* the engine's KV is on a GPU */
};

/* room.c: check the directory of the setting shared_cpu_path.  0; -ENOTSUP: the directory is not on
 * a tmpfs; other errors; with a sentence. */
int kvt__sc_check_dir(int dir, const char *path);

/* room.c: check if the tmpfs has room for a new memory of these bytes.  0; -ENOSPC and other
 * errors, with a sentence. */
int kvt__sc_check_room(int dir, const char *path, uint64_t bytes);

/* transfer.c: implement run and acquire_chunk of struct kvt__tier_ops. */
int kvt__sc_run(struct kvt__tier *tier, struct kvt__tier_op *op);
bool kvt__sc_acquire_chunk(struct kvt__tier *tier, const struct kvt__object *object, size_t bytes,
                           struct kvt__slot *out);

/* manage.c: implement info and clear of struct kvt__tier_ops, and check for an open tier. */
struct kvt_tier_info;
void kvt__sc_info(const struct kvt__tier *tier, struct kvt_tier_info *info);
int kvt__sc_clear(struct kvt__tier *tier);
void kvt__sc_check(const struct kvt__tier *tier, const struct kvt__reporter *to);

/* transfer.c: return the memory of an index; NULL: the tier has not opened the index. */
struct sc_opened *kvt__sc_opened(const struct kvt__tier *tier,
                                 const struct kvt__table *index);

#endif
