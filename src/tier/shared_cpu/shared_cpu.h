/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the tier. */
#ifndef KVT_TIER_SHARED_CPU_SHARED_CPU_H
#define KVT_TIER_SHARED_CPU_SHARED_CPU_H

#include "gpu/pin.h"
#include "tier/shared_cpu/memory.h"
#include "tier/tier.h"

/* The memory of an index that the store has opened.  A replaced index keeps its memory until
 * the tier is closed, because slots may still be lent. */
struct sc_opened {
    struct sc_tier *tier;
    struct sc_memory memory;
    struct sc_growth growth;
    bool grows;           /* growth was begun */
    bool was_pinned;      /* or could not be; guarded by pin_lock */
    struct kvt__pin pin;  /* for the GPU; guarded by pin_lock */
    struct sc_opened *next;
};

struct sc_tier {
    struct kvt__tier tier;
    char *path;           /* of the tmpfs */
    int dir;              /* directory of the index */
    uint64_t payload_bytes;
    int64_t ttl_ns;
    bool transfers;
    bool only_existing;   /* make no memory */
    struct kvt__counters *counters; /* NULL: nothing is counted */
    struct kvt__mem_claim claim;    /* of a memory that this process has just made */
    _Atomic(struct sc_opened *) opened; /* the last one first */

    pthread_mutex_t pin_lock; /* held while the driver pins the memory */
    bool has_gpu;             /* the engine's KV is on a GPU */
};

/* room.c: 0; -ENOTSUP: no tmpfs; -ENOSPC: the tmpfs is too small; with a sentence. */
int kvt__sc_check_dir(int dir, const char *path);
int kvt__sc_check_room(int dir, const char *path, uint64_t bytes);

/* transfer.c: run an operation. */
int kvt__sc_run(struct kvt__tier *tier, struct kvt__tier_op *op);

/* transfer.c: as ops->borrow. */
bool kvt__sc_borrow(struct kvt__tier *tier, const struct kvt__object *object, size_t bytes,
                    struct kvt__slot *out);

/* manage.c: the rows of the same names; look of an open tier. */
struct kvt_tier_info;
void kvt__sc_info(const struct kvt__tier *tier, struct kvt_tier_info *info);
int kvt__sc_clear(struct kvt__tier *tier);
void kvt__sc_look(const struct kvt__tier *tier, kvt__tier_look_fn fn, void *ctx);

/* Return the memory of an index. */
struct sc_opened *kvt__sc_opened(const struct kvt__tier *tier,
                                 const struct kvt__table *index);

#endif
