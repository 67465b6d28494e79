/* SPDX-License-Identifier: Apache-2.0
 *
 * Eviction: make room, and delete objects with their entries.  Several executor threads evict at
 * the same time: the thread that claims an entry evicts the entry. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "store/private.h"

#define ROUNDS 16 /* consecutive searches whose victims cannot be evicted */
#define TAG_PARTS 32

/* Describe the object of an entry in key and out.  To remove the object, the caller must hold a
 * claim of the entry.  Return false if the entry's space has no text. */
static bool
object_of(const struct kvt__table *index, const struct kvt__record *record,
          char key[KVT__KEY_TEXT_MAX + 1], struct kvt__object *out)
{
    char text[KVT__TABLE_TEXT_MAX + 1];
    struct kvt__space space;

    *out = (struct kvt__object){ .key = key, .id = record->id };
    if (kvt__table_space_text(index, record->space, text, sizeof text) ||
        kvt__space_key(text, &record->hash, key, KVT__KEY_TEXT_MAX + 1) ||
        kvt__space_from_key(key, &space, &out->hash))
        return false;
    out->opaque = space.opaque;
    out->rank = space.rank;
    return true;
}

/* Remove an object.  Return true if the object is deleted, or cannot exist. */
static bool
remove_object(struct kvt__level *level, const struct kvt__object *object)
{
    int err = kvt__tier_remove(level->tier, object);
    bool gone = !err || err == -ENOENT || err == -EINVAL || err == -ENAMETOOLONG;

    if (!gone)
        kvt__count(level->store->counters, KVT__N_remove_failed, 1);
    return gone;
}

/* Remove the object of a claimed entry.  Return true if the object does not exist afterwards. */
static bool
remove_object_of(struct kvt__level *level, const struct kvt__table *index,
                 const struct kvt__record *record)
{
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__object object;

    return !object_of(index, record, key, &object) || remove_object(level, &object);
}

/* Return true if evictions of this host's index forget entries and keep their objects: the tier
 * keeps its own limit, this process only reads, or the index has no limit, for example because
 * other hosts use the storage too. */
static bool
keeps_objects(const struct kvt__level *level, const struct kvt__table *index)
{
    struct kvt__table_totals totals;

    if (level->tier->enforces_limit || atomic_load(&level->reads_only))
        return true;
    kvt__table_get_totals(index, &totals);
    return !totals.limit_bytes;
}

/* Evict an entry; unless keeps_objects(), also remove its object.  Return 0; -errno: the entry has
 * changed since the caller read `seen`, has a lease, or its object cannot be removed. */
static int
evict(struct kvt__level *level, struct kvt__table *index, const struct kvt__record *seen)
{
    struct kvt__claim claim;

    /* In multi-host storage, an entry of 0 bytes is an expected object that no process of this
     * host has seen. */
    if (keeps_objects(level, index) || (!seen->bytes && level->tier->multi_host))
        return kvt__table_forget(index, seen, false);
    int err = kvt__table_evict(index, seen, false, &claim);
    if (err)
        return err;
    assert(claim.table == index && claim.entry == seen->entry);
    if (!remove_object_of(level, index, seen)) {
        kvt__table_abort(index, &claim);
        kvt__table_make_last_victim(index, seen->entry); /* the next search chooses other entries */
        return -EIO;
    }
    kvt__table_evicted(index, &claim);
    kvt__count_evicted(level->store, seen->bytes);
    return 0;
}

struct eviction {
    struct kvt__level *level;
    struct kvt__table *index;
    const struct kvt__object *object;
};

/* Return true if the eviction of an entry makes room for w->object. */
static bool
makes_room(void *ctx, const struct kvt__record *record)
{
    const struct eviction *w = ctx;
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__object gone;

    return object_of(w->index, record, key, &gone) &&
           w->level->tier->ops->makes_room(w->level->tier, &gone, w->object);
}

uint64_t
kvt__evict_victims(struct kvt__table *index, kvt__table_filter_fn filter, kvt__evict_fn evict_one,
                   void *ctx, uint64_t bytes)
{
    struct kvt__record victims[KVT__TABLE_VICTIMS];
    uint64_t gone = 0;

    for (int n_failed = 0; n_failed < ROUNDS && gone < bytes; n_failed++) {
        size_t n = kvt__table_victims(index, filter, ctx, victims, KVT__TABLE_VICTIMS);

        assert(n <= KVT__TABLE_VICTIMS);
        if (!n) /* the search has reached its bound */
            break;
        for (size_t i = 0; i < n && gone < bytes; i++) {
            if (!evict_one(ctx, &victims[i]))
                continue;
            gone += victims[i].bytes ? victims[i].bytes : 1;
            n_failed = -1;
        }
    }
    return gone;
}

static bool
evict_victim(void *ctx, const struct kvt__record *record)
{
    const struct eviction *w = ctx;

    return !evict(w->level, w->index, record);
}

/* As kvt__level_evict(). */
static uint64_t
evict_from(struct kvt__level *level, struct kvt__table *index,
           const struct kvt__object *object, uint64_t bytes)
{
    struct eviction eviction = { level, index, object };
    bool chooses = object && level->tier->several_disks;

    return kvt__evict_victims(index, chooses ? makes_room : NULL, evict_victim, &eviction, bytes);
}

uint64_t
kvt__level_evict(struct kvt__level *level, const struct kvt__object *object, uint64_t bytes)
{
    return evict_from(level, level->index, object, bytes);
}

/* Evict for a claim that failed with -ENOSPC.  0; -ENOSPC with a sentence. */
static int
make_room(struct kvt__level *level, struct kvt__table *index, uint64_t bytes)
{
    struct kvt__table_totals totals;
    uint64_t short_of = 1; /* one entry of the index */

    kvt__table_get_totals(index, &totals);
    if (totals.limit_bytes && bytes > totals.limit_bytes)
        return kvt__fail(ENOSPC, "%s: a chunk of %llu bytes exceeds the limit of %llu bytes of "
                         "%s; raise the limit or lower chunk_size.", level->tier->ops->name,
                         (unsigned long long)bytes, (unsigned long long)totals.limit_bytes,
                         level->url);
    /* Evict only the bytes of the chunk, also if the limit was lowered: several threads make room
     * at the same time, and the caller repeats the claim until the claim succeeds. */
    if (totals.limit_bytes && totals.used_bytes + bytes > totals.limit_bytes && bytes)
        short_of = bytes;
    if (!evict_from(level, index, NULL, short_of))
        return kvt__fail(ENOSPC, "%s: %s has no room for %llu bytes, and no chunk can be evicted "
                         "now.", level->tier->ops->name, level->url, (unsigned long long)bytes);
    return 0;
}

/* ------------------------------------------------------------------- time to live */

/* Delete an expired entry, in storage with its object, leased or not.  If the object cannot be
 * deleted, the entry stays and a later search tries again. */
static void
expire(struct kvt__level *level, struct kvt__table *index, const struct kvt__record *seen)
{
    struct kvt__claim claim;

    if (level->tier->in_memory) {
        if (!kvt__table_forget(index, seen, true))
            kvt__count_expired(level->store);
        return;
    }
    if (kvt__table_evict(index, seen, true, &claim))
        return;
    if (remove_object_of(level, index, seen)) {
        kvt__table_evicted(index, &claim);
        kvt__count_expired(level->store);
    } else {
        kvt__table_abort(index, &claim);
    }
}

struct expiry {
    struct kvt__level *level;
    struct kvt__table *index;
};

static bool
expire_entry(void *ctx, const struct kvt__record *record)
{
    const struct expiry *x = ctx;

    if (kvt__table_is_expired(record))
        expire(x->level, x->index, record);
    return !atomic_load(&x->level->store->stopping);
}

void
kvt__level_expire(struct kvt__level *level)
{
    struct expiry x = { level, level->index };

    assert(level->owner == level);
    if (kvt__level_can_expire(level) && !atomic_load(&level->reads_only) &&
        kvt__table_begin_expiry(x.index))
        kvt__table_each(x.index, expire_entry, &x);
}

/* ------------------------------------------------------------------- tags */

struct tags {
    struct kvt__level *level;
    struct kvt__table *index;
    uint32_t part;
};

static bool
evict_tagged(void *ctx, const struct kvt__record *record)
{
    const struct tags *t = ctx;
    char text[KVT__TABLE_TEXT_MAX + 1];

    if (record->space % TAG_PARTS == t->part &&
        !kvt__table_space_text(t->index, record->space, text, sizeof text) &&
        kvt__key_has_tags(text))
        (void)evict(t->level, t->index, record);
    return !atomic_load(&t->level->store->stopping);
}

/* Evict the chunks of one in 32 spaces with tags, so that the spaces become free for new tags.  At
 * most once a second.  Walks the whole index. */
static void
evict_tags(struct kvt__level *level)
{
    int64_t now = kvt__now_ns(), last = atomic_load(&level->tags_evicted_ns);

    if (now - last < KVT__NS_PER_S ||
        !atomic_compare_exchange_strong(&level->tags_evicted_ns, &last, now))
        return;
    /* The nanoseconds of the clock choose each part with equal probability. */
    struct tags tags = { level, level->index, (uint32_t)(now >> 4) % TAG_PARTS };
    kvt__table_each(tags.index, evict_tagged, &tags);
}

/* ------------------------------------------------------------------- claims */

/* Convert an error of the table to the result of a claim. */
static int
result_of(struct kvt__level *level, const char *text, int err)
{
    const char *name = level->tier->ops->name;

    switch (err) {
    case -EBUSY: /* another thread or process stores or evicts the chunk now */
        return -EEXIST;
    case -ENFILE: /* all spaces are in use: chunks with new tags must wait for unused spaces */
        if (kvt__key_has_tags(text))
            evict_tags(level);
        return kvt__fail(ENOSPC, "%s: the index of %s has too many combinations of model, rank, "
                         "group and tags.", name, level->url);
    case -EAGAIN:
    case -ETIMEDOUT:
        return kvt__fail(ENOSPC, "%s: too many stores in %s at the same time.", name, level->url);
    case -ESTALE:
        return kvt__fail(ESTALE, "%s: another process has replaced the index of %s, which this "
                         "process opens again.", name, level->url);
    case -ENOTSUP:
        return kvt__fail(ENOTSUP, "%s: the index of %s has no room for hashes of 256 bits.", name,
                         level->url);
    default:
        return err;
    }
}

int
kvt__level_claim(struct kvt__level *level, const struct kvt__store_req *req,
                 const struct kvt__record *record, struct kvt__claim *claim)
{
    struct kvt__name name = kvt__level_name(level, req->space, &req->hash);
    char text[KVT__TABLE_TEXT_MAX + 1];
    int err = kvt__level_spell(level, req->space, text);

    if (err)
        return err;
    level = level->owner;
    kvt__level_renew_index(level);
    struct kvt__table *index = level->index; /* may be replaced at any time */
    do
        err = kvt__table_claim(index, &name, record, text, claim);
    while (err == -ENOSPC && !(err = make_room(level, index, record->bytes)));
    return result_of(level, text, err);
}

int
kvt__level_enter(struct kvt__level *level, struct kvt__table *index,
                 const struct kvt__name *name, const struct kvt__record *record,
                 const char *text)
{
    int err;

    assert(level->owner == level);
    do
        err = kvt__table_enter(index, name, record, text);
    while (err == -ENOSPC && !(err = make_room(level, index, record->bytes)));
    return err;
}

int
kvt__level_keep_free(struct kvt__level *level, const struct kvt__object *object,
                     uint64_t bytes)
{
    assert(level->owner == level);
    uint64_t shortage = level->keeps_free
        ? level->tier->ops->shortage(level->tier, object, bytes) : 0;

    /* Evict at most 4 * bytes, so that a PUT waits briefly; the next PUTs continue the eviction. */
    if (!shortage ||
        kvt__level_evict(level, object, shortage < 4 * bytes ? shortage : 4 * bytes))
        return 0;
    return kvt__fail(ENOSPC, "%s: less than a tenth of the file system of %s is free, and no "
                     "chunk can be evicted now.", level->tier->ops->name, level->url);
}

void
kvt__level_make_space(struct kvt__level *level, const struct kvt__object *object,
                      uint64_t bytes)
{
    char why[KVT__WHY_BYTES];

    assert(level->owner == level);
    snprintf(why, sizeof why, "%s", kvt__why());
    if (!keeps_objects(level, level->index))
        (void)kvt__level_evict(level, object, bytes);
    kvt__set_why(why);
}

/* ------------------------------------------------------------------- one object */

bool
kvt__level_delete_corrupt(struct kvt__level *level, struct kvt__table *index,
                          const struct kvt__record *seen, const struct kvt__object *object,
                          bool keep_object)
{
    struct kvt__claim claim;

    assert(object->key && level->store);
    int err = kvt__table_evict(index, seen, true, &claim);

    if (err)
        return err == -ENOENT; /* another thread has deleted or replaced the chunk */
    assert(claim.table == index && claim.entry == seen->entry);
    bool gone = keep_object || remove_object(level, object);
    kvt__table_evicted(index, &claim);
    return gone;
}
