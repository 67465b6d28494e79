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

    struct kvt__counters counters;
    /* Start what waits for a slot: the loads, then the prefetches.  Called by each thread that
     * gives a slot back; set at open. */
    void (*on_slot_free)(struct kvt_engine *engine);
    struct kvt__exec *exec;
    size_t n_io_threads; /* it has */
    struct kvt__pool *pool; /* WORKER only */
    size_t transfer_bytes;  /* of it, that chunks do not stay in */
    size_t memory_bytes;    /* of each worker, that they stay in; 0: in none */
    bool reads_ahead;       /* enable_async_loading, where there is such memory */
    bool waits;             /* lookups may have to, until chunks are in memory */
    _Atomic int64_t arrived_ns; /* when one was waited for no longer */
    const char *gpu_copies; /* gpu_copies, a constant; NULL: auto */
    struct kvt__gpu *gpu; /* that views lie on; NULL: they lie in host memory */
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
        pthread_mutex_t lock;
        pthread_cond_t idle;
        size_t pending;
        size_t gathering; /* by a device */
        struct kvt__save *free; /* requests for reuse */
    } saves;

    struct {
        pthread_mutex_t lock;
        struct kvt__prefetch *free; /* requests for reuse */
        struct kvt__prefetch *reading;
        struct kvt__prefetch *first_waiting, **last_waiting; /* for a slot */
    } prefetches;

    struct {
        pthread_mutex_t lock;
        struct kvt__load_item *first_waiting, **last_waiting; /* for a slot */
        size_t n_reading; /* that have a slot of their own */
        size_t n_lent;    /* of them, those in memory of the tier's */
        struct kvt_load *first_done, **last_done;
        size_t n_items; /* of loads, not ended yet */
        pthread_cond_t idle;
        atomic_bool stopping;
        int eventfd;
    } loads;
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

/* In bytes. */
uint64_t kvt__engine_largest_chunk(const struct kvt_engine *engine);

/* How a chunk of a group is described in headers. */
struct kvt__shape kvt__group_shape(const struct kvt_engine *engine,
                                   uint32_t group, uint32_t n_tokens);

/* Return the space of a (rank, group) with a request's tags; without tags the keyspace's, else
 * `own`, filled in.  The tags have been checked. */
const struct kvt__space *kvt__engine_space(const struct kvt_engine *engine, uint32_t rank,
                                           uint32_t group, const char *tags,
                                           struct kvt__space *own);

/* Fill in the chunk of a GET for a rank.  space: of kvt__engine_space(), as long as req. */
void kvt__load_request(const struct kvt_engine *engine, uint32_t rank, uint32_t group,
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

/* Make the keyspaces of all ranks and groups, for as long as the engine; e->store is open.  0; -ENOMEM,
 * -ENAMETOOLONG with a sentence. */
int kvt__keyspaces_make(struct kvt_engine *engine);

static inline const struct kvt__keyspace *
kvt__keyspace(const struct kvt_engine *engine, uint32_t rank, uint32_t group)
{
    return &engine->keyspaces[(size_t)rank * engine->n_groups + group];
}

/* 0, or -EINVAL with a sentence: key text cannot have these tags (NULL: none). */
int kvt__check_tags(const struct kvt_engine *engine, const char *tags);

struct kvt__whose kvt__whose_now(struct kvt_engine *engine);

/* Blocks of a group that n_tokens take. */
static inline uint32_t
kvt__group_blocks(const struct kvt__group *group, uint32_t n_tokens)
{
    return (n_tokens + group->view.block_tokens - 1) / group->view.block_tokens;
}

/* Are all groups, chunks and block ids of ios in range?  strict: blocks must be
 * real or skippable; 0 or -EINVAL with a sentence. */
int kvt__check_ios(const struct kvt_engine *engine, const char *call,
                   const struct kvt_group_io *ios, size_t n_ios);

/* The same without the blocks. */
int kvt__check_chunks(const struct kvt_engine *engine, const char *call,
                      const struct kvt_group_io *ios, size_t n_ios);

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

/* Cancel all loads and wait for those in flight. */
void kvt__loads_stop(struct kvt_engine *engine);

/* Prefetch a group's chunks, as kvt_engine_prefetch().  The tags have been checked. */
void kvt__prefetch(struct kvt_engine *engine, const char *tags, uint32_t group,
                   const struct kvt_chunk *chunks, size_t n);

/* Wait until no device gathers for a save. */
void kvt__saves_settle(struct kvt_engine *engine);

/* End the requests of saves, of prefetches; none is being read or written. */
void kvt__saves_free(struct kvt_engine *engine);
void kvt__prefetches_free(struct kvt_engine *engine);

#endif
