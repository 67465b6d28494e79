/* SPDX-License-Identifier: Apache-2.0
 *
 * A sequence: the tokens of a request, and the promise of its lookups.  One thread at a time uses
 * a sequence.  The requests of a search (struct kvt__probe) run on other threads and refer to the
 * search, never to the sequence. */
#ifndef KVT_ENGINE_SEQ_H
#define KVT_ENGINE_SEQ_H

#include "engine/private.h"

/* The identities of a sequence's first n chunks in one keyspace. */
struct kvt__seq_ids {
    struct kvt__id *ids;
    size_t n, max;
};

enum kvt__promise_state {
    /* No hit is known.  Ends with a lookup. */
    KVT__PROMISE_NONE,
    /* A search of the tiers is in progress, or the workers read the hit into host memory; lookups
     * return -EAGAIN.  HELD follows when all chunks are guaranteed, or, at the deadline, with the
     * guaranteed prefix of the hit. */
    KVT__PROMISE_FETCHING,
    /* The caller has the result, and all chunks of the hit are leased.  Ends with a release, at the
     * deadline, or with a lookup of another hit. */
    KVT__PROMISE_HELD,
};

/* The hit of the last lookup. */
struct kvt__promise {
    enum kvt__promise_state state;
    size_t first, n;     /* the chunks first .. n - 1 */
    uint64_t max_hit;    /* longest allowed hit, in tokens */
    size_t max_chunks;   /* chunks of the longest possible hit; a missing chunk lowers the number */
    int64_t begun_ns;    /* time of the first lookup that returned -EAGAIN: the search of the
                          * tiers ends lookup_timeout_ns later, FETCHING load_timeout_ns later;
                          * 0: no lookup waits for a result */
    int64_t deadline_ns; /* FETCHING: lookup_timeout_ns after the last chunk that arrived;
                          * HELD: half of the lease */

    /* [chunk][rank * n_groups + group]; level: 1 + the level, 0: no lease */
    struct kvt__lease *leases;
    size_t n_leased_chunks; /* capacity of leases, in chunks */
    int64_t lease_until_ns;

    /* FETCHING */
    bool is_searching; /* the hit is not final: a search of the tiers goes on */
    bool is_galloping; /* the search is a gallop: the chunks found so far are fetched, and the
                        * sliding windows are not known */
    size_t n_known;    /* chunks that the gallop had found when the hit was computed */
    size_t first_pending; /* chunk * n_groups + group of the first chunk that is not known to be
                           * guaranteed */
    size_t wanted_end; /* kvt_engine_wanted() has returned the chunks below wanted_end of
                        * full-attention groups */
    unsigned n_wanted_calls; /* calls of kvt_engine_wanted() that returned chunks of the hit since
                              * the last arrival of a chunk */

    struct kvt__probe *probe; /* the last search; NULL: none */
    uint32_t started_probes;  /* bits of enum kvt__probe_kind: started searches */
    uint32_t n_window_probes; /* started searches KVT__PROBE_WINDOWS */
    bool counted;             /* the counters of lookups include the sequence */
};

/* The tokens of a request. */
struct kvt_seq {
    struct kvt_engine *engine;
    char tags[KVT__KEY_TAGS_MAX + 1];
    struct kvt_mm_item *mm; /* the sequence's copy of the multimodal items */
    size_t n_mm;
    struct kvt__hash_chain hash;
    struct kvt__prefix prefix;
    struct kvt_chunk *chunks; /* n_chunks full chunks, then, if tail_known, the partial chunk */
    size_t n_chunks, max_chunks;
    struct kvt__seq_ids *ids; /* [rank * n_groups + group] */
    size_t n_ids;
    struct kvt__space *spaces; /* [rank * n_groups + group], with the tags; NULL: no tags */
    int32_t *tail; /* tokens of the partial chunk */
    size_t n_tail;
    bool tail_known; /* chunks[n_chunks] describes the partial chunk */
    bool lost_tokens; /* an append failed: the sequence accepts no more tokens */
    uint32_t flags; /* flags of the chunks */
    struct kvt__promise promise;
};

/* If the sequence has a partial chunk, describe the chunk in chunks[n_chunks].  0; -ENOMEM with a
 * sentence. */
int kvt__seq_describe_tail(struct kvt_seq *seq);

/* ------------------------------------------------------------------------ hit.c */

/* Return the token at which a hit of n chunks ends. */
uint64_t kvt__hit_end(const struct kvt_engine *engine, uint64_t max_hit, size_t n);

/* Return the first chunk of a group that a hit of the chunks first .. n - 1 needs: for a
 * sliding-window group the chunk with the oldest of the last window - 1 tokens. */
size_t kvt__first_needed_chunk(const struct kvt_engine *engine, uint64_t max_hit, uint32_t group,
                               size_t first, size_t n);

/* Return true if every rank has a group's chunk in `where`.  lease: also lease each found chunk,
 * and end an earlier lease of the chunk in another level. */
bool kvt__hit_has(struct kvt_seq *seq, size_t chunk, uint32_t group, enum kvt__where where,
                  bool lease);

/* Find the promise's longest hit of at most limit chunks of all full-attention groups, and
 * lease the chunks.  kvt__hit_begin_leases() has allocated the leases.  Return the number of
 * chunks. */
size_t kvt__hit_lease_longest(struct kvt_seq *seq, size_t limit, enum kvt__where where);

/* Return the number of chunks of the longest hit, at most n, whose sliding windows `where`
 * holds. */
size_t kvt__hit_fit_windows(struct kvt_seq *seq, size_t n, enum kvt__where where);

/* Lease the sliding windows of the promise's hit.  Return false if a chunk is missing. */
bool kvt__hit_lease_windows(struct kvt_seq *seq, enum kvt__where where);

/* End all leases, allocate memory for leases of n chunks, and set the end of new leases.  0;
 * -ENOMEM with a sentence. */
int kvt__hit_begin_leases(struct kvt_seq *seq, size_t n);

/* End the leases of chunk number `first` and of all later chunks. */
void kvt__hit_unlease(struct kvt_seq *seq, size_t first);

/* Return the number of parts of a chunk: one for each rank and group. */
static inline size_t
kvt__n_parts(const struct kvt_engine *e)
{
    return (size_t)e->world_size * e->n_groups;
}

/* Return the index in promise.leases of a part of a chunk. */
static inline size_t
kvt__hit_part(const struct kvt_engine *e, size_t chunk, uint32_t rank, uint32_t group)
{
    return chunk * kvt__n_parts(e) + rank * e->n_groups + group;
}

/* ---------------------------------------------------------------------- probe.c */

/* Kinds of searches of the tiers.  A sequence makes the searches in this order: each kind at most
 * once, KVT__PROBE_WINDOWS for a few hits. */
enum kvt__probe_kind {
    KVT__PROBE_ALL = 1,     /* every object, in prefix order */
    KVT__PROBE_GUARANTEED = 2, /* every object in storage of KVT__GUARANTEED, in prefix order */
    KVT__PROBE_GALLOP = 4,  /* few objects of the first rank, in all storage */
    KVT__PROBE_WINDOWS = 8, /* no object: enter the windows of a hit as unread */
};

/* Start the next search of the tiers for the promise's hit.  full: number of leading chunks of
 * full-attention groups in the indexes; end: chunks of the longest possible hit.  The call abandons
 * the last search, and promise.probe becomes the new search.  0; -ENOENT: no further search is
 * useful; -ENOMEM with a sentence. */
int kvt__probe_start(struct kvt_seq *seq, size_t full, size_t end);

/* Return true if the search is still in progress.  gallops: out, the search is a gallop; known:
 * out, number of chunks that the gallop has found. */
bool kvt__probe_is_running(struct kvt__probe *probe, bool *gallops, size_t *known);

/* Drop the sequence's reference of a search: the search starts no further request.  NULL is
 * allowed.  In a forked child the search is leaked: a thread of the parent may have held its
 * lock. */
void kvt__probe_abandon(struct kvt__probe *probe);

/* Return the space of a rank and group with the sequence's tags. */
static inline const struct kvt__space *
kvt__seq_space(const struct kvt_seq *seq, uint32_t rank, uint32_t group)
{
    return seq->spaces ? &seq->spaces[(size_t)rank * seq->engine->n_groups + group]
                       : &kvt__keyspace(seq->engine, rank, group)->space;
}

#endif
