/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups in the indexes: find, lease and touch a chunk in host memory and storage. */
#include <assert.h>

#include "store/private.h"

/* ------------------------------------------------------------------- one level */

/* Return true if the entry describes the chunk.  An unread entry has no identity: a promise
 * may rely on the entry only in storage that is read before a promise. */
static bool
matches(const struct kvt__level *level, const struct kvt__chunk_key *key,
        const struct kvt__record *record)
{
    if (record->flags & KVT__TABLE_UNREAD)
        return kvt__level_is_read_first(level, key->space);
    return kvt__id_equal(&record->id, &key->id) &&
           (!(record->flags & KVT__TABLE_FOREIGN) ||
            kvt__store_takes_foreign(level->store, key->space, key->own_only));
}

bool
kvt__level_find(const struct kvt__level *level, const struct kvt__table *index,
                const struct kvt__chunk_key *key, struct kvt__record *out)
{
    struct kvt__name name = kvt__level_name(level, key->space, &key->hash);

    return kvt__table_find(index, &name, NULL, out) && matches(level, key, out);
}

static bool
lease(struct kvt__level *level, const struct kvt__chunk_key *key, int64_t until_ns,
      struct kvt__lease *out)
{
    struct kvt__name name = kvt__level_name(level, key->space, &key->hash);
    struct kvt__table *index = level->index; /* may be replaced at any time */
    struct kvt__record record;

    if (!kvt__table_lease(index, &name, NULL, until_ns, &record))
        return false;
    if (!matches(level, key, &record)) {
        kvt__table_unlease(index, &record.lease);
        return false;
    }
    *out = record.lease;
    return true;
}

static bool
touch(struct kvt__level *level, const struct kvt__chunk_key *key)
{
    struct kvt__name name = kvt__level_name(level, key->space, &key->hash);
    struct kvt__table *index = level->index;
    struct kvt__record record;

    if (!kvt__level_find(level, index, key, &record) || record.flags & KVT__TABLE_UNREAD)
        return false;
    kvt__table_touch(index, &name, &key->id);
    return true;
}

/* ------------------------------------------------------------------- all levels */

/* The number of looks at levels: a look at each level, and a second look at host memory,
 * because a chunk can move there from storage between the first look and the look at the
 * storage. */
static size_t
n_looks(const struct kvt__store *store)
{
    return store->n_levels + (store->memory ? 2 : 1);
}

static int
level_of_look(const struct kvt__store *store, size_t look)
{
    return look > store->n_levels ? KVT__LEVEL_MEMORY : (int)look;
}

void
kvt__store_prefetch(const struct kvt__store *store, const struct kvt__chunk_key *keys,
                    size_t n)
{
    struct kvt__name names[KVT__STORE_PREFETCHED];

    assert(n <= KVT__STORE_PREFETCHED);
    kvt__memory_prefetch(store, keys, n);
    for (size_t l = 0; l < store->n_levels; l++) {
        const struct kvt__level *level = &store->levels[l];

        for (size_t i = 0; i < n; i++)
            names[i] = kvt__level_name(level, keys[i].space, &keys[i].hash);
        kvt__table_prefetch(level->index, names, n);
    }
}

bool
kvt__store_find_at(const struct kvt__store *store, int level,
                   const struct kvt__chunk_key *key)
{
    struct kvt__record record;

    if (level == KVT__LEVEL_MEMORY)
        return kvt__memory_find(store, key);
    return kvt__level_find(&store->levels[level - 1], store->levels[level - 1].index, key,
                           &record);
}

bool
kvt__store_find(const struct kvt__store *store, const struct kvt__chunk_key *key,
                enum kvt__where where)
{
    for (size_t i = 0; i < n_looks(store); i++) {
        int level = level_of_look(store, i);

        if (kvt__store_covers(store, where, level, key->space) &&
            kvt__store_find_at(store, level, key))
            return true;
    }
    return false;
}

bool
kvt__store_touch(struct kvt__store *store, const struct kvt__chunk_key *key)
{
    bool stored = kvt__store_puts_in_storage(store, key->space);
    bool everywhere = stored || !kvt__memory_may_put(store);

    if (kvt__memory_knows(store, key->space) && kvt__memory_touch(store, key))
        everywhere = true;
    for (size_t i = 0; i < store->n_levels; i++)
        if (!touch(&store->levels[i], key) &&
            kvt__level_may_put(&store->levels[i], key->space))
            everywhere = false;
    return everywhere;
}

int
kvt__store_lease(struct kvt__store *store, const struct kvt__chunk_key *key,
                 enum kvt__where where, int64_t until_ns, struct kvt__lease *out)
{
    for (size_t i = 0; i < n_looks(store); i++) {
        int level = level_of_look(store, i);

        if (kvt__store_covers(store, where, level, key->space) &&
            (level == KVT__LEVEL_MEMORY
                ? kvt__memory_lease(store, key, until_ns, out)
                : lease(&store->levels[level - 1], key, until_ns, out))) {
            out->level = (uint8_t)(level + 1);
            return level;
        }
    }
    return -1;
}

/* The index in which the lease was made, or its successor.  NULL: the memory is gone. */
static struct kvt__table *
index_of(struct kvt__store *store, const struct kvt__space *space,
         const struct kvt__lease *lease)
{
    int level = lease->level - 1;

    return level == KVT__LEVEL_MEMORY ? kvt__memory_index(store, space)
                                      : store->levels[level - 1].index;
}

bool
kvt__store_has_lease(struct kvt__store *store, const struct kvt__chunk_key *key,
                     const struct kvt__lease *lease)
{
    struct kvt__table *index = index_of(store, key->space, lease);

    return index && kvt__table_has_lease(index, lease) &&
           kvt__store_find_at(store, lease->level - 1, key);
}

void
kvt__store_unlease(struct kvt__store *store, const struct kvt__space *space,
                   const struct kvt__lease *lease)
{
    struct kvt__table *index = index_of(store, space, lease);

    if (index)
        kvt__table_unlease(index, lease);
}
