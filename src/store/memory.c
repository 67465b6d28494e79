/* SPDX-License-Identifier: Apache-2.0
 *
 * Host memory: chunks stay in the pool of the worker that stored or read the chunks.  Each worker
 * has its own index, and the scheduler of the engine reads the indexes.  The number of an entry in
 * the index is also the number of the chunk's slot in `chunks`. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "store/instance.h"
#include "store/private.h"

#define MIN_ENTRIES (UINT64_C(1) << 10)
#define MAX_ENTRIES (UINT64_C(1) << 22)

/* The slot of a READY entry. */
struct chunk {
    struct kvt__slot slot; /* payload NULL: no slot */
    uint32_t crc;
    bool crc_pending; /* the payload was not compared with crc yet */
};

/* The index of one rank's memory. */
struct rank {
    struct kvt__instance instance;
    struct kvt__table *index; /* NULL: this process does not look up the rank's chunks */
    atomic_bool is_dead;      /* the process of the memory has ended */
};

struct kvt__host_memory {
    bool no_get, no_put;
    bool prefetched_only; /* keep only prefetched chunks */
    struct kvt__store *store;
    struct rank *ranks;
    uint32_t n_ranks;

    struct kvt__pool *pool;   /* NULL: this process has no pool */
    struct kvt__table *index; /* index of this process's rank */
    pthread_mutex_t lock;     /* guards the fields below; held during each change of the index, so
                               * that each READY entry has a slot */
    struct chunk *chunks;     /* [entry] */
    uint64_t n_chunks;
    uint64_t n_used;          /* chunks[n_used] and later never had a slot */
};

/* ------------------------------------------------------------------- opening */

/* Open the directory of a rank's index.  If the open fails, log a warning: the index is then
 * private. */
static void
open_instance(const struct kvt__memory_params *params, uint32_t rank, bool worker,
              struct kvt__instance *out)
{
    *out = (struct kvt__instance){ .dirfd = -1, .worker_fd = -1 };
    if (params->instance && kvt__instance_open(params->instance, rank, worker, out))
        kvt__log(KVT_LOG_WARN, "local_cpu: the scheduler does not find the chunks in the host "
                 "memory of rank %u: %s", rank, kvt__why());
}

static bool
forget_entry(void *ctx, const struct kvt__record *record)
{
    (void)kvt__table_forget(ctx, record, true);
    return true;
}

static uint64_t
n_entries_for(const struct kvt__memory_params *params)
{
    uint64_t n = params->limit_bytes / (params->object_bytes ? params->object_bytes : 1);

    n = n < MAX_ENTRIES / 2 ? n * 2 : MAX_ENTRIES;
    return n > MIN_ENTRIES ? n : MIN_ENTRIES;
}

static int
open_rank(const struct kvt__memory_params *params, uint32_t rank, struct rank *out)
{
    bool worker = params->pool && rank == params->rank;
    struct kvt__table_params index = {
        .limit_bytes = worker ? params->limit_bytes : 0,
        .max_entries = n_entries_for(params), .writer = worker, .of_memory = true,
        .order = kvt__order_from_name(params->config->cache_policy) };

    open_instance(params, rank, worker, &out->instance);
    int err = out->instance.dirfd < 0
        ? kvt__table_open_private(&index, &out->index)
        : kvt__table_open(&index, out->instance.dirfd, &out->index);
    if (!err && worker) /* entries of an earlier worker with the same rank */
        kvt__table_each(out->index, forget_entry, out->index);
    return err;
}

static int
open_chunks(struct kvt__host_memory *m, const struct kvt__memory_params *params)
{
    struct kvt__table_totals totals;

    assert(params->rank < m->n_ranks);
    m->pool = params->pool;
    m->index = m->ranks[params->rank].index;
    kvt__table_get_totals(m->index, &totals);
    m->n_chunks = totals.max_entries;
    m->chunks = calloc(m->n_chunks, sizeof *m->chunks);
    return m->chunks ? 0 : kvt__fail(ENOMEM, "local_cpu: allocate a table of %llu chunks",
                                     (unsigned long long)m->n_chunks);
}

int
kvt__store_add_memory(struct kvt__store *store, const struct kvt__memory_params *params)
{
    struct kvt__host_memory *m = calloc(1, sizeof *m);
    int err = 0;

    assert(!store->memory && (params->pool || params->sees_all_ranks));
    if (!m)
        return kvt__fail(ENOMEM, "local_cpu: open");
    pthread_mutex_init(&m->lock, NULL);
    m->prefetched_only = params->prefetched_only;
    m->store = store;
    m->n_ranks = params->n_ranks;
    m->ranks = calloc(params->n_ranks, sizeof *m->ranks);
    if (!m->ranks)
        err = kvt__fail(ENOMEM, "local_cpu: open");
    for (uint32_t r = 0; m->ranks && r < m->n_ranks; r++)
        m->ranks[r].instance = (struct kvt__instance){ .dirfd = -1, .worker_fd = -1 };
    for (uint32_t r = 0; !err && r < params->n_ranks; r++)
        if (params->sees_all_ranks || r == params->rank)
            err = open_rank(params, r, &m->ranks[r]);
    if (!err && params->pool)
        err = open_chunks(m, params);
    if (err) {
        kvt__memory_close(m);
        return err;
    }
    if (!params->prefetched_only) /* with prefetched_only, LMCache's LocalCPUBackend is off */
        kvt__apply_locations(params->config, "LocalCPUBackend", &m->no_get, &m->no_put);
    store->memory = m;
    store->traits.n_tiers++;
    store->traits.has_memory = !m->no_get;
    return 0;
}

/* Release all slots.  No lookup uses the index. */
static void
release_all(struct kvt__host_memory *m)
{
    assert(m->n_used <= m->n_chunks && (m->pool || !m->n_used));
    for (uint64_t i = 0; i < m->n_used; i++)
        if (m->chunks[i].slot.payload)
            kvt__pool_release(m->pool, &m->chunks[i].slot);
    m->n_used = 0;
}

void
kvt__memory_close(struct kvt__host_memory *m)
{
    if (!m)
        return;
    for (uint32_t r = 0; m->ranks && r < m->n_ranks; r++) {
        kvt__table_close(m->ranks[r].index);
        kvt__instance_close(&m->ranks[r].instance);
    }
    release_all(m); /* after the close of the index, which lookups of the scheduler notice */
    pthread_mutex_destroy(&m->lock);
    free(m->chunks);
    free(m->ranks);
    free(m);
}

/* ------------------------------------------------------------------- lookups */

struct kvt__table *
kvt__memory_index(const struct kvt__store *store, const struct kvt__space *space)
{
    const struct kvt__host_memory *m = store->memory;

    if (!m || space->memory_rank >= m->n_ranks ||
        atomic_load(&m->ranks[space->memory_rank].is_dead))
        return NULL;
    return m->ranks[space->memory_rank].index;
}

bool
kvt__memory_covers(const struct kvt__store *store, const struct kvt__space *space)
{
    return store->traits.has_memory && kvt__memory_index(store, space);
}

bool
kvt__memory_keeps(const struct kvt__store *store)
{
    return store->memory && !store->memory->prefetched_only;
}

bool
kvt__memory_may_put(const struct kvt__store *store)
{
    return store->memory && !store->memory->no_put;
}

void
kvt__store_refresh_liveness(struct kvt__store *store)
{
    struct kvt__host_memory *m = store->memory;

    for (uint32_t r = 0; m && r < m->n_ranks; r++) {
        struct rank *rank = &m->ranks[r];

        if (rank->index && rank->index != m->index)
            atomic_store(&rank->is_dead, !kvt__table_has_writer(rank->index));
    }
}

/* ------------------------------------------------------------------- chunks */

/* Forget an entry and release its slot; m->lock is held.  force: also a leased entry.  Return false
 * if the entry has changed, or has a lease. */
static bool
remove_locked(struct kvt__host_memory *m, const struct kvt__record *seen, bool force)
{
    assert(seen->entry < m->n_chunks);
    if (kvt__table_forget(m->index, seen, force))
        return false;
    if (m->chunks[seen->entry].slot.payload) /* always, unless the index is corrupt */
        kvt__pool_release(m->pool, &m->chunks[seen->entry].slot);
    return true;
}

/* Return true if the eviction of an entry frees memory now: no PUT and no copy shares the slot. */
static bool
is_idle(void *ctx, const struct kvt__record *record)
{
    struct kvt__host_memory *m = ctx;
    const struct chunk *c = &m->chunks[record->entry];

    assert(record->entry < m->n_chunks);
    return c->slot.payload && !kvt__pool_is_shared(m->pool, &c->slot);
}

static bool
evict_victim(void *ctx, const struct kvt__record *record)
{
    struct kvt__host_memory *m = ctx;
    bool gone = remove_locked(m, record, false);

    if (gone)
        kvt__count_evicted(m->store, record->bytes);
    return gone;
}

/* Evict until `bytes` are free; m->lock is held.  Return the evicted bytes. */
static uint64_t
evict_locked(struct kvt__host_memory *m, uint64_t bytes)
{
    assert(m->pool && m->index);
    return kvt__evict_victims(m->index, is_idle, evict_victim, m, bytes);
}

static bool
make_room_locked(struct kvt__host_memory *m, uint64_t bytes)
{
    struct kvt__table_totals totals;

    kvt__table_get_totals(m->index, &totals);
    return bytes <= totals.limit_bytes && evict_locked(m, bytes);
}

static int
claim_locked(struct kvt__host_memory *m, const struct kvt__name *name,
             const struct kvt__record *record, struct kvt__claim *claim)
{
    int err;

    do
        err = kvt__table_claim(m->index, name, record, NULL, claim);
    while (err == -ENOSPC && make_room_locked(m, record->bytes));
    return !err || err == -EEXIST || err == -ESTALE
        ? err : kvt__fail(ENOSPC, "local_cpu: host memory has no room for %llu bytes, and no "
                          "chunk can be evicted now.", (unsigned long long)record->bytes);
}

/* Give a claimed entry its slot and make the entry READY. */
static int
fill_locked(struct kvt__host_memory *m, const struct kvt__store_req *req,
            struct kvt__claim *claim)
{
    struct chunk *c = &m->chunks[claim->entry];

    assert(claim->entry < m->n_chunks);
    if (c->slot.payload) /* the slot of another identity with an equal name */
        kvt__pool_release(m->pool, &c->slot);
    kvt__pool_share(m->pool, &req->slot);
    *c = (struct chunk){ .slot = req->slot, .crc = req->crc, .crc_pending = req->crc_pending };
    if (claim->entry >= m->n_used)
        m->n_used = claim->entry + 1;
    return kvt__table_publish(m->index, claim) ? 0 : -ESTALE;
}

/* Remove a chunk without identity that the request may not load, unless another request has
 * a lease of the chunk. */
static void
forget_foreign_locked(struct kvt__store *store, const struct kvt__store_req *req,
                      const struct kvt__name *name)
{
    struct kvt__host_memory *m = store->memory;
    struct kvt__record record;

    if (kvt__table_find(m->index, name, &req->id, &record) &&
        !kvt__store_accepts(store, req->space, req->needs_id, &record))
        (void)remove_locked(m, &record, false);
}

int
kvt__memory_keep(struct kvt__store *store, const struct kvt__store_req *req, bool verified)
{
    struct kvt__host_memory *m = store->memory;
    struct kvt__name name = kvt__memory_name(&req->id);
    struct kvt__claim claim;

    assert(req->slot.payload && !req->by_key);
    if (!m)
        return -ENODEV;
    if (!m->pool || (m->prefetched_only && !req->is_prefetch) ||
        (m->no_get && req->op == KVT__TIER_GET))
        return -EEXIST;
    struct kvt__record record = {
        .id = req->id, .bytes = kvt__pool_footprint(m->pool, req->slot.bytes),
        .flags = verified ? 0 : KVT__TABLE_FOREIGN, .expires_ns = req->expires_ns };
    pthread_mutex_lock(&m->lock);
    forget_foreign_locked(store, req, &name);
    int err = claim_locked(m, &name, &record, &claim);
    if (!err)
        err = fill_locked(m, req, &claim);
    else if (err == -EEXIST && kvt__table_find(m->index, &name, &req->id, &record))
        kvt__table_prolong(m->index, &record, req->expires_ns);
    if (err == -ESTALE) { /* the index was corrupt, and the table is closed for good */
        release_all(m);
        err = kvt__fail(EIO, "local_cpu: the index of host memory was corrupt, and no chunk stays "
                        "in host memory until the engine is restarted.");
    }
    pthread_mutex_unlock(&m->lock);
    return err;
}

/* Share the slot of a chunk and return true; out: the share; seen: the chunk's entry.  Return false
 * if host memory does not hold the chunk for this request. */
static bool
share_slot(struct kvt__store *store, const struct kvt__store_req *req, struct chunk *out,
           struct kvt__record *seen)
{
    struct kvt__host_memory *m = store->memory;
    struct kvt__name name = kvt__memory_name(&req->id);

    if (!m || !m->pool || m->no_get)
        return false;
    pthread_mutex_lock(&m->lock);
    bool ok = kvt__table_find(m->index, &name, &req->id, seen) &&
              kvt__store_accepts(store, req->space, req->needs_id, seen);
    assert(!ok || seen->entry < m->n_chunks);
    if (ok) {
        *out = m->chunks[seen->entry];
        ok = out->slot.bytes == req->bytes;
    }
    if (ok)
        kvt__pool_share(m->pool, &out->slot);
    pthread_mutex_unlock(&m->lock);
    if (ok)
        kvt__table_touch(m->index, &name, &req->id);
    return ok;
}

/* Note that the payload is verified: later loads do not compute the checksum. */
static void
set_verified(struct kvt__host_memory *m, const struct kvt__record *seen,
           const unsigned char *payload)
{
    assert(seen->entry < m->n_chunks);
    pthread_mutex_lock(&m->lock);
    if (m->chunks[seen->entry].slot.payload == payload)
        m->chunks[seen->entry].crc_pending = false;
    pthread_mutex_unlock(&m->lock);
}

/* Remove the corrupt chunk of a request, leased or not. */
static void
remove_corrupt(struct kvt__host_memory *m, const struct kvt__store_req *req,
               const struct kvt__record *seen)
{
    kvt__log(KVT_LOG_WARN, "local_cpu: the prefetched chunk %s is corrupt, was removed from host "
             "memory, and is read again from storage", req->object.key);
    pthread_mutex_lock(&m->lock);
    (void)remove_locked(m, seen, true);
    pthread_mutex_unlock(&m->lock);
}

bool
kvt__memory_acquire_chunk(struct kvt__store *store, struct kvt__store_req *req)
{
    struct chunk c;

    if (!share_slot(store, req, &c, &req->seen))
        return false;
    req->slot = c.slot;
    req->crc = c.crc;
    req->crc_pending = c.crc_pending;
    req->verified = !(req->seen.flags & KVT__TABLE_FOREIGN) && !c.crc_pending;
    return true;
}

int
kvt__memory_verify(struct kvt__store *store, struct kvt__store_req *req)
{
    struct kvt__host_memory *m = store->memory;

    assert(m && req->is_in_place && req->crc_pending && !req->verified);
    int err = kvt__store_check_crc(req, req->crc);

    if (!err) {
        req->verified = true;
        set_verified(m, &req->seen, req->slot.payload);
        return 0;
    }
    remove_corrupt(m, req, &req->seen);
    kvt__pool_release(m->pool, &req->slot);
    req->slot = (struct kvt__slot){ 0 };
    return err;
}

int
kvt__memory_get(struct kvt__store *store, struct kvt__store_req *req)
{
    struct kvt__record seen;
    struct chunk c;
    int err = 0;

    assert(req->op == KVT__TIER_GET && !req->is_in_place);
    if (kvt__slot_on_device(&req->slot) || !share_slot(store, req, &c, &seen))
        return -ENOENT;
    memcpy(req->slot.payload, c.slot.payload, c.slot.bytes);
    req->from_memory = true; /* before consume(), which reads the field */
    if (c.crc_pending)
        err = kvt__store_check_crc(req, c.crc);
    req->from_memory = !err;
    if (err)
        remove_corrupt(store->memory, req, &seen);
    else if (c.crc_pending)
        set_verified(store->memory, &seen, c.slot.payload);
    kvt__pool_release(store->memory->pool, &c.slot);
    req->verified = !(seen.flags & KVT__TABLE_FOREIGN);
    return err ? -ENOENT : 0;
}

static bool
expire_entry(void *ctx, const struct kvt__record *record)
{
    struct kvt__host_memory *m = ctx;

    if (kvt__table_is_expired(record)) {
        pthread_mutex_lock(&m->lock);
        if (remove_locked(m, record, true))
            kvt__count_expired(m->store);
        pthread_mutex_unlock(&m->lock);
    }
    return true;
}

void
kvt__memory_expire(struct kvt__store *store)
{
    struct kvt__host_memory *m = store->memory;

    if (m && m->pool && kvt__table_begin_expiry(m->index))
        kvt__table_each(m->index, expire_entry, m);
}

bool
kvt__store_evict_memory(struct kvt__store *store, uint64_t bytes)
{
    struct kvt__host_memory *m = store->memory;

    if (!m || !m->pool)
        return false;
    pthread_mutex_lock(&m->lock);
    bool any = evict_locked(m, bytes) > 0;
    pthread_mutex_unlock(&m->lock);
    return any;
}
