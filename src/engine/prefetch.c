/* SPDX-License-Identifier: Apache-2.0
 *
 * Bringing chunks to host memory before a load asks for them: each is read into a slot
 * by the store, which keeps that slot.  The store verifies chunks from shared storage at once;
 * the first load verifies all others.  One that finds no slot waits for
 * it, in the order in which they were asked for, for as long as a load could take: then
 * nobody waits for it any more.
 *
 *      waiting ──slot──► reading ──► free
 *         └── there, or too late ─────┘
 *
 * e->prefetches.lock guards all three lists. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/private.h"

struct kvt__prefetch {
    struct kvt__store_req req;
    struct kvt_engine *engine;
    struct kvt__space space; /* with the tags of the request, if it has tags */
    int64_t until_ns;
    struct kvt__prefetch *next; /* in the list that it is in */
};

static struct kvt__prefetch *
new_prefetch(struct kvt_engine *e)
{
    pthread_mutex_lock(&e->prefetches.lock);
    struct kvt__prefetch *p = e->prefetches.free;
    if (p)
        e->prefetches.free = p->next;
    pthread_mutex_unlock(&e->prefetches.lock);
    return p ? p : malloc(sizeof *p);
}

static void
free_list(struct kvt__prefetch *p)
{
    while (p) {
        struct kvt__prefetch *next = p->next;
        free(p);
        p = next;
    }
}

void
kvt__prefetches_free(struct kvt_engine *engine)
{
    free_list(engine->prefetches.first_waiting);
    free_list(engine->prefetches.free);
}

static bool
wanted(const struct kvt__store_req *req)
{
    return !atomic_load(&((const struct kvt__prefetch *)req)->engine->loads.stopping);
}

static void
stop_reading(struct kvt__prefetch *p)
{
    struct kvt_engine *e = p->engine;
    struct kvt__prefetch **at = &e->prefetches.reading;

    pthread_mutex_lock(&e->prefetches.lock);
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    p->next = e->prefetches.free;
    e->prefetches.free = p;
    pthread_mutex_unlock(&e->prefetches.lock);
}

static void
was_read(struct kvt__store_req *req)
{
    struct kvt__prefetch *p = (struct kvt__prefetch *)req;
    struct kvt_engine *e = p->engine;

    if (!req->error.code) {
        struct kvt__chunk_key key = kvt__request_key(req);

        kvt__store_hold(e->store, &key, kvt__now_ns() + kvt__patience_ns(e));
        kvt__count(&e->counters, KVT__N_prefetch_chunks, 1);
        kvt__count(&e->counters, KVT__N_load_bytes, req->slot.bytes);
    } else if (req->error.code == -EBADMSG) {
        kvt__count(&e->counters, KVT__N_load_corrupt, 1);
    }
    kvt__pool_release(e->pool, &req->slot);
    stop_reading(p);
    e->on_slot_free(e);
}

/* Requests that wait for the same prefix ask for the same chunks. */
static bool
is_needless_locked(const struct kvt__prefetch *p)
{
    struct kvt_engine *e = p->engine;
    struct kvt__chunk_key key = kvt__request_key(&p->req);

    for (const struct kvt__prefetch *r = e->prefetches.reading; r; r = r->next)
        if (kvt__id_equal(&r->req.id, &p->req.id))
            return true;
    return kvt__now_ns() >= p->until_ns || !wanted(&p->req) ||
           kvt__store_find(e->store, &key, KVT__IN_MEMORY);
}

/* The next one to read, with its slot; NULL: none, or no slot. */
static struct kvt__prefetch *
take_waiting(struct kvt_engine *e)
{
    struct kvt__prefetch *p, *taken = NULL;

    pthread_mutex_lock(&e->prefetches.lock);
    while (!taken && (p = e->prefetches.first_waiting)) {
        bool needless = is_needless_locked(p);

        if (!needless && !kvt__pool_acquire(e->pool, p->req.bytes, e->transfer_bytes / 2,
                                            &p->req.slot))
            break;
        e->prefetches.first_waiting = p->next;
        if (!p->next)
            e->prefetches.last_waiting = &e->prefetches.first_waiting;
        p->next = needless ? e->prefetches.free : e->prefetches.reading;
        if (needless)
            e->prefetches.free = p;
        else
            taken = e->prefetches.reading = p;
    }
    pthread_mutex_unlock(&e->prefetches.lock);
    return taken;
}

void
kvt__prefetches_pump(struct kvt_engine *engine)
{
    struct kvt__prefetch *p;

    while ((p = take_waiting(engine)))
        kvt__store_submit(engine->store, &p->req);
}

void
kvt__prefetch(struct kvt_engine *engine, const char *tags, uint32_t group,
              const struct kvt_chunk *chunks, size_t n)
{
    int64_t until_ns = kvt__now_ns() + engine->load_timeout_ns;

    for (size_t c = 0; c < n; c++) {
        struct kvt__prefetch *p = new_prefetch(engine);

        if (!p)
            break;
        *p = (struct kvt__prefetch){ .engine = engine, .until_ns = until_ns };
        p->req.wanted = wanted;
        p->req.done = was_read;
        p->req.early = true;
        kvt__load_request(engine, engine->rank, group,
                          kvt__engine_space(engine, engine->rank, group, tags, &p->space),
                          &chunks[c], &p->req);
        pthread_mutex_lock(&engine->prefetches.lock);
        *engine->prefetches.last_waiting = p;
        engine->prefetches.last_waiting = &p->next;
        pthread_mutex_unlock(&engine->prefetches.lock);
    }
    kvt__prefetches_pump(engine);
}

int
kvt_engine_prefetch(struct kvt_engine *engine, const struct kvt_group_io *ios, size_t n_ios)
{
    int err = kvt__engine_check(engine, "kvt_engine_prefetch");

    if (!err)
        err = kvt__check_chunks(engine, "kvt_engine_prefetch", ios, n_ios);
    if (!err && !engine->pool)
        err = kvt__fail(EINVAL, "kvt_engine_prefetch: a scheduler's engine has no pool.");
    for (size_t i = 0; !err && i < n_ios; i++)
        kvt__prefetch(engine, ios[i].tags ? ios[i].tags : "", ios[i].group, ios[i].chunks,
                      ios[i].n_chunks);
    return err;
}
