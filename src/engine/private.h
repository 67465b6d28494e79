/* SPDX-License-Identifier: Apache-2.0
 *
 * Structs and functions that only the files of src/engine share.  Fields that change after the open
 * are atomic, or the comment names the lock.  kvt_engine_set_view() changes group.view, gpu,
 * memory, device and pin without a lock: the caller runs no load or store meanwhile. */
#ifndef KVT_ENGINE_PRIVATE_H
#define KVT_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/types.h>

#include "base/fit.h"
#include "gpu/copy.h"
#include "gpu/device.h"
#include "gpu/pin.h"
#include "kvtier.h"
#include "store/store.h"

#define KVT__ENGINE_MAGIC UINT32_C(0x6b767465)
#define KVT__MAX_GROUPS 64
#define KVT__MAX_STAGE_GROUPS 256 /* groups of all stages together */

/* A group of layers, as described at the open. */
struct kvt__group {
    enum kvt_group_kind kind;
    uint32_t window_tokens;
    uint32_t format; /* enum kvt_chunk_format */
    uint32_t packing; /* enum kvt_packing */
    char *layout;
    char *layers;
    bool replicated;     /* the ranks of a stage use the keys of the stage's first rank */
    uint32_t world_size; /* world size in the group's keys */
    struct kvt__view view; /* view.base: an array of the engine; NULL until
                            * kvt_engine_set_view() */
};

/* The common part of the keys of a rank and group.  Constant after the open. */
struct kvt__keyspace {
    struct kvt__space space;
    uint8_t digest[KVT__SHA256_BYTES]; /* digest of the description of rank and group, a part of
                                        * the identities of chunks */
};

/* The weights of a sequence's chunks. */
struct kvt__seq_weights {
    struct kvt__weights id;
    bool random;    /* the weights id is random: only this engine looks up the chunks */
    uint32_t flags; /* flags of the chunks: KVT_CHUNK_OWN after a reset */
};

/* A list of items in the order of their calls.  engine->calls.lock guards the list. */
struct kvt__queue {
    struct kvt__item *first, **last;
};

/* load_policy: faster, see worth.c. */
struct kvt__worth {
    bool is_on;
    pthread_mutex_t lock; /* guards the fields below */
    struct kvt_seq *loading; /* sequences whose chunks workers read now */
    int64_t trial_ns[KVT__MAX_STORAGES]; /* time of the last trial of a storage */
    struct kvt__fit prefill; /* a: ns of a token and position, b: ns of a token */
    bool is_prefill_open; /* prefill has the results of earlier processes */
    uint64_t enough_tokens; /* smaller steps do not count: half of the largest step, less with each
                             * step that does not count */
};

/* A pin of a rank's part of a chunk, see media.c. */
struct kvt__chunk_pin {
    int64_t until_ns;
    size_t chunk; /* number of the chunk in the call */
    uint32_t rank, group;
    struct kvt__lease lease;
};

/* The pins that kvt_engine_end_pins() will end, in the order of the calls. */
struct kvt__chunk_pins {
    pthread_mutex_t lock; /* guards the fields below */
    struct kvt__chunk_pin *pins;
    size_t n, max;
};

struct kvt_engine {
    uint32_t magic;
    pid_t pid; /* process that opened the engine */
    uint32_t role;
    uint32_t chunk_tokens;
    bool partial_chunks; /* hits include a partial chunk at the end */
    enum kvt__hash_kind hash_kind;
    struct kvt__hash_chain hash_root;
    int64_t load_timeout_ns, lookup_timeout_ns, lease_ns;

    char *model, *kv_dtype;
    uint32_t world_size, rank, local_ranks;
    uint32_t n_stages; /* stages of pipeline parallelism, each with equally many ranks */
    uint32_t first_rank, end_rank; /* ranks first_rank .. end_rank - 1 must hold the chunks of a
                                    * hit: with SCHEDULER all ranks, otherwise only `rank` */
    uint32_t n_groups;
    struct kvt__group *groups; /* groups of this process's stage */
    struct kvt__group *stage_groups; /* [stage * n_groups + group]; without SCHEDULER: groups */
    uint32_t n_stage_groups; /* elements of stage_groups */
    bool has_windows; /* at least one group has a sliding window */
    uint64_t smallest_chunk, largest_chunk; /* bytes of a full chunk, over all stage_groups */

    struct kvt__counters counters;
    /* Start the waiting loads, then the waiting prefetches.  Each thread that releases a slot
     * or closes a load calls this function, without calls.lock.  The open sets the pointer. */
    void (*on_slot_free)(struct kvt_engine *engine);
    struct kvt__exec *exec;
    size_t n_io_threads; /* threads of exec */
    struct kvt__pool *pool; /* WORKER only */
    size_t transfer_bytes;  /* bytes of the pool that are reserved for transfers */
    size_t memory_bytes;    /* bytes of each worker's pool in which chunks stay; 0: none */
    bool memory_keeps;      /* chunks stay in host memory also without a prefetch */
    bool reads_ahead;       /* enable_async_loading is set and memory_bytes > 0 */
    bool lookups_wait;      /* lookups may return -EAGAIN until chunks are in host memory */
    _Atomic int64_t last_arrival_ns; /* time of the last arrival of a chunk for a lookup */
    const char *gpu_copies; /* setting gpu_copies, static storage; NULL: auto */
    struct kvt__gpu *gpu; /* GPU that holds the KV; NULL: the KV is in host memory */
    uint32_t memory;      /* enum kvt_memory of the views */
    int32_t device;
    struct kvt__pin pin;  /* pin of the pool for the GPU */
    _Atomic(void *) stream; /* argument of kvt_engine_set_stream() */
    struct kvt__store *store;
    struct kvt__worth worth;
    struct kvt__chunk_pins pins;

    struct kvt__keyspace *keyspaces; /* [rank * n_groups + group] */
    size_t max_tag_bytes; /* longest tags that fit in the key texts of all keyspaces */

    pthread_mutex_t weights_lock;
    struct kvt__seq_weights weights; /* weights of new sequences; guarded by weights_lock */

    struct {
        pthread_mutex_t lock; /* guards the fields below, and the changing fields of loads */
        pthread_cond_t idle;  /* signaled when n_loads or an element of n_stores becomes 0 */
        uint32_t epoch;       /* kvt_engine_flush() increments epoch, so that the flush does not
                               * wait for later stores */
        size_t n_stores[2];   /* unfinished items of stores: [0] of even epochs, [1] of odd epochs.
                               * All stores of epochs before epoch - 1 have ended */
        size_t n_loads;       /* unfinished items of loads and prefetches */
        struct kvt__queue loads, prefetches; /* items without a slot */
        struct kvt__item *reading_ahead;     /* items of prefetches with a slot */
        size_t n_reading;     /* items of loads with a slot into which the store reads */
        size_t n_tier_slots;  /* n_reading's items with a slot in the memory of a tier */
        struct kvt_load *first_done, **last_done;
        atomic_bool stopping;
        int eventfd; /* readable while first_done is not NULL */
    } calls;
};

/* ------------------------------------------------------------------- describe.c */

/* Copies of the caller's structs, with the struct sizes of this library. */
struct kvt__params_copy {
    struct kvt_engine_params params; /* points to model and groups */
    struct kvt_model model;
    struct kvt_group groups[KVT__MAX_STAGE_GROUPS];
};

/* Copy and check the parameters of kvt_engine_open().  *from and its pointers must outlive *copy.
 * 0; -EINVAL with a sentence: a parameter is missing or out of range. */
int kvt__engine_copy_params(struct kvt__params_copy *copy, const struct kvt_engine_params *from);

/* Fill in the engine's fields from checked parameters, with copies of the strings.  After an error,
 * the close of the engine still frees the copies.  0; -ENOMEM, -EINVAL with a sentence. */
int kvt__engine_describe(struct kvt_engine *e, const struct kvt_engine_params *params);

/* Return the space of a rank and group with a request's tags: without tags the space of the
 * keyspace, otherwise `own`, filled in.  kvt__check_tags() has accepted the tags. */
const struct kvt__space *kvt__engine_space(const struct kvt_engine *engine, uint32_t rank,
                                           uint32_t group, const char *tags,
                                           struct kvt__space *own);

/* Fill in the key, size and shape of a request for a rank's chunk.  space: from
 * kvt__engine_space(); the space must outlive req. */
void kvt__fill_request(const struct kvt_engine *engine, uint32_t rank, uint32_t group,
                       const struct kvt__space *space, const struct kvt_chunk *chunk,
                       struct kvt__store_req *req);

/* ------------------------------------------------------------------- others */

/* Check the engine at the begin of a public function.  call: the function's name.  0; with a
 * sentence -EINVAL: not an open engine; -ESTALE: another process opened the engine. */
int kvt__engine_check(const struct kvt_engine *engine, const char *call);

/* Return a chunk's hash in the form of the engine's keys. */
static inline struct kvt__hash
kvt__chunk_hash(const struct kvt_engine *engine, const struct kvt_chunk *chunk)
{
    struct kvt__hash hash = { .form = kvt__hash_form(engine->hash_kind) };

    memcpy(hash.bits, chunk->name_hash, sizeof hash.bits);
    return hash;
}

/* Return the first rank of a rank's stage. */
static inline uint32_t
kvt__first_of_stage(const struct kvt_engine *engine, uint32_t rank)
{
    return rank - rank % (engine->world_size / engine->n_stages);
}

/* Return the bytes of a chunk's largest part of a group: stages may have different numbers of
 * layers. */
static inline uint64_t
kvt__largest_part(const struct kvt_engine *e, uint32_t group, uint32_t n_tokens)
{
    uint64_t largest = 0;

    for (uint32_t i = group; i < e->n_stage_groups; i += e->n_groups) {
        uint64_t bytes = kvt__chunk_bytes(&e->stage_groups[i].view, n_tokens);

        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

/* Return the description of a group on a rank.  A worker knows only its own stage. */
static inline const struct kvt__group *
kvt__group_of(const struct kvt_engine *engine, uint32_t rank, uint32_t group)
{
    uint32_t stage = rank / (engine->world_size / engine->n_stages);

    return engine->role & KVT_ROLE_SCHEDULER
        ? &engine->stage_groups[(size_t)stage * engine->n_groups + group]
        : &engine->groups[group];
}

/* Set engine->keyspaces for all ranks and groups, and engine->max_tag_bytes.  engine->store is
 * open.  The engine owns the array.  0; -ENOMEM, -ENAMETOOLONG with a sentence. */
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

/* Check the tags of a request (NULL: no tags).  0; -EINVAL with a sentence: the tags cannot be part
 * of a key text. */
int kvt__check_tags(const struct kvt_engine *engine, const char *tags);

/* Return the weights for a new sequence. */
struct kvt__seq_weights kvt__current_weights(struct kvt_engine *engine);

/* Return the number of blocks that hold n_tokens. */
static inline uint32_t
kvt__view_blocks(const struct kvt__view *view, uint32_t n_tokens)
{
    return (n_tokens + view->block_tokens - 1) / view->block_tokens;
}

/* Return the time that the scheduler gets to lease a chunk after a prefetch.  A prefetched chunk is
 * protected from eviction for this time.  If no chunk arrives for this time, kvt_engine_wanted()
 * returns the missing chunks again. */
static inline int64_t
kvt__arrival_grace_ns(const struct kvt_engine *engine)
{
    return engine->lookup_timeout_ns / 4;
}

/* Start waiting loads, or waiting prefetches, while slots are free.  Takes calls.lock. */
void kvt__start_waiting_loads(struct kvt_engine *engine);
void kvt__start_waiting_prefetches(struct kvt_engine *engine);

/* As kvt_engine_prefetch(), without a check of the arguments; the groups need no view.  0; -ENOMEM
 * with a sentence. */
int kvt__prefetch(struct kvt_engine *engine, const struct kvt_group_io *ios, size_t n_ios);

#endif
