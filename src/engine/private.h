/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's own parts.  What changes after open says what guards it. */
#ifndef KVT_ENGINE_PRIVATE_H
#define KVT_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/types.h>

#include "gpu/copy.h"
#include "gpu/device.h"
#include "gpu/pin.h"
#include "kvtier.h"
#include "store/store.h"

#define KVT__ENGINE_MAGIC UINT32_C(0x6b767465)
#define KVT__MAX_GROUPS 64

/* One group of layers, as described at open. */
struct kvt__group {
    enum kvt_group_kind kind;
    uint32_t window_tokens;
    uint32_t format; /* enum kvt_chunk_format */
    char *layout;
    char *layers;
    bool replicated;     /* all ranks share the first one's keys */
    uint32_t world_size; /* in its keys */
    struct kvt__view view; /* its base is ours; NULL until kvt_engine_set_view() */
};

/* The keys of one (rank, group).  Never changed. */
struct kvt__keyspace {
    struct kvt__space space;
    uint8_t digest[KVT__SHA256_BYTES];
};

/* The weights of a sequence's chunks. */
struct kvt__whose {
    struct kvt__weights weights;
    bool random;    /* the weights id is: no other engine asks for their chunks */
    uint32_t flags; /* of chunks: KVT_CHUNK_OWN after a reset */
};

struct kvt__queue {
    struct kvt__item *first, **last;
};

struct kvt_engine {
    uint32_t magic;
    pid_t pid; /* of the process that opened it */
    uint32_t role;
    uint32_t chunk_tokens;
    bool partial_chunks; /* lookups count the chunk that is not whole */
    enum kvt__hash_kind hash_kind;
    struct kvt__hash_chain hash_root;
    int64_t load_timeout_ns, lookup_timeout_ns, lease_ns;

    char *model, *kv_dtype;
    uint32_t world_size, rank, local_ranks;
    uint32_t n_groups;
    struct kvt__group *groups;
    bool has_windows; /* of a sliding-window group */
    uint64_t smallest_chunk, largest_chunk; /* bytes of a whole one, over the groups */

    struct kvt__counters counters;
    /* Start the waiting loads, then the waiting prefetches.  Each thread that releases a slot
     * or closes a load calls this function.  The open sets the pointer. */
    void (*on_slot_free)(struct kvt_engine *engine);
    struct kvt__exec *exec;
    size_t n_io_threads; /* of exec */
    struct kvt__pool *pool; /* WORKER only */
    size_t transfer_bytes;  /* of the pool, reserved for transfers */
    size_t memory_bytes;    /* of each worker's pool, for chunks of host memory; 0: none */
    bool reads_ahead;       /* enable_async_loading is set and memory_bytes > 0 */
    bool waits;             /* lookups may wait until chunks are in host memory */
    _Atomic int64_t arrived_ns; /* time of the last arrival of a chunk for a lookup */
    const char *gpu_copies; /* gpu_copies, a constant; NULL: auto */
    struct kvt__gpu *gpu; /* whose memory the views use; NULL: host memory */
    uint32_t memory;      /* enum kvt_memory of the views */
    int32_t device;
    struct kvt__pin pin;  /* of the pool */
    _Atomic(void *) stream; /* the caller's */
    struct kvt__store *store;

    struct kvt__keyspace *keyspaces; /* [rank * n_groups + group] */
    size_t max_tag_bytes; /* a request's tags must fit every key text */

    pthread_mutex_t whose_lock;
    struct kvt__whose whose; /* of new sequences */

    struct {
        pthread_mutex_t lock; /* guards the rest, and the changing fields of loads */
        pthread_cond_t idle;  /* n_stores or n_loads has become 0 */
        size_t n_stores;      /* unfinished items of stores */
        size_t n_loads;       /* unfinished items of loads and prefetches */
        struct kvt__queue loads, prefetches; /* items without a slot */
        struct kvt__item *reading_ahead;     /* items of prefetches with a slot */
        size_t n_reading; /* items of loads with a slot that is not borrowed */
        size_t n_lent;    /* n_reading's items with a slot in the memory of a tier */
        struct kvt_load *first_done, **last_done;
        atomic_bool stopping;
        int eventfd; /* readable while a load is done */
    } calls;
};

/* ------------------------------------------------------------------- describe.c */

/* The caller's structs, in this library's sizes. */
struct kvt__taken {
    struct kvt_engine_params params; /* points to the others */
    struct kvt_model model;
    struct kvt_group groups[KVT__MAX_GROUPS];
};

/* 0, or -EINVAL with a sentence: what they say cannot be. */
int kvt__engine_take(struct kvt__taken *taken, const struct kvt_engine_params *from);

/* Keep what was taken, until the engine is closed, also when this failed. */
int kvt__engine_describe(struct kvt_engine *e, const struct kvt_engine_params *params);

/* Return the space of a (rank, group) with a request's tags; without tags the keyspace's, else
 * `own`, filled in.  The tags have been checked. */
const struct kvt__space *kvt__engine_space(const struct kvt_engine *engine, uint32_t rank,
                                           uint32_t group, const char *tags,
                                           struct kvt__space *own);

/* Fill in the chunk of a request for a rank.  space: from kvt__engine_space(); the space must
 * outlive req. */
void kvt__fill_request(const struct kvt_engine *engine, uint32_t rank, uint32_t group,
                       const struct kvt__space *space, const struct kvt_chunk *chunk,
                       struct kvt__store_req *req);

/* ------------------------------------------------------------------------------- */

/* 0, or -EINVAL, -ESTALE with a sentence.  call: the public function's name. */
int kvt__engine_check(const struct kvt_engine *engine, const char *call);

/* The chunk's hash as the engine's keys have it. */
static inline struct kvt__hash
kvt__chunk_hash(const struct kvt_engine *engine, const struct kvt_chunk *chunk)
{
    struct kvt__hash hash = { .form = kvt__hash_form(engine->hash_kind) };

    memcpy(hash.bits, chunk->name_hash, sizeof hash.bits);
    return hash;
}

/* Make the keyspaces of all ranks and groups.  The engine owns them; e->store is open.  0;
 * -ENOMEM, -ENAMETOOLONG with a sentence. */
int kvt__keyspaces_make(struct kvt_engine *engine);

static inline const struct kvt__keyspace *
kvt__keyspace(const struct kvt_engine *engine, uint32_t rank, uint32_t group)
{
    return &engine->keyspaces[(size_t)rank * engine->n_groups + group];
}

static inline const char *
kvt__or_empty(const char *text)
{
    return text ? text : "";
}

/* 0, or -EINVAL with a sentence: key text cannot have these tags (NULL: none). */
int kvt__check_tags(const struct kvt_engine *engine, const char *tags);

struct kvt__whose kvt__whose_now(struct kvt_engine *engine);

/* Return the number of blocks that n_tokens take. */
static inline uint32_t
kvt__view_blocks(const struct kvt__view *view, uint32_t n_tokens)
{
    return (n_tokens + view->block_tokens - 1) / view->block_tokens;
}

/* Long enough for a chunk to come that is waited for, if it does at all, and for the
 * scheduler to see it. */
static inline int64_t
kvt__patience_ns(const struct kvt_engine *engine)
{
    return engine->lookup_timeout_ns / 4;
}

/* Start the loads, the prefetches that wait for a slot, if a slot is free. */
void kvt__loads_pump(struct kvt_engine *engine);
void kvt__prefetches_pump(struct kvt_engine *engine);

/* As kvt_engine_prefetch(), without a check of the arguments and without a view. */
int kvt__prefetch(struct kvt_engine *engine, const struct kvt_group_io *ios, size_t n_ios);

#endif
