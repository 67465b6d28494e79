/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores of chunks: the caller's thread, or the device that holds the KV, copies the blocks of a
 * chunk into a slot of the pool, and executor threads write the slot to the tiers.  A store never
 * waits: without a free slot a chunk is dropped. */
#include <assert.h>
#include <errno.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/call.h"

#define MAX_BATCH 64

/* Release the slot of an item, and end the item. */
static void
end_save(struct kvt__item *item)
{
    struct kvt_engine *e = item->call->engine;

    kvt__pool_release(e->pool, &item->req.slot);
    kvt__count_down(&e->counters, KVT__N_stores_pending, 1);
    e->on_slot_free(e);
    kvt__item_end(item);
}

/* Callback: the store has stored the chunk, or has failed. */
static void
on_saved(struct kvt__store_req *req)
{
    struct kvt__item *item = (struct kvt__item *)req;
    struct kvt__counters *counters = &item->call->engine->counters;

    switch (req->error.code) {
    case 0:
        kvt__count(counters, KVT__N_store_chunks, 1);
        kvt__count(counters, KVT__N_store_bytes, req->slot.bytes);
        break;
    case -EEXIST:
        kvt__count(counters, KVT__N_store_known, 1);
        break;
    case -ENOSPC:
        kvt__count(counters, KVT__N_store_dropped, 1);
        KVT__LOG_ONCE(KVT_LOG_WARN, "a chunk of %s was not stored: %s (logged once; the counter "
                      "store_dropped counts all)", req->space->text, req->error.why);
        break;
    default:
        kvt__count(counters, KVT__N_store_failed, 1);
        KVT__LOG_ONCE(KVT_LOG_ERROR, "a chunk of %s was not stored: %s (logged once; the counter "
                      "store_failed counts all)", req->space->text, req->error.why);
        break;
    }
    end_save(item);
}

/* ---------------------------------------------------------------------- gathering */

/* Callback: the device has copied the blocks into the slot, or has failed. */
static void
on_gathered(struct kvt__gpu_copy *copy, int err, uint32_t crc)
{
    struct kvt__item *item = (struct kvt__item *)
        ((char *)copy - offsetof(struct kvt__item, copy));
    struct kvt_engine *e = item->call->engine;

    if (err) { /* the slot does not hold the chunk */
        kvt__count(&e->counters, KVT__N_store_failed, 1);
        KVT__LOG_ONCE(KVT_LOG_ERROR, "a chunk of %s was not stored: the copy from the GPU failed: "
                      "%s (logged once; the counter store_failed counts all)",
                      item->req.space->text, kvt__why());
        end_save(item);
        return;
    }
    item->req.crc = crc;
    kvt__store_submit(e->store, &item->req);
}

/* Items of one call that a device gathers together. */
struct batch {
    struct kvt__gpu_copy *copies[MAX_BATCH];
    size_t n;
};

/* Queue the copies of a batch on the device, and empty the batch. */
static void
gather_batch(struct kvt_engine *e, struct batch *batch)
{
    if (batch->n && kvt__gpu_gather(e->gpu, atomic_load(&e->stream), batch->copies, batch->n))
        for (size_t i = 0; i < batch->n; i++)
            on_gathered(batch->copies[i], -EIO, 0);
    batch->n = 0;
}

/* Copy the blocks into the slot, and submit the slot to the store.  If the blocks are on a device,
 * add the copy to the batch; on_gathered() submits the slot. */
static void
gather(struct kvt__item *item, struct batch *batch)
{
    struct kvt_engine *e = item->call->engine;
    struct kvt__store_req *req = &item->req;
    bool sums = kvt__store_traits(e->store)->wants_crc;

    assert(req->slot.payload && req->slot.bytes == req->bytes);
    kvt__count(&e->counters, KVT__N_stores_pending, 1);
    if (!e->gpu) {
        kvt__gather(kvt__item_view(item), item->blocks, req->tokens, req->slot.payload,
                    sums ? &req->crc : NULL);
        kvt__store_submit(e->store, req);
        return;
    }
    item->copy = (struct kvt__gpu_copy){ .view = kvt__item_view(item), .blocks = item->blocks,
                                         .n_tokens = req->tokens, .sums = sums,
                                         .on_device = kvt__slot_on_device(&req->slot),
                                         .chunk = req->slot.payload, .on_done = on_gathered };
    assert(batch->n < MAX_BATCH);
    batch->copies[batch->n++] = &item->copy;
    if (batch->n == MAX_BATCH)
        gather_batch(e, batch);
}

/* ------------------------------------------------------------------------ saving */

/* Return true if the item has a block for each of its tokens. */
static bool
has_all_blocks(const struct kvt__item *item)
{
    const struct kvt__view *view = kvt__item_view(item);
    uint32_t n = kvt__view_blocks(view, item->req.tokens);

    for (uint32_t i = 0; i < n; i++)
        if (!kvt__block_real(view, item->blocks[i]))
            return false;
    return true;
}

/* Acquire a slot for a store.  Stores may use at most half of the transfer memory; the rest is
 * reserved for loads.  If no slot is free, the free memory is fragmented, or not populated yet.
 * Then evict chunks from host memory; but while the pool is being populated, only if storage holds
 * the chunks too. */
static bool
acquire_slot(struct kvt_engine *e, uint64_t bytes, struct kvt__slot *out)
{
    size_t keep = e->transfer_bytes / 2;

    return kvt__store_acquire_slot(e->store, KVT__PRIO_STORE, bytes, out) ||
           kvt__pool_acquire(e->pool, bytes, keep, out) ||
           ((kvt__store_traits(e->store)->wants_crc || kvt__pool_is_populated(e->pool)) &&
            kvt__store_evict_memory(e->store, bytes) &&
            kvt__pool_acquire(e->pool, bytes, keep, out));
}

/* Return true if the store needs no bytes of the chunk.  With load_policy: faster, host memory gets
 * a chunk that the lookup left in slow storage; the storage has the chunk and ignores the PUT. */
static bool
is_stored(struct kvt_engine *e, const struct kvt__chunk_key *key, int64_t expires_ns)
{
    return kvt__store_touch(e->store, key, expires_ns) &&
           !(e->worth.is_on && e->memory_keeps && !kvt__store_find(e->store, key, KVT__IN_MEMORY));
}

/* Return true if the chunk must be stored and item->req.slot is acquired.  Otherwise count the
 * reason and return false. */
static bool
begin_save(struct kvt__item *item)
{
    struct kvt_engine *e = item->call->engine;
    struct kvt__chunk_key key = kvt__request_key(&item->req);

    if (!has_all_blocks(item))
        return false;
    if (is_stored(e, &key, item->req.expires_ns)) {
        kvt__count(&e->counters, KVT__N_store_known, 1);
        return false;
    }
    if (acquire_slot(e, item->req.bytes, &item->req.slot))
        return true;
    kvt__count(&e->counters, KVT__N_store_dropped, 1);
    return false;
}

int
kvt_engine_store(struct kvt_engine *engine, const struct kvt_group_io *ios,
                 size_t n_ios)
{
    static const struct kvt__call_kind stores = {
        .name = "kvt_engine_store", .size = sizeof(struct kvt__call), .has_blocks = true,
        .template = { .op = KVT__TIER_PUT, .on_done = on_saved } };
    struct batch batch = { .n = 0 };
    struct kvt__call *call;
    int err = kvt__call_check(engine, &stores, ios, n_ios);

    if (!err)
        err = kvt__call_new(engine, &stores, ios, n_ios, &call);
    if (err)
        return err;
    for (size_t i = 0; i < call->n_items; i++) {
        if (begin_save(&call->items[i]))
            gather(&call->items[i], &batch);
        else
            kvt__item_end(&call->items[i]);
    }
    gather_batch(engine, &batch);
    kvt__call_unref(call);
    return 0;
}

/* Return the number of unfinished items of stores that began in `epoch` or before.  If only items
 * of `epoch` are left, begin the next epoch, so that the number does not grow. */
static size_t
n_earlier_locked(struct kvt_engine *e, uint32_t epoch)
{
    size_t n = e->calls.n_stores[epoch % 2], n_before = e->calls.n_stores[(epoch + 1) % 2];

    if (e->calls.epoch == epoch && n_before)
        return n + n_before;
    if (e->calls.epoch == epoch)
        e->calls.epoch++;
    return e->calls.epoch == epoch + 1 ? n : 0;
}

int
kvt_engine_flush(struct kvt_engine *engine, int64_t timeout_ms)
{
    int err = kvt__engine_check(engine, "kvt_engine_flush");
    int64_t ns = 0;

    if (err)
        return err;
    bool forever = timeout_ms < 0 ||
                   __builtin_mul_overflow(timeout_ms, KVT__NS_PER_MS, &ns) ||
                   __builtin_add_overflow(ns, kvt__now_ns(), &ns);
    struct timespec until = kvt__timespec(forever ? 0 : ns);
    pthread_mutex_lock(&engine->calls.lock);
    uint32_t epoch = engine->calls.epoch;
    size_t pending;
    while ((pending = n_earlier_locked(engine, epoch)) && err != ETIMEDOUT)
        err = forever
            ? pthread_cond_wait(&engine->calls.idle, &engine->calls.lock)
            : pthread_cond_timedwait(&engine->calls.idle, &engine->calls.lock, &until);
    pthread_mutex_unlock(&engine->calls.lock);
    if (pending)
        return kvt__fail(ETIMEDOUT, "kvt_engine_flush: %zu chunks are still being stored after "
                         "%lld ms.", pending, (long long)timeout_ms);
    return 0;
}
