/* SPDX-License-Identifier: Apache-2.0
 *
 * One request by key text on the thread that asks, which waits: level after level, in
 * memory of its own. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "store/public.h"

/* ------------------------------------------------------------ memory of a request */

/* The tier's own, or allocated. */
struct memory {
    unsigned char *base;
    struct kvt__slot slot;
};

static int
memory_init(struct memory *m, struct kvt__tier *tier, enum kvt__prio prio, uint64_t bytes)
{
    size_t phase = tier->ops->phase(tier);

    *m = (struct memory){ 0 };
    if (tier->ops->lend(tier, prio, bytes, &m->slot))
        return 0;
    if (bytes > SIZE_MAX / 2)
        return kvt__fail(ENOMEM, "%llu bytes", (unsigned long long)bytes);
    m->base = aligned_alloc(4096, kvt__round_up(bytes + phase + 2 * KVT__SLOT_ROOM, 4096));
    if (!m->base)
        return kvt__fail(ENOMEM, "%llu bytes", (unsigned long long)bytes);
    m->slot = (struct kvt__slot){ .payload = m->base + KVT__SLOT_ROOM + phase,
                                  .bytes = bytes };
    return 0;
}

static void
memory_fini(struct memory *m)
{
    if (m->slot.lender)
        kvt__pool_release(NULL, &m->slot);
    free(m->base);
}

/* ---------------------------------------------------------------------- requests */

void
kvt__op_tell(struct kvt_op *op, const struct kvt__found *found)
{
    op->found_bytes = found->payload_bytes;
    op->tokens = found->tokens;
    op->found = found->has_id ? KVT_FOUND_ID : 0;
    if (found->has_id)
        memcpy(op->id, found->id.b, sizeof op->id);
}

/* The first level whose tier has the object. */
static int
find_level(struct kvt__store *store, const struct kvt__object *object,
           struct kvt__found *found, struct kvt__level **level)
{
    for (size_t i = 0; i < store->n_levels; i++) {
        int err = kvt__tier_probe(store->levels[i].tier, object, found);

        if (!err) {
            *level = &store->levels[i];
            return 0;
        }
        if (err != -ENOENT)
            return err;
    }
    return kvt__fail(ENOENT, "%s", object->key);
}

/* Look, read and check in one level; op->buf may be NULL. */
static int
get_from(struct kvt__level *level, const struct kvt__object *object, struct kvt_op *op)
{
    struct kvt__found found;
    struct memory memory;
    int err = kvt__tier_probe(level->tier, object, &found);

    if (err)
        return err;
    kvt__op_tell(op, &found);
    if (op->kind == KVT_OP_GET && found.payload_bytes > op->bytes)
        return kvt__fail(EMSGSIZE, "%s has %llu bytes, there is room for %llu",
                         object->key, (unsigned long long)found.payload_bytes,
                         (unsigned long long)op->bytes);
    err = memory_init(&memory, level->tier, KVT__PRIO_LOAD, found.payload_bytes);
    if (err)
        return err;
    err = kvt__tier_get(level->tier, object, &memory.slot, &found);
    if (!err && found.has_id && kvt__payload_crc(&memory.slot, &found) != found.crc)
        err = kvt__fail(EBADMSG, "%s: the checksum is wrong.", object->key);
    if (!err)
        err = kvt__op_check(op, level, object, &found);
    if (!err && found.has_id)
        op->found |= KVT_FOUND_CHECKED;
    if (!err && op->kind == KVT_OP_GET)
        memcpy(op->buf, memory.slot.payload, memory.slot.bytes);
    memory_fini(&memory);
    return err;
}

/* From the first level that has it. */
static int
run_get(struct kvt__store *store, const struct kvt__object *object, struct kvt_op *op)
{
    for (size_t i = 0; i < store->n_levels; i++) {
        struct kvt__level *level = &store->levels[i];
        int err = kvt__gets_straight(level, op) ? kvt__get_straight(level, object, op)
                                                : get_from(level, object, op);

        if (err != -ENOENT)
            return err;
    }
    return kvt__fail(ENOENT, "%s", object->key);
}

/* Delete the object from every level.  0: one had it. */
static int
run_delete(struct kvt__store *store, const struct kvt__space *space,
           const struct kvt__object *object)
{
    int result = -ENOENT;

    for (size_t i = 0; i < store->n_levels; i++) {
        struct kvt__name name = kvt__level_name(&store->levels[i], space, &object->hash);
        int err = kvt__level_delete(&store->levels[i], &name, object);

        if (err && err != -ENOENT)
            return err;
        result = err ? result : 0;
    }
    return result ? kvt__fail(ENOENT, "%s", object->key) : 0;
}

static int
run_put(struct kvt__store *store, struct kvt__space *space,
        const struct kvt__object *object, const struct kvt_op *op)
{
    struct kvt__store_req req = {
        .op = KVT__STORE_PUT, .space = space, .id = object->id, .id_of_key = true,
        .hash = object->hash, .whole = true, .overwrite = true,
        .shape = { .format = 4, .dtype = 6, .dims = { (uint32_t)op->bytes } } };
    struct memory memory;
    int err = kvt__store_check_puts(store, space);

    if (err)
        return err;
    err = memory_init(&memory, store->levels[0].tier, KVT__PRIO_STORE, op->bytes);
    if (err)
        return err;
    memcpy(memory.slot.payload, op->buf, op->bytes);
    req.slot = memory.slot;
    req.crc = kvt__crc32c(0, op->buf, op->bytes);
    kvt__store_run(store, &req);
    if (req.status)
        kvt__set_why(req.why);
    memory_fini(&memory);
    return req.status;
}

int
kvt__op_object(const struct kvt__store *store, const struct kvt_op *op,
               struct kvt__object *object, struct kvt__space *space)
{
    int err = 0;

    *object = (struct kvt__object){ .key = op->key, .whole = true, .id_of_key = true,
                                    .is_name = op->flags & KVT_OP_NAME };
    *space = (struct kvt__space){ 0 };
    kvt__key_id(op->key, &object->id);
    if (object->is_name)
        return kvt__store_is_direct(store)
            ? 0 : kvt__fail(EINVAL, "%s: a name that is no key text needs a store with "
                            "s3:// alone.", op->key);
    err = kvt__space_of(op->key, space, &object->hash);
    if (!err)
        err = kvt__store_set_tags(store, space, "");
    object->opaque = space->opaque;
    object->rank = space->rank;
    return err;
}

int
kvt__op_run(struct kvt__store *store, struct kvt_op *op)
{
    struct kvt__object object;
    struct kvt__space space;
    struct kvt__level *level;
    struct kvt__found found;
    int err = kvt__op_object(store, op, &object, &space);

    if (err)
        return err;
    switch (op->kind) {
    case KVT_OP_PUT:
        return run_put(store, &space, &object, op);
    case KVT_OP_GET:
    case KVT_OP_VERIFY:
        return run_get(store, &object, op);
    case KVT_OP_STAT:
        err = find_level(store, &object, &found, &level);
        if (!err)
            kvt__op_tell(op, &found);
        return err;
    case KVT_OP_DELETE:
        return run_delete(store, &space, &object);
    default:
        return kvt__fail(EINVAL, "kvt_op: no kind %u.", op->kind);
    }
}
