/* SPDX-License-Identifier: Apache-2.0
 *
 * What a put, a get, a probe asks of one level, and what the answer of its tier means
 * there: for the index, the budget, the circuit. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "store/private.h"

/* Claim a place in the index for a request's chunk.  As kvt__level_claim(). */
static int
claim(struct kvt__store *store, struct kvt__level *level, const struct kvt__store_req *req,
      uint64_t stored_bytes, uint32_t flags, struct kvt__index_claim *out)
{
    char text[KVT__INDEX_SPACE_TEXT_MAX + 1], listed[KVT__KEY_TEXT_MAX + 1];
    struct kvt__index_entry entry = {
        .id = req->id, .hash = req->hash, .bytes = stored_bytes,
        .space = KVT__INDEX_NO_SPACE, .tokens = req->tokens,
        .flags = flags };

    if (!kvt__level_needs_names(level))
        return kvt__level_claim(store, level, &entry, NULL, out);
    int err = kvt__space_text(req->space, req->tags, text);
    if (err)
        return err;
    kvt__level_listed_key(level, text, listed);
    err = kvt__level_claim(store, level, &entry, listed, out);
    if (err != -ENFILE)
        return err;
    /* Chunks of new tags are stored once the index has searched for unused spaces again. */
    if (req->tags && *req->tags)
        kvt__level_evict_tags(store, level);
    return -ENOSPC;
}

/* --------------------------------------------------------------------- put */

/* Take the entry of the chunk whose file is about to be replaced out of the way: equal
 * tokens of another adapter have the same file name, and an eviction of the old chunk would
 * remove the new file.  A tier with `replaces` reports the replaced chunk after the put.  0;
 * -EBUSY with a sentence: another thread or process evicts or stores the old chunk now, and
 * can remove the file under this name at any moment. */
static int
begin_to_replace(struct kvt__level *level, const struct kvt__object *object,
                 struct kvt__put *put)
{
    struct kvt__found found;

    put->replaces = false;
    if (level->tier->replaces || kvt__tier_probe(level->tier, object, &found) ||
        !found.has_id || kvt__id_equal(&found.id, &object->id))
        return 0;
    int err = kvt__index_evict(level->index, &found.id, true, NULL, &put->replaced);
    put->replaces = !err;
    return err == -EBUSY ? kvt__fail(EBUSY, "%s: another chunk of this name is being "
                                     "stored or evicted", object->key) : 0;
}

/* A place in the index.  What is to be overwritten can be another process's that puts
 * it at this moment: the last of them counts, under the place of the first. */
static int
claim_place(struct kvt__store *store, struct kvt__level *level,
            const struct kvt__store_req *req, uint64_t stored_bytes, bool foreign,
            struct kvt__index_claim *out)
{
    int err = claim(store, level, req, stored_bytes, foreign ? KVT__INDEX_FOREIGN : 0,
                    out);

    if (err == -EEXIST && req->overwrite) {
        *out = (struct kvt__index_claim){ .slot = UINT64_MAX };
        return 0;
    }
    return err;
}

/* Delete the entry of an expected chunk, or of a chunk without identity that the request may
 * not load, so that the request's own chunk takes its place.  Return false if there is no such
 * entry, or if another engine has a lease of a chunk without identity. */
static bool
forget_other(struct kvt__store *store, struct kvt__level *level,
             const struct kvt__store_req *req)
{
    struct kvt__index_entry entry;
    struct kvt__index_claim claim;

    if (!kvt__index_find(level->index, &req->id, &entry))
        return false;
    bool expected = entry.flags & KVT__INDEX_EXPECTED;
    if (!expected && (!(entry.flags & KVT__INDEX_FOREIGN) ||
                      kvt__store_takes_foreign(store, req->space, req->own_only)))
        return false;
    if (kvt__index_evict(level->index, &req->id, expected, NULL, &claim))
        return false;
    kvt__index_removed(level->index, &claim);
    return true;
}

/* Reserve room and a place.  0: the tier is to be asked, then put_end() is owed;
 * -EEXIST it is there; -errno with a sentence.  verified: its checksum was checked, or
 * made. */
static int
put_begin(struct kvt__store *store, struct kvt__level *level,
          const struct kvt__object *object, const struct kvt__store_req *req,
          bool verified, struct kvt__put *put)
{
    if (!req->overwrite && kvt__index_find(level->index, &req->id, NULL) &&
        !forget_other(store, level, req))
        return -EEXIST;
    if (atomic_load(&level->reads_only))
        return kvt__fail(EROFS, "%s: nothing is stored there, because the index is not "
                         "shared and the limit could not be held.",
                         level->tier->ops->name);
    kvt__level_look_after_index(store, level);
    uint64_t stored_bytes = level->tier->ops->stored_bytes(level->tier, object,
                                                           req->slot.bytes);
    kvt__level_forget_name(level, object->key);
    int err = kvt__level_refuses(level, KVT__WRITES);
    if (!err)
        err = kvt__level_keep_free(store, level, object, stored_bytes);
    if (!err)
        err = claim_place(store, level, req, stored_bytes, !verified, &put->claim);
    if (err)
        return err;
    err = kvt__level_begin(level, KVT__WRITES);
    if (err) {
        kvt__index_abort(level->index, &put->claim);
        return err;
    }
    err = begin_to_replace(level, object, put);
    if (err) {
        kvt__level_end(store, level, KVT__WRITES, err);
        kvt__index_abort(level->index, &put->claim);
    }
    return err;
}

/* Enter a stored chunk into the index. */
static int
enter(struct kvt__store *store, struct kvt__level *level, const struct kvt__store_req *req,
      uint64_t stored_bytes, uint32_t flags)
{
    struct kvt__index_claim place;
    int err = claim(store, level, req, stored_bytes, flags, &place);

    if (!err)
        kvt__index_publish(level->index, &place);
    return err;
}

/* err: the tier's answer; replaced: what it says it took the place of.  Returns it. */
static int
put_end(struct kvt__store *store, struct kvt__level *level,
        const struct kvt__object *object, const struct kvt__store_req *req,
        struct kvt__put *put, const struct kvt__found *replaced, int err)
{
    kvt__level_end(store, level, KVT__WRITES, err);
    if (err) {
        if (put->replaces)
            kvt__index_restore(level->index, &put->replaced);
        uint64_t bytes = put->claim.bytes;
        kvt__index_abort(level->index, &put->claim);
        if (err == -ENOSPC || err == -EDQUOT) { /* an overwritten entry tells no bytes */
            char why[sizeof ((struct kvt__store_req *)0)->why];

            snprintf(why, sizeof why, "%s", kvt__why());
            kvt__level_make_space(store, level, object, bytes ? 2 * bytes : 1);
            kvt__set_why(why);
        }
        return err;
    }
    if (put->replaces)
        kvt__index_removed(level->index, &put->replaced);
    if (replaced->has_id && !kvt__id_equal(&replaced->id, &object->id))
        kvt__level_drop(level, &replaced->id, NULL);
    if (!kvt__index_publish(level->index, &put->claim)) /* of an index that was replaced */
        (void)enter(store, level, req, put->claim.bytes, 0);
    kvt__level_forget_name(level, object->key); /* a scan may have met the file */
    return 0;
}

int
kvt__level_put(struct kvt__store *store, struct kvt__level *level,
               const struct kvt__object *object, const struct kvt__store_req *req,
               bool verified)
{
    const struct kvt__found nothing = { 0 };
    struct kvt__put put = { 0 };
    int err = put_begin(store, level, object, req, verified, &put);

    if (err)
        return err;
    err = kvt__tier_put(level->tier, object, &req->slot, req->crc);
    return put_end(store, level, object, req, &put, &nothing, err);
}

/* Return true if a found object still exists.  An eviction can delete the object after the
 * probe and before the claim; while the caller holds the claim, no process of this host
 * does.  Other hosts delete objects of shared storage at any time, and promises there need
 * a read. */
static bool
still_exists(const struct kvt__level *level, const struct kvt__object *object)
{
    struct kvt__found found;

    return level->tier->shared || !kvt__tier_probe(level->tier, object, &found);
}

/* Enter a chunk that the tier holds in place of the entry of an expected chunk. */
static int
enter_found(struct kvt__store *store, struct kvt__level *level,
            const struct kvt__object *object, const struct kvt__store_req *req,
            const struct kvt__found *found)
{
    if (req->seen.flags & KVT__INDEX_EXPECTED)
        kvt__level_drop_seen(level, &req->seen, false);
    kvt__level_forget_name(level, object->key);
    struct kvt__index_claim place;
    int err = claim(store, level, req, found->stored_bytes,
                    found->has_id ? 0 : KVT__INDEX_FOREIGN, &place);
    if (err)
        return err;
    if (!still_exists(level, object)) {
        kvt__index_abort(level->index, &place);
        return -ENOENT;
    }
    kvt__index_publish(level->index, &place);
    kvt__level_forget_name(level, object->key);
    return 0;
}

void
kvt__store_expect(struct kvt__store *store, const struct kvt__store_req *req)
{
    for (size_t i = 0; i < store->n_levels; i++)
        if (kvt__level_is_read_first(store, i, req->space))
            (void)enter(store, &store->levels[i], req, 0, KVT__INDEX_EXPECTED);
}

/* Not of host memory, which has it since it was submitted. */
static bool
is_put_there(const struct kvt__level *level, const struct kvt__store_req *req)
{
    return !level->in_memory && kvt__level_may_put(level, req->space);
}

/* --------------------------------------------------------------------- get */

/* An LMCache beside kvtier may replace a chunk's file.  Files of LMCache are served if the
 * file name determines the chunk completely. */
bool
kvt__store_takes_foreign(const struct kvt__store *store, const struct kvt__space *space,
                         bool own_only)
{
    return !store->refuse_unverified && !own_only && !space->opaque;
}

static const char *
shape_text(const struct kvt__shape *shape, char out[96])
{
    const uint32_t *dims = shape->dims;

    snprintf(out, 96, "[%" PRIu32 ", %" PRIu32 ", %" PRIu32 ", %" PRIu32 "], dtype %"
             PRIu32 ", format %" PRIu32, dims[0], dims[1], dims[2], dims[3], shape->dtype,
             shape->format);
    return out;
}

/* Whether what carries no identity has the geometry that was asked for, as far as it says:
 * its name does not tell that, and its length may be the same. */
static bool
has_right_shape(const struct kvt__store_req *req, const struct kvt__found *found)
{
    char told[96], asked[96];

    if (!found->has_shape || !memcmp(&found->shape, &req->shape, sizeof req->shape))
        return true;
    KVT__LOG_ONCE(KVT_LOG_WARN, "chunks of another geometry have this model's names, and "
                  "are not used: one of %s tells shape %s, where %s was expected; keep "
                  "the two models' chunks apart", req->space->text,
                  shape_text(&found->shape, told), shape_text(&req->shape, asked));
    return false;
}

int
kvt__level_check_crc(struct kvt__store_req *req, uint32_t crc)
{
    int err = req->consume ? req->consume(req, crc) : -EAGAIN;

    if (err == -EAGAIN)
        err = kvt__crc32c_cold(0, req->slot.payload, req->slot.bytes) == crc ? 0 : -EBADMSG;
    return err ? kvt__fail(EBADMSG, "the checksum is wrong.") : 0;
}

/* Compare the payload's checksum with the stored one, or leave that to the first load.
 * 0 or -EBADMSG with a sentence. */
static int
check_sum(const struct kvt__level *level, struct kvt__store_req *req,
          const struct kvt__found *found)
{
    if (found->has_read_crc)
        return found->read_crc == found->crc ? 0
                                             : kvt__fail(EBADMSG, "the checksum is wrong.");
    req->unsummed = !req->consume && kvt__level_sums_later(level, req);
    req->crc = found->crc;
    return req->unsummed ? 0 : kvt__level_check_crc(req, found->crc);
}

/* Is what was read the chunk that was asked for?  0, or why not. */
static int
check(const struct kvt__store *store, const struct kvt__level *level,
      struct kvt__store_req *req, const struct kvt__found *found)
{
    req->unsummed = false;
    if ((req->foreign || !found->has_id) &&
        !kvt__store_takes_foreign(store, req->space, req->own_only))
        return kvt__fail(ESTALE, "%s: what has its name carries no identity.",
                         req->space->text);
    if (req->foreign || !found->has_id)
        return has_right_shape(req, found) ? 0 :
            kvt__fail(ESTALE, "%s: what has its name is of another geometry.",
                      req->space->text);
    if (!kvt__id_equal(&found->id, &req->id))
        return kvt__fail(ESTALE, "another chunk lies under the same name.");
    return check_sum(level, req, found);
}

/* A chunk keeps the name that it was stored under, by another chunk hash than today's
 * perhaps: what it is its identity says. */
static int
name_as_stored(const struct kvt__store_req *req, const struct kvt__index_entry *entry,
               struct kvt__object *object, char *key, size_t size)
{
    char text[KVT__INDEX_SPACE_TEXT_MAX + 1];

    if (!memcmp(entry->hash.bits, object->hash.bits, sizeof object->hash.bits))
        return 0;
    object->hash = entry->hash;
    object->key = key;
    int err = kvt__space_text(req->space, req->tags, text);
    return err ? err : kvt__space_key(text, &entry->hash, key, size);
}

/* Whether the level may have it, by its index: 0, then object is what it is called there
 * and get_end() is owed. */
static int
get_begin(struct kvt__level *level, struct kvt__store_req *req,
          struct kvt__object *object, char *key, size_t size)
{
    if (level->no_get || !kvt__index_find(level->index, &req->id, &req->seen))
        return -ENOENT;
    req->foreign = level->in_memory && req->seen.flags & KVT__INDEX_FOREIGN;
    int err = name_as_stored(req, &req->seen, object, key, size);
    return err ? err : kvt__level_begin(level, KVT__READS);
}

/* Take a damaged chunk out of the index, and out of storage too. */
static void
drop_damaged(struct kvt__level *level, const struct kvt__object *object,
             const struct kvt__store_req *req)
{
    bool remove = !level->tier->keeps_damaged;
    char why[sizeof req->why];

    snprintf(why, sizeof why, "%s", kvt__why());
    bool gone = kvt__level_drop_seen(level, &req->seen, remove);
    kvt__log(KVT_LOG_WARN, "%s: chunk %s is damaged%s: %s", level->tier->ops->name,
             object->key, !remove ? "" : gone ? " and was removed" :
             " and cannot be removed, so it is read in vain by each request; remove it",
             why);
    kvt__set_why(why);
}

/* err: the tier's answer.  0: it is the chunk that was asked for. */
static int
get_end(struct kvt__store *store, struct kvt__level *level,
        const struct kvt__object *object, struct kvt__store_req *req,
        const struct kvt__found *found, int err)
{
    kvt__level_end(store, level, KVT__READS, err);
    if (!err)
        err = check(store, level, req, found);
    if (!err) {
        req->verified = found->has_id && !req->foreign && !req->unsummed;
        if (!level->in_memory)
            (void)kvt__memory_keep(store, req, req->verified || req->unsummed); /* or no room */
        /* After host memory has the chunk: a lookup always finds one of the two. */
        if (req->seen.flags & KVT__INDEX_EXPECTED)
            (void)enter_found(store, level, object, req, found);
        else
            kvt__index_touch(level->index, &req->id);
        return 0;
    }
    if (err == -ENOENT || err == -ESTALE) {
        kvt__level_drop_seen(level, &req->seen, level->in_memory); /* a file is another's */
        return -ENOENT;
    }
    if (err == -EBADMSG)
        drop_damaged(level, object, req);
    return err;
}

/* ------------------------------------------------------------------- probe */

/* Whether a file of found's description can be the chunk asked for. */
static bool
may_be(const struct kvt__store *store, const struct kvt__store_req *req,
       const struct kvt__found *found)
{
    return found->payload_bytes == req->bytes &&
           (found->has_id ? kvt__id_equal(&found->id, &req->id)
                          : kvt__store_takes_foreign(store, req->space, req->own_only) &&
                            has_right_shape(req, found));
}

/* 0: the tier is to be asked, then probe_end() is owed; -EEXIST: the index has it.  Of
 * host memory it knows everything. */
static int
probe_begin(struct kvt__level *level, struct kvt__store_req *req)
{
    int number = (int)(level - req->store->levels);

    req->seen.flags = 0;
    if (level->in_memory || level->no_get ||
        (req->where != KVT__ANYWHERE &&
         !kvt__store_covers(req->store, req->where, number, req->space)))
        return -ENOENT;
    if (kvt__index_find(level->index, &req->id, &req->seen) &&
        !(req->seen.flags & KVT__INDEX_EXPECTED))
        return -EEXIST;
    return kvt__level_begin(level, KVT__READS);
}

/* Enter it into the index.  err: the tier's answer. */
static int
probe_end(struct kvt__store *store, struct kvt__level *level,
          const struct kvt__object *object, const struct kvt__store_req *req,
          const struct kvt__found *found, int err)
{
    kvt__level_end(store, level, KVT__READS, err);
    if (!err && !may_be(store, req, found))
        err = -ENOENT;
    if (err == -ENOENT && req->seen.flags & KVT__INDEX_EXPECTED)
        kvt__level_drop_seen(level, &req->seen, false);
    if (err)
        return err;
    /* -EEXIST: another thread entered the chunk; the request then succeeds. */
    return enter_found(store, level, object, req, found);
}

/* ------------------------------------------------------------------ each of them */

int
kvt__level_ask(struct kvt__store_req *req, struct kvt__level *level,
               struct kvt__object *object, char *stored_key, size_t size)
{
    switch (req->op) {
    case KVT__STORE_PUT:
        return is_put_there(level, req)
            ? put_begin(req->store, level, object, req, true, &req->put) : -EEXIST;
    case KVT__STORE_GET:
        return get_begin(level, req, object, stored_key, size);
    default:
        return probe_begin(level, req);
    }
}

int
kvt__level_answer(struct kvt__store_req *req, struct kvt__level *level,
                  const struct kvt__object *object, int err)
{
    const struct kvt__found *found = &req->tier_op.found;

    switch (req->op) {
    case KVT__STORE_PUT:
        return put_end(req->store, level, object, req, &req->put, found, err);
    case KVT__STORE_GET:
        return get_end(req->store, level, object, req, found, err);
    default:
        return probe_end(req->store, level, object, req, found, err);
    }
}
