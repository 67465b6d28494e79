/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads of chunks into blocks.
 *
 * An item of a load waits for a slot.  The store reads the chunk into the slot, or the item gets a
 * share of the slot of a chunk in host memory.  Then the item copies the slot into the blocks,
 * unless a deadline or a cancel has closed the load.  For blocks in host memory the copy computes
 * the checksum; if the checksum is wrong, the blocks hold wrong bytes, the item has not ended, and
 * the store reads the next tier.  For blocks on a device the store verifies the slot before the
 * copy.
 *
 * A load is done when all items have ended, or when the load is closed and no copy is in progress.
 * A read that is still in progress then keeps its slot until the storage responds.
 *
 *      waiting ──slot──► reading ──► copying ──► ended
 *         │                 ▲           │           ▲
 *         │                 └─ mismatch ┘           │
 *         └── closed, or an earlier chunk failed ───┘ */
#ifndef KVT_ENGINE_LOAD_H
#define KVT_ENGINE_LOAD_H

#include "engine/call.h"

#define KVT__PENDING 1 /* kvt__item.status before the end; a negative errno or 0 after the end */

struct kvt_load {
    struct kvt__call call; /* must be the first member; the timer has a reference too */
    uint64_t cookie;
    struct kvt__timer deadline;
    atomic_bool closed; /* no further copy may begin */
    bool done;         /* in the list for kvt_engine_poll(), or returned */
    int closed_status; /* status of items that were pending at the close */
    size_t n_copying;  /* copies in progress */
    size_t n_left;     /* items that have not ended */
    _Atomic uint64_t bytes; /* bytes that the load has read from storage */
    struct kvt_load *next_done;
};

/* Close a load: no further copy begins.  status: the status of items that have not ended.  No
 * effect on a closed or done load.  Takes calls.lock; does not wait for copies in progress. */
void kvt__load_close(struct kvt_load *load, int status);

/* Callback of the timer: pause storage that does not respond, and close the load. */
void kvt__load_on_deadline(struct kvt__timer *timer);

/* Callbacks of the items' requests: is_wanted, consume, on_done. */
bool kvt__load_is_wanted(const struct kvt__store_req *req);
int kvt__load_consume(struct kvt__store_req *req, uint32_t crc);
void kvt__load_on_read(struct kvt__store_req *req);

#endif
