/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool: all host memory that chunks pass through, reserved whole when it is
 * opened.  A thread populates it page by page; only populated memory is handed
 * out, so that no chunk ever waits for a page fault.  Any thread. */
#ifndef KVT_MEM_POOL_H
#define KVT_MEM_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvt__pool;

/* Room in front of and behind every payload, for headers, trailers and the
 * padding that direct I/O wants. */
#define KVT__SLOT_ROOM 4096

struct kvt__slot {
    unsigned char *payload;
    size_t bytes; /* of payload */
    struct kvt__lender *lender; /* whose memory it is; NULL: the pool's */
};

/* Memory of somebody else that slots were made of, rooms and all.  They have one holder
 * and are released like those of the pool. */
struct kvt__lender {
    bool on_device; /* the payload is in a GPU's memory, and no rooms are around it */
    void (*release)(struct kvt__lender *lender, struct kvt__slot *slot);
};

/* Whether the payload is in a GPU's memory. */
static inline bool
kvt__slot_on_device(const struct kvt__slot *slot)
{
    return slot->lender && slot->lender->on_device;
}

struct kvt__pool_params {
    size_t bytes;     /* the whole pool */
    size_t phase;     /* every payload's address modulo 4096, below 4096 */
    bool huge_pages;  /* from the kernel's reserved huge pages */
    const int *node;  /* memory node to prefer; NULL: any */
    const char *key;  /* the setting that bytes came from, for messages */
};

/* Reserve the memory.  -ENOMEM if the memory of the machine (or the control group), minus
 * the claims of the user's other processes (mem/claim.h), or the free huge pages do not
 * suffice: the message names the key, the wanted and the available size.  If the kernel
 * does not provide memory later, the pool has the populated size, and a message reports
 * the size.  params->key must outlive the pool. */
int kvt__pool_open(const struct kvt__pool_params *params, struct kvt__pool **out);

/* All slots must be back. */
void kvt__pool_close(struct kvt__pool *pool);

/* Take a slot for bytes of payload, unless less than keep_free bytes of the pool
 * would then be left.  Never blocks; false: no room now. */
bool kvt__pool_acquire(struct kvt__pool *pool, size_t bytes, size_t keep_free,
                       struct kvt__slot *out);

/* One more holder of a slot; each ends with kvt__pool_release(), the last one's
 * gives the memory back. */
void kvt__pool_share(struct kvt__pool *pool, const struct kvt__slot *slot);

/* pool may be NULL for a slot that was lent. */
void kvt__pool_release(struct kvt__pool *pool, struct kvt__slot *slot);

/* Whether a slot has more than one holder. */
bool kvt__pool_is_shared(struct kvt__pool *pool, const struct kvt__slot *slot);

/* What a slot for this payload takes of a pool of that phase, and of this one. */
size_t kvt__slot_footprint(size_t phase, size_t bytes);
size_t kvt__pool_footprint(const struct kvt__pool *pool, size_t bytes);

/* Whether a slot of this size could ever be had, the pool being empty. */
bool kvt__pool_fits(const struct kvt__pool *pool, size_t bytes);

size_t kvt__pool_bytes(const struct kvt__pool *pool);
void *kvt__pool_memory(const struct kvt__pool *pool); /* where it begins */
size_t kvt__pool_used(struct kvt__pool *pool);

/* Whether all of it is populated. */
bool kvt__pool_is_populated(struct kvt__pool *pool);

/* Wait until the first bytes of the pool (all, if it has fewer) are populated.
 * Blocks. */
void kvt__pool_wait_populated(struct kvt__pool *pool, size_t bytes);

#endif
