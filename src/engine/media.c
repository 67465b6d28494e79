/* SPDX-License-Identifier: Apache-2.0
 *
 * The media that hold the chunks of a group, for vLLM's KV events, and pins of chunks there. */
#include <errno.h>

#include "base/clock.h"
#include "engine/private.h"

/* The parameters of a call, and the rank's part of a chunk's key. */
struct query {
    const struct kvt_engine *engine;
    const struct kvt_group_io *io;
    const struct kvt__keyspace *keyspace;
    const struct kvt__space *space;
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

static uint32_t
media_or_pin(const struct query *q, const struct kvt__chunk_key *key)
{
    struct kvt__store *store = q->engine->store;

    return q->pin_until_ns ? kvt__store_pin(store, key, q->pin_until_ns)
                           : kvt__store_media(store, key);
}

/* Remove from out the media that lack a rank's part of the chunks, or in which the part is not
 * pinned. */
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
            out[first + i] &= (uint8_t)media_or_pin(q, &keys[i]);
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
ask(struct query q, struct kvt_engine *engine, uint8_t *out)
{
    const struct kvt_group_io *io = q.io;

    kvt__store_refresh_liveness(engine->store);
    kvt__store_renew_indexes(engine->store);
    memset(out, KVT_MEDIUM_MEMORY | KVT_MEDIUM_STORAGE | KVT_MEDIUM_SHARED_STORAGE,
           io->n_chunks);
    for (uint32_t rank = 0; rank < engine->world_size; rank++) {
        struct kvt__space own;

        q.keyspace = kvt__keyspace(engine, rank, io->group);
        q.space = kvt__engine_space(engine, rank, io->group, io->tags, &own);
        keep_media_of_rank(&q, out);
    }
}

int
kvt_engine_media(struct kvt_engine *engine, const struct kvt_group_io *io, uint8_t *out)
{
    int err = check(engine, io, "kvt_engine_media");

    if (!err)
        ask((struct query){ .engine = engine, .io = io }, engine, out);
    return err;
}

int
kvt_engine_pin(struct kvt_engine *engine, const struct kvt_group_io *io, uint32_t seconds,
               uint8_t *out)
{
    int err = check(engine, io, "kvt_engine_pin");

    if (!err && (!seconds || seconds > KVT_PIN_MAX_S))
        err = kvt__fail(EINVAL, "kvt_engine_pin: seconds is %u and must be 1 to %u.", seconds,
                        KVT_PIN_MAX_S);
    if (!err)
        ask((struct query){ .engine = engine, .io = io,
                            .pin_until_ns = kvt__now_ns() + seconds * KVT__NS_PER_S },
            engine, out);
    return err;
}
