/* SPDX-License-Identifier: Apache-2.0
 *
 * Prefetches: the store reads a chunk into a slot, and host memory keeps the slot for a later load.
 * The store verifies a chunk from multi-host storage at once; the first load verifies any other
 * chunk.  Items without a slot wait in the order of their calls, at most as long as a load may
 * take.
 *
 *      waiting ──slot──► reading ──► ended
 *         └── needless, or too late ──┘ */
#include <assert.h>
#include <errno.h>

#include "base/clock.h"
#include "engine/call.h"

static bool
is_wanted(const struct kvt__store_req *req)
{
    const struct kvt__call *call = ((const struct kvt__item *)req)->call;

    return !atomic_load(&call->engine->calls.stopping) && kvt__now_ns() < call->deadline_ns;
}

/* Remove an item from the list reading_ahead. */
static void
end_reading(struct kvt_engine *e, struct kvt__item *item)
{
    struct kvt__item **at = &e->calls.reading_ahead;

    pthread_mutex_lock(&e->calls.lock);
    while (*at != item)
        at = &(*at)->next;
    *at = item->next;
    pthread_mutex_unlock(&e->calls.lock);
}

static void
on_read(struct kvt__store_req *req)
{
    struct kvt__item *item = (struct kvt__item *)req;
    struct kvt_engine *e = item->call->engine;

    if (!req->error.code) {
        struct kvt__chunk_key key = kvt__request_key(req);

        kvt__store_protect(e->store, &key, kvt__now_ns() + kvt__arrival_grace_ns(e));
        kvt__count(&e->counters, KVT__N_prefetch_chunks, 1);
        kvt__count(&e->counters, KVT__N_load_bytes, req->slot.bytes);
    } else if (req->error.code == -EBADMSG) {
        kvt__count(&e->counters, KVT__N_load_corrupt, 1);
    }
    assert(req->is_prefetch && req->slot.payload);
    kvt__pool_release(e->pool, &req->slot);
    end_reading(e, item);
    e->on_slot_free(e);
    kvt__item_end(item);
}

/* Return true if an item needs no read: another item is reading the chunk (requests with a common
 * prefix prefetch equal chunks), the time is over, or host memory holds the chunk. */
static bool
is_needless_locked(const struct kvt__item *item)
{
    struct kvt_engine *e = item->call->engine;
    struct kvt__chunk_key key = kvt__request_key(&item->req);

    for (const struct kvt__item *r = e->calls.reading_ahead; r; r = r->next)
        if (kvt__id_equal(&r->req.id, &item->req.id))
            return true;
    return !is_wanted(&item->req) || kvt__store_find(e->store, &key, KVT__IN_MEMORY);
}

/* Remove and return the first waiting item: with a slot, or without a slot if the item is needless.
 * NULL: no item waits, or no slot is free. */
static struct kvt__item *
take_waiting(struct kvt_engine *e)
{
    pthread_mutex_lock(&e->calls.lock);
    struct kvt__item *item = e->calls.prefetches.first;
    bool needless = item && is_needless_locked(item);

    if (item && !needless && !kvt__pool_acquire(e->pool, item->req.bytes,
                                                e->transfer_bytes / 2, &item->req.slot))
        item = NULL;
    if (item)
        kvt__queue_pop(&e->calls.prefetches);
    assert(!item || needless == !item->req.slot.payload);
    if (item && !needless) {
        item->next = e->calls.reading_ahead;
        e->calls.reading_ahead = item;
    }
    pthread_mutex_unlock(&e->calls.lock);
    return item;
}

void
kvt__start_waiting_prefetches(struct kvt_engine *engine)
{
    struct kvt__item *item;

    while ((item = take_waiting(engine))) {
        if (item->req.slot.payload)
            kvt__store_submit(engine->store, &item->req);
        else
            kvt__item_end(item);
    }
}

static const struct kvt__call_kind prefetches = {
    .name = "kvt_engine_prefetch", .size = sizeof(struct kvt__call),
    .template = { .op = KVT__TIER_GET, .is_prefetch = true, .is_wanted = is_wanted,
                  .on_done = on_read } };

int
kvt__prefetch(struct kvt_engine *engine, const struct kvt_group_io *ios, size_t n_ios)
{
    struct kvt__call *call;
    int err = kvt__call_new(engine, &prefetches, ios, n_ios, &call);

    if (err)
        return err;
    pthread_mutex_lock(&engine->calls.lock);
    for (size_t i = 0; i < call->n_items; i++)
        kvt__queue_push(&engine->calls.prefetches, &call->items[i]);
    pthread_mutex_unlock(&engine->calls.lock);
    kvt__start_waiting_prefetches(engine);
    kvt__call_unref(call);
    return 0;
}

int
kvt_engine_prefetch(struct kvt_engine *engine, const struct kvt_group_io *ios, size_t n_ios)
{
    int err = kvt__call_check(engine, &prefetches, ios, n_ios);

    return err ? err : kvt__prefetch(engine, ios, n_ios);
}
