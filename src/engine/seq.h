/* SPDX-License-Identifier: Apache-2.0
 *
 * A request's tokens, and the promise that the lookups make for them.  One thread at a time
 * uses a sequence.  The requests of a search run on other threads and refer to the search,
 * never to the sequence. */
#ifndef KVT_ENGINE_SEQ_H
#define KVT_ENGINE_SEQ_H

#include "engine/private.h"

/* The identities of a sequence's first n chunks in one keyspace. */
struct kvt__seq_ids {
    struct kvt__id *ids;
    size_t n, max;
};

enum kvt__promise_state {
    /* No hit is known.  Left by a lookup. */
    KVT__PROMISE_NONE,
    /* The tiers are searched, or the workers read the hit into host memory; lookups return
     * -EAGAIN.  Left for HELD when all chunks are guaranteed, and with the guaranteed ones at
     * the deadline. */
    KVT__PROMISE_FETCHING,
    /* The caller has the answer, and all chunks of the hit are leased.  Left by a release, at
     * the deadline, or by a lookup of another hit. */
    KVT__PROMISE_HELD,
};

/* The hit of the last lookup. */
struct kvt__promise {
    enum kvt__promise_state state;
    size_t first, n;     /* the chunks first .. n - 1 */
    uint64_t max_hit;    /* in tokens */
    size_t limit;        /* chunks of the longest possible hit: a missing chunk lowers it */
    int64_t begun_ns;    /* time of the first lookup without an answer: the search of the
                          * tiers ends lookup_timeout_ns later, FETCHING load_timeout_ns
                          * later; 0: all lookups have their answer */
    int64_t deadline_ns; /* FETCHING: lookup_timeout_ns after the last chunk that arrived;
                          * HELD: half of the lease */

    /* [chunk][rank * n_groups + group]; level: 1 + the level, 0: no lease */
    struct kvt__lease *leases;
    size_t n_leased_chunks; /* that leases has room for */
    int64_t lease_until_ns;

    /* FETCHING */
    bool searches;    /* the hit is not final: a search of the tiers goes on */
    bool grows;       /* the search is a gallop: the chunks found so far are fetched, and the
                       * sliding windows are not known */
    size_t known;     /* chunks that the gallop had found */
    size_t at;        /* chunk * n_groups + group: chunks before are guaranteed */
    size_t n_told;    /* the workers know the chunks below, of full-attention groups */
    unsigned n_named; /* how often kvt_engine_wanted() has named the hit's chunks since the
                       * last one arrived */

    struct kvt__probe *probe; /* the last search; NULL: none */
    uint32_t probes;          /* bits of enum kvt__probe_kind: searches begun */
    uint32_t n_windows;       /* hits whose windows were expected */
    bool counted;             /* in the counters of lookups */
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
    struct kvt__space *spaces; /* as ids, with the tags; NULL: no tags */
    int32_t *tail; /* tokens of the chunk that is not whole yet */
    size_t n_tail;
    bool tail_known;
    bool lost_tokens; /* an append failed: no more tokens */
    uint32_t flags; /* of its chunks */
    struct kvt__promise promise;
};

/* Describe the partial chunk, if there is one, behind the whole ones.  0 or -ENOMEM
 * with a sentence. */
int kvt__seq_describe_tail(struct kvt_seq *seq);

/* ------------------------------------------------------------------------ hit.c */

/* Return the token at which a hit of n chunks ends. */
uint64_t kvt__hit_end(const struct kvt_engine *engine, uint64_t max_hit, size_t n);

/* Return the first chunk of a group that a hit of the chunks first .. n - 1 needs: for a
 * sliding-window group the chunk with the oldest of the last window - 1 tokens. */
size_t kvt__needs_from(const struct kvt_engine *engine, uint64_t max_hit, uint32_t group,
                       size_t first, size_t n);

/* Return true if every rank has a group's chunk there.  lease: each rank's chunk found is
 * leased, in place of a lease elsewhere. */
bool kvt__hit_has(struct kvt_seq *seq, size_t chunk, uint32_t group, enum kvt__where where,
                  bool lease);

/* Find the promise's longest hit of at most limit chunks of all full-attention groups, and
 * lease the chunks.  Return the number of chunks. */
size_t kvt__hit_lease_longest(struct kvt_seq *seq, size_t limit, enum kvt__where where);

/* Return the longest hit of at most n chunks whose sliding windows the store has. */
size_t kvt__hit_fit_windows(struct kvt_seq *seq, size_t n, enum kvt__where where);

/* Lease the sliding windows of the promise's hit.  False: a chunk is missing. */
bool kvt__hit_lease_windows(struct kvt_seq *seq, enum kvt__where where);

/* End all leases, and make room for leases of n chunks.  0 or -ENOMEM with a sentence. */
int kvt__hit_begin_leases(struct kvt_seq *seq, size_t n);

/* End the leases of chunk number first and of those behind it. */
void kvt__hit_unlease(struct kvt_seq *seq, size_t first);

/* The parts of a chunk: one for each rank and group. */
static inline size_t
kvt__n_parts(const struct kvt_engine *e)
{
    return (size_t)e->world_size * e->n_groups;
}

/* The number of the lease of a rank's part of a chunk. */
static inline size_t
kvt__hit_part(const struct kvt_engine *e, size_t chunk, uint32_t rank, uint32_t group)
{
    return chunk * kvt__n_parts(e) + rank * e->n_groups + group;
}

/* ---------------------------------------------------------------------- probe.c */

/* Searches of the tiers; a sequence makes them in this order, the last for a few hits, each
 * other at most once. */
enum kvt__probe_kind {
    KVT__PROBE_ALL = 1,     /* every object, in prefix order */
    KVT__PROBE_CERTAIN = 2, /* the same, in storage whose chunks are promised unread */
    KVT__PROBE_GALLOP = 4,  /* few objects of the first rank, in all storage */
    KVT__PROBE_WINDOWS = 8, /* none: the windows of one hit are expected */
};

/* Start the next search of the tiers that the promise's hit needs.  full: the indexes have so
 * many chunks of the full-attention groups; end: chunks of the longest possible hit.  0;
 * -ENOENT: all searches were made; -ENOMEM with a sentence. */
int kvt__probe_start(struct kvt_seq *seq, size_t full, size_t end);

/* Return true if the search goes on.  gallops: the search is a gallop; known: the number of
 * chunks that the gallop found so far. */
bool kvt__probe_runs(struct kvt__probe *probe, bool *gallops, size_t *known);

/* Leave the search (NULL: none), which then starts no request.  In a forked child the search
 * stays: a thread of the parent may have held its lock. */
void kvt__probe_leave(struct kvt__probe *probe);

/* Return the space of a rank and group with the sequence's tags. */
static inline const struct kvt__space *
kvt__seq_space(const struct kvt_seq *seq, uint32_t rank, uint32_t group)
{
    return seq->spaces ? &seq->spaces[(size_t)rank * seq->engine->n_groups + group]
                       : &kvt__keyspace(seq->engine, rank, group)->space;
}

#endif
