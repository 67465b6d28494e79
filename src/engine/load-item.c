/* SPDX-License-Identifier: Apache-2.0
 *
 * The items of loads, from waiting to their end, and with it the end of a load. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/load.h"

void
kvt__load_unref(struct kvt_load *load)
{
    if (atomic_fetch_sub(&load->refs, 1) != 1)
        return;
    pthread_mutex_destroy(&load->lock);
    free(load->parts);
    free(load->blocks);
    free(load);
}

/* ---------------------------------------------------------------------- ending */

/* Hand the load to kvt_engine_poll(); load->lock is held. */
static void
finish_locked(struct kvt_load *load)
{
    struct kvt_engine *e = load->engine;
    uint64_t one = 1;

    load->done = true;
    load->next_done = NULL;
    pthread_mutex_lock(&e->loads.lock);
    *e->loads.last_done = load;
    e->loads.last_done = &load->next_done;
    pthread_mutex_unlock(&e->loads.lock);
    if (write(e->loads.eventfd, &one, sizeof one) < 0)
        return; /* full: it is readable all the same */
}

static void
finish_if_due_locked(struct kvt_load *load)
{
    if (!load->done && !load->n_copying && (load->closed || !load->n_left))
        finish_locked(load);
}

void
kvt__load_close(struct kvt_load *load, int status)
{
    pthread_mutex_lock(&load->lock);
    if (!load->closed && !load->done) {
        load->closed = true;
        load->closed_status = status;
    }
    finish_if_due_locked(load);
    pthread_mutex_unlock(&load->lock);
}

void
kvt__load_deadline(struct kvt__timer *timer)
{
    struct kvt_load *load = (struct kvt_load *)
        ((char *)timer - offsetof(struct kvt_load, deadline));

    kvt__store_look_for_hangs(load->engine->store, load->engine->load_timeout_ns / 2);
    kvt__load_close(load, -ETIMEDOUT);
    kvt__load_unref(load);
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

/* The item needs nothing any more. */
static void
end_item(struct kvt__load_item *item, int status)
{
    struct kvt_load *load = item->load;
    struct kvt_engine *e = load->engine;
    struct kvt__load_part *part = &load->parts[item->io];

    count(e, status);
    pthread_mutex_lock(&load->lock);
    if (!load->closed)
        item->status = status;
    if (status && item->chunk < part->broken_at)
        part->broken_at = item->chunk;
    load->n_left--;
    finish_if_due_locked(load);
    bool last = !load->n_left;
    pthread_mutex_unlock(&load->lock);
    if (last && kvt__timer_clear(e->exec, &load->deadline))
        kvt__load_unref(load);
    kvt__load_unref(load);
    pthread_mutex_lock(&e->loads.lock);
    if (!--e->loads.n_items)
        pthread_cond_broadcast(&e->loads.idle);
    pthread_mutex_unlock(&e->loads.lock);
}

/* --------------------------------------------------------------------- reading */

/* What kvt_load_status() may say: all else that storage answers is -EIO. */
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

/* Return true if this item's bytes may be copied.  Then the load is not done before
 * end_copy(). */
static bool
begin_copy(struct kvt_load *load)
{
    pthread_mutex_lock(&load->lock);
    bool open = !load->closed;
    if (open)
        load->n_copying++;
    pthread_mutex_unlock(&load->lock);
    return open;
}

/* status: KVT__PENDING if the blocks hold wrong bytes, which another tier may replace. */
static void
end_copy(struct kvt_load *load, struct kvt__load_item *item, int status)
{
    pthread_mutex_lock(&load->lock);
    load->n_copying--;
    item->status = status; /* also when it was closed during the copy */
    finish_if_due_locked(load);
    pthread_mutex_unlock(&load->lock);
}

/* Where the chunk came from. */
static void
count_bytes(struct kvt__load_item *item, bool verified)
{
    const struct kvt__store_req *req = &item->req;
    struct kvt_load *load = item->load;
    struct kvt__counters *counters = &load->engine->counters;

    if (!verified)
        kvt__count(counters, KVT__N_unverified_chunks, 1);
    if (req->borrowed || req->from_memory) {
        kvt__count(counters, KVT__N_memory_hits, 1);
        return;
    }
    kvt__count(counters, KVT__N_load_bytes, req->slot.bytes);
    pthread_mutex_lock(&load->lock);
    load->bytes += req->slot.bytes;
    pthread_mutex_unlock(&load->lock);
}

/* What the item had is given back. */
static void
let_go(struct kvt__load_item *item, int status)
{
    struct kvt__store_req *req = &item->req;
    struct kvt_engine *e = item->load->engine;
    bool borrowed = req->borrowed, lent = req->slot.lender;

    kvt__pool_release(e->pool, &req->slot);
    kvt__count_down(&e->counters, KVT__N_loads_pending, 1);
    if (!borrowed) {
        pthread_mutex_lock(&e->loads.lock);
        e->loads.n_reading--;
        e->loads.n_lent -= lent;
        pthread_mutex_unlock(&e->loads.lock);
    }
    end_item(item, status);
    e->on_slot_free(e);
}

/* The device has copied it to its blocks, or has failed. */
static void
scattered(struct kvt__gpu_copy *copy, int err, uint32_t crc)
{
    struct kvt__load_item *item = (struct kvt__load_item *)
        ((char *)copy - offsetof(struct kvt__load_item, copy));
    int status = err ? -EIO : 0;

    (void)crc; /* it was checked in the slot */
    if (err)
        KVT__LOG_ONCE(KVT_LOG_ERROR, "a chunk could not be loaded: %s", kvt__why());
    end_copy(item->load, item, status);
    let_go(item, status);
}

/* Copy the slot to the item's blocks; begin_copy() was said. */
static void
scatter(struct kvt__load_item *item)
{
    struct kvt_load *load = item->load;
    struct kvt_engine *e = load->engine;
    const struct kvt__view *view = &e->groups[load->parts[item->io].group].view;
    struct kvt__gpu_copy *copy = &item->copy;

    if (!e->gpu) {
        kvt__scatter(view, item->blocks, item->req.tokens, item->req.slot.payload, NULL);
        end_copy(load, item, 0);
        let_go(item, 0);
        return;
    }
    *copy = (struct kvt__gpu_copy){ .view = view, .blocks = item->blocks,
                                    .n_tokens = item->req.tokens,
                                    .on_device = kvt__slot_on_device(&item->req.slot),
                                    .chunk = item->req.slot.payload, .done = scattered };
    if (kvt__gpu_scatter(e->gpu, &copy, 1))
        scattered(copy, -EIO, 0);
}

int
kvt__load_consume(struct kvt__store_req *req, uint32_t want)
{
    struct kvt__load_item *item = (struct kvt__load_item *)req;
    struct kvt_load *load = item->load;
    const struct kvt__view *view = &load->engine->groups[load->parts[item->io].group].view;
    uint32_t crc;

    assert(!load->engine->gpu);
    if (!begin_copy(load))
        return -EAGAIN;
    kvt__scatter(view, item->blocks, req->tokens, req->slot.payload, &crc);
    item->copied = crc == want;
    if (item->copied)
        count_bytes(item, true);
    end_copy(load, item, item->copied ? 0 : KVT__PENDING);
    return item->copied ? 0 : -EBADMSG;
}

/* The bytes in host memory were damaged: read the chunk from storage, as the next item. */
static void
retry_from_storage(struct kvt__load_item *item)
{
    struct kvt_engine *e = item->load->engine;

    item->from_storage = true;
    item->req.borrowed = false;
    kvt__count_down(&e->counters, KVT__N_loads_pending, 1);
    pthread_mutex_lock(&e->loads.lock);
    item->next_waiting = e->loads.first_waiting;
    e->loads.first_waiting = item;
    if (!item->next_waiting)
        e->loads.last_waiting = &item->next_waiting;
    pthread_mutex_unlock(&e->loads.lock);
    e->on_slot_free(e);
}

void
kvt__load_was_read(struct kvt__store_req *req)
{
    struct kvt__load_item *item = (struct kvt__load_item *)req;
    int status = load_status(req->error.code);

    if (req->borrowed && !req->slot.payload) {
        retry_from_storage(item);
        return;
    }
    assert(!item->copied || !status);
    if (item->copied) {
        let_go(item, status);
        return;
    }
    if (!status)
        count_bytes(item, req->verified);
    if (!status && begin_copy(item->load))
        scatter(item);
    else
        let_go(item, status ? status : -ECANCELED);
}

/* Whether an item that is not being read yet is still to be read. */
bool
kvt__load_wants(const struct kvt__store_req *req)
{
    const struct kvt__load_item *item = (const struct kvt__load_item *)req;
    const struct kvt_load *load = item->load;

    return !atomic_load(&load->engine->loads.stopping) &&
           !atomic_load(&load->closed) &&
           item->chunk <= atomic_load(&load->parts[item->io].broken_at);
}

/* Find memory for an item: what holds its chunk already, or a slot to read it into;
 * loads.lock is held. */
static bool
find_slot_locked(struct kvt_engine *e, struct kvt__load_item *item)
{
    if (!item->from_storage && kvt__store_borrow(e->store, &item->req))
        return true;
    if (kvt__store_lend(e->store, KVT__PRIO_LOAD, item->req.bytes, &item->req.slot))
        e->loads.n_lent++;
    else if (e->loads.n_lent || /* it moves no more at a time than it can lend */
             !kvt__pool_acquire(e->pool, item->req.bytes, 0, &item->req.slot))
        return false;
    e->loads.n_reading++;
    return true;
}

/* Take the first waiting item, if it has a slot or needs none.  short_of: bytes that it
 * lacks and no read under way will give back; 0: none. */
static struct kvt__load_item *
take_waiting(struct kvt_engine *e, uint64_t *short_of)
{
    *short_of = 0;
    pthread_mutex_lock(&e->loads.lock);
    struct kvt__load_item *item = e->loads.first_waiting;
    if (item && kvt__load_wants(&item->req) && !find_slot_locked(e, item)) {
        *short_of = e->loads.n_reading ? 0 : item->req.bytes;
        item = NULL;
    }
    if (item) {
        e->loads.first_waiting = item->next_waiting;
        if (!e->loads.first_waiting)
            e->loads.last_waiting = &e->loads.first_waiting;
    }
    pthread_mutex_unlock(&e->loads.lock);
    return item;
}

void
kvt__loads_pump(struct kvt_engine *engine)
{
    struct kvt__load_item *item;
    uint64_t short_of;

    for (;;) {
        item = take_waiting(engine, &short_of);
        if (!item && (!short_of || !kvt__store_reclaim(engine->store, short_of)))
            break;
        if (!item)
            continue;
        if (item->req.slot.payload) {
            kvt__count(&engine->counters, KVT__N_loads_pending, 1);
            kvt__store_submit(engine->store, &item->req);
        } else {
            end_item(item, -ECANCELED);
        }
    }
}
