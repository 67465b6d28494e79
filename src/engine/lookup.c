/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups: how much of a request's prefix is promised.  They read the indexes
 * only; what those lack is asked of the tiers in the background, and the next call sees
 * what was entered there. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/private.h"

/* ---------------------------------------------------------------- one chunk */

static size_t
n_parts(const struct kvt_engine *e)
{
    return (size_t)e->world_size * e->n_groups;
}

/* Whether one rank has a chunk of a group there; with a lease if that is asked. */
static bool
rank_has(struct kvt_seq *seq, size_t chunk, uint32_t rank, uint32_t group,
         enum kvt__where where, bool lease)
{
    struct kvt_engine *e = seq->engine;
    const struct kvt__space *space;
    const struct kvt__id *id = kvt__seq_id(seq, chunk, rank, group, &space);
    bool own = seq->flags & KVT_CHUNK_OWN;

    if (!id)
        return false;
    if (!lease)
        return kvt__store_find(e->store, space, id, own, where);
    uint8_t *held = &seq->leases[kvt__seq_part(seq, chunk, rank, group)];
    int level = *held ? *held - 1 : kvt__store_lease(e->store, space, id, own, where,
                                                     seq->lease_until_ns);
    *held = (uint8_t)(level + 1);
    return level >= 0;
}

/* What all ranks have in common, storage has once. */
bool
kvt__seq_have(struct kvt_seq *seq, size_t chunk, uint32_t group, enum kvt__where where,
              bool lease)
{
    if (seq->engine->groups[group].replicated && where == KVT__ANYWHERE) {
        if (rank_has(seq, chunk, 0, group, KVT__IN_STORAGE, lease))
            return true;
        where = KVT__IN_MEMORY;
    }
    for (uint32_t rank = 0; rank < seq->engine->world_size; rank++)
        if (!rank_has(seq, chunk, rank, group, where, lease))
            return false;
    return true;
}

static bool
have_full_groups(struct kvt_seq *seq, size_t chunk, enum kvt__where where, bool lease)
{
    const struct kvt_engine *e = seq->engine;

    for (uint32_t g = 0; g < e->n_groups; g++)
        if (e->groups[g].kind == KVT_GROUP_FULL &&
            !kvt__seq_have(seq, chunk, g, where, lease))
            return false;
    return true;
}

/* ------------------------------------------------------------ sliding windows */

/* Return the token at which a hit of n chunks ends. */
static uint64_t
hit_end(const struct kvt_engine *e, uint64_t max_hit, size_t n)
{
    uint64_t end = (uint64_t)n * e->chunk_tokens;

    return end < max_hit ? end : max_hit;
}

/* Of a sliding group it is the one with the oldest of the last window - 1 tokens. */
size_t
kvt__needs_from(const struct kvt_engine *e, uint64_t max_hit, uint32_t g, size_t first,
                size_t n)
{
    const struct kvt__group *group = &e->groups[g];

    if (group->kind != KVT_GROUP_SLIDING)
        return first;
    uint64_t end = hit_end(e, max_hit, n), reach = group->window_tokens - 1;
    size_t start = end > reach ? (size_t)((end - reach) / e->chunk_tokens) : 0;

    return start > first ? start : first;
}

/* Whether every sliding group can continue after chunk n; missing: the last chunk
 * that one lacks. */
static bool
have_windows(struct kvt_seq *seq, size_t first, size_t n, enum kvt__where where,
             bool lease, size_t *missing)
{
    const struct kvt_engine *e = seq->engine;

    for (uint32_t g = 0; g < e->n_groups; g++) {
        if (e->groups[g].kind != KVT_GROUP_SLIDING)
            continue;
        size_t start = kvt__needs_from(e, seq->max_hit, g, first, n);
        for (size_t c = n; c > start; c--) {
            if (!kvt__seq_have(seq, c - 1, g, where, lease)) {
                *missing = c - 1;
                return false;
            }
        }
    }
    return true;
}

/* ------------------------------------------------------------------ the prefix */

/* Return the number of leading chunks that all full-attention groups have; at most
 * limit. */
static size_t
longest(struct kvt_seq *seq, size_t first, size_t limit, enum kvt__where where,
        bool lease)
{
    size_t n = first;

    while (n < limit && have_full_groups(seq, n, where, lease))
        n++;
    return n;
}

/* Return the longest hit of at most n chunks whose sliding windows the store has. */
static size_t
fit_windows(struct kvt_seq *seq, size_t first, size_t n, enum kvt__where where)
{
    size_t missing;

    while (n > first && !have_windows(seq, first, n, where, false, &missing))
        n = missing < n ? missing : n - 1; /* no hit between needs less */
    return n;
}

/* With full groups only, what is there is what a hit needs: it can be leased when it
 * is found. */
static bool
only_full_groups(const struct kvt_engine *e)
{
    for (uint32_t g = 0; g < e->n_groups; g++)
        if (e->groups[g].kind != KVT_GROUP_FULL)
            return false;
    return true;
}

void
kvt__seq_unlease(struct kvt_seq *seq, size_t first)
{
    struct kvt_engine *e = seq->engine;
    bool expired = kvt__now_ns() >= seq->lease_until_ns;

    for (size_t i = first * n_parts(e); i < seq->n_leased_chunks * n_parts(e); i++) {
        uint32_t part = (uint32_t)(i % n_parts(e));
        const struct kvt__space *space;

        if (!seq->leases[i])
            continue;
        const struct kvt__id *id = expired ? NULL :
            kvt__seq_id(seq, i / n_parts(e), part / e->n_groups, part % e->n_groups,
                        &space);
        if (id)
            kvt__store_unlease(e->store, seq->leases[i] - 1, space, id);
        seq->leases[i] = 0;
    }
}

void
kvt_engine_release(struct kvt_engine *engine, struct kvt_seq *seq)
{
    if (kvt__engine_check(engine, "kvt_engine_release"))
        return;
    kvt__seq_unlease(seq, 0);
    kvt__wait_end(seq);
}

/* From here chunks below n can be leased; none is.  0 or -ENOMEM. */
static int
begin_leases(struct kvt_seq *seq, size_t n)
{
    struct kvt_engine *e = seq->engine;

    kvt__seq_unlease(seq, 0);
    if (n > seq->n_leased_chunks) {
        free(seq->leases);
        seq->leases = calloc(n, n_parts(e));
        seq->n_leased_chunks = seq->leases ? n : 0;
        if (!seq->leases)
            return kvt__fail(ENOMEM, "kvt_engine_lookup");
    }
    seq->lease_until_ns = kvt__now_ns() + e->lease_ns;
    return 0;
}

/* Lease what a hit of n chunks needs, all of it or nothing.  False: something went
 * away meanwhile. */
static bool
lease(struct kvt_seq *seq, size_t first, size_t n, enum kvt__where where)
{
    size_t missing;
    bool all = true;

    for (size_t c = first; all && c < n; c++)
        all = have_full_groups(seq, c, where, true);
    if (all && have_windows(seq, first, n, where, true, &missing))
        return true;
    kvt__seq_unlease(seq, 0);
    return false;
}

/* ------------------------------------------------------------------- lookup */

/* The chunks that the longest hit would have.  With partial chunks its last one may
 * be the sequence's partial one, or reach beyond the hit's end. */
static size_t
most_chunks(const struct kvt_seq *seq)
{
    size_t chunk = seq->engine->chunk_tokens;
    size_t n = (size_t)(seq->max_hit / chunk);

    return seq->engine->partial_chunks && seq->max_hit % chunk ? n + 1 : n;
}

/* What the lookup found in the end: counted once a request. */
static void
count(struct kvt_seq *seq, uint64_t asked, uint64_t hit)
{
    if (seq->counted)
        return;
    seq->counted = true;
    kvt__count(&seq->engine->counters, KVT__N_lookup_tokens, asked);
    kvt__count(&seq->engine->counters, KVT__N_hit_tokens, hit);
}

/* Return true if a search of the tiers goes on and has time left. */
static bool
is_searching(struct kvt_seq *seq, bool *gallops)
{
    return seq->probe && kvt__probe_runs(seq->probe, gallops, &seq->wait.known) &&
           kvt__now_ns() < seq->probe_until_ns;
}

/* Search the tiers for chunks that the indexes lack.  -EAGAIN: the search goes on; 0: the
 * tiers have no further chunk. */
static int
search(struct kvt_seq *seq, const struct kvt__search *search)
{
    if (seq->probe_until_ns && kvt__now_ns() >= seq->probe_until_ns)
        return 0;
    int err = kvt__probe_start(seq, search);
    return err == -ENOENT ? 0 : err ? err : -EAGAIN;
}

/* The longest hit of at most limit chunks, leased; the tiers are asked for what is
 * nowhere.  While they are asked by a gallop, the chunks found so far without windows. */
static int
find(struct kvt_seq *seq, size_t first, size_t limit, enum kvt__where where, size_t *n)
{
    for (;;) {
        /* Asked before the index is read: a probe that ends now was not seen. */
        bool gallops = false, asks = where == KVT__ANYWHERE;
        bool searching = asks && is_searching(seq, &gallops);
        bool at_once = only_full_groups(seq->engine) && (gallops || !searching);
        int err = begin_leases(seq, limit);

        if (err)
            return err;
        size_t full = longest(seq, first, limit, where, at_once || (searching && gallops));
        seq->wait.grows = searching && gallops && full < limit;
        *n = full;
        if (seq->wait.grows)
            return 0;
        *n = fit_windows(seq, first, full, where);
        if (*n < limit && searching && !gallops)
            err = -EAGAIN;
        else if (*n < limit && asks)
            err = search(seq, &(struct kvt__search){ first, *n, full, limit });
        if (err || *n < full)
            kvt__seq_unlease(seq, err ? 0 : *n);
        if (err || at_once || lease(seq, first, *n, where))
            return err;
    }
}

/* Find what to wait for: a hit that host memory has room for. */
static int
begin_wait(struct kvt_seq *seq, size_t first, size_t limit)
{
    size_t n, room = limit;

    do {
        int err = find(seq, first, room, KVT__ANYWHERE, &n);
        if (err)
            return err;
        room = kvt__wait_room(seq, first, n);
    } while (room < n);
    kvt__wait_begin(seq, first, n);
    return 0;
}

/* The longest hit that may be promised, once that is known. */
static int
find_sure(struct kvt_seq *seq, size_t first, size_t limit, size_t *n)
{
    enum kvt__wait wait = KVT__WAIT_STALE;

    if (seq->wait.first != first || seq->wait.max_hit != seq->max_hit) {
        seq->wait.told = 0;
        seq->wait.missing = SIZE_MAX;
    }
    if (!seq->wait.until_ns)
        seq->wait.until_ns = kvt__now_ns() + seq->engine->load_timeout_ns;
    if (seq->wait.on && seq->wait.first == first && seq->wait.max_hit == seq->max_hit &&
        !kvt__wait_has_grown(seq))
        wait = kvt__wait_look(seq);
    while (wait == KVT__WAIT_STALE) {
        seq->wait.on = false; /* what the tiers are asked for now nobody brings yet */
        int err = begin_wait(seq, first,
                             seq->wait.missing < limit ? seq->wait.missing : limit);
        if (err)
            return err;
        wait = kvt__wait_look(seq);
    }
    if (wait == KVT__WAIT_ON)
        return -EAGAIN;
    *n = seq->wait.n;
    kvt__wait_end(seq);
    return wait == KVT__WAIT_LATE ? find(seq, first, *n, KVT__CERTAIN, n) : 0;
}

int
kvt_engine_lookup(struct kvt_engine *engine, struct kvt_seq *seq,
                  uint64_t have_tokens, uint64_t max_tokens, uint64_t *hit_tokens)
{
    int err = kvt__engine_check(engine, "kvt_engine_lookup");
    size_t n;

    *hit_tokens = 0;
    if (err)
        return err;
    seq->max_hit = kvt_seq_tokens(seq);
    if (seq->max_hit > max_tokens)
        seq->max_hit = max_tokens;
    size_t first = (size_t)(have_tokens / engine->chunk_tokens);
    size_t limit = seq->max_hit > have_tokens ? most_chunks(seq) : first;
    if (limit > seq->n_chunks) {
        err = kvt__seq_describe_tail(seq);
        if (err)
            return err;
    }
    kvt__store_look_who_lives(engine->store);
    kvt__store_look_after_indexes(engine->store);
    err = engine->waits ? find_sure(seq, first, limit, &n)
                        : find(seq, first, limit, KVT__ANYWHERE, &n);
    if (err)
        return err;
    uint64_t hit = hit_end(engine, seq->max_hit, n);
    if (hit <= have_tokens)
        hit = 0;
    count(seq, seq->max_hit > have_tokens ? seq->max_hit - have_tokens : 0,
          hit ? hit - have_tokens : 0);
    *hit_tokens = hit;
    return 0;
}

/* Return true if the hit's chunk is leased, and in host memory only. */
static bool
is_in_memory(const struct kvt_seq *seq, size_t chunk)
{
    size_t n = n_parts(seq->engine);
    bool leased = false;

    if (chunk >= seq->n_leased_chunks || !kvt__store_has_memory(seq->engine->store))
        return false;
    for (size_t i = chunk * n; i < (chunk + 1) * n; i++) {
        if (seq->leases[i] > 1) /* host memory is level 0 */
            return false;
        leased = leased || seq->leases[i];
    }
    return leased;
}

void
kvt_seq_in_memory(const struct kvt_seq *seq, size_t first, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = is_in_memory(seq, first + i);
}
