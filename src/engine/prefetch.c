/* SPDX-License-Identifier: Apache-2.0
 *
 * Bringing chunks to host memory before a load asks for them: each is read into a slot
 * and verified by the store, which keeps that slot.  Nothing waits: a chunk for which
 * there is no room is left to the load.  e->prefetches.lock guards the reused
 * requests. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/private.h"

struct kvt__prefetch {
    struct kvt__store_req req;
    struct kvt_engine *engine;
    struct kvt__prefetch *next_free;
};

static struct kvt__prefetch *
take(struct kvt_engine *e)
{
    pthread_mutex_lock(&e->prefetches.lock);
    struct kvt__prefetch *p = e->prefetches.free;
    if (p)
        e->prefetches.free = p->next_free;
    pthread_mutex_unlock(&e->prefetches.lock);
    return p ? p : malloc(sizeof *p);
}

static void
give(struct kvt_engine *e, struct kvt__prefetch *p)
{
    pthread_mutex_lock(&e->prefetches.lock);
    p->next_free = e->prefetches.free;
    e->prefetches.free = p;
    pthread_mutex_unlock(&e->prefetches.lock);
}

void
kvt__prefetches_free(struct kvt_engine *engine)
{
    while (engine->prefetches.free) {
        struct kvt__prefetch *p = engine->prefetches.free;
        engine->prefetches.free = p->next_free;
        free(p);
    }
}

static bool
wanted(const struct kvt__store_req *req)
{
    return !atomic_load(&((const struct kvt__prefetch *)req)->engine->loads.stopping);
}

static void
was_read(struct kvt__store_req *req)
{
    struct kvt__prefetch *p = (struct kvt__prefetch *)req;
    struct kvt_engine *e = p->engine;

    if (!req->status) {
        kvt__count(&e->counters, KVT__N_prefetch_chunks, 1);
        kvt__count(&e->counters, KVT__N_load_bytes, req->slot.bytes);
        if (!req->verified)
            kvt__count(&e->counters, KVT__N_unverified_chunks, 1);
    }
    kvt__pool_release(e->pool, &req->slot);
    give(e, p);
    kvt__loads_pump(e);
}

static void
prefetch_chunk(struct kvt_engine *e, const struct kvt__keyspace *k, uint32_t group,
               const struct kvt_chunk *chunk)
{
    struct kvt__prefetch *p = take(e);

    if (!p)
        return;
    p->engine = e;
    p->req = (struct kvt__store_req){ .wanted = wanted, .done = was_read, .early = true };
    kvt__load_request(e, k, group, chunk, &p->req);
    if (kvt__store_find(e->store, &k->space, &p->req.id, KVT__IN_MEMORY) ||
        !kvt__pool_acquire(e->pool, p->req.bytes, e->transfer_bytes / 2, &p->req.slot))
        give(e, p);
    else
        kvt__store_submit(e->store, &p->req);
}

int
kvt_engine_prefetch(struct kvt_engine *engine, const struct kvt_group_io *ios, size_t n_ios)
{
    int err = kvt__engine_check(engine, "kvt_engine_prefetch");

    if (!err)
        err = kvt__check_chunks(engine, "kvt_engine_prefetch", ios, n_ios);
    if (!err && !engine->pool)
        err = kvt__fail(EINVAL, "kvt_engine_prefetch: a scheduler's engine has no pool.");
    for (size_t i = 0; !err && i < n_ios; i++) {
        const struct kvt__keyspace *k;
        struct kvt__tagset *tagset;

        err = kvt__tagset(engine, ios[i].tags ? ios[i].tags : "", &tagset);
        k = err ? NULL : kvt__keyspace(engine, tagset, engine->rank, ios[i].group);
        for (uint32_t c = 0; k && c < ios[i].n_chunks; c++)
            prefetch_chunk(engine, k, ios[i].group, &ios[i].chunks[c]);
    }
    return err;
}
