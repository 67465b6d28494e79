/* SPDX-License-Identifier: Apache-2.0
 *
 * The chunks of one call of kvt_engine_store(), kvt_engine_load() or kvt_engine_prefetch().
 *
 * kvt__call_new() allocates all memory of a call, with one item for each chunk.
 * kvt__item_end() ends an item, exactly once.  The last reference frees the call.
 * engine->calls.lock guards the lists of items and the fields of a load that change. */
#ifndef KVT_ENGINE_CALL_H
#define KVT_ENGINE_CALL_H

#include <assert.h>

#include "engine/private.h"

/* The copy of a struct kvt_group_io of the caller. */
struct kvt__call_io {
    uint32_t group;
    uint32_t n_chunks;
    size_t first_item;             /* index in call->items of the item of the first chunk */
    struct kvt__space space;       /* space with the request's tags; unused without tags */
    _Atomic uint32_t first_failed; /* load: number of the first failed chunk */
};

/* A chunk of a call. */
struct kvt__item {
    struct kvt__store_req req; /* must be the first member */
    struct kvt__gpu_copy copy; /* copy from or to blocks on a device */
    struct kvt__call *call;
    struct kvt__call_io *io;
    struct kvt__item *next;    /* next item in a list of engine->calls */
    const int32_t *blocks;     /* block ids of the chunk, in call->blocks */
    uint32_t chunk;            /* number of the chunk in io */

    /* Only for loads. */
    bool copied;       /* the blocks hold the verified chunk */
    bool from_storage; /* host memory held corrupt bytes of the chunk */
    int status;        /* KVT__PENDING until the end of the item */
};

/* The properties of all calls of one public function. */
struct kvt__call_kind {
    const char *name;      /* name of the function */
    size_t size;           /* bytes of the struct that begins with the call */
    bool has_blocks;
    /* Each request copies op, is_prefetch, is_wanted and on_done of the template. */
    struct kvt__store_req template;
};

struct kvt__call {
    struct kvt_engine *engine;
    const struct kvt__call_kind *kind;
    atomic_int refs;  /* a reference of the caller, and of each item before kvt__item_end() */
    int64_t deadline_ns; /* deadline of loads and prefetches */
    uint32_t epoch;   /* epoch of the engine at the begin of a store */
    size_t n_ios, n_items;
    struct kvt__call_io *ios;
    struct kvt__item *items;
    int32_t *blocks;  /* copy of the caller's block ids */
};

/* Check the arguments of a call, and that the engine has a pool.  0; -EINVAL, -ESTALE with a
 * sentence. */
int kvt__call_check(const struct kvt_engine *engine, const struct kvt__call_kind *kind,
                    const struct kvt_group_io *ios, size_t n_ios);

/* Allocate and fill in a call.  kvt__call_check() has accepted the arguments.  The caller owns a
 * reference of *out, and later ends each item.  0; -ENOMEM with a sentence. */
int kvt__call_new(struct kvt_engine *engine, const struct kvt__call_kind *kind,
                  const struct kvt_group_io *ios, size_t n_ios, struct kvt__call **out);

/* Drop a reference.  The last reference frees the call. */
void kvt__call_unref(struct kvt__call *call);

/* End an item: drop the item's reference of the call.  Before the call, the caller has removed the
 * item from all lists and released the item's slot.  Takes calls.lock.  After the end of the
 * engine's last item another thread may close the engine, so the caller must not use the engine
 * afterwards. */
void kvt__item_end(struct kvt__item *item);

static inline const struct kvt__view *
kvt__item_view(const struct kvt__item *item)
{
    return &item->call->engine->groups[item->io->group].view;
}

/* The caller of the kvt__queue_ functions holds calls.lock. */
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
