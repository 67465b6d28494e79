/* SPDX-License-Identifier: Apache-2.0
 *
 * The level of host memory: chunks that stay in the pool of the worker that made or
 * read them.  Each worker has an index of its own, which its scheduler reads. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "store/private.h"

#define MIN_ENTRIES (UINT64_C(1) << 10)

/* One rank's memory, as a lookup sees it. */
struct kvt__rank_memory {
    struct kvt__instance instance;
    struct kvt__index *index;
    atomic_bool gone; /* with the process that had it */
};

void
kvt__memory_close(struct kvt__level *level)
{
    for (uint32_t r = 0; level->ranks && r < level->n_ranks; r++) {
        kvt__index_close(level->ranks[r].index);
        kvt__instance_close(&level->ranks[r].instance);
    }
    free(level->ranks);
}

struct kvt__index *
kvt__level_index(const struct kvt__level *level, const struct kvt__space *space)
{
    if (!level->ranks)
        return level->index;
    if (space->memory_rank >= level->n_ranks ||
        atomic_load(&level->ranks[space->memory_rank].gone))
        return NULL;
    return level->ranks[space->memory_rank].index;
}

void
kvt__store_look_who_lives(struct kvt__store *store)
{
    struct kvt__level *level = &store->levels[0];

    if (!level->in_memory)
        return;
    for (uint32_t r = 0; r < level->n_ranks; r++) {
        struct kvt__rank_memory *rank = &level->ranks[r];

        if (rank->index && rank->index != level->index)
            atomic_store(&rank->gone, !kvt__index_has_writer(rank->index));
    }
}

/* Where the index lies; one that no other process could see is as good as any. */
static void
open_instance(const struct kvt__memory_params *params, uint32_t rank, bool worker,
              struct kvt__instance *out)
{
    *out = (struct kvt__instance){ .dirfd = -1, .worker_fd = -1 };
    if (params->instance && kvt__instance_open(params->instance, rank, worker, out))
        kvt__log(KVT_LOG_WARN, "the scheduler cannot see the chunks in host memory of "
                 "rank %u: %s", rank, kvt__why());
}

static int
open_rank(const struct kvt__memory_params *params, uint32_t rank, uint64_t n_entries,
          struct kvt__rank_memory *out)
{
    bool worker = params->pool && rank == params->rank;
    enum kvt__policy policy = kvt__policy_named(params->config->cache_policy);

    open_instance(params, rank, worker, &out->instance);
    struct kvt__index_params index = {
        .dirfd = out->instance.dirfd, .n_entries = n_entries, .writer = worker,
        .limit_bytes = worker ? params->limit_bytes : 0, .policy = policy,
        .wide_hashes = kvt__wide_hashes(params->config) };
    int err = kvt__index_open(&index, &out->index);
    if (!err && worker) {
        kvt__index_clear(out->index); /* of a worker before this one */
        kvt__index_set_scanned(out->index, true);
    }
    return err;
}

static uint64_t
n_entries_for(const struct kvt__memory_params *params)
{
    uint64_t n = params->limit_bytes / (params->object_bytes ? params->object_bytes : 1);

    n = n < KVT__MAX_ENTRIES / 2 ? n * 2 : KVT__MAX_ENTRIES;
    return n > MIN_ENTRIES ? n : MIN_ENTRIES;
}

int
kvt__store_add_memory(struct kvt__store *store, const struct kvt__memory_params *params)
{
    struct kvt__level level = { .n_ranks = params->n_ranks, .in_memory = true,
                                .passing = params->passing };
    uint64_t n_entries = n_entries_for(params);
    int err = 0;

    if (store->n_levels == KVT__MAX_LEVELS)
        return kvt__fail(EINVAL, "local_cpu: more than %d tiers.", KVT__MAX_LEVELS);
    level.ranks = calloc(params->n_ranks, sizeof *level.ranks);
    level.url = strdup("");
    if (!level.ranks || !level.url)
        err = kvt__fail(ENOMEM, "local_cpu: open");
    for (uint32_t r = 0; !err && r < params->n_ranks; r++)
        if (params->looks_up || r == params->rank)
            err = open_rank(params, r, n_entries, &level.ranks[r]);
    if (!err) {
        level.index = params->pool ? level.ranks[params->rank].index : NULL;
        struct kvt__cpu_params cpu = {
            .pool = params->pool, .limit_bytes = params->limit_bytes,
            .n_chunks = params->pool ? (uint32_t)n_entries : 0,
            .dirfd = level.ranks[params->rank].instance.dirfd };
        err = kvt__cpu_open(&cpu, &level.tier);
    }
    if (err) {
        kvt__memory_close(&level);
        free(level.url);
        return err;
    }
    memmove(store->levels + 1, store->levels, store->n_levels * sizeof level);
    if (!params->passing) /* else it is nobody's back end */
        kvt__level_set_location(&level, params->config, "LocalCPUBackend");
    store->levels[0] = level;
    store->pool = params->pool;
    store->n_levels++;
    return 0;
}

static struct kvt__level *
memory_of(struct kvt__store *store)
{
    return store->n_levels && store->levels[0].in_memory ? &store->levels[0] : NULL;
}

int
kvt__memory_keep(struct kvt__store *store, const struct kvt__store_req *req,
                 bool verified)
{
    struct kvt__level *level = memory_of(store);
    struct kvt__object object = { .key = "", .tokens = req->tokens, .id = req->id,
                                  .unsummed = req->unsummed };

    if (!level)
        return -ENODEV;
    if (level->passing && !req->early)
        return -EEXIST;
    return kvt__level_put(store, level, &object, req, verified);
}

/* With several tiers a slow one would keep the memory of a quick one. */
/* The only storage, if chunks do not stay in host memory besides; NULL. */
static struct kvt__tier *
lends(struct kvt__store *store)
{
    const struct kvt__level *memory = memory_of(store);
    size_t first = memory ? 1 : 0;

    if ((memory && !memory->passing) || store->n_levels != first + 1)
        return NULL;
    return store->levels[first].tier;
}

bool
kvt__store_lend(struct kvt__store *store, enum kvt__prio prio, size_t bytes,
                struct kvt__slot *out)
{
    struct kvt__tier *tier = lends(store);

    return tier && tier->ops->lend && tier->ops->lend(tier, prio, bytes, out);
}

int
kvt__store_use_gpu(struct kvt__store *store, struct kvt__gpu *gpu, size_t most)
{
    int err = 0;

    for (size_t i = 0; !err && i < store->n_levels; i++) {
        struct kvt__tier *tier = store->levels[i].tier;

        if (tier->ops->use_gpu)
            err = tier->ops->use_gpu(tier, gpu, tier == lends(store) ? most : 0);
    }
    return err;
}

void
kvt__store_hold(struct kvt__store *store, const struct kvt__space *space,
                const struct kvt__id *id, int64_t until_ns)
{
    struct kvt__level *level = memory_of(store);
    struct kvt__index *index = level ? kvt__level_index(level, space) : NULL;

    if (index)
        kvt__index_hold(index, id, until_ns);
}

bool
kvt__store_borrow(struct kvt__store *store, struct kvt__store_req *req)
{
    struct kvt__level *level = memory_of(store);
    struct kvt__object object = { .key = "", .id = req->id };
    struct kvt__index_entry entry;
    struct kvt__found found;

    if (!level || level->no_get || !kvt__index_find(level->index, &req->id, &entry) ||
        (entry.flags & KVT__INDEX_FOREIGN &&
         !kvt__store_takes_foreign(store, req->space, req->own_only)) ||
        level->tier->ops->borrow(level->tier, &object, &req->slot, &found))
        return false;
    if (req->slot.bytes != req->bytes) {
        kvt__pool_release(store->pool, &req->slot);
        return false;
    }
    kvt__index_touch(level->index, &req->id);
    req->unsummed = !found.has_read_crc;
    req->crc = found.crc;
    req->seen = entry;
    req->verified = !(entry.flags & KVT__INDEX_FOREIGN) && !req->unsummed;
    req->borrowed = true;
    return true;
}

int
kvt__memory_verify(struct kvt__store *store, struct kvt__store_req *req)
{
    struct kvt__level *level = memory_of(store);
    int err = kvt__level_check_crc(req, req->crc);

    if (!err) {
        req->verified = true;
        kvt__cpu_set_summed(level->tier, &req->id, req->slot.payload);
        return 0;
    }
    kvt__log(KVT_LOG_WARN, "a chunk that was read ahead into host memory is damaged, was "
             "removed from there, and is read again from storage.");
    kvt__level_drop_seen(level, &req->seen, false);
    kvt__cpu_drop(level->tier, &req->id, req->slot.payload);
    kvt__pool_release(store->pool, &req->slot);
    req->slot = (struct kvt__slot){ 0 };
    return err;
}

bool
kvt__store_reclaim(struct kvt__store *store, uint64_t bytes)
{
    struct kvt__level *level = memory_of(store);

    return level && kvt__level_evict(store, level, NULL, bytes) > 0;
}
