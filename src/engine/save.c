/* SPDX-License-Identifier: Apache-2.0
 *
 * Storing chunks: their blocks are copied into slots of the pool, by the caller's thread
 * or by the device on which they lie; the executor writes those.  Nothing waits: without a
 * slot a chunk is dropped. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/private.h"

/* One chunk being written; reused. */
struct kvt__save {
    struct kvt__store_req req;
    struct kvt__gpu_copy copy; /* of blocks on a device */
    struct kvt_engine *engine;
    struct kvt__space space; /* with the tags of the request, if it has tags */
    struct kvt__save *next_free;
};

static struct kvt__save *
take_save(struct kvt_engine *e)
{
    pthread_mutex_lock(&e->saves.lock);
    struct kvt__save *save = e->saves.free;
    if (save)
        e->saves.free = save->next_free;
    e->saves.pending++;
    pthread_mutex_unlock(&e->saves.lock);
    if (!save)
        save = malloc(sizeof *save);
    return save;
}

static void
give_save(struct kvt_engine *e, struct kvt__save *save)
{
    pthread_mutex_lock(&e->saves.lock);
    if (save) {
        save->next_free = e->saves.free;
        e->saves.free = save;
    }
    if (!--e->saves.pending)
        pthread_cond_broadcast(&e->saves.idle);
    pthread_mutex_unlock(&e->saves.lock);
}

void
kvt__saves_free(struct kvt_engine *engine)
{
    while (engine->saves.free) {
        struct kvt__save *save = engine->saves.free;
        engine->saves.free = save->next_free;
        free(save);
    }
}

static void
end_save(struct kvt__save *save)
{
    struct kvt_engine *e = save->engine;

    kvt__pool_release(e->pool, &save->req.slot);
    kvt__count_down(&e->counters, KVT__N_stores_pending, 1);
    e->on_slot_free(e);
    give_save(e, save);
}

static void
saved(struct kvt__store_req *req)
{
    struct kvt__save *save = (struct kvt__save *)req;
    struct kvt_engine *e = save->engine;

    switch (req->error.code) {
    case 0:
        kvt__count(&e->counters, KVT__N_store_chunks, 1);
        kvt__count(&e->counters, KVT__N_store_bytes, req->slot.bytes);
        break;
    case -EEXIST:
        kvt__count(&e->counters, KVT__N_store_known, 1);
        break;
    case -ENOSPC:
        kvt__count(&e->counters, KVT__N_store_dropped, 1);
        KVT__LOG_ONCE(KVT_LOG_WARN, "chunks are not stored: %s", req->error.why);
        break;
    default:
        kvt__count(&e->counters, KVT__N_store_failed, 1);
        KVT__LOG_ONCE(KVT_LOG_ERROR, "a chunk could not be stored: %s", req->error.why);
        break;
    }
    end_save(save);
}

/* ---------------------------------------------------------------------- gathering */

/* The device has failed: nothing is in the slot. */
static void
not_gathered(struct kvt__save *save)
{
    kvt__count(&save->engine->counters, KVT__N_store_failed, 1);
    KVT__LOG_ONCE(KVT_LOG_ERROR, "a chunk could not be stored: %s", kvt__why());
    end_save(save);
}

static void
count_gathering(struct kvt_engine *e, size_t begun, size_t ended)
{
    pthread_mutex_lock(&e->saves.lock);
    e->saves.gathering += begun - ended;
    if (!e->saves.gathering)
        pthread_cond_broadcast(&e->saves.idle);
    pthread_mutex_unlock(&e->saves.lock);
}

static void
gathered(struct kvt__gpu_copy *copy, int err, uint32_t crc)
{
    struct kvt__save *save = (struct kvt__save *)
        ((char *)copy - offsetof(struct kvt__save, copy));
    struct kvt_engine *e = save->engine;

    if (err) {
        not_gathered(save);
    } else {
        save->req.crc = crc;
        kvt__store_submit(e->store, &save->req);
    }
    count_gathering(e, 0, 1);
}

void
kvt__saves_settle(struct kvt_engine *engine)
{
    pthread_mutex_lock(&engine->saves.lock);
    while (engine->saves.gathering)
        pthread_cond_wait(&engine->saves.idle, &engine->saves.lock);
    pthread_mutex_unlock(&engine->saves.lock);
}

/* Saves of one call that a device is to gather: all at once. */
struct batch {
    struct kvt__gpu_copy **copies;
    size_t n;
};

/* Copy the blocks and hand the slot to the store; of a device's, later. */
static void
gather(struct kvt__save *save, const struct kvt__view *view, const int32_t *blocks,
       struct batch *batch)
{
    struct kvt_engine *e = save->engine;
    struct kvt__store_req *req = &save->req;
    bool sums = kvt__store_traits(e->store)->wants_crc;

    kvt__count(&e->counters, KVT__N_stores_pending, 1);
    if (!e->gpu) {
        kvt__gather(view, blocks, req->tokens, req->slot.payload, sums ? &req->crc : NULL);
        kvt__store_submit(e->store, req);
        return;
    }
    save->copy = (struct kvt__gpu_copy){ .view = view, .blocks = blocks,
                                         .n_tokens = req->tokens, .sums = sums,
                                         .on_device = kvt__slot_on_device(&req->slot),
                                         .chunk = req->slot.payload, .done = gathered };
    batch->copies[batch->n++] = &save->copy;
}

static void
gather_batch(struct kvt_engine *e, struct batch *batch)
{
    if (batch->n) {
        count_gathering(e, batch->n, 0);
        if (kvt__gpu_gather(e->gpu, atomic_load(&e->stream), batch->copies, batch->n))
            for (size_t i = 0; i < batch->n; i++)
                gathered(batch->copies[i], -EIO, 0);
    }
    free((void *)batch->copies);
}

/* False: no memory. */
static bool
make_batch(const struct kvt_engine *e, const struct kvt_group_io *ios, size_t n_ios,
           struct batch *batch)
{
    size_t n = 0;

    *batch = (struct batch){ 0 };
    if (!e->gpu)
        return true;
    for (size_t i = 0; i < n_ios; i++)
        n += ios[i].n_chunks;
    batch->copies = calloc(n ? n : 1, sizeof *batch->copies);
    return batch->copies;
}

/* ------------------------------------------------------------------------ saving */

static bool
all_real(const struct kvt__view *view, const int32_t *blocks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!kvt__block_real(view, blocks[i]))
            return false;
    return true;
}

/* Half of what chunks may not stay in is kept for loads.  Where there is no slot, what is
 * free does not lie together, or is still being populated: then a chunk that storage has
 * gives way, but not one that is nowhere else. */
static bool
take_slot(struct kvt_engine *e, uint64_t bytes, struct kvt__slot *out)
{
    size_t keep = e->transfer_bytes / 2;

    return kvt__store_lend(e->store, KVT__PRIO_STORE, bytes, out) ||
           kvt__pool_acquire(e->pool, bytes, keep, out) ||
           ((kvt__store_traits(e->store)->wants_crc || kvt__pool_is_populated(e->pool)) &&
            kvt__store_reclaim(e->store, bytes) &&
            kvt__pool_acquire(e->pool, bytes, keep, out));
}

/* Copy one chunk into a slot and hand it to the store.  False: no slot. */
static bool
save_chunk(struct kvt_engine *e, const struct kvt_group_io *io,
           const struct kvt_chunk *chunk, const int32_t *blocks, struct batch *batch)
{
    const struct kvt__keyspace *k = kvt__keyspace(e, e->rank, io->group);
    const struct kvt__view *view = &e->groups[io->group].view;
    struct kvt__chunk_key key = { .hash = kvt__chunk_hash(e, chunk),
                                  .own_only = chunk->flags & KVT_CHUNK_OWN };
    struct kvt__prefix prefix;
    struct kvt__space tagged;
    struct kvt__slot slot;

    memcpy(prefix.b, chunk->prefix, sizeof prefix.b);
    kvt__id_make(k->digest, &prefix, &key.id);
    key.space = kvt__engine_space(e, e->rank, io->group, io->tags, &tagged);
    if (kvt__store_touch(e->store, &key)) {
        kvt__count(&e->counters, KVT__N_store_known, 1);
        return true;
    }
    if (!take_slot(e, kvt__chunk_bytes(view, chunk->n_tokens), &slot))
        return false;
    struct kvt__save *save = take_save(e);
    if (!save) {
        kvt__pool_release(e->pool, &slot);
        give_save(e, NULL);
        return false;
    }
    save->engine = e;
    if (key.space == &tagged) {
        save->space = tagged;
        key.space = &save->space;
    }
    save->req = (struct kvt__store_req){
        .op = KVT__TIER_PUT, .space = key.space, .id = key.id, .hash = key.hash,
        .tokens = chunk->n_tokens, .whole = chunk->n_tokens == e->chunk_tokens,
        .own_only = key.own_only,
        .shape = kvt__group_shape(e, io->group, chunk->n_tokens), .slot = slot,
        .done = saved };
    gather(save, view, blocks, batch);
    return true;
}

static void
save_chunks(struct kvt_engine *e, const struct kvt_group_io *io, struct batch *batch)
{
    const struct kvt__group *group = &e->groups[io->group];
    const int32_t *blocks = io->blocks;

    for (uint32_t c = 0; c < io->n_chunks; c++) {
        uint32_t n = kvt__group_blocks(group, io->chunks[c].n_tokens);

        if (all_real(&group->view, blocks, n) &&
            !save_chunk(e, io, &io->chunks[c], blocks, batch))
            kvt__count(&e->counters, KVT__N_store_dropped, 1);
        blocks += n;
    }
}

int
kvt_engine_store(struct kvt_engine *engine, const struct kvt_group_io *ios,
                 size_t n_ios)
{
    struct batch batch;
    int err = kvt__engine_check(engine, "kvt_engine_store");

    if (!err)
        err = kvt__check_ios(engine, "kvt_engine_store", ios, n_ios);
    if (err)
        return err;
    if (!engine->pool)
        return kvt__fail(EINVAL, "kvt_engine_store: a scheduler's engine has no pool.");
    if (!make_batch(engine, ios, n_ios, &batch))
        return kvt__fail(ENOMEM, "kvt_engine_store");
    for (size_t i = 0; i < n_ios; i++)
        save_chunks(engine, &ios[i], &batch);
    gather_batch(engine, &batch);
    return 0;
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
    pthread_mutex_lock(&engine->saves.lock);
    while (engine->saves.pending && err != ETIMEDOUT)
        err = forever
            ? pthread_cond_wait(&engine->saves.idle, &engine->saves.lock)
            : pthread_cond_timedwait(&engine->saves.idle, &engine->saves.lock, &until);
    size_t pending = engine->saves.pending;
    pthread_mutex_unlock(&engine->saves.lock);
    if (pending)
        return kvt__fail(ETIMEDOUT, "kvt_engine_flush: %zu chunks after %lld ms", pending,
                         (long long)timeout_ms);
    return 0;
}
