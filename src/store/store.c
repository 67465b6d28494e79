/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening the tiers and their indexes, and the levels that a lookup may use. */
#include "store/store.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"
#include "conf/conf.h"
#include "store/private.h"

#define GIB ((double)(UINT64_C(1) << 30))
/* The size of an index without a limit of bytes.  Lookups probe a chunk again that has left the
 * index. */
#define UNLIMITED_ENTRIES (UINT64_C(1) << 22)

/* Add the properties of a new level to the traits of the store. */
static void
add_traits(struct kvt__store_traits *traits, const struct kvt__level *level)
{
    const struct kvt__tier *tier = level->tier;

    traits->n_tiers++;
    traits->multi_host |= tier->multi_host && !level->no_get;
    traits->any_memory &= tier->any_memory;
    traits->any_name &= tier->any_name;
    if (tier->in_memory)
        return;
    if (!traits->has_storage)
        traits->phase = tier->phase;
    traits->has_storage = true;
    traits->wants_crc |= !level->no_put;
}

/* Open the index of a level.  limit: bytes; 0: the tier's default limit. */
static int
open_index(struct kvt__level *level, const struct kvt_config *config, uint64_t limit)
{
    const struct kvt__tier *tier = level->tier;
    enum kvt__hash_kind hash = kvt__hash_kind_named(config->pre_caching_hash_algorithm,
                                                    config->lmcache_release);

    limit = tier->enforces_limit ? 0 : limit ? limit : tier->default_limit;
    struct kvt__table_params index = {
        .limit_bytes = limit, .max_entries = limit ? 0 : UNLIMITED_ENTRIES, .writer = true,
        .wide_hashes = kvt__hash_form(hash) == KVT__HASH_WIDE,
        .order = kvt__order_from_name(config->cache_policy) };
    tier->ops->set_index(tier, &index);
    return kvt__level_open_index(level, &index);
}

/* Open a tier and its index as the next level.  limit: as for open_index(). */
static int
open_level(struct kvt__store *store, const struct kvt__tier_params *params,
           const struct kvt__storage *storage, uint64_t limit)
{
    struct kvt__level *level = &store->levels[store->n_storages];
    struct kvt__tier_params tier = *params;

    if (store->n_storages == KVT__MAX_STORAGES)
        return kvt__fail(EINVAL, "%s: more than %d tiers.", storage->name, KVT__MAX_STORAGES);
    tier.name = storage->name;
    tier.url = storage->url;
    int err = kvt__tier_open(&tier, &level->tier);
    if (err)
        return err;
    level->store = store;
    level->owner = level;
    pthread_mutex_init(&level->choice.lock, NULL);
    pthread_mutex_init(&level->speed.lock, NULL);
    level->choice.is_measured = !strcmp(storage->serde, "auto");
    atomic_init(&level->choice.encodes, true);
    if (level->choice.is_measured)
        level->serde = KVT__SERDE_LOSSLESS;
    else if (!kvt__serde_from_name(storage->serde, &level->serde))
        level->serde = KVT__SERDE_NAIVE; /* kivi */
    level->url = strdup(storage->url); /* messages of open_index() contain the URL */
    level->location = strdup(storage->location);
    level->keeps_free = !storage->limit_bytes && !level->tier->multi_host;
    err = level->url && level->location ? open_index(level, params->config, limit)
                                        : kvt__fail(ENOMEM, "%s: open", storage->name);
    if (err) {
        bool absent = level->tier->in_memory && params->only_existing && err == -ENOENT;

        level->tier->ops->close(level->tier);
        free(level->url);
        free(level->location);
        level->url = level->location = NULL;
        return absent ? 0 : err;
    }
    assert(level->index && level->tier);
    store->n_levels = ++store->n_storages;
    level->is_host_only = !level->tier->multi_host;
    kvt__apply_locations(params->config, storage->location, &level->no_get, &level->no_put);
    add_traits(&store->traits, level);
    if (store->max_ttl_s && params->transfers && !level->no_put && !kvt__level_can_expire(level))
        kvt__log(KVT_LOG_WARN, "max_ttl_seconds: nothing is stored in %s, because chunks in "
                 "storage that other hosts share cannot be deleted in time; add a local directory "
                 "or host memory, or remove max_ttl_seconds and let the storage delete old chunks",
                 level->url);
    return 0;
}

/* ------------------------------------------------------------------------ encodings */

/* Add a level for the objects of a storage in another encoding, or under other names. */
static struct kvt__level *
add_encoding(struct kvt__store *store, struct kvt__level *owner, enum kvt__serde serde)
{
    struct kvt__level *level = &store->levels[store->n_levels++];

    assert(level < store->levels + KVT__MAX_LEVELS);
    *level = (struct kvt__level){
        .store = store, .owner = owner, .serde = serde, .tier = owner->tier, .url = owner->url,
        .location = owner->location, .is_host_only = owner->is_host_only,
        .keeps_free = owner->keeps_free, .no_get = owner->no_get, .no_put = owner->no_put };
    return level;
}

/* Return true if the configuration lists the encoding in accept_serde. */
static bool
accepts(const struct kvt_config *config, enum kvt__serde serde)
{
    for (size_t i = 0; i < config->accept_serde.n; i++)
        if (!strcmp(config->accept_serde.items[i], kvt__serde_name(serde)))
            return true;
    return false;
}

/* Return true if the store writes or accepts a lossy encoding. */
static bool
is_lossy(const struct kvt__store *store, const struct kvt_config *config)
{
    bool has_storage = false;

    for (size_t i = 0; i < store->n_storages; i++) {
        if (kvt__serde_is_lossy(store->levels[i].serde))
            return true;
        has_storage |= !store->levels[i].tier->in_memory;
    }
    for (int s = KVT__SERDE_NAIVE; s < KVT__N_SERDES; s++)
        if (has_storage && kvt__serde_is_lossy(s) && accepts(config, s))
            return true;
    return false;
}

/* Add the levels of the other encodings that a storage reads: naive, and those of accept_serde.
 * Shared host memory has one level: LMCache does not read this memory, and all processes have the
 * same index, which shows the exact chunks, so no PUT replaces an exact chunk. */
static void
add_encodings_of(struct kvt__store *store, struct kvt__level *owner,
                 const struct kvt_config *config)
{
    bool is_lossy = store->traits.is_lossy;

    if (owner->tier->in_memory)
        return;
    owner->is_inexact = is_lossy && !kvt__serde_is_lossy(owner->serde);
    for (int s = KVT__SERDE_NAIVE; s < KVT__N_SERDES; s++) {
        bool is_exact = !kvt__serde_is_lossy(s), is_owners = s == (int)owner->serde;

        if (!is_owners && s != KVT__SERDE_NAIVE && !accepts(config, s))
            continue;
        if (!is_owners)
            add_encoding(store, owner, s)->is_inexact = is_lossy && is_exact;
        if (is_lossy && is_exact)
            add_encoding(store, owner, s)->no_put = true;
    }
}

/* Add the levels of all storages, and open the gate if a level is encoded.  0; -ENOMEM with a
 * sentence. */
static int
add_encodings(struct kvt__store *store, const struct kvt_config *config)
{
    store->traits.is_lossy = is_lossy(store, config);
    for (size_t i = 0; i < store->n_storages; i++)
        add_encodings_of(store, &store->levels[i], config);
    for (size_t i = 0; i < store->n_levels; i++) {
        const struct kvt__level *level = &store->levels[i];
        size_t bytes = sizeof "@" KVT__KEY_OWN_TAG - 1 + strlen(kvt__serde_name(level->serde)) +
                       (level->is_inexact ? sizeof KVT__INEXACT - 1 : 0);

        if (kvt__level_is_own(level) && bytes > store->traits.serde_text_bytes)
            store->traits.serde_text_bytes = bytes;
    }
    return store->traits.serde_text_bytes ? kvt__gate_open(store, config->codec_threads) : 0;
}

struct opening {
    struct kvt__store *store;
    const struct kvt__tier_params *params;
};

/* Open a configured storage.  The limit of local_disk is the sum of the limits of the host's
 * workers.  The command line does not know the number of workers (local_ranks 0) and passes no
 * limit: the index keeps the limit of its other processes. */
static int
open_storage(void *ctx, const struct kvt__storage *storage)
{
    const struct opening *o = ctx;
    uint32_t ranks = storage->is_per_worker ? o->params->local_ranks : 1;
    uint64_t limit;

    if (__builtin_mul_overflow(storage->limit_bytes, ranks, &limit))
        limit = UINT64_MAX;
    if (ranks > 1)
        kvt__log(KVT_LOG_INFO, "%s: at most %.1f GiB for all %u workers of this host",
                 storage->name, (double)limit / GIB, ranks);
    return open_level(o->store, o->params, storage, limit);
}

int
kvt__store_open(const struct kvt__tier_params *params, struct kvt__store **out)
{
    struct kvt__store *store = calloc(1, sizeof *store);
    int err = 0;

    if (!store)
        return kvt__fail(ENOMEM, "store: open");
    pthread_mutex_init(&store->upkeep_lock, NULL);
    kvt__cond_init(&store->upkeep_stop);
    store->exec = params->exec;
    store->counters = params->counters;
    store->traits.any_memory = store->traits.any_name = true;
    store->refuse_unverified = params->config->refuse_unverified;
    store->max_ttl_s = (uint32_t)params->config->max_ttl_seconds;
    if (params->config->store_location) {
        store->store_location = strdup(params->config->store_location);
        if (!store->store_location)
            err = kvt__fail(ENOMEM, "store: open");
    }
    if (!err)
        err = kvt__each_storage(params->config, open_storage,
                                &(struct opening){ store, params });
    if (!err)
        err = add_encodings(store, params->config);
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
    assert(!store->has_upkeep);
    for (size_t i = 0; i < store->n_storages; i++) {
        struct kvt__level *level = &store->levels[i];

        kvt__level_close_index(level);
        level->tier->ops->close(level->tier);
        free(level->url);
        free(level->location);
        pthread_mutex_destroy(&level->choice.lock);
        pthread_mutex_destroy(&level->speed.lock);
    }
    kvt__memory_close(store->memory);
    kvt__gate_close(store->gate);
    pthread_cond_destroy(&store->upkeep_stop);
    pthread_mutex_destroy(&store->upkeep_lock);
    free(store->store_location);
    free(store);
}

const struct kvt__store_traits *
kvt__store_traits(const struct kvt__store *store)
{
    return &store->traits;
}

/* ------------------------------------------------------------------- places */

/* Return true if a promise of the space's chunks may rely on the level: no other host, and no
 * process that does not see the leases, deletes chunks from the level.  Also true if no host memory
 * covers the chunks, because then no read before the promise can verify the chunks. */
static bool
is_guaranteed(const struct kvt__level *level, const struct kvt__space *space)
{
    return (!level->tier->multi_host && !atomic_load(&level->owner->reads_only)) ||
           !kvt__memory_covers(level->store, space);
}

bool
kvt__level_covers(const struct kvt__level *level, enum kvt__where where,
                  const struct kvt__space *space)
{
    if (level->no_get || kvt__level_is_paused(level, KVT__PAUSE_READS))
        return false;
    switch (where) {
    case KVT__IN_MEMORY:
        return level->tier->in_memory;
    case KVT__IN_STORAGE:
        return !level->tier->in_memory;
    case KVT__GUARANTEED:
        return is_guaranteed(level, space);
    case KVT__READ_FIRST:
        return !is_guaranteed(level, space);
    default:
        return true;
    }
}

bool
kvt__store_covers(const struct kvt__store *store, enum kvt__where where, int level,
                  const struct kvt__space *space)
{
    return level == KVT__LEVEL_MEMORY
        ? where != KVT__IN_STORAGE && where != KVT__READ_FIRST &&
          kvt__memory_covers(store, space)
        : kvt__level_covers(&store->levels[level - 1], where, space);
}

bool
kvt__store_is_memory(const struct kvt__store *store, int level)
{
    return level == KVT__LEVEL_MEMORY || store->levels[level - 1].tier->in_memory;
}

bool
kvt__store_can_probe(const struct kvt__store *store, enum kvt__where where,
                   const struct kvt__space *space)
{
    for (size_t i = 0; i < store->n_levels; i++)
        if (!store->levels[i].tier->in_memory &&
            kvt__level_covers(&store->levels[i], where, space))
            return true;
    return false;
}

bool
kvt__store_puts_in_storage(const struct kvt__store *store, const struct kvt__space *space,
                           int64_t expires_ns)
{
    for (size_t i = 0; i < store->n_storages; i++)
        if (kvt__level_may_put(&store->levels[i], space, expires_ns))
            return true;
    return false;
}

/* Return the tier whose memory provides slots: the only tier, if chunks do not stay in host memory
 * and are not encoded; else NULL.  With several tiers, a chunk for a slow tier would occupy memory
 * of a fast tier. */
static struct kvt__tier *
tier_with_slots(struct kvt__store *store)
{
    return store->n_levels == 1 && !store->gate && !kvt__memory_keeps(store)
        ? store->levels[0].tier : NULL;
}

bool
kvt__store_acquire_slot(struct kvt__store *store, enum kvt__prio prio, size_t bytes,
                        struct kvt__slot *out)
{
    struct kvt__tier *tier = tier_with_slots(store);

    return tier && tier->ops->acquire_slot(tier, prio, bytes, out);
}

int
kvt__store_use_gpu(struct kvt__store *store, struct kvt__gpu *gpu, size_t most)
{
    int err = 0;

    for (size_t i = 0; !err && i < store->n_storages; i++) {
        struct kvt__tier *tier = store->levels[i].tier;

        err = tier->ops->use_gpu(tier, gpu, tier == tier_with_slots(store) ? most : 0);
    }
    return err;
}
