/* SPDX-License-Identifier: Apache-2.0
 *
 * Making room.  Runs on executor threads, several at once: an entry is evicted
 * by whoever moves its word first. */
#include <errno.h>
#include <string.h>

#include "store/private.h"

#define FEW 32
#define BATCH 256
#define TRIES 16 /* walks that end without an eviction because others were faster */

/* The object that an entry stands for, in text and key.  False: garbage names none. */
static bool
object_of(const struct kvt__level *level, const struct kvt__index_entry *entry,
          char key[KVT__KEY_TEXT_MAX + 1], struct kvt__object *out)
{
    char text[KVT__INDEX_SPACE_TEXT_MAX + 1];
    struct kvt__space space;

    *out = (struct kvt__object){ .key = key, .id = entry->id };
    if (kvt__index_space_text(level->index, entry->space, text, sizeof text) ||
        kvt__space_key(text, &entry->hash, key, KVT__KEY_TEXT_MAX + 1) ||
        kvt__space_of(key, &space, &out->hash))
        return false;
    out->opaque = space.opaque;
    out->rank = space.rank;
    return true;
}

/* Return true if the object is removed. */
static bool
remove_object(struct kvt__level *level, const struct kvt__object *object)
{
    int err = level->tier->ops->remove(level->tier, object);

    return !err || err == -ENOENT || err == -EINVAL || err == -ENAMETOOLONG;
}

/* Remove the file of an entry that is being evicted.  True: it is gone. */
static bool
remove_file(struct kvt__level *level, const struct kvt__index_entry *entry)
{
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__object object;

    return !object_of(level, entry, key, &object) || remove_object(level, &object);
}

/* A file that a scan met while it was being stored stands twice in the index for a
 * moment: by its name, and by its identity.  Whether that one is in use, so that the
 * file stays; if it is not, it goes with the file, and is the caller's in *claim. */
static bool
has_user(struct kvt__level *level, const struct kvt__index_entry *entry,
         struct kvt__index_claim *claim)
{
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__object object;
    struct kvt__found found;

    if (!(entry->flags & KVT__INDEX_UNREAD) || !object_of(level, entry, key, &object))
        return false;
    int err = level->tier->ops->probe(level->tier, &object, &found);
    if (err == -ENOENT) /* a put may make the file before a removal, which would be of that */
        return true;
    return !err && found.has_id &&
           kvt__index_evict(level->index, &found.id, false, NULL, claim) == -EBUSY;
}

/* Return true if the file under an entry's name holds another process's chunk of equal
 * tokens.  A process replacing the file between this check and the removal loses the new
 * chunk, which is then a miss: no file system can compare and remove a name atomically. */
static bool
is_anothers_file(struct kvt__level *level, const struct kvt__index_entry *entry)
{
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__object object;
    struct kvt__found found;

    return !level->in_memory &&
           !(entry->flags & KVT__INDEX_UNREAD) &&
           object_of(level, entry, key, &object) &&
           !level->tier->ops->probe(level->tier, &object, &found) && found.has_id &&
           !kvt__id_equal(&found.id, &entry->id);
}

/* Return true if this host's index has no say over files: the tier keeps its own limit,
 * or there is no limit, as where other hosts store too.  Entries then go without their
 * files. */
static bool
keeps_files(const struct kvt__level *level)
{
    struct kvt__index_totals totals;

    if (level->in_memory || level->tier->unlisted)
        return level->tier->unlisted;
    kvt__index_get_totals(level->index, &totals);
    return !totals.limit_bytes;
}

/* 0: it is gone; -EAGAIN: it was another thread's, or is in use by now; else it is
 * still there. */
static int
evict(struct kvt__store *store, struct kvt__level *level, const struct kvt__id *id)
{
    struct kvt__index_entry entry;
    struct kvt__index_claim claim, same = { .slot = UINT64_MAX };
    int err = kvt__index_evict(level->index, id, false, &entry, &claim);

    if (err)
        return err == -ENOENT || err == -EBUSY ? -EAGAIN : err;
    if (keeps_files(level)) { /* only a place in the index is wanted */
        kvt__index_removed(level->index, &claim);
        kvt__index_set_scanned(level->index, false); /* a file has no entry any more */
        return 0;
    }
    if (!has_user(level, &entry, &same) && !is_anothers_file(level, &entry) &&
        !remove_file(level, &entry)) {
        kvt__index_restore(level->index, &same);
        kvt__index_restore(level->index, &claim);
        return -EIO;
    }
    kvt__index_removed(level->index, &same);
    kvt__index_removed(level->index, &claim);
    kvt__count(store->counters, KVT__N_evicted_chunks, 1);
    kvt__count(store->counters, KVT__N_evicted_bytes, entry.bytes);
    return 0;
}

/* How many candidates a walk of the table is to find: more where much must go. */
static size_t
batch_for(const struct kvt__index_totals *totals, uint64_t bytes)
{
    uint64_t each = totals->n_ready ? totals->used_bytes / totals->n_ready : 0;

    return each && bytes / each >= FEW ? BATCH : FEW;
}

/* A walk is worth a few evictions, where a few are little. */
static size_t
at_least(const struct kvt__index_totals *totals)
{
    return totals->n_ready / FEW < FEW ? (size_t)totals->n_ready / FEW : FEW;
}

/* As kvt__level_evict().  raced: some were taken by others. */
static uint64_t
evict_some(struct kvt__store *store, struct kvt__level *level, uint64_t bytes, bool *raced)
{
    struct kvt__index_entry first[BATCH];
    struct kvt__index_totals totals;
    uint64_t gone = 0;
    size_t n_gone = 0;

    *raced = false;
    kvt__index_get_totals(level->index, &totals);
    size_t n = kvt__index_first(level->index, NULL, first, batch_for(&totals, bytes));
    for (size_t i = 0; i < n && (gone < bytes || n_gone < at_least(&totals)); i++) {
        int err = evict(store, level, &first[i].id);

        *raced = *raced || err == -EAGAIN;
        if (err)
            continue;
        gone += first[i].bytes;
        n_gone++;
    }
    return gone;
}

uint64_t
kvt__level_evict(struct kvt__store *store, struct kvt__level *level, uint64_t bytes)
{
    uint64_t gone;
    bool raced;

    for (int t = 0; t < TRIES; t++) {
        gone = evict_some(store, level, bytes, &raced);
        if (gone || !raced)
            return gone;
    }
    return 0;
}

/* Take bytes from a level's budget, evicting what the policy lets go first. */
static int
make_room(struct kvt__store *store, struct kvt__level *level, uint64_t bytes)
{
    struct kvt__index_totals totals;

    kvt__index_get_totals(level->index, &totals);
    if (totals.limit_bytes && bytes > totals.limit_bytes)
        return kvt__fail(ENOSPC, "%s: a chunk of %llu bytes does not fit the limit of "
                         "%llu.", level->tier->ops->name, (unsigned long long)bytes,
                         (unsigned long long)totals.limit_bytes);
    while (kvt__index_reserve(level->index, bytes)) {
        uint64_t most = totals.limit_bytes - bytes, short_of = bytes;

        kvt__index_get_totals(level->index, &totals);
        if (totals.used_bytes > most && totals.used_bytes - most > bytes)
            short_of = totals.used_bytes - most; /* the limit was lowered */
        if (!kvt__level_evict(store, level, short_of))
            return kvt__fail(ENOSPC, "%s: no room for %llu bytes and nothing to "
                             "evict", level->tier->ops->name,
                             (unsigned long long)bytes);
    }
    return 0;
}

/* Evict one of the entries that stand where id would. */
static int
make_place(struct kvt__store *store, struct kvt__level *level, const struct kvt__id *id)
{
    struct kvt__index_entry oldest[4];
    size_t n = kvt__index_first(level->index, id, oldest, 4);

    for (size_t i = 0; i < n; i++)
        if (!evict(store, level, &oldest[i].id))
            return 0;
    return kvt__fail(ENOSPC, "%s: the index is full of chunks in use",
                     level->tier->ops->name);
}

int
kvt__level_claim(struct kvt__store *store, struct kvt__level *level,
                 const struct kvt__index_entry *entry, struct kvt__index_claim *claim)
{
    int err = make_room(store, level, entry->bytes);

    if (err)
        return err;
    err = kvt__index_claim(level->index, entry, claim);
    if (err == -ENOSPC && !make_place(store, level, &entry->id))
        err = kvt__index_claim(level->index, entry, claim);
    if (err)
        kvt__index_unreserve(level->index, entry->bytes);
    return err;
}

bool
kvt__level_drop(struct kvt__level *level, const struct kvt__id *id,
                const struct kvt__object *object)
{
    struct kvt__index_claim claim;

    if (kvt__index_evict(level->index, id, true, NULL, &claim))
        return true; /* another thread's */
    bool gone = !object || remove_object(level, object);
    kvt__index_removed(level->index, &claim);
    return gone;
}
