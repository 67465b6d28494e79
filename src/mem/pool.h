/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool: the host memory for all chunks.  kvt__pool_open() maps the whole memory; a thread
 * populates the pages in the background.  Slots are allocated from populated memory only, so a
 * copy of a chunk never waits for a page fault.  Any thread; calls do not block, unless the
 * function's comment says otherwise. */
#ifndef KVT_MEM_POOL_H
#define KVT_MEM_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvt__pool;

/* Bytes of a slot before the payload, and bytes after the payload, for headers, trailers and the
 * padding of direct I/O. */
#define KVT__SLOT_MARGIN 4096

/* A slot: memory for the payload of a chunk. */
struct kvt__slot {
    unsigned char *payload;
    size_t bytes; /* of payload */
    struct kvt__slot_source *source; /* source of the memory; NULL: the pool */
};

/* A source of slots in memory outside the pool, with KVT__SLOT_MARGIN bytes around each payload.  A
 * slot of a source has a single share, and kvt__pool_release() calls release(). */
struct kvt__slot_source {
    bool on_device; /* the payload is in a GPU's memory, without margins */
    void (*release)(struct kvt__slot_source *source, struct kvt__slot *slot);
};

/* Return true if the payload is in a GPU's memory. */
static inline bool
kvt__slot_on_device(const struct kvt__slot *slot)
{
    return slot->source && slot->source->on_device;
}

struct kvt__pool_params {
    size_t bytes;     /* the whole pool */
    size_t phase;     /* the address of every payload modulo 4096 */
    bool huge_pages;  /* use the kernel's reserved huge pages */
    const int *node;  /* memory node to prefer; NULL: any */
    const char *key;  /* setting that defines bytes, for messages */
};

/* Map the memory and start the thread that populates the memory.  params->key must outlive the
 * pool.  Return 0, or -errno with a sentence; -ENOMEM: the memory of the machine or of the control
 * group, minus the claims of the user's other processes (mem/claim.h), or the free huge pages are
 * not enough; the sentence has the key, the wanted and the available size.  If the kernel refuses
 * pages later, the pool keeps the populated size, and the log reports the size. */
int kvt__pool_open(const struct kvt__pool_params *params, struct kvt__pool **out);

/* Free the pool; NULL is allowed.  Before, the callers release all slots.  Blocks until the thread
 * that populates the memory has ended. */
void kvt__pool_close(struct kvt__pool *pool);

/* Allocate a slot with a payload of `bytes`, with one share.  Return false if the pool has no room
 * now, or if fewer than keep_free bytes of the pool would remain free. */
bool kvt__pool_acquire(struct kvt__pool *pool, size_t bytes, size_t keep_free,
                       struct kvt__slot *out);

/* Add a share to a slot of the pool.  The holder of each share calls kvt__pool_release() once; the
 * last release frees the memory. */
void kvt__pool_share(struct kvt__pool *pool, const struct kvt__slot *slot);

/* Release a share of the slot, and zero *slot.  pool may be NULL if the slot has a source. */
void kvt__pool_release(struct kvt__pool *pool, struct kvt__slot *slot);

/* Return true if a slot of the pool has more than one share. */
bool kvt__pool_is_shared(struct kvt__pool *pool, const struct kvt__slot *slot);

/* Return the bytes of the pool that a slot with this payload uses: in any pool with this phase, or
 * in this pool. */
size_t kvt__slot_footprint(size_t phase, size_t bytes);
size_t kvt__pool_footprint(const struct kvt__pool *pool, size_t bytes);

/* Return true if an empty pool has room for a slot with this payload. */
bool kvt__pool_fits(const struct kvt__pool *pool, size_t bytes);

size_t kvt__pool_bytes(const struct kvt__pool *pool);
void *kvt__pool_memory(const struct kvt__pool *pool); /* first byte of the pool */
size_t kvt__pool_used(struct kvt__pool *pool);        /* bytes of all slots */

/* Return true if the thread has populated the whole pool, or has stopped after a failure and has
 * made the pool smaller. */
bool kvt__pool_is_populated(struct kvt__pool *pool);

/* Wait until `bytes` of the pool are populated, or the whole pool if smaller.  Blocks. */
void kvt__pool_wait_populated(struct kvt__pool *pool, size_t bytes);

#endif
