/* SPDX-License-Identifier: Apache-2.0
 *
 * The tier of shared_cpu://TMPFS: chunks in host memory that all processes of the user on this
 * host share.  The chunks are in the file of the index, so a process that finds a chunk can also
 * read the chunk. */
#include "tier/shared_cpu/shared_cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/private-dir.h"
#include "conf/conf.h"

#define GIB ((double)(UINT64_C(1) << 30))

extern const struct kvt__tier_ops kvt__tier_shared_cpu;

static struct sc_tier *
of(const struct kvt__tier *tier)
{
    return (struct sc_tier *)tier;
}

/* ------------------------------------------------------------------- opening */

/* Make and open the directory of the index.  Returns a descriptor, or -errno with a
 * sentence. */
static int
open_dir(const char *path)
{
    int base = kvt__private_dir_open(path), dir = -1;

    if (base < 0)
        return base;
    if (!mkdirat(base, "shared", 0700) || errno == EEXIST)
        dir = openat(base, "shared", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int err = dir < 0 ? kvt__fail(errno, "shared_cpu_path: make a directory in %s", path)
                      : kvt__sc_check_dir(dir, path);
    close(base);
    if (err && dir >= 0)
        close(dir);
    return err ? err : dir;
}

/* Return the directory of the index.  If a user has deleted the directory, make the directory
 * again; the new directory gets the old descriptor, which other threads may use. */
static int
shared_cpu_private_dir(const struct kvt__tier *tier)
{
    const struct sc_tier *t = (const struct sc_tier *)tier;
    struct stat st;
    int dir = !fstat(t->dir, &st) && !st.st_nlink ? open_dir(t->path) : -1;

    if (dir >= 0) {
        (void)dup3(dir, t->dir, O_CLOEXEC);
        close(dir);
    }
    return t->dir;
}

static void
shared_cpu_close(struct kvt__tier *tier)
{
    struct sc_tier *t = of(tier);

    for (struct sc_opened *next, *o = atomic_load(&t->opened); o; o = next) {
        next = o->next;
        free(o);
    }
    kvt__mem_claim_end(&t->claim);
    if (t->dir >= 0)
        close(t->dir);
    pthread_mutex_destroy(&t->pin_lock);
    free(t->path);
    free(t);
}

static int
shared_cpu_open(const struct kvt__tier_params *params, struct kvt__tier **out)
{
    const struct kvt_config *config = params->config;
    struct sc_tier *t = calloc(1, sizeof *t);

    if (!t)
        return kvt__fail(ENOMEM, "shared_cpu: open");
    t->tier = (struct kvt__tier){ .ops = &kvt__tier_shared_cpu, .in_memory = true };
    t->dir = t->claim.fd = -1;
    t->payload_bytes = (uint64_t)(config->max_shared_cpu_size * GIB) / SC_UNIT * SC_UNIT;
    t->ttl_ns = config->shared_cpu_ttl * KVT__NS_PER_S;
    t->transfers = params->transfers;
    t->only_existing = params->only_existing;
    t->counters = params->counters;
    t->path = strdup(params->rest);
    pthread_mutex_init(&t->pin_lock, NULL);
    t->dir = t->path ? open_dir(t->path) : kvt__fail(ENOMEM, "shared_cpu: open");
    if (t->dir < 0) {
        int err = t->dir;

        shared_cpu_close(&t->tier);
        return err;
    }
    *out = &t->tier;
    return 0;
}

/* ------------------------------------------------------------------- the index */

/* Make the memory of a new index, if the host has room for the whole memory. */
static int
make(void *ctx, struct kvt__table *index)
{
    struct sc_tier *t = ctx;
    int err = kvt__sc_check_room(t->dir, t->path, t->payload_bytes);

    kvt__mem_claim_end(&t->claim);
    if (!err)
        err = kvt__sc_claim(t->payload_bytes, &t->claim);
    if (!err)
        err = kvt__sc_make_area(index);
    if (err)
        kvt__mem_claim_end(&t->claim);
    return err;
}

static void
shared_cpu_set_index(const struct kvt__tier *tier, struct kvt__table_params *params)
{
    struct sc_tier *t = of(tier);

    params->limit_bytes = 0; /* the memory itself is the limit */
    params->of_memory = true;
    params->shm = t->path;
    params->make_area = make;
    params->area_ctx = t;
    kvt__sc_set_params(params, t->payload_bytes);
    if (t->only_existing)
        params->area_bytes = 0;
}

/* The chunks whose last use was before before_ns. */
struct old {
    struct kvt__table *index;
    int64_t before_ns;
};

static bool
forget_old(void *ctx, const struct kvt__record *record)
{
    const struct old *old = ctx;

    if (record->recency_ns < old->before_ns)
        (void)kvt__table_forget(old->index, record, false);
    return true;
}

/* Open the memory of an index, and delete the chunks without a use for shared_cpu_ttl. */
static int
open_memory(struct sc_tier *t, struct kvt__table *index, struct sc_opened *o)
{
    int err = kvt__sc_view(index, &o->memory);

    if (err)
        return err;
    kvt__sc_clear_owner(&o->memory);
    if (kvt__sc_payload_bytes(&o->memory) != t->payload_bytes && !t->only_existing)
        kvt__log(KVT_LOG_WARN, "max_shared_cpu_size: the shared memory has %llu MiB and not "
                 "%llu until no process uses the memory.",
                 (unsigned long long)(kvt__sc_payload_bytes(&o->memory) >> 20),
                 (unsigned long long)(t->payload_bytes >> 20));
    if (t->ttl_ns && !t->only_existing)
        kvt__table_each(index, forget_old,
                        &(struct old){ index, kvt__wall_ns() - t->ttl_ns });
    return 0;
}

/* Pin the memory for the GPU if the engine's KV is on a GPU and all memory is allocated.  Ask the
 * driver only once.  The caller holds pin_lock. */
static void
pin(struct sc_tier *t, struct sc_opened *o)
{
    uint64_t bytes = kvt__sc_payload_bytes(&o->memory);

    if (!t->has_gpu || o->pin_tried ||
        SC_LOAD(&o->memory.header->populated_bytes) != bytes)
        return;
    o->pin_tried = true;
    if (kvt__pin(&o->pin, o->memory.payload, bytes))
        kvt__log(KVT_LOG_INFO, "max_shared_cpu_size: %llu MiB are pinned for the GPU",
                 (unsigned long long)(bytes >> 20));
}

static void
on_growth_ended(struct sc_growth *growth)
{
    struct sc_opened *o = (struct sc_opened *)((char *)growth -
                                               offsetof(struct sc_opened, growth));

    pthread_mutex_lock(&o->tier->pin_lock);
    pin(o->tier, o);
    pthread_mutex_unlock(&o->tier->pin_lock);
}

static void
grow(struct sc_tier *t, struct sc_opened *o)
{
    if (!t->transfers) /* only workers allocate memory */
        return;
    o->grows = !kvt__sc_grow(&o->growth, &o->memory, &t->claim, on_growth_ended);
    if (o->grows)
        t->claim.fd = -1;
    else
        kvt__log(KVT_LOG_WARN, "shared_cpu: this engine allocates no more of the shared memory: %s",
                 kvt__why());
}

static void
stop_growing(struct sc_opened *o)
{
    if (o->grows)
        kvt__sc_stop_growing(&o->growth);
    o->grows = false;
}

static int
shared_cpu_use_index(struct kvt__tier *tier, struct kvt__table *index)
{
    struct sc_tier *t = of(tier);
    struct sc_opened *o = calloc(1, sizeof *o);
    int err = o ? open_memory(t, index, o) : kvt__fail(ENOMEM, "shared_cpu: open");

    if (!err) {
        o->tier = t;
        o->next = atomic_load(&t->opened);
        if (o->next)
            stop_growing(o->next); /* the memory of the replaced index */
        atomic_store(&t->opened, o);
        grow(t, o);
    } else {
        free(o);
    }
    kvt__mem_claim_end(&t->claim);
    return err;
}

static void
shared_cpu_leave_index(struct kvt__tier *tier, struct kvt__table *index)
{
    struct sc_opened *o = kvt__sc_opened(tier, index);

    if (!o)
        return;
    stop_growing(o);
    kvt__unpin(&o->pin);
}

/* ------------------------------------------------------------------- GPU */

static int
shared_cpu_use_gpu(struct kvt__tier *tier, struct kvt__gpu *gpu, size_t most)
{
    struct sc_tier *t = of(tier);

    (void)most;
    if (!gpu || !t->transfers)
        return 0;
    pthread_mutex_lock(&t->pin_lock);
    t->has_gpu = true;
    pin(t, atomic_load(&t->opened));
    pthread_mutex_unlock(&t->pin_lock);
    return 0;
}

/* ------------------------------------------------------------------- listing */

struct listing {
    const struct kvt__table *index;
    const char *prefix;
    kvt__tier_list_fn fn;
    void *ctx;
};

static bool
list_one(void *ctx, const struct kvt__record *record)
{
    const struct listing *l = ctx;
    char text[KVT__TABLE_TEXT_MAX + 1], key[KVT__KEY_TEXT_MAX + 1];

    /* If the entry is unchanged after the copy, the text belonged to the entry's space. */
    if (!kvt__table_space_text(l->index, record->space, text, sizeof text) &&
        kvt__table_is_unchanged(l->index, record->entry, record->word) &&
        !kvt__space_key(text, &record->hash, key, sizeof key) &&
        !strncmp(key, l->prefix, strlen(l->prefix)) && !kvt__table_is_expired(record))
        l->fn(l->ctx, key, kvt__key_is_opaque(text), record->bytes, record->recency_ns,
              record->expires_ns != 0);
    return true;
}

static int
shared_cpu_list(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn, void *ctx)
{
    const struct sc_opened *o = atomic_load(&of(tier)->opened);
    struct listing l = { o->memory.table, prefix, fn, ctx };

    kvt__table_each(l.index, list_one, &l);
    return 0;
}

static void
shared_cpu_check(const struct kvt__tier_params *params, const struct kvt__reporter *to)
{
    struct kvt__tier *tier;
    int err = shared_cpu_open(params, &tier);

    if (err) {
        kvt__report(to, "shared memory", err, "%s", kvt__why());
        return;
    }
    kvt__sc_check(tier, to);
    shared_cpu_close(tier);
}

const struct kvt__tier_ops kvt__tier_shared_cpu = {
    .name = "shared_cpu",
    .open = shared_cpu_open,
    .check = shared_cpu_check,
    .close = shared_cpu_close,
    .private_dir = shared_cpu_private_dir,
    .set_index = shared_cpu_set_index,
    .use_index = shared_cpu_use_index,
    .leave_index = shared_cpu_leave_index,
    .use_gpu = shared_cpu_use_gpu,
    .acquire_chunk = kvt__sc_acquire_chunk,
    .run = kvt__sc_run,
    .list = shared_cpu_list,
    .info = kvt__sc_info,
    .clear = kvt__sc_clear,
};
