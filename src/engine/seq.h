/* SPDX-License-Identifier: Apache-2.0
 *
 * A sequence: the tokens of a request, and the promise, the hit of the last lookup.  One thread at
 * a time uses a sequence.  The requests of a search (struct kvt__search) run on other threads and
 * refer to the search, never to the sequence.
 *
 * A chunk of a sequence has a part for each rank and group; a part is a chunk of the store. */
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
    size_t first, n;     /* the hit consists of the chunks first .. n - 1 */
    uint64_t have_tokens; /* leading tokens that the caller has computed */
    uint64_t max_hit;    /* longest allowed hit, in tokens */
    size_t max_chunks;   /* chunks of the longest possible hit; decreases when a chunk is missing */
    int64_t begun_ns;    /* monotonic time of the first lookup that returned -EAGAIN.  The search
                          * of the tiers ends lookup_timeout_ns later, FETCHING ends
                          * load_timeout_ns later.  0: no lookup waits for a result */
    int64_t deadline_ns; /* monotonic.  FETCHING: lookup_timeout_ns after the last arrival of a
                          * chunk; HELD: half of the lease, and earlier if a chunk's life ends */

    /* leases[kvt__lease_index()]; the field `level` is 1 + the level, or 0: no lease */
    struct kvt__lease *leases;
    size_t max_leased_chunks; /* capacity of leases, in chunks */
    int64_t lease_until_ns;
    int64_t expires_ns; /* wall clock.  First end of a leased chunk's life; INT64_MAX: no end */

    /* FETCHING */
    bool is_searching; /* the hit is not final: a search of the tiers is in progress */
    bool is_galloping; /* the search is a gallop.  The workers already read the found chunks; the
                        * chunks of the sliding windows are not known yet */
    size_t n_known;    /* chunks that the gallop had found when the hit was computed */
    size_t first_pending; /* chunk * n_groups + group: in this order, all earlier chunks of the hit
                           * are guaranteed and leased */
    size_t wanted_end; /* kvt_engine_wanted() has returned all chunks below wanted_end of the
                        * full-attention groups */
    unsigned n_wanted_calls; /* calls of kvt_engine_wanted() that returned chunks of the hit since
                              * the last arrival of a chunk */

    struct kvt__search *search; /* the last search; NULL: none */
    uint32_t started_searches;  /* kinds of the searches started since the last release: bits of
                                 * enum kvt__search_kind */
    uint32_t n_window_searches; /* number of started searches KVT__SEARCH_WINDOWS */

    /* load_policy: faster */
    uint64_t n_skipped;   /* stored tokens that the hit leaves out */
    bool is_stalled;      /* the hit is shorter because storage is stalled, not slow */
    struct kvt_chunk_range trial; /* chunks whose prefetch measures storage; n_chunks 0: none */

    bool counted;               /* the counters of lookups include the sequence */
};

/* The reads of a sequence's chunks from storage by the workers.  worth.lock guards the links. */
struct kvt__flight {
    bool is_on;
    int storage;          /* the slowest storage of the chunks */
    int64_t begun_ns;
    int64_t expected_ns;  /* expected duration */
    int64_t patience_ns;  /* expected time until the first chunks are read */
    struct kvt_seq *next, *previous;
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
    bool is_fixed;    /* made from chunks: the hash chains and `tail` are unused */
    bool lost_tokens; /* an append failed: the sequence accepts no more tokens */
    uint32_t flags; /* flags of the chunks */
    struct kvt__promise promise;
    struct kvt__flight flight;
};

/* If the sequence has a partial chunk, describe the chunk in chunks[n_chunks].  0; -ENOMEM with a
 * sentence. */
int kvt__seq_describe_tail(struct kvt_seq *seq);

/* ------------------------------------------------------------------------ hit.c */

/* Return the length in tokens of a hit of n chunks, at most max_hit. */
uint64_t kvt__hit_end(const struct kvt_engine *engine, uint64_t max_hit, size_t n);

/* Return the first chunk of a group that a hit of the chunks first .. n - 1 needs.  For a
 * sliding-window group, return the chunk that contains the first of the hit's last window_tokens
 * - 1 tokens; otherwise return `first`. */
size_t kvt__first_needed_chunk(const struct kvt_engine *engine, uint64_t max_hit, uint32_t group,
                               size_t first, size_t n);

/* Return true if `where` holds a group's chunk for every rank.  lease: also lease each found part,
 * and end an earlier lease of the part in another level. */
bool kvt__hit_has(struct kvt_seq *seq, size_t chunk, uint32_t group, enum kvt__where where,
                  bool lease);

/* Find the longest hit, from chunk promise.first to at most chunk `limit`, in all full-attention
 * groups, and lease the chunks.  Before, the caller calls kvt__hit_begin_leases().  Return the end
 * of the hit, a chunk number. */
size_t kvt__hit_lease_longest(struct kvt_seq *seq, size_t limit, enum kvt__where where);

/* Return the end of the longest hit, at most chunk n, for which `where` holds all chunks of sliding
 * windows. */
size_t kvt__hit_fit_windows(struct kvt_seq *seq, size_t n, enum kvt__where where);

/* Lease the chunks of sliding windows that the promise's hit needs.  Return false if a chunk is
 * missing. */
bool kvt__hit_lease_windows(struct kvt_seq *seq, enum kvt__where where);

/* End all leases, allocate memory for leases of n chunks, and set promise.lease_until_ns for new
 * leases.  0; -ENOMEM with a sentence. */
int kvt__hit_begin_leases(struct kvt_seq *seq, size_t n);

/* End the leases of chunk number `first` and of all later chunks. */
void kvt__hit_unlease(struct kvt_seq *seq, size_t first);

/* Return the number of keyspaces, and so of parts of a chunk. */
static inline size_t
kvt__n_keyspaces(const struct kvt_engine *e)
{
    return (size_t)e->world_size * e->n_groups;
}

/* Return the index in promise.leases of the part of a chunk. */
static inline size_t
kvt__lease_index(const struct kvt_engine *e, size_t chunk, uint32_t rank, uint32_t group)
{
    return chunk * kvt__n_keyspaces(e) + rank * e->n_groups + group;
}

/* --------------------------------------------------------------------- search.c */

/* The kinds of searches of the tiers for chunks that the indexes lack.  A sequence makes either
 * only KVT__SEARCH_ALL, or the other kinds in this order, KVT__SEARCH_WINDOWS at most four
 * times. */
enum kvt__search_kind {
    KVT__SEARCH_ALL = 1,        /* probe every object, in the order of the chunks */
    KVT__SEARCH_GUARANTEED = 2, /* as KVT__SEARCH_ALL, only in storage of KVT__GUARANTEED */
    KVT__SEARCH_GALLOP = 4,     /* probe few objects of the first rank, in all storage: of chunks
                                 * 1, 2, 4, ..., then halfway (glossary: gallop) */
    KVT__SEARCH_WINDOWS = 8,    /* probe no object: enter the chunks of sliding windows that a hit
                                 * needs as unread into the indexes */
};

/* Start the next search of the tiers, abandon the last search, and set promise.search.  full:
 * end of the hit that the indexes have in full-attention groups; end: end of the longest
 * possible hit.  Does not wait for the search.  0; -ENOENT: no further search is useful; -ENOMEM
 * with a sentence. */
int kvt__search_start(struct kvt_seq *seq, size_t full, size_t end);

/* Return true if the search is still in progress.  *gallops: the search is a gallop; *known: number
 * of chunks that the gallop has found, from the first chunk of the search on. */
bool kvt__search_is_running(struct kvt__search *search, bool *gallops, size_t *known);

/* Drop the sequence's reference of a search: the search starts no further request.  NULL is
 * allowed.  In a forked child the call does nothing and leaks the search, because a thread of the
 * parent may have held the lock of the search. */
void kvt__search_abandon(struct kvt__search *search);

/* Return the space of a rank and group with the sequence's tags. */
static inline const struct kvt__space *
kvt__seq_space(const struct kvt_seq *seq, uint32_t rank, uint32_t group)
{
    return seq->spaces ? &seq->spaces[(size_t)rank * seq->engine->n_groups + group]
                       : &kvt__keyspace(seq->engine, rank, group)->space;
}

#endif
