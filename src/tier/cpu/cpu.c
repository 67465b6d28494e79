/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks in host memory: a table from identity to the slot of the pool that has
 * the payload.  put takes a share of the caller's slot and borrow hands one out,
 * so nothing is copied.  All memory of the table is taken at open.  Any thread;
 * t->lock guards the table, the pool's is taken while it is held. */
#include "tier/cpu/cpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"

#define NONE UINT32_MAX

extern const struct kvt__tier_ops kvt__tier_cpu;

struct chunk {
    struct kvt__id id;
    struct kvt__slot slot;
    uint32_t crc;
    bool unsummed; /* the payload was not compared with crc */
    uint32_t tokens;
    uint32_t next; /* in its bucket, or among the free ones */
};

struct cpu_tier {
    struct kvt__tier tier;
    struct kvt__pool *pool;
    uint64_t limit_bytes;
    int dirfd;

    pthread_mutex_t lock;
    struct chunk *chunks;
    uint32_t *buckets; /* the first chunk of each */
    uint32_t n_buckets; /* a power of two */
    uint32_t first_free;
};

static struct cpu_tier *
from(struct kvt__tier *tier)
{
    return (struct cpu_tier *)tier;
}

/* Where the number of the identity's chunk stands, or would. */
static uint32_t *
find(struct cpu_tier *t, const struct kvt__id *id)
{
    uint32_t *at = &t->buckets[kvt__get_le32(id->b) & (t->n_buckets - 1)];

    while (*at != NONE && !kvt__id_equal(&t->chunks[*at].id, id))
        at = &t->chunks[*at].next;
    return at;
}

static int
missing(const struct kvt__object *object)
{
    return kvt__fail(ENOENT, "cpu: chunk %s", object->key);
}

/* --------------------------------------------------------------- operations */

static int
cpu_put(struct kvt__tier *tier, const struct kvt__object *object,
        const struct kvt__slot *slot, uint32_t crc)
{
    struct cpu_tier *t = from(tier);
    struct kvt__slot old = { 0 };
    int err = 0;

    pthread_mutex_lock(&t->lock);
    uint32_t *at = find(t, &object->id);
    if (*at != NONE) {
        old = t->chunks[*at].slot;
    } else if (t->first_free == NONE) {
        err = kvt__fail(ENOSPC, "cpu: the table of chunks is full");
    } else {
        *at = t->first_free;
        t->first_free = t->chunks[*at].next;
        t->chunks[*at].next = NONE;
    }
    if (!err) {
        struct chunk *c = &t->chunks[*at];

        kvt__pool_share(t->pool, slot);
        c->id = object->id;
        c->slot = *slot;
        c->crc = crc;
        c->unsummed = object->unsummed;
        c->tokens = object->tokens;
    }
    pthread_mutex_unlock(&t->lock);
    if (old.payload)
        kvt__pool_release(t->pool, &old);
    return err;
}

static void
tell(const struct chunk *c, struct kvt__found *found)
{
    *found = (struct kvt__found){
        .payload_bytes = c->slot.bytes, .stored_bytes = c->slot.bytes,
        .has_id = true, .id = c->id, .crc = c->crc, .tokens = c->tokens,
        .has_read_crc = !c->unsummed, .read_crc = c->crc };
}

static int
cpu_borrow(struct kvt__tier *tier, const struct kvt__object *object,
           struct kvt__slot *slot, struct kvt__found *found)
{
    struct cpu_tier *t = from(tier);

    pthread_mutex_lock(&t->lock);
    uint32_t at = *find(t, &object->id);
    if (at != NONE) {
        *slot = t->chunks[at].slot;
        kvt__pool_share(t->pool, slot);
        tell(&t->chunks[at], found);
    }
    pthread_mutex_unlock(&t->lock);
    return at == NONE ? missing(object) : 0;
}

/* For a slot that was taken before the chunk came here. */
static int
cpu_get(struct kvt__tier *tier, const struct kvt__object *object,
        const struct kvt__slot *slot, struct kvt__found *found)
{
    struct cpu_tier *t = from(tier);
    struct kvt__slot have;
    int err = cpu_borrow(tier, object, &have, found);

    if (err)
        return err;
    if (have.bytes == slot->bytes)
        memcpy(slot->payload, have.payload, have.bytes);
    else
        err = kvt__fail(EBADMSG, "cpu: chunk %s has %zu bytes, not %zu.", object->key,
                        have.bytes, slot->bytes);
    if (!err && !found->has_read_crc) {
        found->read_crc = kvt__crc32c_cold(0, slot->payload, slot->bytes);
        found->has_read_crc = true;
        if (found->read_crc == found->crc)
            kvt__cpu_set_summed(tier, &object->id, have.payload);
        else
            kvt__cpu_drop(tier, &object->id, have.payload);
    }
    kvt__pool_release(t->pool, &have);
    return err;
}

static int
cpu_probe(struct kvt__tier *tier, const struct kvt__object *object,
          struct kvt__found *found)
{
    struct cpu_tier *t = from(tier);

    pthread_mutex_lock(&t->lock);
    uint32_t at = *find(t, &object->id);
    if (at != NONE)
        tell(&t->chunks[at], found);
    pthread_mutex_unlock(&t->lock);
    return at == NONE ? missing(object) : 0;
}

/* Remove chunk *at; t->lock is held. */
static void
remove_locked(struct cpu_tier *t, uint32_t *at)
{
    uint32_t i = *at;

    kvt__pool_release(t->pool, &t->chunks[i].slot);
    *at = t->chunks[i].next;
    t->chunks[i].next = t->first_free;
    t->first_free = i;
}

void
kvt__cpu_set_summed(struct kvt__tier *tier, const struct kvt__id *id,
                    const unsigned char *payload)
{
    struct cpu_tier *t = from(tier);

    pthread_mutex_lock(&t->lock);
    uint32_t at = *find(t, id);
    if (at != NONE && t->chunks[at].slot.payload == payload)
        t->chunks[at].unsummed = false;
    pthread_mutex_unlock(&t->lock);
}

void
kvt__cpu_drop(struct kvt__tier *tier, const struct kvt__id *id, const unsigned char *payload)
{
    struct cpu_tier *t = from(tier);

    pthread_mutex_lock(&t->lock);
    uint32_t *at = find(t, id);
    if (*at != NONE && t->chunks[*at].slot.payload == payload)
        remove_locked(t, at);
    pthread_mutex_unlock(&t->lock);
}

/* A chunk that is being written elsewhere or copied would free no memory now. */
static int
cpu_remove(struct kvt__tier *tier, const struct kvt__object *object)
{
    struct cpu_tier *t = from(tier);
    int err = 0;

    pthread_mutex_lock(&t->lock);
    uint32_t *at = find(t, &object->id), i = *at;
    if (i == NONE) {
        err = missing(object);
    } else if (kvt__pool_is_shared(t->pool, &t->chunks[i].slot)) {
        err = -EBUSY;
    } else {
        remove_locked(t, at);
    }
    pthread_mutex_unlock(&t->lock);
    return err;
}

/* ------------------------------------------------------------------- the rest */

static size_t
cpu_phase(const struct kvt__tier *tier)
{
    (void)tier;
    return 0; /* of the pool, whatever it is */
}

static int
cpu_private_dir(const struct kvt__tier *tier)
{
    return ((const struct cpu_tier *)tier)->dirfd;
}

static uint64_t
cpu_default_limit(const struct kvt__tier *tier)
{
    return ((const struct cpu_tier *)tier)->limit_bytes;
}

static uint64_t
cpu_stored_bytes(const struct kvt__tier *tier, const struct kvt__object *object,
                 uint64_t payload)
{
    (void)object;
    return kvt__pool_footprint(((const struct cpu_tier *)tier)->pool, payload);
}

/* Its index has everything and lives no longer than it does. */
static int
cpu_list(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn, void *ctx)
{
    (void)tier;
    (void)prefix;
    (void)fn;
    (void)ctx;
    return 0;
}

static void
cpu_close(struct kvt__tier *tier)
{
    struct cpu_tier *t = from(tier);

    for (uint32_t b = 0; t->buckets && b < t->n_buckets; b++)
        for (uint32_t i = t->buckets[b]; i != NONE; i = t->chunks[i].next)
            kvt__pool_release(t->pool, &t->chunks[i].slot);
    pthread_mutex_destroy(&t->lock);
    free(t->buckets);
    free(t->chunks);
    free(t);
}

int
kvt__cpu_open(const struct kvt__cpu_params *params, struct kvt__tier **out)
{
    struct cpu_tier *t = calloc(1, sizeof *t);
    uint32_t n = params->n_chunks;

    if (!t)
        return kvt__fail(ENOMEM, "cpu: open");
    t->tier.ops = &kvt__tier_cpu;
    t->pool = params->pool;
    t->limit_bytes = params->limit_bytes;
    t->dirfd = params->dirfd;
    pthread_mutex_init(&t->lock, NULL);
    for (t->n_buckets = 1; t->n_buckets < n;)
        t->n_buckets *= 2;
    t->chunks = calloc(n ? n : 1, sizeof *t->chunks);
    t->buckets = malloc(t->n_buckets * sizeof *t->buckets);
    if (!t->chunks || !t->buckets) {
        free(t->buckets);
        t->buckets = NULL;
        cpu_close(&t->tier);
        return kvt__fail(ENOMEM, "cpu: a table of %u chunks", n);
    }
    memset(t->buckets, 0xff, t->n_buckets * sizeof *t->buckets);
    for (uint32_t i = 0; i < n; i++)
        t->chunks[i].next = i + 1 < n ? i + 1 : NONE;
    t->first_free = n ? 0 : NONE;
    *out = &t->tier;
    return 0;
}

const struct kvt__tier_ops kvt__tier_cpu = {
    .name = "cpu",
    .close = cpu_close,
    .phase = cpu_phase,
    .private_dir = cpu_private_dir,
    .default_limit = cpu_default_limit,
    .stored_bytes = cpu_stored_bytes,
    .put = cpu_put,
    .get = cpu_get,
    .borrow = cpu_borrow,
    .probe = cpu_probe,
    .remove = cpu_remove,
    .list = cpu_list,
};
