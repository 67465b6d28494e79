/* SPDX-License-Identifier: Apache-2.0
 *
 * Put, get and probe of one chunk.  Each runs on one executor thread from start
 * to end. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "store/private.h"

static int
describe(const struct kvt__store_req *req, char *key, size_t size,
         struct kvt__object *object)
{
    *object = (struct kvt__object){
        .key = key, .hash = req->hash, .opaque = req->space->opaque,
        .whole = req->whole, .tokens = req->tokens, .rank = req->space->rank,
        .id = req->id, .id_of_key = req->id_of_key, .shape = req->shape };
    return kvt__space_key(req->space->text, &req->hash, key, size);
}

static struct kvt__index_entry
entry_of(const struct kvt__store_req *req, size_t level, uint64_t stored_bytes)
{
    return (struct kvt__index_entry){
        .id = req->id, .hash = req->hash, .bytes = stored_bytes,
        .space = req->space->number[level], .tokens = req->tokens };
}

/* --------------------------------------------------------------------- put */

/* Equal tokens of another adapter or epoch have the same file name: take
 * the entry of the chunk whose file is about to be replaced out of the way, or an
 * eviction of it would remove the new file.  False: there is none. */
static bool
begin_to_replace(struct kvt__level *level, const struct kvt__object *object,
                 struct kvt__index_claim *claim)
{
    struct kvt__found found;

    return !level->tier->ops->probe(level->tier, object, &found) && found.has_id &&
           !kvt__id_equal(&found.id, &object->id) &&
           !kvt__index_evict(level->index, &found.id, true, NULL, claim);
}

static int
put_object(struct kvt__store *store, struct kvt__level *level,
           const struct kvt__object *object, const struct kvt__store_req *req)
{
    int err = kvt__level_begin(level, KVT__WRITES);

    if (!err) {
        err = level->tier->ops->put(level->tier, object, &req->slot, req->crc);
        kvt__level_end(store, level, KVT__WRITES, err);
    }
    return err;
}

int
kvt__level_put(struct kvt__store *store, struct kvt__level *level,
               const struct kvt__object *object, const struct kvt__store_req *req,
               bool verified)
{
    const struct kvt__tier_ops *ops = level->tier->ops;
    struct kvt__index_claim claim, old;

    if (kvt__index_find(level->index, &req->id, NULL))
        return -EEXIST;
    struct kvt__index_entry entry = entry_of(
        req, (size_t)(level - store->levels),
        ops->stored_bytes(level->tier, object, req->slot.bytes));
    entry.flags = verified ? 0 : KVT__INDEX_FOREIGN;
    kvt__level_forget_name(level, object->key);
    int err = kvt__level_refuses(level, KVT__WRITES);
    if (!err)
        err = kvt__level_claim(store, level, &entry, &claim);
    if (err)
        return err;
    bool replaces = begin_to_replace(level, object, &old);
    err = put_object(store, level, object, req);
    if (err) {
        if (replaces)
            kvt__index_restore(level->index, &old);
        kvt__index_abort(level->index, &claim);
        return err;
    }
    if (replaces)
        kvt__index_removed(level->index, &old);
    kvt__index_publish(level->index, &claim);
    kvt__level_forget_name(level, object->key); /* a scan may have met the file */
    return 0;
}

/* The first failure among the tiers is the request's. */
static void
note_failure(struct kvt__store_req *req, int err, int *failed)
{
    if (*failed)
        return;
    *failed = err;
    snprintf(req->why, sizeof req->why, "%s", kvt__why());
}

/* In every tier but host memory, which has it since it was submitted.  One that fails
 * does not keep it from the others. */
static int
put(struct kvt__store *store, const struct kvt__object *object,
    struct kvt__store_req *req)
{
    int result = -EEXIST, failed = 0;

    for (size_t i = 0; i < store->n_levels; i++) {
        struct kvt__level *level = &store->levels[i];
        int err = level->in_memory || !kvt__level_may_put(level, req->space) ? -EEXIST :
            kvt__level_put(store, level, object, req, true);

        if (err && err != -EEXIST)
            note_failure(req, err, &failed);
        if (!err)
            result = 0;
    }
    if (failed)
        kvt__set_why(req->why);
    return failed ? failed : result;
}

/* --------------------------------------------------------------------- get */

/* Is what was read the chunk that was asked for?  0, or why not.  An LMCache beside
 * us writes over our files: theirs are served as any of theirs. */
static int
check(const struct kvt__store *store, const struct kvt__store_req *req,
      const struct kvt__found *found)
{
    if (!found->has_id)
        return store->refuse_unverified ?
            kvt__fail(ENOENT, "%s: carries no checksum and refuse_unverified is set.",
                      req->space->text) : 0;
    if (!kvt__id_equal(&found->id, &req->id))
        return kvt__fail(ESTALE, "another chunk lies under the same name.");
    if (kvt__payload_crc(&req->slot, found) != found->crc)
        return kvt__fail(EBADMSG, "the checksum is wrong.");
    return 0;
}

/* A chunk keeps the name that it was stored under, by another chunk hash than today's
 * perhaps: what it is its identity says. */
static int
name_as_stored(const struct kvt__store_req *req, const struct kvt__index_entry *entry,
               struct kvt__object *object, char *key, size_t size)
{
    if (!memcmp(entry->hash.bits, object->hash.bits, sizeof object->hash.bits))
        return 0;
    object->hash = entry->hash;
    object->key = key;
    return kvt__space_key(req->space->text, &entry->hash, key, size);
}

static int
get_level(struct kvt__store *store, struct kvt__level *level,
          const struct kvt__object *asked, struct kvt__store_req *req)
{
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__object stored = *asked, *object = &stored;
    struct kvt__index_entry entry;
    struct kvt__found found;

    if (level->no_get || !kvt__index_find(level->index, &req->id, &entry))
        return -ENOENT;
    int err = name_as_stored(req, &entry, object, key, sizeof key);
    if (!err)
        err = kvt__level_begin(level, KVT__READS);
    if (!err) {
        err = level->tier->ops->get(level->tier, object, &req->slot, &found);
        kvt__level_end(store, level, KVT__READS, err);
    }
    if (!err)
        err = check(store, req, &found);
    if (!err) {
        req->verified = found.has_id;
        kvt__index_touch(level->index, &req->id);
        return 0;
    }
    if (err == -ENOENT || err == -ESTALE) {
        kvt__level_drop(level, &req->id, false);
        return -ENOENT;
    }
    if (err == -EBADMSG) {
        char why[sizeof req->why];

        snprintf(why, sizeof why, "%s", kvt__why());
        bool gone = kvt__level_drop(level, &req->id, true);
        kvt__log(KVT_LOG_WARN, "%s: chunk %s is damaged%s: %s", level->tier->ops->name,
                 object->key, gone ? " and was removed" : " and cannot be removed, so it is "
                 "read in vain by each request; remove it", why);
        kvt__set_why(why);
    }
    return err;
}

static int
get(struct kvt__store *store, const struct kvt__object *object,
    struct kvt__store_req *req)
{
    int failed = 0;

    for (size_t i = 0; i < store->n_levels; i++) {
        int err = get_level(store, &store->levels[i], object, req);

        if (!err && !store->levels[i].in_memory)
            (void)kvt__memory_keep(store, req, req->verified); /* no room: as well */
        if (!err)
            return 0;
        if (err != -ENOENT) /* worse than a miss: worth telling */
            note_failure(req, err, &failed);
    }
    if (!failed)
        return kvt__fail(ENOENT, "chunk %s", object->key);
    kvt__set_why(req->why);
    return failed;
}

/* ------------------------------------------------------------------- probe */

/* Whether a file of found's description can be the chunk asked for. */
static bool
may_be(const struct kvt__store *store, const struct kvt__store_req *req,
       const struct kvt__found *found)
{
    if (found->has_id)
        return kvt__id_equal(&found->id, &req->id) &&
               found->payload_bytes == req->bytes;
    return !store->refuse_unverified && !req->own_only && !req->space->opaque &&
           found->payload_bytes == req->bytes;
}

static int
probe_level(struct kvt__store *store, size_t i, const struct kvt__object *object,
            const struct kvt__store_req *req)
{
    struct kvt__level *level = &store->levels[i];
    struct kvt__index_claim claim;
    struct kvt__found found;

    if (level->no_get)
        return -ENOENT;
    if (kvt__index_find(level->index, &req->id, NULL))
        return 0;
    int err = kvt__level_begin(level, KVT__READS);
    if (err)
        return err;
    err = level->tier->ops->probe(level->tier, object, &found);
    kvt__level_end(store, level, KVT__READS, err);
    if (err)
        return err;
    if (!may_be(store, req, &found))
        return -ENOENT;
    struct kvt__index_entry entry = entry_of(req, i, found.stored_bytes);
    entry.flags = found.has_id ? 0 : KVT__INDEX_FOREIGN;
    kvt__level_forget_name(level, object->key);
    err = kvt__level_claim(store, level, &entry, &claim);
    if (!err) {
        kvt__index_publish(level->index, &claim);
        kvt__level_forget_name(level, object->key);
    }
    return err == -EEXIST ? 0 : err;
}

/* Of host memory the index knows everything. */
static int
probe(struct kvt__store *store, const struct kvt__object *object,
      const struct kvt__store_req *req)
{
    int result = -ENOENT;

    for (size_t i = 0; i < store->n_levels; i++)
        if (!store->levels[i].in_memory && !probe_level(store, i, object, req))
            result = 0;
    return result;
}

/* ------------------------------------------------------------------ running */

static void
tell_why(struct kvt__store_req *req)
{
    req->why[0] = '\0';
    if (req->status)
        snprintf(req->why, sizeof req->why, "%s", kvt__why());
}

void
kvt__store_run(struct kvt__store *store, struct kvt__store_req *req)
{
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__object object;

    req->status = req->borrowed ? 0 : describe(req, key, sizeof key, &object);
    if (!req->status && !req->borrowed) {
        switch (req->op) {
        case KVT__STORE_PUT:
            req->status = put(store, &object, req);
            break;
        case KVT__STORE_GET:
            req->status = get(store, &object, req);
            break;
        case KVT__STORE_PROBE:
            req->status = probe(store, &object, req);
            break;
        }
    }
    tell_why(req);
}

static void
run_job(struct kvt__job *job)
{
    struct kvt__store_req *req = (struct kvt__store_req *)
        ((char *)job - offsetof(struct kvt__store_req, job));

    if (req->wanted && !req->wanted(req))
        req->status = -ECANCELED;
    else
        kvt__store_run(req->store, req);
    req->done(req);
}

void
kvt__store_submit(struct kvt__store *store, struct kvt__store_req *req)
{
    static const enum kvt__prio prios[] = {
        [KVT__STORE_PUT] = KVT__PRIO_STORE,
        [KVT__STORE_GET] = KVT__PRIO_LOAD,
        [KVT__STORE_PROBE] = KVT__PRIO_LOOKUP,
    };

    req->store = store;
    req->job.run = run_job;
    if (req->op == KVT__STORE_PUT) {
        req->status = store->levels[0].no_put ? -EEXIST
                                              : kvt__memory_keep(store, req, true);
        if (req->status != -ENODEV && !kvt__store_puts_in_storage(store, req->space)) {
            tell_why(req);
            req->done(req);
            return;
        }
    }
    kvt__exec_submit(store->exec, req->early ? KVT__PRIO_PREFETCH : prios[req->op],
                     &req->job);
}
