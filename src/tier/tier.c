/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of tiers, which the build generates from the list in meson.build; the defaults of the
 * operations; operations of tiers with run(); the wait for an operation. */
#include "tier/tier.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tier-list.h"

#define KVT_TIER(kind) extern const struct kvt__tier_ops kvt__tier_##kind;
KVT_TIERS
#undef KVT_TIER

#define KVT_TIER(kind) &kvt__tier_##kind,
static const struct kvt__tier_ops *const tiers[] = { KVT_TIERS NULL };
#undef KVT_TIER

/* Return the table of the tier for params->url, and set params->rest.  NULL and *err, with a
 * sentence: no tier has the URL's scheme. */
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

/* ------------------------------------------------------------------ defaults */

static void
run_job(struct kvt__job *job)
{
    struct kvt__tier_op *op = (struct kvt__tier_op *)
        ((char *)job - offsetof(struct kvt__tier_op, job));

    kvt__tier_end(op, op->tier->ops->run(op->tier, op));
}

/* A thread of the executor runs the operation itself: if all threads of the executor waited for
 * other jobs, no thread would run the jobs. */
static void
default_submit(struct kvt__tier *tier, struct kvt__tier_op *op)
{
    op->tier = tier;
    op->job.run = run_job;
    if (op->is_sync || !tier->exec || kvt__exec_is_worker(tier->exec))
        run_job(&op->job);
    else
        kvt__exec_submit(tier->exec, op->prio, &op->job);
}

static void
default_stop(struct kvt__tier *tier)
{
    (void)tier;
}

static int
default_private_dir(const struct kvt__tier *tier)
{
    (void)tier;
    return -1;
}

static void
default_set_index(const struct kvt__tier *tier, struct kvt__table_params *params)
{
    (void)tier, (void)params;
}

static int
default_use_index(struct kvt__tier *tier, struct kvt__table *index)
{
    (void)tier, (void)index;
    return 0;
}

static void
default_leave_index(struct kvt__tier *tier, struct kvt__table *index)
{
    (void)tier, (void)index;
}

static uint64_t
default_shortage(const struct kvt__tier *tier, const struct kvt__object *object,
                 uint64_t bytes)
{
    (void)tier, (void)object, (void)bytes;
    return 0;
}

static bool
default_makes_room(const struct kvt__tier *tier, const struct kvt__object *gone,
                   const struct kvt__object *object)
{
    (void)tier, (void)gone, (void)object;
    return true;
}

static uint64_t
default_stored_bytes(const struct kvt__tier *tier, const struct kvt__object *object,
                     uint64_t payload)
{
    (void)tier, (void)object;
    return payload;
}

static int
default_use_gpu(struct kvt__tier *tier, struct kvt__gpu *gpu, size_t most)
{
    (void)tier, (void)gpu, (void)most;
    return 0;
}

static bool
default_acquire_slot(struct kvt__tier *tier, enum kvt__prio prio, size_t bytes,
                     struct kvt__slot *out)
{
    (void)tier, (void)prio, (void)bytes, (void)out;
    return false;
}

static bool
default_acquire_chunk(struct kvt__tier *tier, const struct kvt__object *object, size_t bytes,
                      struct kvt__slot *out)
{
    (void)tier, (void)object, (void)bytes, (void)out;
    return false;
}

static int
default_list(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn, void *ctx)
{
    (void)tier, (void)prefix, (void)fn, (void)ctx;
    return 0;
}

static void
default_info(const struct kvt__tier *tier, struct kvt_tier_info *info)
{
    (void)tier, (void)info;
}

static void
fill(struct kvt__tier *tier, struct kvt__exec *exec)
{
#define FILL(row) \
    if (!tier->filled.row) \
        tier->filled.row = default_##row
    tier->filled = *tier->ops;
    FILL(stop);
    FILL(private_dir);
    FILL(set_index);
    FILL(use_index);
    FILL(leave_index);
    FILL(shortage);
    FILL(makes_room);
    FILL(stored_bytes);
    FILL(use_gpu);
    FILL(acquire_slot);
    FILL(acquire_chunk);
    FILL(submit);
    FILL(list);
    FILL(info);
#undef FILL
    tier->ops = &tier->filled;
    if (!tier->exec)
        tier->exec = exec;
    if (!tier->slash)
        tier->slash = '/';
}

/* ------------------------------------------------------------------- opening */

int
kvt__tier_open(const struct kvt__tier_params *params, struct kvt__tier **out)
{
    struct kvt__tier_params with_rest = *params;
    int err = 0;
    const struct kvt__tier_ops *ops = find(&with_rest, &err);

    if (ops)
        err = ops->open(&with_rest, out);
    if (!err)
        fill(*out, params->exec);
    return err;
}

int
kvt__tier_check_url(const struct kvt__tier_params *params)
{
    struct kvt__tier_params with_rest = *params;
    int err = 0;
    const struct kvt__tier_ops *ops = find(&with_rest, &err);

    return ops && ops->check_url ? ops->check_url(&with_rest) : err;
}

void
kvt__tier_check(const struct kvt__tier_params *params, const struct kvt__reporter *to)
{
    struct kvt__tier_params with_rest = *params;
    int err;
    const struct kvt__tier_ops *ops = find(&with_rest, &err);

    if (ops && ops->check)
        ops->check(&with_rest, to);
}

void
kvt__report(const struct kvt__reporter *to, const char *subject, int status, const char *fmt, ...)
{
    char about[64], text[1024];
    size_t n = 0;
    va_list ap;

    snprintf(about, sizeof about, "%s%s%s", to->kind ? to->kind : "", to->kind ? " " : "",
             subject);
    if (to->path)
        n = (size_t)snprintf(text, sizeof text, "%s: ", to->path);
    va_start(ap, fmt);
    if (n < sizeof text)
        vsnprintf(text + n, sizeof text - n, fmt, ap);
    va_end(ap);
    to->fn(to->ctx, about, status, text);
}

uint64_t
kvt__tier_shm_bytes(const struct kvt__tier_params *params)
{
    struct kvt__tier_params with_rest = *params;
    int err;
    const struct kvt__tier_ops *ops = find(&with_rest, &err);

    return ops && ops->shm_bytes ? ops->shm_bytes(params->config) : 0;
}

/* ------------------------------------------------------------------ transfers */

void
kvt__tier_end(struct kvt__tier_op *op, int err)
{
    kvt__error_set(&op->error, err);
    op->on_done(op);
}

struct waiter {
    struct kvt__tier_op op;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
};

static void
wake(struct kvt__tier_op *op)
{
    struct waiter *w = (struct waiter *)op;

    pthread_mutex_lock(&w->lock);
    w->done = true;
    pthread_cond_signal(&w->ended);
    pthread_mutex_unlock(&w->lock);
}

int
kvt__tier_wait(struct kvt__tier *tier, struct kvt__tier_op *op)
{
    struct waiter w = { .op = *op, .lock = PTHREAD_MUTEX_INITIALIZER,
                        .ended = PTHREAD_COND_INITIALIZER };

    w.op.on_done = wake;
    w.op.is_sync = true;
    tier->ops->submit(tier, &w.op);
    pthread_mutex_lock(&w.lock);
    while (!w.done)
        pthread_cond_wait(&w.ended, &w.lock);
    pthread_mutex_unlock(&w.lock);
    pthread_cond_destroy(&w.ended);
    pthread_mutex_destroy(&w.lock);
    op->found = w.op.found;
    op->error = w.op.error;
    return kvt__error_raise(&op->error);
}

int
kvt__tier_put(struct kvt__tier *tier, const struct kvt__object *object,
              const struct kvt__slot *slot, uint32_t crc)
{
    struct kvt__tier_op op = { .kind = KVT__TIER_PUT, .prio = KVT__PRIO_STORE,
                               .object = object, .slot = *slot, .crc = crc };

    return kvt__tier_wait(tier, &op);
}

int
kvt__tier_get(struct kvt__tier *tier, const struct kvt__object *object,
              const struct kvt__slot *slot, struct kvt__found *found)
{
    struct kvt__tier_op op = { .kind = KVT__TIER_GET, .prio = KVT__PRIO_LOAD,
                               .object = object, .slot = *slot };
    int err = kvt__tier_wait(tier, &op);

    *found = op.found;
    return err;
}

int
kvt__tier_probe(struct kvt__tier *tier, const struct kvt__object *object,
                struct kvt__found *found)
{
    struct kvt__tier_op op = { .kind = KVT__TIER_PROBE, .prio = KVT__PRIO_LOOKUP,
                               .object = object };
    int err = kvt__tier_wait(tier, &op);

    *found = op.found;
    return err;
}

int
kvt__tier_remove(struct kvt__tier *tier, const struct kvt__object *object)
{
    struct kvt__tier_op op = { .kind = KVT__TIER_REMOVE, .prio = KVT__PRIO_STORE,
                               .object = object };

    return kvt__tier_wait(tier, &op);
}
