/* SPDX-License-Identifier: Apache-2.0
 *
 * The chunks of one call of kvt_engine_store(), kvt_engine_load() or kvt_engine_prefetch().
 *
 * A call allocates its memory at once, one item a chunk.  Each item ends once, by
 * kvt__item_end(); the last reference frees the call.  engine->calls.lock guards the lists of
 * items and what changes in a load. */
#ifndef KVT_ENGINE_CALL_H
#define KVT_ENGINE_CALL_H

#include <assert.h>

#include "engine/private.h"

/* One kvt_group_io. */
struct kvt__part {
    uint32_t group;
    uint32_t n_chunks;
    size_t first_item;
    struct kvt__space space;    /* with the tags of the request, if it has tags */
    _Atomic uint32_t broken_at; /* load: the first chunk that failed */
};

/* One chunk. */
struct kvt__item {
    struct kvt__store_req req;
    struct kvt__gpu_copy copy; /* from or to blocks on a device */
    struct kvt__call *call;
    struct kvt__part *part;
    struct kvt__item *next;    /* in the list that contains the item */
    const int32_t *blocks;
    uint32_t chunk;            /* number in the part */

    /* Of a load. */
    bool copied;       /* to its blocks, and verified */
    bool from_storage; /* host memory had damaged bytes of the chunk */
    int status;        /* KVT__PENDING until the item has ended */
};

/* What distinguishes the calls of one public function. */
struct kvt__call_kind {
    const char *name;      /* of the function */
    size_t size;           /* of the struct that begins with the call */
    bool has_blocks;
    struct kvt__store_req like; /* op, early, wanted and done of the requests */
};

struct kvt__call {
    struct kvt_engine *engine;
    const struct kvt__call_kind *kind;
    atomic_int refs;  /* the caller's, and one for each item that has not ended */
    int64_t until_ns; /* loads and prefetches end at this time */
    size_t n_parts, n_items;
    struct kvt__part *parts;
    struct kvt__item *items;
    int32_t *blocks; /* our copy */
};

/* Check the arguments of a call.  0; -EINVAL, -ESTALE with a sentence. */
int kvt__call_check(const struct kvt_engine *engine, const struct kvt__call_kind *kind,
                    const struct kvt_group_io *ios, size_t n_ios);

/* Make a call, whose arguments were checked.  0; -ENOMEM with a sentence. */
int kvt__call_new(struct kvt_engine *engine, const struct kvt__call_kind *kind,
                  const struct kvt_group_io *ios, size_t n_ios, struct kvt__call **out);

/* Drop a reference. */
void kvt__call_unref(struct kvt__call *call);

/* End an item, which no list contains and whose slot was released.  The engine may be closed
 * as soon as its last item has ended. */
void kvt__item_end(struct kvt__item *item);

static inline const struct kvt__view *
kvt__item_view(const struct kvt__item *item)
{
    return &item->call->engine->groups[item->part->group].view;
}

static inline void
kvt__queue_push(struct kvt__queue *queue, struct kvt__item *item)
{
    item->next = NULL;
    *queue->last = item;
    queue->last = &item->next;
}

static inline void
kvt__queue_push_front(struct kvt__queue *queue, struct kvt__item *item)
{
    item->next = queue->first;
    queue->first = item;
    if (!item->next)
        queue->last = &item->next;
}

/* Remove the first item of a queue that is not empty. */
static inline void
kvt__queue_pop(struct kvt__queue *queue)
{
    assert(queue->first);
    queue->first = queue->first->next;
    if (!queue->first)
        queue->last = &queue->first;
}

#endif
