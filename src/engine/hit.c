/* SPDX-License-Identifier: Apache-2.0
 *
 * The chunks of a hit: identities, lookups in the indexes, and leases. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/seq.h"

/* ---------------------------------------------------------------- identities */

/* Compute the identities up to `chunk`, in batches, because hashing several identities together is
 * faster.  0; -ENOMEM. */
static int
make_ids(const struct kvt_seq *seq, const struct kvt__keyspace *k,
         struct kvt__seq_ids *ids, size_t chunk)
{
    enum { BATCH = 64 };
    struct kvt__prefix prefixes[BATCH];
    size_t n_known = seq->n_chunks + (seq->tail_known ? 1 : 0);

    if (ids->max < n_known) {
        struct kvt__id *grown = realloc(ids->ids, n_known * sizeof *grown);

        if (!grown)
            return -ENOMEM;
        ids->ids = grown;
        ids->max = n_known;
    }
    while (ids->n <= chunk) {
        assert(chunk < n_known);
        size_t left = n_known - ids->n, n = left < BATCH ? left : BATCH;

        for (size_t i = 0; i < n; i++)
            memcpy(prefixes[i].b, seq->chunks[ids->n + i].prefix, sizeof prefixes[i].b);
        kvt__id_make_n(k->digest, prefixes, n, ids->ids + ids->n);
        ids->n += n;
    }
    return 0;
}

static void
fill_key(const struct kvt_seq *seq, const struct kvt__seq_ids *ids,
         const struct kvt__space *space, size_t chunk, struct kvt__chunk_key *key)
{
    key->space = space;
    key->hash = kvt__chunk_hash(seq->engine, &seq->chunks[chunk]);
    key->id = ids->ids[chunk];
    if (kvt__store_traits(seq->engine->store)->is_lossy)
        kvt__id_toggle_lossy(&key->id);
    key->needs_id = seq->flags & KVT_CHUNK_OWN;
}

/* Prefetch the index words of the next chunks together: an index is larger than the CPU's
 * caches. */
static void
prefetch(const struct kvt_seq *seq, const struct kvt__seq_ids *ids,
         const struct kvt__space *space, size_t chunk)
{
    struct kvt__chunk_key keys[KVT__STORE_PREFETCHED];
    size_t n = ids->n - chunk < KVT__STORE_PREFETCHED ? ids->n - chunk
                                                      : KVT__STORE_PREFETCHED;

    for (size_t i = 0; i < n; i++)
        fill_key(seq, ids, space, chunk + i, &keys[i]);
    kvt__store_prefetch(seq->engine->store, keys, n);
}

/* Fill in the key of a chunk for a rank and group.  Return false without memory. */
static bool
seq_key(struct kvt_seq *seq, size_t chunk, uint32_t rank, uint32_t group,
        struct kvt__chunk_key *key)
{
    const struct kvt_engine *e = seq->engine;
    const struct kvt__keyspace *k = kvt__keyspace(e, rank, group);
    const struct kvt__space *space = kvt__seq_space(seq, rank, group);
    /* The ranks of a stage have equal identities of a replicated group's chunk. */
    uint32_t first = e->groups[group].replicated ? kvt__first_of_stage(e, rank) : rank;
    struct kvt__seq_ids *ids = &seq->ids[(size_t)first * e->n_groups + group];

    if (make_ids(seq, k, ids, chunk))
        return false;
    if (chunk % KVT__STORE_PREFETCHED == 0)
        prefetch(seq, ids, space, chunk);
    fill_key(seq, ids, space, chunk, key);
    return true;
}

/* ------------------------------------------------------------------ one chunk */

/* Lease a rank's part of a chunk in `where`.  *held: in and out, the part's lease.  A lease in
 * another level, or of a deleted entry, is replaced: a corrupt chunk is deleted despite a lease. */
static bool
lease_part(struct kvt_seq *seq, struct kvt__lease *held, const struct kvt__chunk_key *key,
           enum kvt__where where)
{
    struct kvt__store *store = seq->engine->store;
    struct kvt__promise *p = &seq->promise;

    assert(p->state == KVT__PROMISE_FETCHING && p->lease_until_ns);
    if (held->level && kvt__store_covers(store, where, held->level - 1, key->space) &&
        kvt__store_has_lease(store, key, held))
        return true;
    struct kvt__lease old = *held;
    if (kvt__store_lease(store, key, where, p->lease_until_ns, held, &p->expires_ns) < 0)
        return false;
    if (old.level && kvt__now_ns() < p->lease_until_ns)
        kvt__store_unlease(store, key->space, &old);
    return true;
}

/* Return true if a rank has the chunk in `where`; with lease, also lease the chunk. */
static bool
rank_has(struct kvt_seq *seq, size_t chunk, uint32_t rank, uint32_t group,
         enum kvt__where where, bool lease)
{
    struct kvt_engine *e = seq->engine;
    struct kvt__chunk_key key;

    if (!seq_key(seq, chunk, rank, group, &key))
        return false;
    if (!lease)
        return kvt__store_find(e->store, &key, where);
    return lease_part(seq, &seq->promise.leases[kvt__lease_index(e, chunk, rank, group)], &key,
                      where);
}

bool
kvt__hit_has(struct kvt_seq *seq, size_t chunk, uint32_t group, enum kvt__where where,
             bool lease)
{
    const struct kvt_engine *e = seq->engine;
    bool shares = e->groups[group].replicated && where == KVT__ANYWHERE;

    for (uint32_t rank = e->first_rank, n = e->world_size / e->n_stages; rank < e->end_rank;
         rank++) {
        /* In storage, the ranks of a stage share the object of a replicated group's chunk. */
        if (shares && (rank % n == 0 || rank == e->first_rank) &&
            rank_has(seq, chunk, rank, group, KVT__IN_STORAGE, lease))
            rank += n - 1 - rank % n;
        else if (!rank_has(seq, chunk, rank, group, shares ? KVT__IN_MEMORY : where, lease))
            return false;
    }
    return true;
}

/* Lease the chunks of all full-attention groups.  Return false if a chunk is missing. */
static bool
lease_full_groups(struct kvt_seq *seq, size_t chunk, enum kvt__where where)
{
    const struct kvt_engine *e = seq->engine;

    for (uint32_t g = 0; g < e->n_groups; g++)
        if (e->groups[g].kind == KVT_GROUP_FULL && !kvt__hit_has(seq, chunk, g, where, true))
            return false;
    return true;
}

/* ------------------------------------------------------------------ the prefix */

uint64_t
kvt__hit_end(const struct kvt_engine *e, uint64_t max_hit, size_t n)
{
    uint64_t end = (uint64_t)n * e->chunk_tokens;

    return end < max_hit ? end : max_hit;
}

size_t
kvt__first_needed_chunk(const struct kvt_engine *e, uint64_t max_hit, uint32_t g,
                        size_t first, size_t n)
{
    const struct kvt__group *group = &e->groups[g];

    if (group->kind != KVT_GROUP_SLIDING)
        return first;
    uint64_t end = kvt__hit_end(e, max_hit, n), reach = group->window_tokens - 1;
    size_t start = end > reach ? (size_t)((end - reach) / e->chunk_tokens) : 0;

    return start > first ? start : first;
}

size_t
kvt__hit_lease_longest(struct kvt_seq *seq, size_t limit, enum kvt__where where)
{
    size_t n = seq->promise.first;

    assert(n <= limit && limit <= seq->promise.max_leased_chunks);
    while (n < limit && lease_full_groups(seq, n, where))
        n++;
    return n;
}

/* Return true if `where` holds the windows of all sliding-window groups for a hit of n chunks.
 * *missing: the last missing chunk of a group. */
static bool
has_windows(struct kvt_seq *seq, size_t n, enum kvt__where where, bool lease, size_t *missing)
{
    const struct kvt_engine *e = seq->engine;
    const struct kvt__promise *p = &seq->promise;

    for (uint32_t g = 0; g < e->n_groups; g++) {
        if (e->groups[g].kind != KVT_GROUP_SLIDING)
            continue;
        size_t start = kvt__first_needed_chunk(e, p->max_hit, g, p->first, n);
        for (size_t c = n; c > start; c--) {
            if (!kvt__hit_has(seq, c - 1, g, where, lease)) {
                *missing = c - 1;
                return false;
            }
        }
    }
    return true;
}

size_t
kvt__hit_fit_windows(struct kvt_seq *seq, size_t n, enum kvt__where where)
{
    size_t missing = n;

    while (n > seq->promise.first && !has_windows(seq, n, where, false, &missing)) {
        assert(missing >= seq->promise.first && missing < n);
        n = missing; /* each hit of missing + 1 .. n chunks needs the missing chunk */
    }
    return n;
}

/* ---------------------------------------------------------------------- leases */

bool
kvt__hit_lease_windows(struct kvt_seq *seq, enum kvt__where where)
{
    size_t missing;

    return has_windows(seq, seq->promise.n, where, true, &missing);
}

int
kvt__hit_begin_leases(struct kvt_seq *seq, size_t n)
{
    struct kvt_engine *e = seq->engine;
    struct kvt__promise *p = &seq->promise;

    kvt__hit_unlease(seq, 0);
    if (n > p->max_leased_chunks) {
        free(p->leases);
        p->leases = calloc(n, kvt__n_keyspaces(e) * sizeof *p->leases);
        p->max_leased_chunks = p->leases ? n : 0;
        if (!p->leases)
            return kvt__fail(ENOMEM, "kvt_engine_lookup");
    }
    /* If chunks are read first, the caller gets the hit at most load_timeout_ns later. */
    p->lease_until_ns = kvt__now_ns() + e->lease_ns + (e->lookups_wait ? e->load_timeout_ns : 0);
    p->expires_ns = INT64_MAX;
    return 0;
}

void
kvt__hit_unlease(struct kvt_seq *seq, size_t first)
{
    struct kvt_engine *e = seq->engine;
    struct kvt__promise *p = &seq->promise;
    bool expired = kvt__now_ns() >= p->lease_until_ns;

    for (size_t i = first * kvt__n_keyspaces(e), end = p->max_leased_chunks * kvt__n_keyspaces(e);
         i < end; i++) {
        uint32_t part = (uint32_t)(i % kvt__n_keyspaces(e));

        if (p->leases[i].level && !expired)
            kvt__store_unlease(e->store,
                               kvt__seq_space(seq, part / e->n_groups, part % e->n_groups),
                               &p->leases[i]);
        p->leases[i] = (struct kvt__lease){ 0 };
    }
}
