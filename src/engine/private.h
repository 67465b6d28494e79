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
#include "kvtier.h"
#include "store/store.h"

#define KVT__ENGINE_MAGIC UINT32_C(0x6b767465)

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

/* The keys of one (rank, group, tags) at one epoch.  Never changed. */
struct kvt__keyspace {
    struct kvt__space space;
    const struct kvt__space *epoch_of; /* the space without tags, reset for all */
    uint64_t epoch;
    uint8_t digest[KVT__SHA256_BYTES];
};

/* All keyspaces of one set of tags.  A keyspace is replaced when its epoch
 * passes; the old one stays until close, for readers that still have it. */
struct kvt__tagset {
    struct kvt__tagset *next;
    char *tags;
    struct kvt__keyspace *_Atomic at[]; /* [rank * n_groups + group] */
};

struct kvt__retired {
    struct kvt__retired *next;
    struct kvt__keyspace *keyspace;
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

    char *model, *fingerprint, *kv_dtype;
    uint32_t world_size, rank, local_ranks;
    uint32_t n_groups;
    struct kvt__group *groups;

    struct kvt__counters counters;
    struct kvt__exec *exec;
    struct kvt__pool *pool; /* WORKER only */
    size_t transfer_bytes;  /* of it, that chunks do not stay in */
    struct kvt__store *store;
    struct kvt__job scan; /* of the tiers, once, by a worker */

    pthread_mutex_t keyspace_lock; /* adding tagsets, replacing keyspaces */
    struct kvt__tagset *_Atomic tagsets;
    struct kvt__tagset *untagged; /* the first of them */
    struct kvt__retired *retired;

    struct {
        pthread_mutex_t lock;
        pthread_cond_t idle;
        size_t pending;
        struct kvt__save *free; /* requests for reuse */
    } saves;

    struct {
        pthread_mutex_t lock;
        struct kvt__prefetch *free; /* requests for reuse */
    } prefetches;

    struct {
        pthread_mutex_t lock;
        struct kvt__load_item *first_waiting, **last_waiting; /* for a slot */
        size_t n_reading; /* that have a slot of their own */
        struct kvt_load *first_done, **last_done;
        size_t n_items; /* of loads, not ended yet */
        pthread_cond_t idle;
        atomic_bool stopping;
        int eventfd;
    } loads;
};

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

/* The set of keyspaces for tags ("" for none), made if need be.  0; -ENOMEM,
 * -ENOSPC (the index has no room for its spaces), ... with a sentence. */
int kvt__tagset(struct kvt_engine *engine, const char *tags, struct kvt__tagset **out);

/* The keyspace of a rank and group in its present epoch.  Lock-free unless the
 * epoch has just changed; NULL: no memory. */
const struct kvt__keyspace *kvt__keyspace(struct kvt_engine *engine,
                                          struct kvt__tagset *tagset,
                                          uint32_t rank, uint32_t group);

void kvt__tagsets_free(struct kvt_engine *engine);

/* How a chunk of a group is described in headers. */
struct kvt__shape kvt__group_shape(const struct kvt_engine *engine,
                                   uint32_t group, uint32_t n_tokens);

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

/* Fill in what a GET of a chunk is about. */
void kvt__load_request(const struct kvt_engine *engine, const struct kvt__keyspace *k,
                       uint32_t group, const struct kvt_chunk *chunk,
                       struct kvt__store_req *req);

/* Start loads that wait for a slot, now that one may be free. */
void kvt__loads_pump(struct kvt_engine *engine);

/* Cancel all loads and wait for those in flight. */
void kvt__loads_stop(struct kvt_engine *engine);

/* End the reused requests of saves, of prefetches. */
void kvt__saves_free(struct kvt_engine *engine);
void kvt__prefetches_free(struct kvt_engine *engine);

/* The identities of a sequence's first n chunks in one keyspace. */
struct kvt__seq_ids {
    const struct kvt__keyspace *keyspace; /* NULL: none yet */
    struct kvt__id *ids;
    size_t n, max;
};

/* A request's tokens. */
struct kvt_seq {
    struct kvt_engine *engine;
    struct kvt__tagset *tagset;
    struct kvt_mm_item *mm; /* our copy */
    size_t n_mm;
    struct kvt__hash_chain hash;
    struct kvt__prefix prefix;
    struct kvt_chunk *chunks; /* the whole ones; behind them, if tail_known, the
                               * partial one */
    size_t n_chunks, max_chunks;
    struct kvt__seq_ids *ids; /* [rank * n_groups + group] */
    size_t n_ids;
    int32_t *tail; /* tokens of the chunk that is not whole yet */
    size_t n_tail;
    bool tail_known;
    bool own_only; /* LMCache's names do not tell its adapter */

    struct kvt__probe *probe; /* NULL: the tiers were not asked yet */
    int64_t probe_until_ns;
    bool counted;
    uint64_t max_hit; /* of the lookup under way */
    /* [chunk][rank * n_groups + group]: 1 + the level where it is leased, 0 none */
    uint8_t *leases;
    size_t n_leased_chunks; /* that leases has room for */
    int64_t lease_until_ns;
};

void kvt__probe_unref(struct kvt__probe *probe);

/* Describe the partial chunk, if there is one, behind the whole ones.  0 or -ENOMEM
 * with a sentence. */
int kvt__seq_describe_tail(struct kvt_seq *seq);

/* Give back the leases of chunk number first and those behind it. */
void kvt__seq_unlease(struct kvt_seq *seq, size_t first);

/* The identity of a chunk for a rank and group in their present epoch, made only
 * once, and its space; NULL: no memory. */
const struct kvt__id *kvt__seq_id(struct kvt_seq *seq, size_t chunk, uint32_t rank,
                                  uint32_t group, const struct kvt__space **space);

#endif
