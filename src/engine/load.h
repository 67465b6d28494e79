/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading chunks into blocks.
 *
 * An item of a load waits for a slot, is read by
 * the store into it (or shares the slot of a chunk that is in host memory), and is then
 * copied into its blocks, unless the load was closed meanwhile (deadline or cancel).  For
 * blocks in host memory the copy computes the checksum; if the checksum is wrong, the blocks
 * hold wrong bytes, the item has not ended, and the store reads the next tier.  For blocks on
 * a device the store verifies the slot before the copy.  A load is done when it is
 * closed and no copy runs, or when all items have ended; what is still being read
 * then keeps its slot until the storage answers.
 *
 *      waiting ──slot──► reading ──► copying ──► ended
 *         │                 ▲           │           ▲
 *         │                 └─ mismatch ┘           │
 *         └──── closed, or the prefix broke before ─┘ */
#ifndef KVT_ENGINE_LOAD_H
#define KVT_ENGINE_LOAD_H

#include "engine/call.h"

#define KVT__PENDING 1 /* no errno is positive */

struct kvt_load {
    struct kvt__call call; /* its references: one more, the timer's */
    uint64_t cookie;
    struct kvt__timer deadline;
    atomic_bool closed; /* nothing may be copied any more */
    bool done;         /* handed to kvt_engine_poll() */
    int closed_status; /* of items not ended when it was closed */
    size_t n_copying;
    size_t n_left;
    _Atomic uint64_t bytes;
    struct kvt_load *next_done;
};

/* From now on nothing is copied; status: of items that have not ended. */
void kvt__load_close(struct kvt_load *load, int status);

/* Of its timer. */
void kvt__load_deadline(struct kvt__timer *timer);

/* Of its items' requests. */
bool kvt__load_wants(const struct kvt__store_req *req);
int kvt__load_consume(struct kvt__store_req *req, uint32_t crc);
void kvt__load_on_read(struct kvt__store_req *req);

#endif
