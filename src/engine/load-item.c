/* SPDX-License-Identifier: Apache-2.0
 *
 * The items of loads, from the queue to the end of the item; the end of a load. */
#include <assert.h>
#include <errno.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/load.h"

static struct kvt_load *
load_of(const struct kvt__item *item)
{
    return (struct kvt_load *)item->call;
}

/* ---------------------------------------------------------------------- ending */

/* If no thread can write to the load's blocks any more, append the load to the list for
 * kvt_engine_poll(). */
static void
finish_if_due_locked(struct kvt_load *load)
{
    struct kvt_engine *e = load->call.engine;
    uint64_t one = 1;

    if (load->done || load->n_copying || (!load->closed && load->n_left))
        return;
    load->done = true;
    load->next_done = NULL;
    *e->calls.last_done = load;
    e->calls.last_done = &load->next_done;
    if (write(e->calls.eventfd, &one, sizeof one) < 0)
        return; /* the counter is full, so the eventfd is readable */
}

void
kvt__load_close(struct kvt_load *load, int status)
{
    struct kvt_engine *e = load->call.engine;

    pthread_mutex_lock(&e->calls.lock);
    if (!load->closed && !load->done) {
        load->closed = true;
        load->closed_status = status;
    }
    finish_if_due_locked(load);
    pthread_mutex_unlock(&e->calls.lock);
    e->on_slot_free(e); /* waiting items of the closed load end, and other items advance */
}

void
kvt__load_on_deadline(struct kvt__timer *timer)
{
    struct kvt_load *load = (struct kvt_load *)
        ((char *)timer - offsetof(struct kvt_load, deadline));

    kvt__store_pause_hung_tiers(load->call.engine->store,
                              load->call.engine->load_timeout_ns / 2);
    kvt__load_close(load, -ETIMEDOUT);
    kvt__call_unref(&load->call);
}

static void
count(struct kvt_engine *e, int status)
{
    switch (status) {
    case 0:
        kvt__count(&e->counters, KVT__N_load_chunks, 1);
        break;
    case -ENOENT:
        kvt__count(&e->counters, KVT__N_load_missing, 1);
        break;
    case -EBADMSG:
        kvt__count(&e->counters, KVT__N_load_corrupt, 1);
        break;
    case -ETIMEDOUT:
    case -ECANCELED:
        kvt__count(&e->counters, KVT__N_load_late, 1);
        break;
    default:
        kvt__count(&e->counters, KVT__N_load_failed, 1);
        break;
    }
}

/* Note the result of an item whose slot is released: a failure cancels the later chunks of the
 * kvt_group_io. */
static void
note_end(struct kvt__item *item, int status)
{
    struct kvt_load *load = load_of(item);
    struct kvt_engine *e = load->call.engine;

    count(e, status);
    pthread_mutex_lock(&e->calls.lock);
    assert(load->n_left && (!load->done || load->closed));
    if (!load->closed)
        item->status = status;
    if (status && item->chunk < item->io->first_failed)
        item->io->first_failed = item->chunk;
    load->n_left--;
    finish_if_due_locked(load);
    bool last = !load->n_left;
    pthread_mutex_unlock(&e->calls.lock);
    if (last && kvt__timer_clear(e->exec, &load->deadline))
        kvt__call_unref(&load->call);
}

/* --------------------------------------------------------------------- reading */

/* Convert an error of the store for kvt_load_status(): undocumented errors become -EIO. */
static int
load_status(int status)
{
    switch (status) {
    case 0:
    case -ENOENT:
    case -EBADMSG:
    case -ECANCELED:
        return status;
    default:
        return -EIO;
    }
}

/* Return true if the load is open: the caller may copy to the item's blocks, and the load is not
 * done before end_copy(). */
static bool
begin_copy(struct kvt__item *item)
{
    struct kvt_load *load = load_of(item);
    struct kvt_engine *e = load->call.engine;

    pthread_mutex_lock(&e->calls.lock);
    bool open = !load->closed;
    assert(!open || !load->done);
    if (open)
        load->n_copying++;
    pthread_mutex_unlock(&e->calls.lock);
    return open;
}

/* End a copy.  status: KVT__PENDING if the blocks hold wrong bytes and another tier may have the
 * chunk. */
static void
end_copy(struct kvt__item *item, int status)
{
    struct kvt_load *load = load_of(item);
    struct kvt_engine *e = load->call.engine;

    pthread_mutex_lock(&e->calls.lock);
    assert(load->n_copying && !load->done);
    load->n_copying--;
    item->status = status; /* also if the load was closed during the copy */
    finish_if_due_locked(load);
    pthread_mutex_unlock(&e->calls.lock);
}

/* Count a hit in host memory, or the bytes that a tier read. */
static void
count_bytes(struct kvt__item *item, bool verified)
{
    const struct kvt__store_req *req = &item->req;
    struct kvt__counters *counters = &item->call->engine->counters;

    if (!verified)
        kvt__count(counters, KVT__N_unverified_chunks, 1);
    if (req->is_in_place || req->from_memory) {
        kvt__count(counters, KVT__N_memory_hits, 1);
        return;
    }
    kvt__count(counters, KVT__N_load_bytes, req->slot.bytes);
    atomic_fetch_add(&load_of(item)->bytes, req->slot.bytes);
}

/* Release the slot of an item, and end the item. */
static void
end_item(struct kvt__item *item, int status)
{
    struct kvt__store_req *req = &item->req;
    struct kvt_engine *e = item->call->engine;
    bool in_place = req->is_in_place, of_tier = req->slot.source;

    kvt__pool_release(e->pool, &req->slot);
    kvt__count_down(&e->counters, KVT__N_loads_pending, 1);
    if (!in_place) {
        pthread_mutex_lock(&e->calls.lock);
        assert(e->calls.n_reading && e->calls.n_tier_slots >= of_tier);
        e->calls.n_reading--;
        e->calls.n_tier_slots -= of_tier;
        pthread_mutex_unlock(&e->calls.lock);
    }
    note_end(item, status);
    e->on_slot_free(e);
    kvt__item_end(item);
}

/* Callback: the device has copied the chunk to the blocks, or has failed. */
static void
on_scattered(struct kvt__gpu_copy *copy, int err, uint32_t crc)
{
    struct kvt__item *item = (struct kvt__item *)
        ((char *)copy - offsetof(struct kvt__item, copy));
    int status = err ? -EIO : 0;

    (void)crc; /* the store verified the slot */
    if (err)
        KVT__LOG_ONCE(KVT_LOG_ERROR, "a chunk of %s was not loaded: the copy to the GPU failed: "
                      "%s (logged once; the counter load_failed counts all)",
                      item->req.space->text, kvt__why());
    end_copy(item, status);
    end_item(item, status);
}

/* Copy the slot to the item's blocks.  begin_copy() has returned true. */
static void
scatter(struct kvt__item *item)
{
    struct kvt_engine *e = item->call->engine;
    struct kvt__gpu_copy *copy = &item->copy;

    if (!e->gpu) {
        kvt__scatter(kvt__item_view(item), item->blocks, item->req.tokens,
                     item->req.slot.payload, NULL);
        end_copy(item, 0);
        end_item(item, 0);
        return;
    }
    *copy = (struct kvt__gpu_copy){ .view = kvt__item_view(item), .blocks = item->blocks,
                                    .n_tokens = item->req.tokens,
                                    .on_device = kvt__slot_on_device(&item->req.slot),
                                    .chunk = item->req.slot.payload, .on_done = on_scattered };
    if (kvt__gpu_scatter(e->gpu, &copy, 1))
        on_scattered(copy, -EIO, 0);
}

int
kvt__load_consume(struct kvt__store_req *req, uint32_t want)
{
    struct kvt__item *item = (struct kvt__item *)req;
    uint32_t crc;

    assert(!item->call->engine->gpu && !item->copied);
    if (!begin_copy(item))
        return -EAGAIN;
    kvt__scatter(kvt__item_view(item), item->blocks, req->tokens, req->slot.payload, &crc);
    item->copied = crc == want;
    if (item->copied)
        count_bytes(item, true);
    end_copy(item, item->copied ? 0 : KVT__PENDING);
    return item->copied ? 0 : -EBADMSG;
}

/* Host memory held corrupt bytes of the chunk: queue the item first, to read from storage. */
static void
retry_from_storage(struct kvt__item *item)
{
    struct kvt_engine *e = item->call->engine;

    assert(!item->from_storage);
    item->from_storage = true;
    item->req.is_in_place = false;
    kvt__count_down(&e->counters, KVT__N_loads_pending, 1);
    pthread_mutex_lock(&e->calls.lock);
    kvt__queue_push_front(&e->calls.loads, item);
    pthread_mutex_unlock(&e->calls.lock);
    e->on_slot_free(e);
}

void
kvt__load_on_read(struct kvt__store_req *req)
{
    struct kvt__item *item = (struct kvt__item *)req;
    int status = load_status(req->error.code);

    if (req->is_in_place && !req->slot.payload) {
        retry_from_storage(item);
        return;
    }
    assert(!item->copied || !status);
    if (item->copied) {
        end_item(item, status);
        return;
    }
    if (!status)
        count_bytes(item, req->verified);
    if (!status && begin_copy(item))
        scatter(item);
    else
        end_item(item, status ? status : -ECANCELED);
}

/* Return true if a waiting item must still be read. */
bool
kvt__load_is_wanted(const struct kvt__store_req *req)
{
    const struct kvt__item *item = (const struct kvt__item *)req;

    return !atomic_load(&item->call->engine->calls.stopping) &&
           !atomic_load(&load_of(item)->closed) &&
           item->chunk <= atomic_load(&item->io->first_failed);
}

/* Acquire a slot for an item: the chunk itself in host memory, or an empty slot. */
static bool
acquire_slot_locked(struct kvt_engine *e, struct kvt__item *item)
{
    if (!item->from_storage && kvt__store_acquire_chunk(e->store, &item->req))
        return true;
    if (kvt__store_acquire_slot(e->store, KVT__PRIO_LOAD, item->req.bytes, &item->req.slot))
        e->calls.n_tier_slots++;
    else if (e->calls.n_tier_slots || /* the tier has a slot for each chunk that it can move */
             !kvt__pool_acquire(e->pool, item->req.bytes, 0, &item->req.slot))
        return false;
    e->calls.n_reading++;
    return true;
}

/* Remove and return the first waiting item: with a slot, or without a slot if the item is not
 * wanted.  NULL: no item waits, or no slot is free.  *short_of: bytes of the item if no read is in
 * progress that will release a slot; else 0. */
static struct kvt__item *
take_waiting(struct kvt_engine *e, uint64_t *short_of)
{
    *short_of = 0;
    pthread_mutex_lock(&e->calls.lock);
    struct kvt__item *item = e->calls.loads.first;
    if (item && kvt__load_is_wanted(&item->req) && !acquire_slot_locked(e, item)) {
        *short_of = e->calls.n_reading ? 0 : item->req.bytes;
        item = NULL;
    }
    assert(!item || item->status == KVT__PENDING);
    if (item)
        kvt__queue_pop(&e->calls.loads);
    pthread_mutex_unlock(&e->calls.lock);
    return item;
}

void
kvt__start_waiting_loads(struct kvt_engine *engine)
{
    struct kvt__item *item;
    uint64_t short_of;

    for (;;) {
        item = take_waiting(engine, &short_of);
        if (!item && (!short_of || !kvt__store_evict_memory(engine->store, short_of)))
            break;
        if (!item)
            continue;
        if (item->req.slot.payload) {
            kvt__count(&engine->counters, KVT__N_loads_pending, 1);
            kvt__store_submit(engine->store, &item->req);
        } else {
            note_end(item, -ECANCELED);
            kvt__item_end(item);
        }
    }
}
