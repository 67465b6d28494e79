/* SPDX-License-Identifier: Apache-2.0
 *
 * Making room.  Runs on executor threads, several at once: an entry is evicted
 * by whoever moves its word first. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "store/private.h"

#define FEW 32
#define BATCH 256
#define TRIES 16 /* walks that end without an eviction because others were faster */
#define SAMPLES 1024
#define TAG_PARTS 32

/* Write the object of an entry to text and key.  Host memory needs no key.  Return false for
 * a garbage entry. */
static bool
object_of(const struct kvt__level *level, const struct kvt__index_entry *entry,
          char key[KVT__KEY_TEXT_MAX + 1], struct kvt__object *out)
{
    char text[KVT__INDEX_SPACE_TEXT_MAX + 1];
    struct kvt__space space;

    *out = (struct kvt__object){ .key = key, .id = entry->id };
    *key = '\0';
    if (level->in_memory)
        return true;
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
    int err = kvt__tier_remove(level->tier, object);

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
    struct kvt__found found = { 0 };

    if (!(entry->flags & KVT__INDEX_UNREAD) || !object_of(level, entry, key, &object))
        return false;
    int err = kvt__tier_probe(level->tier, &object, &found);
    /* A put may make the missing file before a removal, which would then be of the new file.
     * A file that exists and that no version of kvtier reads is -ENOENT too, with bytes. */
    if (err == -ENOENT && !found.stored_bytes)
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
           !kvt__tier_probe(level->tier, &object, &found) && found.has_id &&
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
    if (atomic_load(&level->reads_only))
        return true;
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
    if (entry.flags & KVT__INDEX_EXPECTED) { /* no file is known */
        kvt__index_removed(level->index, &claim);
        return 0;
    }
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

/* Return true if evicting an entry makes room for object (NULL: anywhere). */
static bool
makes_room(const struct kvt__level *level, const struct kvt__index_entry *entry,
           const struct kvt__object *object)
{
    const struct kvt__tier_ops *ops = level->tier->ops;
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__object gone;

    return !object || !ops->makes_room ||
           (object_of(level, entry, key, &gone) &&
            ops->makes_room(level->tier, &gone, object));
}

/* As kvt__level_evict().  raced: some were taken by others. */
static uint64_t
evict_some(struct kvt__store *store, struct kvt__level *level,
           const struct kvt__object *object, uint64_t bytes, bool *raced)
{
    struct kvt__index_entry first[BATCH];
    struct kvt__index_totals totals;
    uint64_t gone = 0;
    size_t n_gone = 0;

    *raced = false;
    kvt__index_get_totals(level->index, &totals);
    size_t n = kvt__index_first(level->index, NULL, first,
                                object ? BATCH : batch_for(&totals, bytes));
    for (size_t i = 0; i < n && (gone < bytes || n_gone < at_least(&totals)); i++) {
        if (!makes_room(level, &first[i], object))
            continue;
        int err = evict(store, level, &first[i].id);

        *raced = *raced || err == -EAGAIN;
        if (err)
            continue;
        gone += first[i].bytes;
        n_gone++;
    }
    return gone;
}

static struct kvt__id
random_id(void)
{
    static atomic_ullong n;
    uint64_t x = (uint64_t)kvt__now_ns() + atomic_fetch_add(&n, 1) *
                 UINT64_C(0x9e3779b97f4a7c15);
    struct kvt__id id;

    for (size_t i = 0; i < sizeof id.b; i += sizeof x) {
        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        memcpy(id.b + i, &x, sizeof x);
    }
    return id;
}

/* Evict what makes room for object at random places of the index: of each place the entry
 * that the policy lets go first.  A full disk needs this if the oldest entries of the whole
 * index are all on disks that have room, and so never go. */
static uint64_t
evict_samples(struct kvt__store *store, struct kvt__level *level,
              const struct kvt__object *object, uint64_t bytes)
{
    struct kvt__index_entry first[16];
    size_t n_looks = 0; /* at files, which cost more than the index */
    uint64_t gone = 0;

    for (int t = 0; t < SAMPLES && n_looks < BATCH && gone < bytes; t++) {
        struct kvt__id id = random_id();
        size_t i = 0, n = kvt__index_first(level->index, &id, first, 16);

        n_looks += n;
        while (i < n && !makes_room(level, &first[i], object))
            i++;
        if (i < n && !evict(store, level, &first[i].id))
            gone += first[i].bytes;
    }
    return gone;
}

uint64_t
kvt__level_evict(struct kvt__store *store, struct kvt__level *level,
                 const struct kvt__object *object, uint64_t bytes)
{
    uint64_t gone = 0;
    bool raced = true;

    for (int t = 0; t < TRIES && !gone && raced; t++)
        gone = evict_some(store, level, object, bytes, &raced);
    return gone || !object ? gone : evict_samples(store, level, object, bytes);
}

/* Take bytes from a level's budget, evicting what the policy lets go first. */
static int
make_room(struct kvt__store *store, struct kvt__level *level, struct kvt__index *index,
          uint64_t bytes)
{
    struct kvt__index_totals totals;
    int err;

    kvt__index_get_totals(index, &totals);
    if (totals.limit_bytes && bytes > totals.limit_bytes)
        return kvt__fail(ENOSPC, "%s: a chunk of %llu bytes does not fit the limit of "
                         "%llu.", level->tier->ops->name, (unsigned long long)bytes,
                         (unsigned long long)totals.limit_bytes);
    while ((err = kvt__index_reserve(index, bytes))) {
        uint64_t most = totals.limit_bytes - bytes, short_of = bytes;

        if (err != -ENOSPC)
            return err;
        kvt__index_get_totals(index, &totals);
        if (totals.used_bytes > most && totals.used_bytes - most > bytes)
            short_of = totals.used_bytes - most; /* the limit was lowered */
        if (!kvt__level_evict(store, level, NULL, short_of))
            return kvt__fail(ENOSPC, "%s: no room for %llu bytes and nothing to "
                             "evict", level->tier->ops->name,
                             (unsigned long long)bytes);
    }
    return 0;
}

int
kvt__level_keep_free(struct kvt__store *store, struct kvt__level *level,
                     const struct kvt__object *object, uint64_t bytes)
{
    uint64_t shortage = level->keeps_free
        ? level->tier->ops->shortage(level->tier, object, bytes) : 0;

    /* A put does not wait for the whole eviction; the next puts continue the eviction. */
    if (!shortage ||
        kvt__level_evict(store, level, object,
                         shortage < 4 * bytes ? shortage : 4 * bytes))
        return 0;
    return kvt__fail(ENOSPC, "%s: the file system is full up to the tenth that stays free, "
                     "and there is nothing to evict", level->tier->ops->name);
}

void
kvt__level_make_space(struct kvt__store *store, struct kvt__level *level,
                      const struct kvt__object *object, uint64_t bytes)
{
    if (!level->in_memory && !keeps_files(level))
        (void)kvt__level_evict(store, level, object, bytes);
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
                 const struct kvt__index_entry *entry, const char *text,
                 struct kvt__index_claim *claim)
{
    kvt__level_look_after_index(store, level);
    struct kvt__index *index = level->index; /* may be replaced at any time */
    int err = make_room(store, level, index, entry->bytes);
    if (err)
        return err;
    err = kvt__index_claim(index, entry, text, claim);
    if (err == -ENOSPC && !make_place(store, level, &entry->id))
        err = kvt__index_claim(index, entry, text, claim);
    if (err)
        kvt__index_unreserve(index, entry->bytes);
    return err;
}

struct tags {
    struct kvt__store *store;
    struct kvt__level *level;
    uint32_t part;
};

static bool
evict_tagged(void *ctx, const struct kvt__index_entry *entry)
{
    const struct tags *t = ctx;
    char text[KVT__INDEX_SPACE_TEXT_MAX + 1];

    if (entry->space % TAG_PARTS == t->part &&
        !kvt__index_space_text(t->level->index, entry->space, text, sizeof text) &&
        kvt__key_has_tags(text))
        evict(t->store, t->level, &entry->id);
    return !atomic_load(&t->store->stopping);
}

void
kvt__level_evict_tags(struct kvt__store *store, struct kvt__level *level)
{
    int64_t now = kvt__now_ns(), last = atomic_load(&level->tags_evicted_ns);

    if (now - last < KVT__NS_PER_S ||
        !atomic_compare_exchange_strong(&level->tags_evicted_ns, &last, now))
        return;
    struct tags tags = { store, level, random_id().b[0] % TAG_PARTS };
    kvt__index_each(level->index, evict_tagged, &tags);
}

bool
kvt__level_drop_seen(struct kvt__level *level, const struct kvt__index_entry *seen,
                     bool with_file)
{
    struct kvt__index_claim claim;

    if (kvt__index_evict_seen(level->index, seen, &claim))
        return true; /* another thread's, or stored anew */
    bool gone = !with_file || remove_file(level, seen);
    kvt__index_removed(level->index, &claim);
    return gone;
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
