/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of tiers, made from the one in meson.build, and waiting for those that let
 * nobody wait. */
#include "tier/tier.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tier-list.h"

#define KVT_TIER(kind) extern const struct kvt__tier_ops kvt__tier_##kind;
KVT_TIERS
#undef KVT_TIER

#define KVT_TIER(kind) &kvt__tier_##kind,
static const struct kvt__tier_ops *const tiers[] = { KVT_TIERS NULL };
#undef KVT_TIER

/* The table for a URL, of which params then has the rest.  NULL with a sentence: there is
 * none. */
static const struct kvt__tier_ops *
find(struct kvt__tier_params *params, int *err)
{
    const char *url = params->url, *rest = strstr(url, "://");

    if (!rest) {
        *err = kvt__fail(EINVAL, "%s: '%s' is no URL; write SCHEME://..., for example "
                         "fs:///var/cache/kvtier.", params->name, url);
        return NULL;
    }
    params->rest = rest + 3;
    for (size_t i = 0; tiers[i]; i++)
        if (tiers[i]->open && strlen(tiers[i]->name) == (size_t)(rest - url) &&
            !strncmp(url, tiers[i]->name, (size_t)(rest - url)))
            return tiers[i];
    *err = kvt__fail(ENODEV, "%s: this kvtier has no tier for '%.*s://'; a directory is "
                     "fs:///DIRECTORY.", params->name, (int)(rest - url), url);
    return NULL;
}

int
kvt__tier_open(const struct kvt__tier_params *params, struct kvt__tier **out)
{
    struct kvt__tier_params with_rest = *params;
    int err = 0;
    const struct kvt__tier_ops *ops = find(&with_rest, &err);

    return ops ? ops->open(&with_rest, out) : err;
}

void
kvt__tier_look(const struct kvt__tier_params *params, kvt__tier_look_fn fn, void *ctx)
{
    struct kvt__tier_params with_rest = *params;
    int err;
    const struct kvt__tier_ops *ops = find(&with_rest, &err);

    if (ops && ops->look)
        ops->look(&with_rest, fn, ctx);
}

/* ------------------------------------------------------------------- waiting */

struct waiter {
    struct kvt__tier_op op;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
    int err;
    char why[512];
};

static void
wake(struct kvt__tier_op *op, int err)
{
    struct waiter *w = (struct waiter *)op;

    pthread_mutex_lock(&w->lock);
    w->done = true;
    w->err = err;
    snprintf(w->why, sizeof w->why, "%s", err ? kvt__why() : "");
    pthread_cond_signal(&w->ended);
    pthread_mutex_unlock(&w->lock);
}

int
kvt__tier_wait(struct kvt__tier *tier, struct kvt__tier_op *op)
{
    struct waiter w = { .op = *op, .lock = PTHREAD_MUTEX_INITIALIZER,
                        .ended = PTHREAD_COND_INITIALIZER };

    w.op.done = wake;
    tier->ops->start(tier, &w.op);
    pthread_mutex_lock(&w.lock);
    while (!w.done)
        pthread_cond_wait(&w.ended, &w.lock);
    pthread_mutex_unlock(&w.lock);
    pthread_cond_destroy(&w.ended);
    pthread_mutex_destroy(&w.lock);
    op->found = w.op.found;
    if (w.err)
        kvt__set_why(w.why);
    return w.err;
}

int
kvt__tier_wait_put(struct kvt__tier *tier, const struct kvt__object *object,
                   const struct kvt__slot *slot, uint32_t crc)
{
    struct kvt__tier_op op = { .what = KVT__TIER_PUT, .prio = KVT__PRIO_STORE,
                               .object = object, .slot = *slot, .crc = crc };

    return kvt__tier_wait(tier, &op);
}

int
kvt__tier_wait_get(struct kvt__tier *tier, const struct kvt__object *object,
                   const struct kvt__slot *slot, struct kvt__found *found)
{
    struct kvt__tier_op op = { .what = KVT__TIER_GET, .prio = KVT__PRIO_LOAD,
                               .object = object, .slot = *slot };
    int err = kvt__tier_wait(tier, &op);

    *found = op.found;
    return err;
}

int
kvt__tier_wait_probe(struct kvt__tier *tier, const struct kvt__object *object,
                     struct kvt__found *found)
{
    struct kvt__tier_op op = { .what = KVT__TIER_PROBE, .prio = KVT__PRIO_LOOKUP,
                               .object = object };
    int err = kvt__tier_wait(tier, &op);

    *found = op.found;
    return err;
}

int
kvt__tier_wait_remove(struct kvt__tier *tier, const struct kvt__object *object)
{
    struct kvt__tier_op op = { .what = KVT__TIER_REMOVE, .prio = KVT__PRIO_STORE,
                               .object = object };

    return kvt__tier_wait(tier, &op);
}
