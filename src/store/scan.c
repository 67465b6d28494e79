/* SPDX-License-Identifier: Apache-2.0
 *
 * Making an index that was lost, or may lack files, true again: every file the
 * tier lists counts for the budget and can be evicted, under an identity made from
 * its name until its own is read.  One thread, beside everything else. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "store/private.h"

/* Names that the index has already, as numbers; sorted. */
struct known {
    const struct kvt__level *level;
    uint64_t *names;
    size_t n, max;
    bool read_only; /* leave out entries whose identity was not read */
    bool failed;
};

struct scan {
    struct kvt__store *store;
    struct kvt__level *level;
    struct known known;
    int64_t began_ns;
    size_t n_added, n_doubles;
};

static uint64_t
name_number(uint64_t text_digest, const struct kvt__hash *hash)
{
    return hash->bits[0] * UINT64_C(0x9e3779b97f4a7c15) ^ text_digest;
}

static uint64_t
entry_number(const struct kvt__level *level, const struct kvt__index_entry *entry)
{
    return name_number(kvt__index_space_digest(level->index, entry->space), &entry->hash);
}

static bool
add_known(void *ctx, const struct kvt__index_entry *entry)
{
    struct known *known = ctx;

    if (known->read_only && entry->flags & KVT__INDEX_UNREAD)
        return true;
    if (known->n == known->max) {
        size_t max = known->max ? known->max * 2 : 1024;
        uint64_t *grown = realloc(known->names, max * sizeof *grown);

        known->failed = !grown;
        if (!grown)
            return false;
        known->names = grown;
        known->max = max;
    }
    known->names[known->n++] = entry_number(known->level, entry);
    return true;
}

static int
by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static bool
is_known(const struct known *known, uint64_t number)
{
    return known->n && bsearch(&number, known->names, known->n, sizeof number, by_number);
}

static void
add_file(void *ctx, const char *key, bool opaque, uint32_t path, uint64_t stored_bytes,
         int64_t mtime_ns)
{
    struct scan *scan = ctx;
    struct kvt__space space;
    struct kvt__index_claim claim;
    struct kvt__index_entry entry = {
        .bytes = stored_bytes, .path = path, .flags = KVT__INDEX_UNREAD,
        .recency_ns = mtime_ns };

    /* Whoever has written a file since the scan began enters it.  File systems may
     * give times finer than the coarse clock, so it is not compared with that. */
    if (mtime_ns > scan->began_ns && mtime_ns <= kvt__clock_ns(CLOCK_REALTIME))
        return;
    if (atomic_load(&scan->store->stopping) || kvt__space_of(key, &space, &entry.hash) ||
        space.opaque != opaque)
        return;
    if (is_known(&scan->known, name_number(kvt__index_text_digest(space.text),
                                           &entry.hash)))
        return;
    kvt__name_id(key, &entry.id);
    if (kvt__level_claim(scan->store, scan->level, &entry, space.text, &claim))
        return;
    kvt__index_publish(scan->level->index, &claim); /* the claim may have renewed it */
    scan->n_added++;
}

static void
find_known(const struct kvt__level *level, struct known *known)
{
    known->level = level;
    kvt__index_each(level->index, add_known, known);
    if (known->n)
        qsort(known->names, known->n, sizeof *known->names, by_number);
}

static bool
forget_double(void *ctx, const struct kvt__index_entry *entry)
{
    struct scan *scan = ctx;

    if (entry->flags & KVT__INDEX_UNREAD &&
        is_known(&scan->known, entry_number(scan->level, entry))) {
        kvt__level_drop(scan->level, &entry->id, NULL);
        scan->n_doubles++;
    }
    return true;
}

/* Files that were stored while the directory was listed stand twice in the index,
 * unless whoever stored them has seen that. */
static size_t
forget_doubles(struct kvt__store *store, struct kvt__level *level)
{
    struct scan scan = { .store = store, .level = level, .known.read_only = true };

    find_known(level, &scan.known);
    kvt__index_each(level->index, forget_double, &scan);
    free(scan.known.names);
    return scan.n_doubles;
}

/* A scan makes files count for the limit and evictable.  Without a limit nothing is
 * evicted, and lookups find files by asking. */
static bool
wants_scan(const struct kvt__level *level, const struct kvt__index *index)
{
    struct kvt__index_totals totals;

    if (level->in_memory || level->tier->unlisted || kvt__index_scanned(index))
        return false;
    kvt__index_get_totals(index, &totals);
    return totals.limit_bytes > 0;
}

void
kvt__level_scan(struct kvt__store *store, struct kvt__level *level)
{
    struct scan scan = { .store = store, .level = level,
                         .began_ns = kvt__clock_ns(CLOCK_REALTIME) };
    const struct kvt__tier_ops *ops = level->tier->ops;
    struct kvt__index *index = level->index; /* may be replaced at any time */

    if (!wants_scan(level, index))
        return;
    uint32_t began = kvt__index_begin_scan(index);
    find_known(level, &scan.known);
    if (!scan.known.failed && !ops->list(level->tier, "", add_file, &scan) &&
        !atomic_load(&store->stopping)) {
        size_t n_doubles = forget_doubles(store, level);
        kvt__index_end_scan(index, began);
        if (scan.n_added > n_doubles)
            kvt__log(KVT_LOG_INFO, "%s: %zu chunks in %s were not in the index and are "
                     "now", ops->name, scan.n_added - n_doubles, level->url);
    }
    free(scan.known.names);
}

void
kvt__store_scan(struct kvt__store *store)
{
    atomic_store(&store->scans, true);
    for (size_t i = 0; i < store->n_levels; i++)
        kvt__level_scan(store, &store->levels[i]);
}

void
kvt__store_stop(struct kvt__store *store)
{
    atomic_store(&store->stopping, true);
    for (size_t i = 0; i < store->n_levels; i++)
        if (store->levels[i].tier->ops->stop)
            store->levels[i].tier->ops->stop(store->levels[i].tier);
}
