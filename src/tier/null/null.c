/* SPDX-License-Identifier: Apache-2.0
 *
 * The null tier, null://: forgets what it is given.  It shows what everything
 * but the storage costs.  Any thread, no lock: there is no state. */
#include <errno.h>
#include <stdlib.h>

#include "tier/tier.h"

extern const struct kvt__tier_ops kvt__tier_null;

static int
null_open(const struct kvt__tier_params *params, struct kvt__tier **out)
{
    struct kvt__tier *tier;

    if (*params->rest)
        return kvt__fail(EINVAL, "%s: null:// takes nothing behind it, found '%s'.",
                         params->name, params->rest);
    tier = calloc(1, sizeof *tier);
    if (!tier)
        return kvt__fail(ENOMEM, "%s: open", params->name);
    tier->ops = &kvt__tier_null;
    *out = tier;
    return 0;
}

static void
null_close(struct kvt__tier *tier)
{
    free(tier);
}

static size_t
null_phase(const struct kvt__tier *tier)
{
    (void)tier;
    return 0;
}

static int
null_private_dir(const struct kvt__tier *tier)
{
    (void)tier;
    return -1;
}

static uint64_t
null_default_limit(const struct kvt__tier *tier)
{
    (void)tier;
    return INT64_MAX; /* sums of it and of chunks do not wrap */
}

/* As if it were kept, so that budgets and evictions can be measured too. */
static uint64_t
null_stored_bytes(const struct kvt__tier *tier, const struct kvt__object *object,
                  uint64_t payload)
{
    (void)tier;
    (void)object;
    return payload;
}

static int
null_put(struct kvt__tier *tier, const struct kvt__object *object,
         const struct kvt__slot *slot, uint32_t crc)
{
    (void)tier;
    (void)object;
    (void)slot;
    (void)crc;
    return 0;
}

static int
null_get(struct kvt__tier *tier, const struct kvt__object *object,
         const struct kvt__slot *slot, struct kvt__found *found)
{
    (void)tier;
    (void)slot;
    (void)found;
    return kvt__fail(ENOENT, "null: chunk %s", object->key);
}

static int
null_probe(struct kvt__tier *tier, const struct kvt__object *object,
           struct kvt__found *found)
{
    (void)tier;
    (void)found;
    return kvt__fail(ENOENT, "null: chunk %s", object->key);
}

static int
null_remove(struct kvt__tier *tier, const struct kvt__object *object)
{
    (void)tier;
    return kvt__fail(ENOENT, "null: chunk %s", object->key);
}

static int
null_list(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn, void *ctx)
{
    (void)tier;
    (void)prefix;
    (void)fn;
    (void)ctx;
    return 0;
}

const struct kvt__tier_ops kvt__tier_null = {
    .name = "null",
    .open = null_open,
    .close = null_close,
    .phase = null_phase,
    .private_dir = null_private_dir,
    .default_limit = null_default_limit,
    .stored_bytes = null_stored_bytes,
    .put = null_put,
    .get = null_get,
    .probe = null_probe,
    .remove = null_remove,
    .list = null_list,
};
