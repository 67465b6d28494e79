/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the store in front of shared host memory, for tests of the tier without a store:
 * each operation finds the chunk in the index, and a PUT claims the name and publishes.  So the
 * tests of all tiers also run over shared host memory. */
#ifndef KVT_MEMORY_LEVEL_H
#define KVT_MEMORY_LEVEL_H

#include "tier-test.h"

#include "base/error.h"
#include "store/private.h"

static struct kvt__table *memory_index;
static int (*memory_run)(struct kvt__tier *tier, struct kvt__tier_op *op);

/* Run the tier's operation for an object with this entry. */
static inline int
run_with_entry(struct kvt__tier *tier, struct kvt__tier_op *op, uint32_t entry, uint64_t word)
{
    const struct kvt__object *asked = op->object;
    struct kvt__object object = *asked;

    object.index = memory_index;
    object.entry = entry;
    object.word = word;
    op->object = &object;
    int err = memory_run(tier, op);
    op->object = asked;
    return err;
}

/* Delete an older chunk of the name, then claim the name, run the PUT and publish.  If another
 * thread has claimed or stored the name meanwhile, begin again. */
static inline int
put_with_claim(struct kvt__tier *tier, struct kvt__tier_op *op, const struct kvt__name *name,
               const char *text)
{
    struct kvt__record record = { .id = op->object->id, .bytes = op->slot.bytes }, old;
    struct kvt__claim claim;
    int err;

    do {
        if (kvt__table_find(memory_index, name, NULL, &old))
            (void)kvt__table_forget(memory_index, &old, true);
        err = kvt__table_claim(memory_index, name, &record, text, &claim);
        if (!err && claim.kind == KVT__CLAIM_REPLACE) {
            kvt__table_abort(memory_index, &claim);
            err = -EBUSY;
        }
    } while (err == -EBUSY || err == -EEXIST || err == -ETIMEDOUT);
    if (err)
        return err;
    err = run_with_entry(tier, op, claim.entry, 0);
    if (err)
        kvt__table_abort(memory_index, &claim);
    else if (!kvt__table_publish(memory_index, &claim))
        err = -ESTALE;
    return err;
}

static inline int
memory_level_run(struct kvt__tier *tier, struct kvt__tier_op *op)
{
    struct kvt__space space;
    struct kvt__hash hash;
    struct kvt__record seen;
    int err = kvt__space_from_key(op->object->key, &space, &hash);

    if (err)
        return err;
    struct kvt__name name = kvt__name_from_hash(kvt__table_digest(space.text), &hash);
    if (op->kind == KVT__TIER_PUT)
        return put_with_claim(tier, op, &name, space.text);
    if (!kvt__table_find(memory_index, &name, NULL, &seen))
        return -ENOENT;
    err = run_with_entry(tier, op, seen.entry, seen.word);
    if (!err && op->kind == KVT__TIER_REMOVE)
        err = kvt__table_forget(memory_index, &seen, true);
    return err;
}

/* Open the index, and run the tier's operations behind the index from now on. */
static inline void
memory_level_open(struct kvt__tier *tier)
{
    struct kvt__table_params params = { .writer = true };

    tier->ops->set_index(tier, &params);
    if (kvt__table_open(&params, tier->ops->private_dir(tier), &memory_index) ||
        tier->ops->use_index(tier, memory_index))
        fail_msg("%s", kvt__why());
    memory_run = tier->filled.run;
    tier->filled.run = memory_level_run;
}

static inline void
memory_level_close(struct kvt__tier *tier)
{
    tier->ops->leave_index(tier, memory_index);
    kvt__table_close(memory_index);
}

#endif
