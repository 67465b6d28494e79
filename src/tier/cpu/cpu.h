/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu tier: chunks that stay in the slot of the pool they came in.  It is
 * opened by the store, not by a URL, because the pool is its worker's. */
#ifndef KVT_TIER_CPU_CPU_H
#define KVT_TIER_CPU_CPU_H

#include "tier/tier.h"

struct kvt__cpu_params {
    struct kvt__pool *pool; /* NULL: a tier that has nothing */
    uint32_t n_chunks;      /* at most so many */
    uint64_t limit_bytes;   /* of the pool */
    int dirfd;              /* of its index, borrowed until close; -1: none */
};

/* The payload of the chunk has the chunk's CRC32C.  No effect if the chunk has another payload
 * now; here and below. */
void kvt__cpu_set_summed(struct kvt__tier *tier, const struct kvt__id *id,
                         const unsigned char *payload);

/* Remove the chunk even if others share its slot: the payload is damaged. */
void kvt__cpu_drop(struct kvt__tier *tier, const struct kvt__id *id,
                   const unsigned char *payload);

/* 0, or -ENOMEM. */
int kvt__cpu_open(const struct kvt__cpu_params *params, struct kvt__tier **out);

/* ------------------------------------------------------------- instance.c */

/* Where the index of one worker's memory lies, so that its engine's scheduler
 * finds it: a directory in memory, private to the user. */
struct kvt__instance {
    int dirfd;
    int worker_fd; /* held by the one worker; -1 */
    char name[32];
};

/* Open or make the directory of a rank of the engine that instance names, after
 * removing those of engines that are gone.  worker: whether it is that rank's
 * worker.  0; -EBUSY another process is; -errno with a sentence. */
int kvt__instance_open(const char *instance, uint32_t rank, bool worker,
                       struct kvt__instance *out);

/* The last one removes the directory.  Nothing when it was never opened. */
void kvt__instance_close(struct kvt__instance *instance);

#endif
