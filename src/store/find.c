/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups in the indexes: find, lease and touch a chunk of host memory or storage. */
#include <assert.h>

#include "base/clock.h"
#include "kvtier.h"
#include "store/private.h"

/* ------------------------------------------------------------------- one level */

/* Return the index of a level for the space's chunks.  Another thread may replace the index of
 * storage at any time.  NULL: the level is host memory that this process does not see, or the
 * process of the memory has ended. */
static struct kvt__table *
index_of(const struct kvt__store *store, int level, const struct kvt__space *space)
{
    assert(level >= KVT__LEVEL_MEMORY && (size_t)level <= store->n_levels);
    return level == KVT__LEVEL_MEMORY ? kvt__memory_index(store, space)
                                      : kvt__level_index(&store->levels[level - 1]);
}

static struct kvt__name
name_of(const struct kvt__store *store, int level, const struct kvt__chunk_key *key)
{
    return level == KVT__LEVEL_MEMORY
        ? kvt__memory_name(&key->id)
        : kvt__level_name(&store->levels[level - 1], key->space, &key->hash);
}

/* An unread entry has no identity, so it matches only in storage of KVT__READ_FIRST: there a read
 * comes before the promise. */
bool
kvt__store_matches(const struct kvt__store *store, int level, const struct kvt__chunk_key *key,
                   const struct kvt__record *record)
{
    if (record->flags & KVT__TABLE_UNREAD)
        return kvt__store_covers(store, KVT__READ_FIRST, level, key->space);
    return kvt__store_accepts_id(store, &key->id, &record->id) &&
           kvt__store_accepts(store, key->space, key->needs_id, record);
}

/* Find the entry of the chunk in an index of the level. */
static bool
find_in(const struct kvt__store *store, int level, const struct kvt__table *index,
        const struct kvt__chunk_key *key, struct kvt__record *out)
{
    struct kvt__name name = name_of(store, level, key);

    return index && kvt__table_find(index, &name, NULL, out) &&
           kvt__store_matches(store, level, key, out);
}

bool
kvt__store_ends_soon(const struct kvt__record *record)
{
    return record->expires_ns && record->expires_ns < kvt__wall_ns() + KVT__STORE_LOAD_NS;
}

static bool
find_at(const struct kvt__store *store, int level, const struct kvt__chunk_key *key)
{
    struct kvt__record record;

    return find_in(store, level, index_of(store, level, key->space), key, &record) &&
           !kvt__store_ends_soon(&record);
}

/* Lease the chunk as kvt__store_lease(), in one level. */
static bool
lease(const struct kvt__store *store, int level, const struct kvt__chunk_key *key,
      int64_t until_ns, struct kvt__lease *out, int64_t *expires_ns)
{
    struct kvt__table *index = index_of(store, level, key->space);
    struct kvt__name name = name_of(store, level, key);
    struct kvt__record record;

    if (!index || !kvt__table_lease(index, &name, NULL, until_ns, &record))
        return false;
    if (!kvt__store_matches(store, level, key, &record) || kvt__store_ends_soon(&record)) {
        kvt__table_unlease(index, &record.lease);
        return false;
    }
    if (record.expires_ns && record.expires_ns < *expires_ns)
        *expires_ns = record.expires_ns;
    *out = record.lease;
    out->level = (uint8_t)(level + 1);
    return true;
}

/* Mark the chunk as used, and prolong the chunk's time to live.  Return false if the level does not
 * have the chunk, or a PUT must rewrite the chunk. */
static bool
touch(const struct kvt__store *store, int level, const struct kvt__chunk_key *key,
      int64_t expires_ns)
{
    struct kvt__table *index = index_of(store, level, key->space);
    struct kvt__name name = name_of(store, level, key);
    struct kvt__record record;

    if (!find_in(store, level, index, key, &record) || record.flags & KVT__TABLE_UNREAD)
        return false;
    kvt__table_touch(index, &name, &record.id);
    if (level != KVT__LEVEL_MEMORY &&
        kvt__level_must_rewrite(&store->levels[level - 1], &record, expires_ns))
        return false;
    kvt__table_prolong(index, &record, expires_ns);
    return true;
}

void
kvt__level_look_up(struct kvt__level *level, struct kvt__store_req *req)
{
    struct kvt__name name = kvt__level_name(level, req->space, &req->hash);

    req->index = kvt__level_index(level); /* another thread may replace level->index meanwhile */
    req->has_entry = !req->is_name && kvt__table_find(req->index, &name, NULL, &req->seen);
    req->object.index = req->has_entry ? req->index : NULL;
    req->object.entry = req->seen.entry;
    req->object.word = req->seen.word;
}

/* ------------------------------------------------------------------- all levels */

/* Return the number of lookups in a walk over all levels.  Host memory is looked up first and last,
 * because a chunk can move from storage to host memory during the walk. */
static size_t
n_lookups(const struct kvt__store *store)
{
    return store->n_levels + (store->memory ? 2 : 1);
}

static int
level_of_lookup(const struct kvt__store *store, size_t lookup)
{
    assert(lookup < n_lookups(store));
    return lookup > store->n_levels ? KVT__LEVEL_MEMORY : (int)lookup;
}

void
kvt__store_prefetch(const struct kvt__store *store, const struct kvt__chunk_key *keys,
                    size_t n)
{
    struct kvt__name names[KVT__STORE_PREFETCHED];

    assert(n <= KVT__STORE_PREFETCHED);
    for (int level = 0; n && (size_t)level <= store->n_levels; level++) {
        const struct kvt__table *index = index_of(store, level, keys->space);

        for (size_t i = 0; i < n; i++)
            names[i] = name_of(store, level, &keys[i]);
        if (index)
            kvt__table_prefetch(index, names, n);
    }
}

bool
kvt__store_find(const struct kvt__store *store, const struct kvt__chunk_key *key,
                enum kvt__where where)
{
    for (size_t i = 0; i < n_lookups(store); i++) {
        int level = level_of_lookup(store, i);

        if (kvt__store_covers(store, where, level, key->space) &&
            find_at(store, level, key))
            return true;
    }
    return false;
}

/* Return the medium of a level, KVT_MEDIUM_*; 0: kvt__store_media() leaves out the level. */
static uint32_t
medium_of(const struct kvt__store *store, int level, const struct kvt__space *space)
{
    if (level == KVT__LEVEL_MEMORY)
        return kvt__memory_covers(store, space) && kvt__memory_keeps(store)
            ? KVT_MEDIUM_MEMORY : 0;
    const struct kvt__level *storage = &store->levels[level - 1];

    if (storage->no_get)
        return 0;
    if (storage->tier->in_memory)
        return KVT_MEDIUM_MEMORY;
    return storage->tier->multi_host ? KVT_MEDIUM_SHARED_STORAGE : KVT_MEDIUM_STORAGE;
}

uint32_t
kvt__store_media(const struct kvt__store *store, const struct kvt__chunk_key *key)
{
    struct kvt__record record;
    uint32_t media = 0;

    for (int level = KVT__LEVEL_MEMORY; (size_t)level <= store->n_levels; level++) {
        uint32_t medium = medium_of(store, level, key->space);

        if (medium && !(media & medium) &&
            find_in(store, level, index_of(store, level, key->space), key, &record) &&
            !(record.flags & KVT__TABLE_UNREAD))
            media |= medium;
    }
    return media;
}

/* Return the medium for pins of the space's chunks, KVT_MEDIUM_*; 0: no medium. */
static uint32_t
medium_of_pins(const struct kvt__store *store, const struct kvt__space *space)
{
    uint32_t media = 0;

    for (int level = KVT__LEVEL_MEMORY; (size_t)level <= store->n_levels; level++)
        media |= medium_of(store, level, space);
    return media & KVT_MEDIUM_STORAGE ? KVT_MEDIUM_STORAGE : media & KVT_MEDIUM_MEMORY;
}

uint32_t
kvt__store_pin(struct kvt__store *store, const struct kvt__chunk_key *key, int64_t until_ns,
               struct kvt__lease *out)
{
    uint32_t medium = medium_of_pins(store, key->space);
    int64_t expires_ns = INT64_MAX;

    for (int level = KVT__LEVEL_MEMORY; medium && (size_t)level <= store->n_levels; level++)
        if (medium_of(store, level, key->space) == medium &&
            lease(store, level, key, until_ns, out, &expires_ns))
            return medium;
    return 0;
}

bool
kvt__store_touch(struct kvt__store *store, const struct kvt__chunk_key *key, int64_t expires_ns)
{
    bool stored = kvt__store_puts_in_storage(store, key->space, expires_ns);
    bool everywhere = stored || !kvt__memory_may_put(store);
    uint32_t have = 0; /* storage that needs no PUT of the chunk */

    if (touch(store, KVT__LEVEL_MEMORY, key, expires_ns))
        everywhere = true;
    for (size_t i = 0; i < store->n_levels; i++) {
        const struct kvt__level *level = &store->levels[i];

        if (touch(store, (int)i + 1, key, expires_ns) && kvt__level_replaces_put(level))
            have |= kvt__level_bit(level);
    }
    for (size_t i = 0; i < store->n_storages; i++)
        if (!(have >> i & 1) && kvt__level_may_put(&store->levels[i], key->space, expires_ns))
            everywhere = false;
    return everywhere;
}

int64_t
kvt__store_expiry(const struct kvt__store *store, uint32_t ttl_s)
{
    uint32_t most = store->max_ttl_s;

    if (most && (!ttl_s || ttl_s > most))
        ttl_s = most;
    return ttl_s ? kvt__wall_ns() + ttl_s * KVT__NS_PER_S : 0;
}

int
kvt__store_lease(struct kvt__store *store, const struct kvt__chunk_key *key,
                 enum kvt__where where, int64_t until_ns, struct kvt__lease *out,
                 int64_t *expires_ns)
{
    for (size_t i = 0; i < n_lookups(store); i++) {
        int level = level_of_lookup(store, i);

        if (kvt__store_covers(store, where, level, key->space) &&
            lease(store, level, key, until_ns, out, expires_ns))
            return level;
    }
    return -1;
}

bool
kvt__store_has_lease(struct kvt__store *store, const struct kvt__chunk_key *key,
                     const struct kvt__lease *lease)
{
    struct kvt__table *index = index_of(store, lease->level - 1, key->space);

    return index && kvt__table_has_lease(index, lease) &&
           find_at(store, lease->level - 1, key);
}

void
kvt__store_unlease(struct kvt__store *store, const struct kvt__space *space,
                   const struct kvt__lease *lease)
{
    struct kvt__table *index = index_of(store, lease->level - 1, space);

    if (index) /* if the lease's index was replaced, the lease is void in the new index */
        kvt__table_unlease(index, lease);
}

void
kvt__store_protect(struct kvt__store *store, const struct kvt__chunk_key *key,
                   int64_t until_ns)
{
    struct kvt__table *index = index_of(store, KVT__LEVEL_MEMORY, key->space);
    struct kvt__name name = kvt__memory_name(&key->id);

    if (index)
        kvt__table_protect(index, &name, &key->id, until_ns);
}
