/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening the tiers and their indexes, and what is asked of all levels at once. */
#include "store/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "conf/conf.h"
#include "store/private.h"

#define GIB ((double)(UINT64_C(1) << 30))
#define MIN_ENTRIES (UINT64_C(1) << 14)
#define UNLISTED_ENTRIES (UINT64_C(1) << 18) /* what is forgotten is asked for again */

/* Twice what fits, so that a full store is a half-full table; above a million only
 * for a store that is much larger than its index. */
static uint64_t
n_entries_for(uint64_t limit, uint64_t object_bytes)
{
    uint64_t n = limit / (object_bytes ? object_bytes : 1) * 2;
    uint64_t most = limit / 4096 / 64; /* entries of 64 bytes */

    if (most < UINT64_C(1) << 20)
        most = UINT64_C(1) << 20;
    if (most > KVT__MAX_ENTRIES)
        most = KVT__MAX_ENTRIES;
    if (!limit)
        return most;
    n = n > MIN_ENTRIES ? n : MIN_ENTRIES;
    return n < most ? n : most;
}

void
kvt__level_set_location(struct kvt__level *level, const struct kvt_config *config,
                        const char *location)
{
    const struct kvt__strs *from = &config->retrieve_locations;

    level->no_get = from->n > 0;
    for (size_t i = 0; i < from->n; i++)
        if (!strcmp(from->items[i], location))
            level->no_get = false;
    level->no_put = config->store_location && strcmp(config->store_location, location);
}

/* limit: 0: what the tier takes by default. */
static int
open_level(struct kvt__store *store, const struct kvt__store_params *params,
           const struct kvt__storage *storage, uint64_t limit)
{
    struct kvt__level *level = &store->levels[store->n_levels];
    int err;

    if (store->n_levels == KVT__MAX_LEVELS)
        return kvt__fail(EINVAL, "%s: more than %d tiers.", storage->name,
                         KVT__MAX_LEVELS);
    struct kvt__tier_params tier = { .config = params->config, .name = storage->name,
                                     .url = storage->url,
                                     .local_ranks = params->local_ranks,
                                     .counters = params->counters, .exec = params->exec,
                                     .transfers = params->transfers,
                                     .tells = params->tells };
    err = kvt__tier_open(&tier, &level->tier);
    if (err)
        return err;
    level->keeps_free = !limit && !level->tier->shared && level->tier->ops->shortage;
    limit = level->tier->unlisted ? 0
          : limit ? limit : level->tier->ops->default_limit(level->tier);
    struct kvt__index_params index = {
        .dirfd = level->tier->ops->private_dir(level->tier),
        .n_entries = level->tier->unlisted ? UNLISTED_ENTRIES
                                           : n_entries_for(limit, params->object_bytes),
        .limit_bytes = limit, .writer = true,
        .wide_hashes = kvt__wide_hashes(params->config),
        .policy = kvt__policy_named(params->config->cache_policy) };
    err = kvt__level_open_index(level, &index);
    if (err) {
        level->tier->ops->close(level->tier);
        return err;
    }
    store->n_levels++;
    level->of_host = storage->of_host && !level->tier->shared;
    level->url = strdup(storage->url);
    level->location = strdup(storage->location);
    if (!level->url || !level->location)
        return kvt__fail(ENOMEM, "%s: open", storage->name);
    kvt__level_set_location(level, params->config, storage->location);
    kvt__index_recover(level->index);
    return 0;
}

struct opening {
    struct kvt__store *store;
    const struct kvt__store_params *params;
};

/* local_disk: every worker of the host adds its part to one limit.  Where their number
 * is not known (the command line) the limit of those that have it open is to hold. */
static int
open_storage(void *ctx, const struct kvt__storage *storage)
{
    const struct opening *o = ctx;
    uint32_t ranks = storage->of_each ? o->params->local_ranks : 1;
    uint64_t limit;

    if (__builtin_mul_overflow(storage->limit_bytes, ranks, &limit))
        limit = UINT64_MAX;
    if (ranks > 1)
        kvt__log(KVT_LOG_INFO, "%s: at most %.1f GiB for all %u workers of this host",
                 storage->name, (double)limit / GIB, ranks);
    return open_level(o->store, o->params, storage, limit);
}

int
kvt__store_open(const struct kvt__store_params *params, struct kvt__store **out)
{
    struct kvt__store *store = calloc(1, sizeof *store);
    int err = 0;

    if (!store)
        return kvt__fail(ENOMEM, "store: open");
    store->exec = params->exec;
    store->counters = params->counters;
    store->refuse_unverified = params->config->refuse_unverified;
    if (params->config->store_location) {
        store->store_location = strdup(params->config->store_location);
        if (!store->store_location)
            err = kvt__fail(ENOMEM, "store: open");
    }
    if (!err)
        err = kvt__each_storage(params->config, open_storage,
                                &(struct opening){ store, params });
    if (err) {
        kvt__store_close(store);
        return err;
    }
    *out = store;
    return 0;
}

void
kvt__store_close(struct kvt__store *store)
{
    if (!store)
        return;
    for (size_t i = 0; i < store->n_levels; i++) {
        struct kvt__level *level = &store->levels[i];

        kvt__level_close_index(level);
        level->tier->ops->close(level->tier);
        kvt__memory_close(level);
        free(level->url);
        free(level->location);
    }
    free(store->store_location);
    free(store);
}

size_t
kvt__store_n_tiers(const struct kvt__store *store)
{
    return store->n_levels;
}

size_t
kvt__store_phase(const struct kvt__store *store)
{
    for (size_t i = 0; i < store->n_levels; i++)
        if (!store->levels[i].in_memory)
            return store->levels[i].tier->ops->phase(store->levels[i].tier);
    return 0;
}

void
kvt__store_prefetch(const struct kvt__store *store, const struct kvt__space *space,
                    const struct kvt__id *id)
{
    for (size_t i = 0; i < store->n_levels; i++) {
        struct kvt__index *index = kvt__level_index(&store->levels[i], space);

        if (index)
            kvt__index_prefetch(index, id);
    }
}

/* Return true if a load takes the chunk of an entry of level i, and a promise does not rely
 * on an expected chunk. */
static bool
takes(const struct kvt__store *store, size_t i, const struct kvt__space *space,
      bool own_only, const struct kvt__index_entry *entry)
{
    if (entry->flags & KVT__INDEX_EXPECTED && !kvt__level_is_read_first(store, i, space))
        return false;
    return !(entry->flags & KVT__INDEX_FOREIGN) ||
           kvt__store_takes_foreign(store, space, own_only);
}

static bool
level_has(const struct kvt__store *store, size_t i, const struct kvt__space *space,
          const struct kvt__id *id, bool own_only, struct kvt__index_entry *entry)
{
    struct kvt__index *index = kvt__level_index(&store->levels[i], space);

    return index && kvt__index_find(index, id, entry) &&
           takes(store, i, space, own_only, entry);
}

bool
kvt__store_has_memory(const struct kvt__store *store)
{
    return store->n_levels && store->levels[0].in_memory && !store->levels[0].no_get;
}

bool
kvt__store_has_shared(const struct kvt__store *store)
{
    for (size_t i = 0; i < store->n_levels; i++)
        if (store->levels[i].tier->shared && !store->levels[i].no_get)
            return true;
    return false;
}

bool
kvt__store_covers(const struct kvt__store *store, enum kvt__where where, int i,
                  const struct kvt__space *space)
{
    const struct kvt__level *level = &store->levels[i];

    if (level->no_get || kvt__level_is_paused(level, KVT__READS))
        return false;
    switch (where) {
    case KVT__IN_MEMORY:
        return level->in_memory;
    case KVT__IN_STORAGE:
        return !level->in_memory;
    case KVT__CERTAIN:
        return !level->tier->shared || !kvt__store_has_memory(store) ||
               !kvt__level_index(&store->levels[0], space);
    default:
        return true;
    }
}

bool
kvt__level_is_read_first(const struct kvt__store *store, size_t i,
                         const struct kvt__space *space)
{
    return kvt__store_covers(store, KVT__IN_STORAGE, (int)i, space) &&
           !kvt__store_covers(store, KVT__CERTAIN, (int)i, space);
}

bool
kvt__store_can_ask(const struct kvt__store *store, enum kvt__where where,
                   const struct kvt__space *space)
{
    for (size_t i = 0; i < store->n_levels; i++)
        if (!store->levels[i].in_memory && kvt__store_covers(store, where, (int)i, space))
            return true;
    return false;
}

bool
kvt__store_reads_first(const struct kvt__store *store, const struct kvt__space *space)
{
    for (size_t i = 0; i < store->n_levels; i++)
        if (kvt__level_is_read_first(store, i, space))
            return true;
    return false;
}

/* The number of looks at levels: one at each, and another one at host memory, level 0, since a
 * chunk moves there from an expected chunk of storage. */
static size_t
n_looks(const struct kvt__store *store)
{
    return store->n_levels + (kvt__store_has_memory(store) ? 1 : 0);
}

bool
kvt__store_find(const struct kvt__store *store, const struct kvt__space *space,
                const struct kvt__id *id, bool own_only, enum kvt__where where)
{
    struct kvt__index_entry entry;

    for (size_t i = 0; i < n_looks(store); i++) {
        size_t level = i % store->n_levels;

        if (kvt__store_covers(store, where, (int)level, space) &&
            level_has(store, level, space, id, own_only, &entry))
            return true;
    }
    return false;
}

bool
kvt__store_puts_in_storage(const struct kvt__store *store, const struct kvt__space *space)
{
    for (size_t i = 0; i < store->n_levels; i++)
        if (!store->levels[i].in_memory && kvt__level_may_put(&store->levels[i], space))
            return true;
    return false;
}

int
kvt__store_check_puts(const struct kvt__store *store, const struct kvt__space *space)
{
    char tiers[256] = "";
    size_t used = 0;

    if (kvt__store_puts_in_storage(store, space))
        return 0;
    for (size_t i = 0; i < store->n_levels && used < sizeof tiers; i++)
        used += (size_t)snprintf(tiers + used, sizeof tiers - used, "%s%s (%s)",
                                 i ? ", " : "", store->levels[i].location,
                                 store->levels[i].tier->ops->name);
    return kvt__fail(EINVAL, "nothing is stored: store_location is %s, and the tiers "
                     "with storage are %s. Name one of these in store_location, or leave "
                     "it out.",
                     store->store_location, tiers);
}

bool
kvt__store_touch(struct kvt__store *store, const struct kvt__space *space,
                 const struct kvt__id *id, bool own_only)
{
    bool everywhere = true, stored = kvt__store_puts_in_storage(store, space);

    for (size_t i = 0; i < store->n_levels; i++) {
        const struct kvt__level *level = &store->levels[i];
        bool enough = !kvt__level_may_put(level, space) || (level->in_memory && stored);
        struct kvt__index_entry entry;

        if (level_has(store, i, space, id, own_only, &entry) &&
            !(entry.flags & KVT__INDEX_EXPECTED))
            kvt__index_touch(kvt__level_index(level, space), id);
        else if (!enough)
            everywhere = false;
    }
    return everywhere;
}

bool
kvt__store_wants_crc(const struct kvt__store *store)
{
    for (size_t i = 0; i < store->n_levels; i++)
        if (!store->levels[i].in_memory && !store->levels[i].no_put)
            return true;
    return false;
}

int
kvt__store_lease(struct kvt__store *store, const struct kvt__space *space,
                 const struct kvt__id *id, bool own_only, enum kvt__where where,
                 int64_t until_ns)
{
    for (size_t i = 0; i < n_looks(store); i++) {
        size_t level = i % store->n_levels;
        struct kvt__index *index = kvt__store_covers(store, where, (int)level, space)
            ? kvt__level_index(&store->levels[level], space) : NULL;
        struct kvt__index_entry entry;

        if (!index || !kvt__index_lease(index, id, until_ns, &entry))
            continue;
        if (takes(store, level, space, own_only, &entry))
            return (int)level;
        kvt__index_unlease(index, id);
    }
    return -1;
}

void
kvt__store_unlease(struct kvt__store *store, int level, const struct kvt__space *space,
                   const struct kvt__id *id)
{
    struct kvt__index *index = kvt__level_index(&store->levels[level], space);

    if (index)
        kvt__index_unlease(index, id);
}
