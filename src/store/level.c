/* SPDX-License-Identifier: Apache-2.0
 *
 * A level's part of a PUT, GET or PROBE, before and after the tier's operation: the index, the
 * limit, the pauses. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "store/private.h"

/* Look up the chunk of a GET.  Return false if the index has no entry that the request accepts.  A
 * prefetch accepts the entries that lookups find: another level may have a longer life. */
static bool
look_up_chunk(struct kvt__level *level, struct kvt__store_req *req)
{
    struct kvt__chunk_key key = kvt__request_key(req);

    kvt__level_look_up(level, req);
    req->has_entry = req->has_entry && !level->no_get &&
                    !(req->is_prefetch && kvt__store_ends_soon(&req->seen)) &&
                    kvt__store_matches(level->store, (int)(level - level->store->levels) + 1,
                                       &key, &req->seen);
    return req->has_entry;
}

/* --------------------------------------------------------------------- put */

/* Return true if the index has the chunk of a PUT.  If the chunk has no identity and the request
 * may not load the chunk, forget the entry for the PUT, unless another engine has a lease of the
 * chunk.  *replaces: another chunk has the name, and the PUT replaces the object.  If the object of
 * the chunk must be rewritten without a time to live, return false without *replaces: the claim then
 * fails while a load has a lease. */
static bool
has_chunk(struct kvt__level *level, const struct kvt__store_req *req, bool *replaces)
{
    struct kvt__name name = kvt__level_name(level, req->space, &req->hash);
    struct kvt__table *index = kvt__level_index(level);
    struct kvt__record record;

    *replaces = false;
    if (!kvt__table_find(index, &name, NULL, &record) ||
        record.flags & KVT__TABLE_UNREAD)
        return false;
    *replaces = !kvt__store_accepts_id(level->store, &req->id, &record.id);
    if (*replaces || kvt__level_must_rewrite(level, &record, req->expires_ns))
        return false;
    if (!kvt__store_accepts(level->store, req->space, req->needs_id, &record))
        return kvt__table_forget(index, &record, false);
    kvt__table_prolong(index, &record, req->expires_ns);
    return true;
}

/* Claim the name for a PUT into shared host memory.  There a claim never replaces an entry: after
 * the death of this process the entry of the old chunk would be READY over the bytes of the new
 * chunk.  So forget the old chunk first: an expired chunk, or any chunk if the request overwrites,
 * leased or not, as in storage. */
static int
claim_memory(struct kvt__level *level, const struct kvt__store_req *req,
             struct kvt__record *record, struct kvt__claim *out)
{
    struct kvt__name name = kvt__level_name(level, req->space, &req->hash);
    struct kvt__table *index = kvt__level_index(level);
    struct kvt__record old;

    if (record->flags && kvt__table_find(index, &name, NULL, &old))
        (void)kvt__table_forget(index, &old, req->overwrite);
    record->flags = 0;
    int err;
    while (!(err = kvt__level_claim(level, req, record, out)) &&
           out->kind == KVT__CLAIM_REPLACE) { /* the entry is expired */
        uint32_t entry = out->entry;

        kvt__table_abort(index, out);
        if (!kvt__table_read(index, entry, &old) || !kvt__table_is_expired(&old) ||
            kvt__table_forget(index, &old, true)) {
            err = -EEXIST;
            break;
        }
    }
    return err == -EEXIST && req->overwrite
        ? kvt__fail(EBUSY, "%s: another process stores chunk %s now; store the chunk again.",
                    level->tier->ops->name, req->object.key) : err;
}

/* Claim the name for a PUT.  An overwriting PUT needs no claim while another process stores an
 * object of the name: the last written object remains, with the entry of the other process.  A
 * tier with enforces_limit also stores objects for which the index has no room. */
static int
claim_for_put(struct kvt__level *level, const struct kvt__store_req *req,
              uint64_t stored_bytes, bool replaces, struct kvt__claim *out)
{
    struct kvt__record record = {
        .id = req->id, .bytes = stored_bytes, .expires_ns = req->expires_ns,
        .flags = req->overwrite || replaces ? KVT__TABLE_OVERWRITE : 0 };

    if (level->tier->in_memory)
        return claim_memory(level, req, &record, out);
    int err = kvt__level_claim(level, req, &record, out);

    return (err == -EEXIST && req->overwrite) || (err == -ENOSPC && level->tier->enforces_limit)
        ? 0 : err;
}

/* Return true if another level of the storage has a chunk that makes the PUT needless. */
static bool
has_in_other_encoding(const struct kvt__level *level, const struct kvt__store_req *req)
{
    const struct kvt__store *store = level->store;
    struct kvt__record record;

    for (size_t i = 0; i < store->n_levels && !req->by_key; i++) {
        const struct kvt__level *other = &store->levels[i];
        struct kvt__name name = kvt__level_name(other, req->space, &req->hash);

        if (other != level && other->owner == level->owner && kvt__level_replaces_put(other) &&
            kvt__table_find(kvt__level_index(other), &name, NULL, &record) &&
            !(record.flags & KVT__TABLE_UNREAD) &&
            !kvt__level_must_rewrite(other, &record, req->expires_ns) &&
            kvt__store_accepts_id(store, &req->id, &record.id) &&
            kvt__store_accepts(store, req->space, req->needs_id, &record))
            return true;
    }
    return false;
}

/* Encode the chunk, if the level has a codec, and set slot, checksum and shape of the object.  0;
 * -EEXIST: the storage's naive level stores the chunk, because the codec cannot make the chunk
 * smaller; -ENOMEM, -ENOSPC with a sentence. */
static int
encode(struct kvt__level *level, struct kvt__store_req *req)
{
    if (req->by_key || level->serde == KVT__SERDE_NAIVE)
        return 0;
    int err = kvt__choice_is_naive(level) ? -ENOTSUP : kvt__level_encode(level, req);
    if (err == -ENOTSUP) {
        req->stores_raw |= kvt__level_bit(level);
        return -EEXIST;
    }
    if (err)
        return err;
    req->tier_op.slot = req->staging;
    req->tier_op.crc = kvt__frame_crc(req->staging.payload, req->staging.bytes);
    req->object.shape = (struct kvt__shape){ .format = 4, .dtype = 6, /* BINARY, uint8 */
                                             .dims = { (uint32_t)req->staging.bytes } };
    return 0;
}

/* Return the bytes on disk of the object of a PUT. */
static uint64_t
bytes_of_put(const struct kvt__level *level, const struct kvt__store_req *req)
{
    return level->tier->ops->stored_bytes(level->tier, &req->object,
                                          req->staging.payload ? req->staging.bytes
                                                               : req->slot.bytes);
}

/* Claim the name and the bytes.  0: the caller runs the tier's operation and then calls put_end();
 * -EEXIST: the index has the chunk; -errno with a sentence. */
static int
claim_put(struct kvt__level *level, struct kvt__store_req *req, bool replaces)
{
    uint64_t bytes = bytes_of_put(level, req);
    int err = kvt__circuit_begin(level, KVT__PAUSE_WRITES);

    if (err)
        return err;
    err = kvt__level_keep_free(level->owner, &req->object, bytes);
    if (!err)
        err = claim_for_put(level, req, bytes, replaces, &req->claim);
    if (err)
        kvt__circuit_end(level, KVT__PAUSE_WRITES, -ECANCELED);
    else
        kvt__choice_begin(level->owner, KVT__PAUSE_WRITES);
    req->object.index = req->claim.table;
    req->object.entry = req->claim.entry;
    return err;
}

/* Begin a PUT.  Result as claim_put(). */
static int
put_begin(struct kvt__level *level, struct kvt__store_req *req)
{
    bool replaces;

    assert(level->store == req->store);
    req->claim = (struct kvt__claim){ .table = NULL };
    if ((has_chunk(level, req, &replaces) || has_in_other_encoding(level, req)) &&
        !req->overwrite)
        return -EEXIST;
    if (atomic_load(&level->owner->reads_only))
        return kvt__fail(EROFS, "%s: nothing is stored in %s, because this process's index is "
                         "private and the limit cannot be enforced.", level->tier->ops->name,
                         level->url);
    int err = kvt__circuit_check(level, KVT__PAUSE_WRITES); /* before the work of the codec */
    if (!err)
        err = encode(level, req);
    if (!err)
        err = claim_put(level, req, replaces);
    if (err)
        kvt__encoded_release(req);
    return err;
}

/* Enter an object that exists, unless another process entered the object. */
static void
enter(struct kvt__level *level, const struct kvt__store_req *req,
      const struct kvt__record *record)
{
    struct kvt__name name = kvt__level_name(level, req->space, &req->hash);
    char text[KVT__TABLE_TEXT_MAX + 1];

    if (!kvt__level_spell(level, req->space, text))
        (void)kvt__level_enter(level->owner, kvt__level_index(level), &name, record, text);
}

/* End the claim.  err: the result of the tier's operation.  Returns err. */
static int
put_end(struct kvt__level *level, struct kvt__store_req *req, int err)
{
    struct kvt__record record = { .id = req->id, .bytes = bytes_of_put(level, req),
                                  .expires_ns = req->expires_ns };

    kvt__choice_end(level->owner, KVT__PAUSE_WRITES, err ? 0 : record.bytes);
    kvt__encoded_release(req);
    if (!req->claim.table) /* without a claim, an eviction may have deleted the new object */
        record = (struct kvt__record){ .bytes = record.bytes, .flags = KVT__TABLE_UNREAD,
                                       .expires_ns = req->expires_ns };
    kvt__circuit_end(level, KVT__PAUSE_WRITES, err);
    if (err) {
        kvt__table_abort(kvt__level_index(level), &req->claim);
        if ((err == -ENOSPC || err == -EDQUOT) && !level->tier->in_memory)
            kvt__level_make_space(level->owner, &req->object, record.bytes ? 2 * record.bytes : 1);
    } else if (!kvt__table_publish(kvt__level_index(level), &req->claim) &&
               !level->tier->in_memory) {
        enter(level, req, &record); /* no claim, or the claim's index was replaced */
    }
    return err;
}

/* ------------------------------------------------------------------- shared memory */

void
kvt__level_copy_to_shared(struct kvt__store_req *req)
{
    struct kvt__store *store = req->store;

    assert(req->op == KVT__TIER_GET && req->verified);
    for (size_t i = 0; i < store->n_storages; i++) {
        struct kvt__level *level = &store->levels[i];

        if (level->tier->in_memory && kvt__level_may_put(level, req->space, req->expires_ns) &&
            !kvt__slot_on_device(&req->slot) && !put_begin(level, req))
            (void)put_end(level, req, kvt__tier_put(level->tier, &req->object, &req->slot,
                                                    req->crc));
    }
}

bool
kvt__level_acquire_chunk(struct kvt__level *level, struct kvt__store_req *req)
{
    struct kvt__name name = kvt__level_name(level, req->space, &req->hash);

    assert(req->op == KVT__TIER_GET);
    if (!level->tier->in_memory || !look_up_chunk(level, req) ||
        req->seen.bytes != req->bytes ||
        !level->tier->ops->acquire_chunk(level->tier, &req->object, req->bytes, &req->slot))
        return false;
    kvt__table_touch(req->index, &name, &req->id);
    req->crc_pending = false;
    return req->verified = true;
}

/* ------------------------------------------------------------------- found objects */

static const char *
shape_text(const struct kvt__shape *shape, char out[96])
{
    const uint32_t *dims = shape->dims;

    snprintf(out, 96, "[%" PRIu32 ", %" PRIu32 ", %" PRIu32 ", %" PRIu32 "], dtype %"
             PRIu32 ", format %" PRIu32, dims[0], dims[1], dims[2], dims[3], shape->dtype,
             shape->format);
    return out;
}

/* Return true if an object without identity has the request's shape, or does not say its shape.
 * The name does not contain the shape, and chunks of different shapes can have equal lengths. */
static bool
has_right_shape(const struct kvt__store_req *req)
{
    const struct kvt__found *found = &req->tier_op.found;
    char actual[96], expected[96];

    if (!found->has_shape || !memcmp(&found->shape, &req->shape, sizeof req->shape))
        return true;
    KVT__LOG_ONCE(KVT_LOG_WARN, "chunk %s has shape %s instead of %s and is a miss: the chunks "
                  "of two models have equal names; store each model in another directory, or "
                  "under another prefix", req->object.key, shape_text(&found->shape, actual),
                  shape_text(&req->shape, expected));
    return false;
}

/* Return true if a request may use a foreign chunk of the level.  Only kvtier stores chunks under
 * its own names, always with an identity. */
static bool
accepts_foreign(const struct kvt__level *level, const struct kvt__store_req *req)
{
    return !kvt__level_is_own(level) &&
           kvt__store_accepts_foreign(level->store, req->space, req->needs_id);
}

/* Return true if the object's description does not contradict the request's chunk. */
static bool
can_be_chunk(const struct kvt__level *level, const struct kvt__store_req *req)
{
    const struct kvt__found *found = &req->tier_op.found;
    bool has_length = level->serde == KVT__SERDE_NAIVE ? found->payload_bytes == req->bytes
                                                       : found->payload_bytes < req->bytes;

    return has_length &&
           (found->has_id ? kvt__store_accepts_id(level->store, &req->id, &found->id)
                          : accepts_foreign(level, req) && has_right_shape(req));
}

/* Return true if the object has not changed since the probe.  The caller holds the claim.  An
 * eviction can delete the object between the probe and the claim, but not during the claim.  No
 * check is made in multi-host storage: other hosts delete objects at any time, so promises need a
 * read there. */
static bool
is_unchanged(const struct kvt__level *level, const struct kvt__store_req *req)
{
    const struct kvt__found *found = &req->tier_op.found;
    struct kvt__found now;

    return level->tier->multi_host ||
           (!kvt__tier_probe(level->tier, &req->object, &now) && now.has_id == found->has_id &&
            (!now.has_id || kvt__id_equal(&now.id, &found->id)));
}

/* Enter an object that the tier has found, and replace an entry of another chunk.  If the object
 * has no identity and is not the request's chunk, the entry is unread.  0; -ENOENT: the object has
 * changed or was deleted; or an error of kvt__level_claim(). */
static int
enter_found(struct kvt__level *level, const struct kvt__store_req *req)
{
    const struct kvt__found *found = &req->tier_op.found;
    uint32_t flags = found->has_id ? 0
                   : can_be_chunk(level, req) ? KVT__TABLE_FOREIGN : KVT__TABLE_UNREAD;
    struct kvt__record record = {
        .bytes = found->stored_bytes, .expires_ns = req->has_entry ? req->seen.expires_ns : 0,
        .flags = flags | KVT__TABLE_FOUND | (req->has_entry ? KVT__TABLE_OVERWRITE : 0) };
    struct kvt__claim place;

    if (!(flags & KVT__TABLE_UNREAD)) /* with id 0, a PUT replaces the object */
        record.id = found->has_id ? found->id : req->id;
    int err = kvt__level_claim(level, req, &record, &place);

    if (err)
        return err;
    if (!is_unchanged(level, req)) {
        kvt__table_abort(kvt__level_index(level), &place);
        return -ENOENT;
    }
    (void)kvt__table_publish(kvt__level_index(level), &place);
    return 0;
}

/* Correct the index: the tier's object is not the chunk of the entry.  In multi-host storage,
 * forget the entry of an object that cannot be the request's chunk: lookups would promise an unread
 * entry again. */
static int
correct_index(struct kvt__level *level, const struct kvt__store_req *req)
{
    if (req->tier_op.found.has_id || can_be_chunk(level, req) || !level->tier->multi_host)
        return enter_found(level, req);
    if (req->has_entry)
        (void)kvt__table_forget(req->index, &req->seen, true);
    return -ENOENT;
}

/* Replace the entry of the request by an expired entry, because the index has lost the object's time
 * to live.  kvt__level_expire() then deletes the object.  Return -ENOENT. */
static int
drop_unbounded(struct kvt__level *level, const struct kvt__store_req *req)
{
    struct kvt__record record = { .bytes = req->tier_op.found.stored_bytes,
                                  .flags = KVT__TABLE_UNREAD, .expires_ns = KVT__EXPIRED };

    if (req->has_entry)
        (void)kvt__table_forget(req->index, &req->seen, true);
    enter(level, req, &record);
    return -ENOENT;
}

void
kvt__store_enter_unread(struct kvt__store *store, const struct kvt__store_req *req)
{
    struct kvt__record record = { .flags = KVT__TABLE_UNREAD };

    for (size_t i = 0; i < store->n_levels; i++)
        if (kvt__level_covers(&store->levels[i], KVT__READ_FIRST, req->space))
            enter(&store->levels[i], req, &record);
}

/* --------------------------------------------------------------------- get */

/* Begin a GET.  The size of an encoded object is unknown. */
static int
get_begin(struct kvt__level *level, struct kvt__store_req *req)
{
    if (!look_up_chunk(level, req))
        return -ENOENT;
    req->tier_op.may_be_shorter = level->serde != KVT__SERDE_NAIVE;
    int err = kvt__circuit_begin(level, KVT__PAUSE_READS);
    if (!err) {
        kvt__choice_begin(level->owner, KVT__PAUSE_READS);
        kvt__speed_begin(level->owner, req->bytes);
    }
    return err;
}

/* Compare the checksum of the encoded chunk, and decode the chunk.  *crc: CRC32C of the chunk.  0;
 * -ENOENT, -ECANCELED, -EBADMSG, -ENOMEM with a sentence. */
static int
decode(struct kvt__level *level, struct kvt__store_req *req, uint32_t *crc)
{
    const struct kvt__found *found = &req->tier_op.found;

    if (!found->payload_bytes || found->payload_bytes >= req->bytes)
        return kvt__fail(EBADMSG, "the object is not smaller than the chunk, or is empty.");
    uint32_t actual = found->has_read_crc
        ? found->read_crc : kvt__crc32c_cold(0, req->slot.payload, found->payload_bytes);
    if (actual != found->crc)
        return kvt__fail(EBADMSG, "the checksum is wrong.");
    return kvt__level_decode(level, req, found->payload_bytes, crc);
}

/* Compare the checksums of the read and the stored payload, or leave the comparison to the first
 * load.  0; -EBADMSG with a sentence. */
static int
check_sum(struct kvt__level *level, struct kvt__store_req *req)
{
    const struct kvt__found *found = &req->tier_op.found;

    if (level->serde == KVT__SERDE_NAIVE && found->has_read_crc)
        return found->read_crc == found->crc ? 0
                                             : kvt__fail(EBADMSG, "the checksum is wrong.");
    req->crc = found->crc;
    int err = level->serde == KVT__SERDE_NAIVE ? 0 : decode(level, req, &req->crc);
    if (err)
        return err;
    req->crc_pending = !req->consume && kvt__level_defers_crc(level, req);
    return req->crc_pending ? 0 : kvt__store_check_crc(req, req->crc);
}

/* Compare the object that the tier has read with the request.  0; with a sentence -ESTALE: the
 * object is another chunk; -EBADMSG: the object is corrupt. */
static int
check(struct kvt__level *level, struct kvt__store_req *req)
{
    const struct kvt__found *found = &req->tier_op.found;

    req->crc_pending = false;
    if (!found->has_id && !accepts_foreign(level, req))
        return kvt__fail(ESTALE, "%s: the object carries no identity.", req->object.key);
    if (!found->has_id)
        return has_right_shape(req) ? 0 :
            kvt__fail(ESTALE, "%s: the object has the shape of another model's chunks.",
                      req->object.key);
    if (!kvt__store_accepts_id(level->store, &req->id, &found->id))
        return kvt__fail(ESTALE, "%s: the object is another chunk.", req->object.key);
    return check_sum(level, req);
}

/* Delete a corrupt chunk from the index and, if allowed, from storage.  Keeps the sentence. */
static void
drop_corrupt(struct kvt__level *level, const struct kvt__store_req *req)
{
    /* Another program may have stored the object of an unread entry. */
    bool keeps = level->tier->keeps_corrupt || req->seen.flags & KVT__TABLE_UNREAD;
    char why[KVT__WHY_BYTES];

    snprintf(why, sizeof why, "%s", kvt__why());
    assert(req->has_entry);
    bool gone = kvt__level_delete_corrupt(level, req->index, &req->seen, &req->object, keeps);
    kvt__log(KVT_LOG_WARN, "%s: chunk %s is corrupt%s: %s", level->tier->ops->name,
             req->object.key, keeps ? "" : gone ? " and was removed" :
             " and cannot be removed, so each request reads the chunk in vain; remove the chunk",
             why);
    kvt__set_why(why);
}

/* End a GET.  err: the result of the tier's operation.  0: the slot holds the request's chunk. */
static int
get_end(struct kvt__level *level, struct kvt__store_req *req, int err)
{
    struct kvt__name name = kvt__level_name(level, req->space, &req->hash);

    assert(req->has_entry && !level->no_get);
    if (err == -EMSGSIZE) /* the object is larger than the chunk */
        err = -EBADMSG;
    kvt__circuit_end(level, KVT__PAUSE_READS, err);
    kvt__choice_end(level->owner, KVT__PAUSE_READS,
                    err ? 0 : req->tier_op.found.payload_bytes);
    if (!err)
        err = check(level, req);
    kvt__speed_end(level->owner, req->bytes, !err);
    if (err == -ENOENT)
        (void)kvt__table_forget(req->index, &req->seen, true);
    if (kvt__lacks_expiry(req) && (!err || err == -ESTALE))
        return drop_unbounded(level, req);
    if (err == -ESTALE) {
        (void)correct_index(level, req);
        return -ENOENT;
    }
    if (err == -EBADMSG)
        drop_corrupt(level, req);
    if (err)
        return err;
    req->verified = req->tier_op.found.has_id && !req->crc_pending;
    req->from_memory = level->tier->in_memory;
    req->expires_ns = req->seen.expires_ns ? req->seen.expires_ns
                                           : kvt__store_expiry(level->store, 0);
    (void)kvt__memory_keep(level->store, req, req->verified || req->crc_pending); /* if room */
    if (req->verified && !level->tier->in_memory)
        kvt__level_copy_to_shared(req);
    /* Last, so that a lookup always finds the chunk: the unread entry, or host memory. */
    if (req->seen.flags & KVT__TABLE_UNREAD)
        (void)enter_found(level, req);
    else
        kvt__table_touch(kvt__level_index(level), &name, &req->seen.id);
    return 0;
}

/* ------------------------------------------------------------------- probe */

/* Begin a PROBE.  0: the caller runs the tier's operation and then calls probe_end(); -EEXIST: the
 * index has the chunk; -ENOENT: the probe leaves out the level, for example because the storage has
 * the chunk in another encoding; -EIO: the level is paused. */
static int
probe_begin(struct kvt__level *level, struct kvt__store_req *req)
{
    if (level->no_get || req->found_in & kvt__level_bit(level) || level->tier->in_memory ||
        (req->where != KVT__ANYWHERE && !kvt__level_covers(level, req->where, req->space)))
        return -ENOENT;
    kvt__level_look_up(level, req);
    if (req->has_entry && !(req->seen.flags & KVT__TABLE_UNREAD) &&
        kvt__store_accepts_id(level->store, &req->id, &req->seen.id))
        return -EEXIST;
    return kvt__circuit_begin(level, KVT__PAUSE_READS);
}

/* End a PROBE: enter the found object into the index.  err: the result of the tier's operation. */
static int
probe_end(struct kvt__level *level, const struct kvt__store_req *req, int err)
{
    assert(req->op == KVT__TIER_PROBE && !level->tier->in_memory);
    kvt__circuit_end(level, KVT__PAUSE_READS, err);
    if (err == -ENOENT && !req->tier_op.found.stored_bytes && req->has_entry)
        (void)kvt__table_forget(req->index, &req->seen, true);
    if (err)
        return err;
    if (kvt__lacks_expiry(req))
        return drop_unbounded(level, req);
    err = correct_index(level, req);
    /* -EEXIST: another thread has entered the chunk, and the request succeeds. */
    return can_be_chunk(level, req) ? err : -ENOENT;
}

/* ------------------------------------------------------------------ all requests */

/* Return true if a PUT stores its chunk in the level. */
static bool
may_put(const struct kvt__level *level, const struct kvt__store_req *req)
{
    return kvt__level_may_put(level, req->space, req->expires_ns) ||
           (req->stores_raw & kvt__level_bit(level) && level->serde == KVT__SERDE_NAIVE &&
            level->owner != level && !level->no_put);
}

/* Return true if key.c handles the level's part of a request: all requests by key but a PUT of a
 * key text. */
static bool
is_key_operation(const struct kvt__store_req *req)
{
    return req->by_key && (req->op != KVT__TIER_PUT || req->is_name);
}

int
kvt__level_prepare(struct kvt__store_req *req, struct kvt__level *level)
{
    assert(level == &req->store->levels[req->level]);
    int err = req->by_key ? kvt__key_begin(req, level) : 0;

    if (err || is_key_operation(req))
        return err;
    /* The CPU copies from and to shared host memory, encodes and decodes, and cannot access the
     * memory of a GPU. */
    if ((level->tier->in_memory || level->serde != KVT__SERDE_NAIVE) &&
        kvt__slot_on_device(&req->slot))
        return req->op == KVT__TIER_PUT ? -EEXIST : -ENOENT;
    switch (req->op) {
    case KVT__TIER_PUT:
        return may_put(level, req) ? put_begin(level, req) : -EEXIST;
    case KVT__TIER_GET:
        return get_begin(level, req);
    default:
        return probe_begin(level, req);
    }
}

int
kvt__level_complete(struct kvt__store_req *req, struct kvt__level *level, int err)
{
    if (is_key_operation(req))
        return kvt__key_end(req, level, err);
    switch (req->op) {
    case KVT__TIER_PUT:
        return put_end(level, req, err);
    case KVT__TIER_GET:
        return get_end(level, req, err);
    default:
        return probe_end(level, req, err);
    }
}
