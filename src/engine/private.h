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

    struct kvt__counters counters;
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
    struct kvt__job scan; /* of the tiers, once, by a worker */

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

/* Make the keyspaces of all ranks and groups, for as long as the engine.  0; -ENOMEM,
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

/* Fill in the chunk of a GET for a rank.  The caller keeps tags as long as req. */
void kvt__load_request(const struct kvt_engine *engine, uint32_t rank, uint32_t group,
                       const char *tags, const struct kvt_chunk *chunk,
                       struct kvt__store_req *req);

/* Long enough for a chunk to come that is waited for, if it does at all, and for the
 * scheduler to see it. */
static inline int64_t
kvt__patience_ns(const struct kvt_engine *engine)
{
    return engine->lookup_timeout_ns / 4;
}

/* Start loads that wait for a slot, then prefetches, now that one may be free. */
void kvt__loads_pump(struct kvt_engine *engine);

/* Cancel all loads and wait for those in flight. */
void kvt__loads_stop(struct kvt_engine *engine);

/* Prefetch a group's chunks, as kvt_engine_prefetch().  The tags have been checked. */
void kvt__prefetch(struct kvt_engine *engine, const char *tags, uint32_t group,
                   const struct kvt_chunk *chunks, size_t n);

void kvt__prefetches_pump(struct kvt_engine *engine);

/* Wait until no device gathers for a save. */
void kvt__saves_settle(struct kvt_engine *engine);

/* End the requests of saves, of prefetches; none is being read or written. */
void kvt__saves_free(struct kvt_engine *engine);
void kvt__prefetches_free(struct kvt_engine *engine);

/* The identities of a sequence's first n chunks in one keyspace. */
struct kvt__seq_ids {
    struct kvt__id *ids;
    size_t n, max;
};

/* A request's tokens. */
struct kvt_seq {
    struct kvt_engine *engine;
    char tags[KVT__KEY_TAGS_MAX + 1];
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
    bool lost_tokens; /* an append failed: no more tokens */
    uint32_t flags; /* of its chunks */

    struct kvt__probe *probe; /* NULL: the tiers were not asked yet */
    uint32_t probes;          /* bits of enum kvt__probe_kind, made or under way */
    uint32_t n_windows;       /* hits whose windows were expected */
    int64_t probe_until_ns;   /* 0: the tiers were not asked yet */
    bool counted;
    uint64_t max_hit; /* of the lookup under way */
    /* [chunk][rank * n_groups + group]: 1 + the level where it is leased, 0 none */
    uint8_t *leases;
    size_t n_leased_chunks; /* that leases has room for */
    int64_t lease_until_ns;

    /* The hit that a lookup waits for: chunks first .. n - 1, all leased where they
     * were. */
    struct {
        bool on;
        bool grows;       /* a gallop goes on: n may become larger, windows are not known */
        size_t known;     /* chunks that the gallop had found when the hit was */
        size_t told;      /* chunks below were named to the workers, of full groups */
        size_t missing;   /* a chunk that is gone: the hit ends before; else SIZE_MAX */
        size_t first, n;
        uint64_t max_hit;
        size_t at;        /* chunk * n_groups + group: what is before may be promised */
        int64_t since_ns; /* it was found */
        int64_t until_ns; /* it is waited for; 0: nothing was asked yet */
        int64_t tell_ns;  /* from then kvt_engine_wanted() names what it lacks */
    } wait;
};

/* Searches of the tiers; a sequence makes them in this order, the last for a few hits, each
 * other at most once. */
enum kvt__probe_kind {
    KVT__PROBE_ALL = 1,     /* every object, in prefix order */
    KVT__PROBE_CERTAIN = 2, /* the same, in storage whose chunks are promised unread */
    KVT__PROBE_GALLOP = 4,  /* few objects of the first rank, in all storage */
    KVT__PROBE_WINDOWS = 8, /* none: the windows of one hit are expected */
};

/* A chunk range of a search: the sequence's chunks first .. end - 1. */
struct kvt__search {
    size_t first;
    size_t n;    /* the indexes have a hit of n chunks */
    size_t full; /* the indexes have full chunks of the full-attention groups */
    size_t end;  /* chunks of the longest possible hit */
};

/* Start the next search of the tiers that the sequence needs; the probe is the sequence's
 * until kvt__probe_leave().  0; -ENOENT: all searches were made; -ENOMEM with a sentence. */
int kvt__probe_start(struct kvt_seq *seq, const struct kvt__search *search);

/* Return true if the search goes on.  gallops: the search is a gallop; known: the number of
 * chunks that the gallop found so far. */
bool kvt__probe_runs(struct kvt__probe *probe, bool *gallops, size_t *known);

void kvt__probe_leave(struct kvt__probe *probe);

/* Whether all ranks have a chunk of a group there; with a lease if that is asked. */
bool kvt__seq_have(struct kvt_seq *seq, size_t chunk, uint32_t group,
                   enum kvt__where where, bool lease);

/* The number of the lease of a rank's part of a chunk. */
static inline size_t
kvt__seq_part(const struct kvt_seq *seq, size_t chunk, uint32_t rank, uint32_t group)
{
    const struct kvt_engine *e = seq->engine;

    return (chunk * e->world_size + rank) * e->n_groups + group;
}

/* Return the first chunk that a hit of the chunks first .. n - 1, which ends at most at token
 * max_hit, needs of a group. */
size_t kvt__needs_from(const struct kvt_engine *engine, uint64_t max_hit, uint32_t group,
                       size_t first, size_t n);

/* Return true if the sequence's search of the tiers has found more since the hit that is
 * waited for. */
bool kvt__wait_has_grown(struct kvt_seq *seq);

/* How many chunks of a hit of n have room in host memory together, where they must
 * lie there to be promised. */
size_t kvt__wait_room(struct kvt_seq *seq, size_t first, size_t n);

/* Wait for a hit that was just found. */
void kvt__wait_begin(struct kvt_seq *seq, size_t first, size_t n);

void kvt__wait_end(struct kvt_seq *seq);

enum kvt__wait {
    KVT__WAIT_OVER,  /* it may be promised */
    KVT__WAIT_ON,
    KVT__WAIT_LATE,  /* only what is certain may be promised */
    KVT__WAIT_STALE, /* a chunk has gone, or the leases soon end: look again */
};

/* What has become of it. */
enum kvt__wait kvt__wait_look(struct kvt_seq *seq);

/* Describe the partial chunk, if there is one, behind the whole ones.  0 or -ENOMEM
 * with a sentence. */
int kvt__seq_describe_tail(struct kvt_seq *seq);

/* Give back the leases of chunk number first and those behind it. */
void kvt__seq_unlease(struct kvt_seq *seq, size_t first);

/* Return the cached identity of a chunk for a rank and group, and the space; NULL: no
 * memory. */
const struct kvt__id *kvt__seq_id(struct kvt_seq *seq, size_t chunk, uint32_t rank,
                                  uint32_t group, const struct kvt__space **space);

#endif
