/* SPDX-License-Identifier: Apache-2.0
 *
 * The null tier, null://: stores nothing.  A measurement with this tier shows the cost of
 * everything but the storage.  The tier has no state, so any thread may call without a lock. */
#include <errno.h>
#include <stdlib.h>

#include "tier/tier.h"

extern const struct kvt__tier_ops kvt__tier_null;

static int
null_check_url(const struct kvt__tier_params *params)
{
    if (*params->rest)
        return kvt__fail(EINVAL, "%s: null:// takes no further text, found '%s'.",
                         params->name, params->rest);
    return 0;
}

static int
null_open(const struct kvt__tier_params *params, struct kvt__tier **out)
{
    struct kvt__tier *tier;
    int err = null_check_url(params);

    if (err)
        return err;
    tier = calloc(1, sizeof *tier);
    if (!tier)
        return kvt__fail(ENOMEM, "%s: open", params->name);
    tier->ops = &kvt__tier_null;
    tier->default_limit = INT64_MAX; /* additions to the limit do not overflow */
    *out = tier;
    return 0;
}

static void
null_close(struct kvt__tier *tier)
{
    free(tier);
}

static int
null_run(struct kvt__tier *tier, struct kvt__tier_op *op)
{
    (void)tier;
    return op->kind == KVT__TIER_PUT ? 0
                                     : kvt__fail(ENOENT, "null: chunk %s", op->object->key);
}

const struct kvt__tier_ops kvt__tier_null = {
    .name = "null",
    .open = null_open,
    .check_url = null_check_url,
    .close = null_close,
    .run = null_run,
};
