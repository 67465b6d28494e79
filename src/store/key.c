/* SPDX-License-Identifier: Apache-2.0
 *
 * A level's part of a request by key text, before and after the tier's operation.  The tier finds
 * its objects without the index, so only PUT, REMOVE and shared host memory use the index. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "store/private.h"

#define DIRECT_READ_BYTES ((uint64_t)64 << 20)

/* ------------------------------------------------------------------- memory */

/* Get memory for a payload in req->staging: a slot of the tier, or allocated memory.  0; -ENOMEM
 * with a sentence. */
static int
take_memory(struct kvt__store_req *req, struct kvt__tier *tier, uint64_t bytes)
{
    assert(!req->staging.payload && !req->staging_heap);
    if (tier->ops->acquire_slot(tier, req->tier_op.prio, bytes, &req->staging))
        return 0;
    if (bytes <= SIZE_MAX / 2)
        req->staging_heap = aligned_alloc(
            4096, kvt__round_up(bytes + tier->phase + 2 * KVT__SLOT_MARGIN, 4096));
    if (!req->staging_heap)
        return kvt__fail(ENOMEM, "%s: allocate %llu bytes", req->by_key,
                         (unsigned long long)bytes);
    req->staging = (struct kvt__slot){
        .payload = (unsigned char *)req->staging_heap + KVT__SLOT_MARGIN + tier->phase,
        .bytes = bytes };
    return 0;
}

void
kvt__key_release(struct kvt__store_req *req)
{
    if (req->staging.source)
        kvt__pool_release(NULL, &req->staging);
    free(req->staging_heap);
    req->staging_heap = NULL;
    req->staging = (struct kvt__slot){ 0 };
}

static void
copy(unsigned char *to, const unsigned char *from, size_t bytes)
{
    if (bytes)
        memcpy(to, from, bytes);
}

/* Look up the entry of the key.  0; -ENOENT: the tier has no object without an entry. */
static int
look_up(struct kvt__store_req *req, struct kvt__level *level)
{
    kvt__level_look_up(level, req);
    return req->has_entry || !level->tier->in_memory ? 0 : -ENOENT;
}

/* --------------------------------------------------------------------- put */

/* Return true if a PUT stores the chunk in storage (not only in shared host memory). */
static bool
puts_in_storage(const struct kvt__store_req *req)
{
    for (size_t i = 0; i < req->store->n_storages; i++)
        if (!req->store->levels[i].tier->in_memory &&
            kvt__level_may_put(&req->store->levels[i], req->space, req->expires_ns))
            return true;
    return false;
}

/* Begin a PUT.  Shared host memory takes no chunk that storage takes: engines load no chunk that
 * was stored by key.  Forget an older chunk of the key in the memory, leased or not, because a GET
 * by key reads the memory first. */
static int
put_begin(struct kvt__store_req *req, struct kvt__level *level)
{
    if (!kvt__level_may_put(level, req->space, req->expires_ns))
        return -EEXIST;
    if (level->tier->in_memory && !req->only_level && puts_in_storage(req)) {
        if (!look_up(req, level))
            (void)kvt__table_forget(req->index, &req->seen, true);
        return -EEXIST;
    }
    if (level->tier->any_memory)
        return 0;
    int err = req->staging.payload ? 0 : take_memory(req, level->tier, req->slot.bytes);
    if (!err)
        copy(req->staging.payload, req->slot.payload, req->slot.bytes);
    req->tier_op.slot = req->staging;
    return err;
}

/* --------------------------------------------------------------------- get */

/* Return true if the tier reads into the caller's memory before the size is known.  For a large
 * buffer of a waiting thread, probe the size first, so that the tier reads several parts at the
 * same time. */
static bool
reads_directly(const struct kvt__store_req *req, const struct kvt__tier *tier)
{
    return tier->any_memory && !req->verifies &&
           !(req->is_sync && req->slot.bytes > DIRECT_READ_BYTES);
}

static int
get_begin(struct kvt__store_req *req, struct kvt__level *level)
{
    struct kvt__tier_op *op = &req->tier_op;
    int err = 0;

    assert(req->op == KVT__TIER_GET);
    kvt__key_release(req); /* memory for a level that lost its object after the probe */
    if (reads_directly(req, level->tier)) {
        op->may_be_shorter = true;
    } else if (!req->is_probed) {
        op->kind = KVT__TIER_PROBE;
    } else if (level->tier->any_memory && !req->verifies) {
        op->slot.bytes = req->found.payload_bytes;
    } else {
        err = take_memory(req, level->tier, req->found.payload_bytes);
        op->slot = req->staging;
    }
    return err;
}

/* The probe has found the object.  KVT__LEVEL_AGAIN: the read follows; -EMSGSIZE with a sentence:
 * the object is larger than the caller's buffer. */
static int
probe_end(struct kvt__store_req *req)
{
    if (!req->verifies && req->found.payload_bytes > req->slot.bytes)
        return kvt__fail(EMSGSIZE, "%s: the chunk has %llu bytes, the buffer only %zu.",
                         req->by_key, (unsigned long long)req->found.payload_bytes,
                         req->slot.bytes);
    assert(!req->is_probed);
    req->is_probed = true;
    return KVT__LEVEL_AGAIN;
}

/* Return true if the key may come from a listing of the level that has replaced '/' in the key of
 * the object. */
static bool
may_list(const struct kvt__level *level, const char *key)
{
    char slash = level->tier->slash;

    return slash != '/' && !strchr(key, '/') && strchr(key, slash);
}

/* Set req->expires_ns for a found object that may have a time to live.  0; -ENOENT: the time has
 * ended, or the index does not contain the end. */
static int
check_expiry(struct kvt__store_req *req, struct kvt__level *level)
{
    if (!level->tier->in_memory) {
        req->seen = (struct kvt__record){ 0 };
        kvt__level_look_up(level, req);
    }
    if (req->has_entry && !kvt__lacks_expiry(req)) {
        req->expires_ns = req->seen.expires_ns;
        return 0;
    }
    req->end = kvt__table_is_expired(&req->seen) ? KVT__END_PAST : KVT__END_UNKNOWN;
    return -ENOENT;
}

int
kvt__key_fail_absent(const struct kvt__store_req *req)
{
    switch (req->end) {
    case KVT__END_PAST:
        return kvt__fail(ENOENT, "%s: the chunk's time to live has ended.", req->by_key);
    case KVT__END_UNKNOWN:
        return kvt__fail(ENOENT, "%s: the chunk has a time to live, and the index does not contain "
                         "the end.  If another process stores the chunk now, try again; otherwise "
                         "the index was lost, and the next engine deletes the chunk.", req->by_key);
    default:
        return kvt__fail(ENOENT, "%s", req->object.key);
    }
}

/* Decode the chunk of a frame plane by plane, and compare the chunk with its checksum.  0;
 * -EBADMSG, -ENOMEM with a sentence. */
static int
verify_planes(const struct kvt__frame *frame)
{
    size_t bytes = kvt__chunk_plane_bytes(&frame->shape);
    unsigned char *plane = malloc(bytes);

    if (!plane)
        return kvt__fail(ENOMEM, "allocate %zu bytes for a decoded plane", bytes);
    bool is_chunk = kvt__frame_verify(frame, plane);
    free(plane);
    return is_chunk ? 0 : kvt__fail(EBADMSG, "the encoded chunk cannot be decoded, or the checksum "
                                    "of the decoded chunk is wrong.");
}

/* Decode the payload of an encoded chunk, and compare the identity in the frame with the object's
 * identity.  0; -EBADMSG, -ENOMEM with a sentence. */
static int
check_frame(const struct kvt__store_req *req)
{
    const struct kvt__found *found = &req->found;
    struct kvt__frame frame;
    char why[KVT__WHY_BYTES];

    int err = kvt__frame_parse(req->tier_op.slot.payload, found->payload_bytes, found->has_id,
                               &frame);
    if (!err)
        err = verify_planes(&frame);
    if (!err && frame.serde != kvt__serde_of_key(req->by_key))
        err = kvt__fail(EBADMSG, "the chunk is encoded as %s.", kvt__serde_name(frame.serde));
    if (!err && found->has_id && !found->id_of_key && !kvt__id_equal(&found->id, &frame.id))
        err = kvt__fail(EBADMSG, "the encoded chunk is another chunk.");
    if (!err)
        return 0;
    snprintf(why, sizeof why, "%s", kvt__why());
    return kvt__fail(-err, "%s: %s", req->by_key, why);
}

/* Compare the payload with its checksum, and the object's identity with the key.  0; -EBADMSG with
 * a sentence. */
static int
check(const struct kvt__store_req *req, const struct kvt__level *level)
{
    const struct kvt__found *found = &req->found;

    if (!found->has_id)
        return 0;
    uint32_t crc = found->has_read_crc
        ? found->read_crc
        : kvt__crc32c_cold(0, req->tier_op.slot.payload, found->payload_bytes);
    if (crc != found->crc)
        return kvt__fail(EBADMSG, "%s: the checksum is wrong.", req->by_key);
    if (found->id_of_key && !kvt__id_equal(&found->id, &req->id) &&
        !(req->listed && may_list(level, req->by_key)))
        return kvt__fail(EBADMSG, "%s: the object was stored under another key.", req->by_key);
    return 0;
}

static int
get_end(struct kvt__store_req *req, struct kvt__level *level)
{
    if (req->tier_op.kind == KVT__TIER_PROBE)
        return probe_end(req);
    bool is_frame = req->verifies && kvt__serde_of_key(req->by_key) != KVT__SERDE_NAIVE;
    int err = check(req, level);
    if (!err && is_frame)
        err = check_frame(req);
    if (err)
        return err;
    req->verified = (req->found.has_id && !level->tier->in_memory) || req->found.checked ||
                    is_frame;
    assert(!req->staging.payload || req->staging.payload == req->tier_op.slot.payload);
    if (req->staging.payload && !req->verifies)
        copy(req->slot.payload, req->staging.payload, req->staging.bytes);
    return 0;
}

/* ------------------------------------------------------------------ delete */

/* Claim the entry until the object is deleted.  For a tier with enforces_limit, forget the entry
 * first: then the delete needs no claim.  In shared host memory the entry is the object, so the
 * request fails without a claim. */
static int
delete_begin(struct kvt__store_req *req, struct kvt__level *level)
{
    int err = 0;

    assert(req->op == KVT__TIER_REMOVE && req->index);
    req->claim = (struct kvt__claim){ .table = NULL };
    if (req->has_entry && level->tier->enforces_limit)
        (void)kvt__table_forget(req->index, &req->seen, true);
    else if (req->has_entry)
        err = kvt__table_evict(req->index, &req->seen, true, &req->claim);
    if (!level->tier->in_memory || !err || err == -ENOENT)
        return level->tier->in_memory ? err : 0;
    return kvt__fail(-err, "%s: chunk %s is in use and was not deleted; delete the chunk again.",
                     level->tier->ops->name, req->by_key);
}

static void
delete_end(struct kvt__store_req *req, int err)
{
    assert(!req->claim.table || req->claim.table == req->index);
    if (!err || err == -ENOENT)
        kvt__table_evicted(req->index, &req->claim);
    else
        kvt__table_abort(req->index, &req->claim);
}

/* ------------------------------------------------------------------ all requests */

int
kvt__key_begin(struct kvt__store_req *req, struct kvt__level *level)
{
    assert(req->by_key && !req->is_in_place);
    if (req->op == KVT__TIER_PUT)
        return put_begin(req, level);
    int err = level->tier->in_memory || req->op == KVT__TIER_REMOVE
        ? look_up(req, level) : 0;
    if (!err && req->op == KVT__TIER_GET)
        err = get_begin(req, level);
    if (!err && req->op == KVT__TIER_REMOVE)
        err = delete_begin(req, level);
    return err;
}

int
kvt__key_end(struct kvt__store_req *req, struct kvt__level *level, int err)
{
    req->is_probed = false;
    if (!err || err == -EMSGSIZE)
        req->found = req->tier_op.found;
    else if (err == -ENOENT)
        req->found = (struct kvt__found){ 0 }; /* deleted after the probe */
    if (!err && (req->found.expires || level->tier->in_memory))
        err = check_expiry(req, level);
    if (req->op == KVT__TIER_REMOVE)
        delete_end(req, err);
    return !err && req->op == KVT__TIER_GET ? get_end(req, level) : err;
}
