/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading chunks into blocks.
 *
 * A load is a list of items, one a chunk.  An item waits for a slot, is read by
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
 *         └──── closed, or the prefix broke before ─┘
 *
 * engine->loads.lock guards the queues of items that wait and of loads done;
 * load->lock what changes in a load.  The first may be taken while the second is
 * held. */
#ifndef KVT_ENGINE_LOAD_H
#define KVT_ENGINE_LOAD_H

#include "engine/private.h"

#define KVT__PENDING 1 /* no errno is positive */

struct kvt__load_item {
    struct kvt__store_req req;
    struct kvt__gpu_copy copy; /* to blocks on a device */
    struct kvt_load *load;
    struct kvt__load_item *next_waiting;
    const int32_t *blocks;
    uint32_t io;
    uint32_t chunk;
    bool copied; /* to its blocks, and verified */
    bool from_storage; /* host memory had damaged bytes of the chunk */
    int status; /* KVT__PENDING until it has ended */
};

/* One group_io, as far as it is needed. */
struct kvt__load_part {
    uint32_t group;
    uint32_t n_chunks;
    struct kvt__space space; /* with the tags of the request, if it has tags */
    _Atomic uint32_t broken_at; /* the first chunk that failed */
    size_t first_item;
};

struct kvt_load {
    struct kvt_engine *engine;
    uint64_t cookie;
    struct kvt__timer deadline;
    atomic_int refs; /* the caller's, and one for each item not ended */

    pthread_mutex_t lock;
    atomic_bool closed; /* nothing may be copied any more */
    bool done;         /* handed to kvt_engine_poll() */
    int closed_status; /* of items not ended when it was closed */
    size_t n_copying;
    size_t n_left;
    uint64_t bytes;
    struct kvt_load *next_done;

    size_t n_parts;
    struct kvt__load_part *parts;
    int32_t *blocks;
    size_t n_items;
    struct kvt__load_item items[];
};

/* ----------------------------------------------------------------- load-item.c */

/* One holder less; the last one's frees it. */
void kvt__load_unref(struct kvt_load *load);

/* From now on nothing is copied; status: of items that have not ended. */
void kvt__load_close(struct kvt_load *load, int status);

/* Of its timer. */
void kvt__load_deadline(struct kvt__timer *timer);

/* Of its items' requests. */
bool kvt__load_wants(const struct kvt__store_req *req);
int kvt__load_consume(struct kvt__store_req *req, uint32_t crc);
void kvt__load_was_read(struct kvt__store_req *req);

#endif
