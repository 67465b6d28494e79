/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests by key text that need no memory beside the caller's: bytes go from and to the
 * caller's memory, and no thread waits for another.  A request asks level after level. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store/public.h"

#define STRAIGHT_BYTES ((uint64_t)64 << 20)

bool
kvt__store_is_direct(const struct kvt__store *store)
{
    for (size_t i = 0; i < store->n_levels; i++)
        if (!store->levels[i].tier->takes_any)
            return false;
    return store->n_levels > 0;
}

/* A STAT needs no memory. */
bool
kvt__op_is_direct(const struct kvt__store *store, const struct kvt_op *op)
{
    return op->kind == KVT_OP_STAT ||
           (op->kind != KVT_OP_VERIFY && kvt__store_is_direct(store));
}

/* ----------------------------------------------------------------------------- put */

static void
was_put(struct kvt__store_req *req)
{
    struct kvt__task *task = (struct kvt__task *)
        ((char *)req - offsetof(struct kvt__task, req));

    if (req->status)
        kvt__set_why(req->why);
    kvt__task_end(task, req->status);
}

static void
put(struct kvt__task *task)
{
    struct kvt_op *op = task->op;
    struct kvt__store *store = task->store->store;
    int err = kvt__store_check_puts(store, &task->space);

    if (err) {
        kvt__task_end(task, err);
        return;
    }
    task->req = (struct kvt__store_req){
        .op = KVT__STORE_PUT, .space = &task->space, .id = task->object.id,
        .id_of_key = true, .hash = task->object.hash, .whole = true, .overwrite = true,
        .slot = { .payload = op->buf, .bytes = op->bytes },
        .crc = kvt__crc32c_cold(0, op->buf, op->bytes),
        .done = was_put };
    kvt__store_submit(store, &task->req);
}

/* -------------------------------------------------------------------- level by level */

static void ask(struct kvt__task *task);

static void
end(struct kvt__task *task)
{
    struct kvt_op *op = task->op;
    int status = task->failed;

    if (status)
        kvt__set_why(task->why);
    else if (!task->any)
        status = kvt__fail(ENOENT, "%s", op->key);
    kvt__task_end(task, status);
}

/* Tell what was found.  err: the tier's answer.  Returns it, or that what was read is not
 * what the key says. */
static int
take(struct kvt_op *op, const struct kvt__level *level, const struct kvt__object *object,
     const struct kvt__found *found, int err)
{
    if (!err && op->kind == KVT_OP_GET)
        err = kvt__op_check(op, level, object, found);
    if (!err || err == -EMSGSIZE) {
        kvt__op_tell(op, found);
        if (found->checked)
            op->found |= KVT_FOUND_CHECKED;
    }
    return err;
}

static void
was_answered(struct kvt__tier_op *tier_op)
{
    struct kvt__task *task = (struct kvt__task *)
        ((char *)tier_op - offsetof(struct kvt__task, tier_op));
    struct kvt_op *op = task->op;
    int err = take(op, &task->store->store->levels[task->level], &task->object,
                   &tier_op->found, kvt__error_raise(&tier_op->error));
    if (err && err != -ENOENT) {
        task->failed = err;
        snprintf(task->why, sizeof task->why, "%s", kvt__why());
    }
    bool goes_on = err == -ENOENT || (!err && (op->kind == KVT_OP_DELETE ||
                                               op->kind == KVT_OP_PUT));
    task->any = task->any || !err;
    task->level += goes_on;
    if (goes_on && task->level < task->store->store->n_levels)
        ask(task);
    else
        end(task);
}

bool
kvt__gets_straight(const struct kvt__level *level, const struct kvt_op *op)
{
    return op->kind == KVT_OP_GET && op->bytes <= STRAIGHT_BYTES && level->tier->takes_any;
}

int
kvt__get_straight(struct kvt__level *level, const struct kvt__object *object,
                  struct kvt_op *op)
{
    struct kvt__tier_op tier_op = {
        .what = KVT__TIER_GET, .prio = KVT__PRIO_LOAD, .object = object,
        .slot = { .payload = op->buf, .bytes = op->bytes }, .shorter = true };
    int err = kvt__tier_wait(level->tier, &tier_op);

    return take(op, level, object, &tier_op.found, err);
}

/* Delete the entry of a key; a name that is no key text has none. */
static void
forget(const struct kvt__task *task, struct kvt__level *level)
{
    if (task->object.is_name)
        return;
    struct kvt__name name = kvt__level_name(level, &task->space, &task->object.hash);
    kvt__level_forget(level, &name);
}

/* Ask the level whose turn it is. */
static void
ask(struct kvt__task *task)
{
    struct kvt_op *op = task->op;
    struct kvt__level *level = &task->store->store->levels[task->level];

    task->tier_op = (struct kvt__tier_op){
        .object = &task->object, .done = was_answered, .prio = KVT__PRIO_LOAD,
        .slot = { .payload = op->buf, .bytes = op->bytes }, .shorter = true,
        .overwrite = true };
    switch (op->kind) {
    case KVT_OP_GET:
        task->tier_op.what = KVT__TIER_GET;
        break;
    case KVT_OP_STAT:
        task->tier_op.what = KVT__TIER_PROBE;
        task->tier_op.prio = KVT__PRIO_LOOKUP;
        break;
    case KVT_OP_DELETE:
        forget(task, level);
        task->tier_op.what = KVT__TIER_REMOVE;
        break;
    default:
        task->tier_op.what = KVT__TIER_PUT;
        task->tier_op.prio = KVT__PRIO_STORE;
        task->tier_op.crc = kvt__crc32c_cold(0, op->buf, op->bytes);
    }
    level->tier->ops->submit(level->tier, &task->tier_op);
}

void
kvt__direct(struct kvt__task *task)
{
    struct kvt_op *op = task->op;
    int err = kvt__op_object(task->store->store, op, &task->object, &task->space);

    if (!err && (op->kind < KVT_OP_PUT || op->kind > KVT_OP_DELETE))
        err = kvt__fail(EINVAL, "kvt_op: no kind %u.", op->kind);
    if (err)
        kvt__task_end(task, err);
    else if (op->kind == KVT_OP_PUT && !task->object.is_name)
        put(task);
    else
        ask(task);
}
