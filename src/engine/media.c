/* SPDX-License-Identifier: Apache-2.0
 *
 * The media that hold the chunks of a group, for vLLM's KV events, and pins of the chunks. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/private.h"

/* A lease of a pin is so much longer than the pin, so that kvt_engine_end_pins() ends the lease
 * before the lease expires: the end of an expired lease could end a lookup's lease. */
#define MARGIN_NS (60 * KVT__NS_PER_S)

/* The parameters of a call, and the rank's part of a chunk's key. */
struct query {
    struct kvt_engine *engine;
    const struct kvt_group_io *io;
    const struct kvt__keyspace *keyspace;
    const struct kvt__space *space;
    uint32_t rank;
    int64_t pin_until_ns; /* 0: the call asks for media */
};

/* Fill in the keys of n chunks, at most KVT__STORE_PREFETCHED. */
static void
fill_keys(const struct query *q, const struct kvt_chunk *chunks, size_t n,
          struct kvt__chunk_key *keys)
{
    struct kvt__prefix prefixes[KVT__STORE_PREFETCHED];
    struct kvt__id ids[KVT__STORE_PREFETCHED];
    bool is_lossy = kvt__store_traits(q->engine->store)->is_lossy;

    for (size_t i = 0; i < n; i++)
        memcpy(prefixes[i].b, chunks[i].prefix, sizeof prefixes[i].b);
    kvt__id_make_n(q->keyspace->digest, prefixes, n, ids);
    for (size_t i = 0; i < n; i++) {
        keys[i] = (struct kvt__chunk_key){
            .space = q->space, .hash = kvt__chunk_hash(q->engine, &chunks[i]), .id = ids[i],
            .needs_id = chunks[i].flags & KVT_CHUNK_OWN };
        if (is_lossy)
            kvt__id_toggle_lossy(&keys[i].id);
    }
}

/* Pin the rank's part of a chunk, and append the pin to the engine's pins, which have room.  Return
 * the medium of the pin, or 0. */
static uint32_t
pin_part(const struct query *q, size_t chunk, const struct kvt__chunk_key *key)
{
    struct kvt__chunk_pins *pins = &q->engine->pins;
    struct kvt__chunk_pin pin = { .until_ns = q->pin_until_ns, .chunk = chunk, .rank = q->rank,
                            .group = q->io->group };
    uint32_t medium = kvt__store_pin(q->engine->store, key, q->pin_until_ns + MARGIN_NS,
                                     &pin.lease);

    assert(pins->n < pins->max);
    if (medium)
        pins->pins[pins->n++] = pin;
    return medium;
}

/* Remove from out the media that lack a rank's part of the chunks.  With pin_until_ns, pin the parts
 * of the chunks that have a medium left, and leave only the medium of the pin. */
static void
keep_media_of_rank(const struct query *q, uint8_t *out)
{
    struct kvt__store *store = q->engine->store;
    struct kvt__chunk_key keys[KVT__STORE_PREFETCHED];

    for (size_t first = 0; first < q->io->n_chunks; first += KVT__STORE_PREFETCHED) {
        size_t left = q->io->n_chunks - first;
        size_t n = left < KVT__STORE_PREFETCHED ? left : KVT__STORE_PREFETCHED;

        fill_keys(q, q->io->chunks + first, n, keys);
        kvt__store_prefetch(store, keys, n);
        for (size_t i = 0; i < n; i++)
            if (!q->pin_until_ns)
                out[first + i] &= (uint8_t)kvt__store_media(store, &keys[i]);
            else if (out[first + i])
                out[first + i] &= (uint8_t)pin_part(q, first + i, &keys[i]);
    }
}

/* Check the parameters of a call.  0; -EINVAL with a sentence. */
static int
check(const struct kvt_engine *engine, const struct kvt_group_io *io, const char *call)
{
    int err = kvt__engine_check(engine, call);

    if (!err && io->group >= engine->n_groups)
        err = kvt__fail(EINVAL, "%s: group is %u, and the engine has %u groups.", call,
                        io->group, engine->n_groups);
    return err ? err : kvt__check_tags(engine, io->tags);
}

/* Set out to the media in which all ranks have a chunk, or have pinned the chunk. */
static void
ask(struct query q, uint8_t *out)
{
    const struct kvt_group_io *io = q.io;

    kvt__store_refresh_liveness(q.engine->store);
    kvt__store_renew_indexes(q.engine->store);
    for (size_t i = 0; i < io->n_chunks; i++)
        out[i] = KVT_MEDIUM_MEMORY | KVT_MEDIUM_STORAGE | KVT_MEDIUM_SHARED_STORAGE;
    for (q.rank = 0; q.rank < q.engine->world_size; q.rank++) {
        struct kvt__space own;

        q.keyspace = kvt__keyspace(q.engine, q.rank, io->group);
        q.space = kvt__engine_space(q.engine, q.rank, io->group, io->tags, &own);
        keep_media_of_rank(&q, out);
    }
}

int
kvt_engine_media(struct kvt_engine *engine, const struct kvt_group_io *io, uint8_t *out)
{
    int err = check(engine, io, "kvt_engine_media");

    if (!err)
        ask((struct query){ .engine = engine, .io = io }, out);
    return err;
}

/* ------------------------------------------------------------------------ pins */

/* Make room for n more pins.  0; -ENOMEM with a sentence. */
static int
reserve(struct kvt__chunk_pins *pins, size_t n)
{
    if (pins->max - pins->n >= n)
        return 0;
    size_t max = pins->n + n > 2 * pins->max ? pins->n + n : 2 * pins->max;
    struct kvt__chunk_pin *grown = realloc(pins->pins, max * sizeof *grown);
    if (!grown)
        return kvt__fail(ENOMEM, "kvt_engine_pin: allocate memory for %zu pins", max);
    pins->pins = grown;
    pins->max = max;
    return 0;
}

static void
end_pin(struct kvt_engine *engine, const struct kvt__chunk_pin *pin)
{
    kvt__store_unlease(engine->store, &kvt__keyspace(engine, pin->rank, pin->group)->space,
                       &pin->lease);
}

/* Pin the chunks of which all ranks have a part. */
static void
pin_chunks(struct kvt_engine *engine, const struct kvt_group_io *io, int64_t until_ns,
           uint8_t *out)
{
    struct kvt__chunk_pins *pins = &engine->pins;
    size_t first = pins->n, end = first;

    ask((struct query){ .engine = engine, .io = io, .pin_until_ns = until_ns }, out);
    for (size_t i = first; i < pins->n; i++)
        if (out[pins->pins[i].chunk])
            pins->pins[end++] = pins->pins[i];
        else
            end_pin(engine, &pins->pins[i]);
    pins->n = end;
}

int
kvt_engine_pin(struct kvt_engine *engine, const struct kvt_group_io *io, uint32_t seconds,
               uint8_t *out)
{
    int err = check(engine, io, "kvt_engine_pin");

    if (!err && (!seconds || seconds > KVT_PIN_MAX_S))
        err = kvt__fail(EINVAL, "kvt_engine_pin: seconds is %u and must be 1 to %u.", seconds,
                        KVT_PIN_MAX_S);
    if (err)
        return err;
    pthread_mutex_lock(&engine->pins.lock);
    err = reserve(&engine->pins, (size_t)io->n_chunks * engine->world_size);
    if (!err)
        pin_chunks(engine, io, kvt__now_ns() + seconds * KVT__NS_PER_S, out);
    pthread_mutex_unlock(&engine->pins.lock);
    return err;
}

void
kvt_engine_end_pins(struct kvt_engine *engine)
{
    struct kvt__chunk_pins *pins = &engine->pins;
    size_t end = 0;

    if (kvt__engine_check(engine, "kvt_engine_end_pins"))
        return;
    pthread_mutex_lock(&pins->lock);
    int64_t now = kvt__now_ns();
    for (size_t i = 0; i < pins->n; i++)
        if (now < pins->pins[i].until_ns)
            pins->pins[end++] = pins->pins[i];
        else if (now < pins->pins[i].until_ns + MARGIN_NS - KVT__NS_PER_S)
            end_pin(engine, &pins->pins[i]); /* otherwise the lease has expired */
    pins->n = end;
    pthread_mutex_unlock(&pins->lock);
}
