/* SPDX-License-Identifier: Apache-2.0
 *
 * Upkeep of the indexes of storage.  The upkeep enters into a new index the chunks of the last
 * snapshot and, if the level has a limit, the names that the tier lists.  Every five minutes the
 * upkeep saves a snapshot for a restart of the host. */
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "store/private.h"

#define N_BATCH 32 /* objects whose words of the index are prefetched together */
#define UPKEEP_NS KVT__NS_PER_S
#define SNAPSHOT_S INT64_C(300)
#define LIST_AGAIN_NS (60 * KVT__NS_PER_S) /* from a failed listing to the next attempt */
/* A file system may allocate and count the bytes of a file some time after the write. */
#define SETTLED_NS (60 * KVT__NS_PER_S)

struct listing {
    struct kvt__level *level;
    struct kvt__table *index;
    struct kvt__space space; /* space of the last key */
    uint64_t digest;         /* digest of space.text */
    int64_t settled_ns; /* wall clock: the file system counts all bytes of files that were written
                         * earlier */
    /* A batch of objects of this space, not entered yet. */
    struct kvt__name names[N_BATCH];
    struct kvt__record records[N_BATCH];
    size_t n;
    size_t n_entered;
    bool is_complete; /* no object was left out because of a failure */
};

/* Enter an object.  If the object has a time to live and the entry has none, the entry describes an
 * older object of the name: replace the entry by the record, which is expired. */
static int
enter_one(struct listing *l, const struct kvt__name *name, const struct kvt__record *record)
{
    struct kvt__record old;
    int err = kvt__level_enter(l->level, l->index, name, record, l->space.text);

    if (err == -EEXIST && record->expires_ns && kvt__table_find(l->index, name, NULL, &old) &&
        !old.expires_ns && !kvt__table_forget(l->index, &old, true))
        err = kvt__level_enter(l->level, l->index, name, record, l->space.text);
    return err;
}

static void
enter_batch(struct listing *l)
{
    kvt__table_prefetch(l->index, l->names, l->n);
    for (size_t i = 0; i < l->n && !atomic_load(&l->level->store->stopping); i++) {
        int err = enter_one(l, &l->names[i], &l->records[i]);

        l->n_entered += !err;
        /* -ENOSPC does not make the listing incomplete: a second listing would have no room
         * either. */
        l->is_complete = l->is_complete && err != -ETIMEDOUT && err != -EAGAIN;
    }
    l->n = 0;
}

/* Convert a listed key to the name of an entry; l->space becomes the key's space.  Consecutive keys
 * often share a space, so l->digest caches the digest.  Return false if the key is not valid. */
static bool
name_of(struct listing *l, const char *key, bool opaque, struct kvt__name *name)
{
    struct kvt__space space;
    struct kvt__hash hash;

    if (kvt__space_from_key(key, &space, &hash) || space.opaque != opaque)
        return false;
    if (strcmp(space.text, l->space.text)) {
        enter_batch(l);
        l->space = space;
        l->digest = kvt__table_digest(space.text);
    }
    *name = kvt__name_from_hash(l->digest, &hash);
    return true;
}

static void
enter_object(void *ctx, const char *key, bool opaque, uint64_t stored_bytes,
             int64_t mtime_ns, bool expires)
{
    struct listing *l = ctx;
    struct kvt__record record = { .bytes = stored_bytes, .flags = KVT__TABLE_UNREAD,
                                  .recency_ns = mtime_ns };
    struct kvt__name name;

    if (atomic_load(&l->level->store->stopping) || !name_of(l, key, opaque, &name))
        return;
    if (expires) /* if the index lacks the chunk, the end is lost: the upkeep deletes the chunk */
        record.expires_ns = KVT__EXPIRED;
    if (mtime_ns < l->settled_ns) /* the entry may have another size: replace the size */
        record.flags |= KVT__TABLE_FOUND;
    l->names[l->n] = name;
    l->records[l->n++] = record;
    if (l->n == N_BATCH)
        enter_batch(l);
}

/* Return true if the index needs the names of all objects: only listed objects count for the limit
 * and can be evicted.  Without a limit nothing is evicted, and lookups probe for objects. */
static bool
needs_names(const struct kvt__level *level, const struct kvt__table *index)
{
    struct kvt__table_totals totals;

    kvt__table_get_totals(index, &totals);
    return !level->tier->enforces_limit && totals.limit_bytes > 0;
}

/* Enter the chunks of the last snapshot.  If the file is missing or corrupt, lookups probe for the
 * objects. */
static void
enter_snapshot(struct listing *l)
{
    int64_t n = l->level->dirfd < 0 ? 0 : kvt__table_read_v3(l->index, l->level->dirfd);
    int64_t m = l->level->dirfd < 0 ? 0 : kvt__table_read_snapshot(l->index, l->level->dirfd);

    if (n > 0 || m > 0)
        kvt__log(KVT_LOG_INFO, "%s: the index has %lld chunks in %s from before the restart",
                 l->level->tier->ops->name,
                 (long long)((n > 0 ? n : 0) + (m > 0 ? m : 0)), l->level->url);
}

void
kvt__level_list(struct kvt__level *level)
{
    const struct kvt__tier_ops *ops = level->tier->ops;
    struct listing l = { .level = level, .index = level->index, .is_complete = true,
                         .settled_ns = kvt__wall_ns() - SETTLED_NS };

    if (level->tier->in_memory || kvt__table_is_listed(l.index) ||
        kvt__now_ns() < atomic_load(&level->list_from_ns) || kvt__table_begin_list(l.index))
        return;
    enter_snapshot(&l);
    if (needs_names(level, l.index) && ops->list(level->tier, "", enter_object, &l)) {
        l.is_complete = false;
        if (!atomic_load(&level->store->stopping))
            KVT__LOG_ONCE(KVT_LOG_WARN, "%s: a part of %s is not listed, so the limit does not "
                          "count all chunks; the next listing follows in %lld s: %s",
                          ops->name, level->url,
                          (long long)(LIST_AGAIN_NS / KVT__NS_PER_S), kvt__why());
    }
    enter_batch(&l);
    if (!l.is_complete)
        atomic_store(&level->list_from_ns, kvt__now_ns() + LIST_AGAIN_NS);
    kvt__table_end_list(l.index, l.is_complete && !atomic_load(&level->store->stopping));
    if (l.n_entered)
        kvt__log(KVT_LOG_INFO, "%s: a listing added %zu chunks in %s to the index", ops->name,
                 l.n_entered, level->url);
}

/* ------------------------------------------------------------------- upkeep */

static void
save_snapshot(struct kvt__level *level)
{
    int err = kvt__table_write_snapshot(level->index, level->dirfd, SNAPSHOT_S);

    /* -EINVAL: the table is private, or is memory. */
    if (err && err != -EALREADY && err != -EBUSY && err != -ESTALE && err != -EINVAL)
        KVT__LOG_ONCE(KVT_LOG_WARN, "%s: the snapshot of the index of %s was not written, so a "
                      "restart of the host loses the order of eviction: %s",
                      level->tier->ops->name, level->url, kvt__why());
}

static void
run_upkeep(struct kvt__store *store)
{
    kvt__memory_expire(store);
    for (size_t i = 0; i < store->n_storages && !atomic_load(&store->stopping); i++) {
        struct kvt__level *level = &store->levels[i];

        kvt__level_renew_index(level);
        (void)kvt__table_recover(level->index);
        kvt__level_list(level);
        kvt__level_expire(level);
        save_snapshot(level);
        kvt__choice_revise(level);
    }
}

/* Wait until the next upkeep is due.  Return false if the store stops. */
static bool
wait_for_upkeep(struct kvt__store *store)
{
    struct timespec at = kvt__timespec(kvt__now_ns() + UPKEEP_NS);
    int err = 0;

    pthread_mutex_lock(&store->upkeep_lock);
    while (!atomic_load(&store->stopping) && !err)
        err = pthread_cond_timedwait(&store->upkeep_stop, &store->upkeep_lock, &at);
    pthread_mutex_unlock(&store->upkeep_lock);
    return !atomic_load(&store->stopping);
}

/* The upkeep thread.  A listing takes minutes, so the upkeep does not occupy a thread of the
 * executor. */
static void *
upkeep_main(void *arg)
{
    struct kvt__store *store = arg;

    for (size_t i = 0; i < store->n_storages; i++)
        kvt__choice_calibrate(&store->levels[i]);
    do
        run_upkeep(store);
    while (wait_for_upkeep(store));
    return NULL;
}

void
kvt__store_start_upkeep(struct kvt__store *store)
{
    assert(!store->has_upkeep && !atomic_load(&store->stopping));
    store->has_upkeep = !kvt__thread_start(&store->upkeep, "kvt-upkeep", upkeep_main, store);
    if (!store->has_upkeep)
        kvt__log(KVT_LOG_WARN, "the indexes of storage have no upkeep, so after a restart of the "
                 "host or of another process lookups may miss stored chunks: %s", kvt__why());
}

void
kvt__store_stop(struct kvt__store *store)
{
    pthread_mutex_lock(&store->upkeep_lock);
    atomic_store(&store->stopping, true);
    pthread_cond_signal(&store->upkeep_stop);
    pthread_mutex_unlock(&store->upkeep_lock);
    for (size_t i = 0; i < store->n_storages; i++)
        store->levels[i].tier->ops->stop(store->levels[i].tier);
    if (store->has_upkeep)
        pthread_join(store->upkeep, NULL);
    store->has_upkeep = false;
}
