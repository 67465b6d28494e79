/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups: the promise of a sequence.  A lookup reads only the indexes.  Executor threads search
 * the tiers for chunks that the indexes lack, and workers read chunks into host memory that are not
 * guaranteed yet; meanwhile the caller repeats the lookup.
 *
 *      NONE ──► FETCHING ──► HELD ──► NONE
 *
 * A chunk in storage that other hosts delete from is promised only after host memory holds the
 * verified chunk.  With enable_async_loading, workers also read chunks from storage of this host,
 * for at most lookup_timeout_ms after the first lookup.  The leases move to host memory as the
 * chunks arrive. */
#include <assert.h>
#include <errno.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/worth.h"

/* ---------------------------------------------------------------- finding a hit */

/* Return true if the time for a search of the tiers, lookup_timeout_ns, is not over. */
static bool
may_search(const struct kvt_seq *seq)
{
    return kvt__now_ns() < seq->promise.begun_ns + seq->engine->lookup_timeout_ns;
}

/* Return true if a search is in progress and its time is not over.  Outputs as
 * kvt__search_is_running(). */
static bool
is_searching(const struct kvt_seq *seq, bool *gallops, size_t *known)
{
    return seq->promise.search && kvt__search_is_running(seq->promise.search, gallops, known) &&
           may_search(seq);
}

/* Return true if the search has found more chunks, or has ended, since the last find(). */
static bool
has_progressed(const struct kvt_seq *seq)
{
    bool gallops;
    size_t known;

    return seq->promise.is_searching && (!is_searching(seq, &gallops, &known) ||
                                         (gallops && known != seq->promise.n_known));
}

/* Search the tiers for chunks that the indexes lack.  -EAGAIN: the search is in progress; 0: no
 * further search is useful, or the time is over; -ENOMEM with a sentence. */
static int
search(struct kvt_seq *seq, size_t full, size_t limit)
{
    int err = may_search(seq) ? kvt__search_start(seq, full, limit) : -ENOENT;

    seq->promise.n_known = SIZE_MAX;
    return err == -ENOENT ? 0 : err ? err : -EAGAIN;
}

/* Find and lease the longest hit of at most limit chunks in `where`.  With KVT__ANYWHERE, search
 * the tiers for a longer hit.  0; -EAGAIN: a search is in progress, and the hit is not known;
 * -ENOMEM with a sentence. */
static int
find(struct kvt_seq *seq, size_t limit, enum kvt__where where)
{
    struct kvt__promise *p = &seq->promise;
    bool searches_tiers = where == KVT__ANYWHERE;

    for (;;) {
        /* Read the state of the search before the indexes: if the search ends in between, the
         * next lookup notices the end. */
        bool gallops = false;
        bool searching = searches_tiers && is_searching(seq, &gallops, &p->n_known);
        int err = kvt__hit_begin_leases(seq, limit);

        if (err)
            return err;
        size_t full = kvt__hit_lease_longest(seq, limit, where);
        p->n = full;
        p->is_searching = p->is_galloping = searching && gallops && full < limit;
        if (p->is_galloping)
            return 0;
        if (searching && gallops) { /* no chunk that the gallop finds extends the hit */
            kvt__search_abandon(p->search);
            p->search = NULL;
        }
        p->n = kvt__hit_fit_windows(seq, full, where);
        if (p->n < limit && searches_tiers)
            err = searching && !gallops ? -EAGAIN : search(seq, full, limit);
        p->is_searching = err == -EAGAIN;
        if (err || p->n < full)
            kvt__hit_unlease(seq, err ? 0 : p->n);
        if (err || kvt__hit_lease_windows(seq, where))
            return err;
    }
}

/* --------------------------------------------------------------------- fetching */

/* Return the first chunk of a group that the hit needs; p->n: the hit needs no chunk.  While a
 * gallop extends the hit, the sliding windows are not known, and the hit needs none of their
 * chunks. */
static size_t
first_needed_chunk(const struct kvt_seq *seq, uint32_t group)
{
    const struct kvt__promise *p = &seq->promise;

    if (p->is_galloping && seq->engine->groups[group].kind != KVT_GROUP_FULL)
        return p->n;
    return kvt__first_needed_chunk(seq->engine, p->max_hit, group, p->first, p->n);
}

/* Return the levels that must hold a chunk of the promise. */
static enum kvt__where
guaranteed_where(const struct kvt_seq *seq)
{
    return seq->engine->reads_ahead && may_search(seq) ? KVT__IN_MEMORY : KVT__GUARANTEED;
}

/* Return the number of leading chunks of the hit that fit in host memory together.  A chunk that is
 * guaranteed in storage needs no host memory. */
static size_t
n_with_room(struct kvt_seq *seq)
{
    const struct kvt_engine *e = seq->engine;
    const struct kvt__promise *p = &seq->promise;
    size_t phase = kvt__store_traits(e->store)->phase, left = e->memory_bytes;

    for (size_t c = p->first; c < p->n; c++) {
        for (uint32_t g = 0; g < e->n_groups; g++) {
            const struct kvt__space *space = &kvt__keyspace(e, e->first_rank, g)->space;
            int level = p->leases[kvt__lease_index(e, c, e->first_rank, g)].level - 1;

            if (c < first_needed_chunk(seq, g) || level < 0 ||
                (level != KVT__LEVEL_MEMORY &&
                 kvt__store_covers(e->store, KVT__GUARANTEED, level, space)))
                continue;
            uint64_t part = kvt__largest_part(e, g, seq->chunks[c].n_tokens);
            size_t bytes = kvt__slot_footprint(phase, part);
            if (bytes > left)
                return c;
            left -= bytes;
        }
    }
    return p->n;
}

/* Find the hit to fetch, at most as long as host memory allows and as the load is worth its time.
 * Results as find(). */
static int
begin(struct kvt_seq *seq)
{
    const struct kvt_engine *e = seq->engine;
    struct kvt__promise *p = &seq->promise;
    size_t room = p->max_chunks;

    p->state = KVT__PROMISE_FETCHING;
    p->n_skipped = 0;
    p->is_stalled = false;
    do {
        int err = find(seq, room, KVT__ANYWHERE);
        if (err)
            return err;
        size_t worth = kvt__n_worth(seq);

        room = e->lookups_wait ? n_with_room(seq) : p->n;
        room = worth < room ? worth : room;
    } while (room < p->n);
    p->first_pending = p->first * e->n_groups;
    p->n_wanted_calls = 0;
    p->deadline_ns = kvt__now_ns() + e->lookup_timeout_ns;
    return 0;
}

/* Lease chunks of the hit from p->first_pending on in guaranteed_where().  Return false at the
 * first chunk that is not guaranteed. */
static bool
advance(struct kvt_seq *seq, int64_t now_ns)
{
    struct kvt_engine *e = seq->engine;
    struct kvt__promise *p = &seq->promise;
    enum kvt__where where = guaranteed_where(seq);
    size_t at = p->first_pending, end = p->n * e->n_groups;

    assert(p->first * e->n_groups <= at && at <= end && p->max_leased_chunks >= p->n);
    for (; at < end; at++) {
        size_t chunk = at / e->n_groups;
        uint32_t group = (uint32_t)(at % e->n_groups);

        if (chunk >= first_needed_chunk(seq, group) &&
            !kvt__hit_has(seq, chunk, group, where, true))
            break;
    }
    if (at != p->first_pending && p->n_wanted_calls) { /* workers have read the chunks before at */
        atomic_store(&e->last_arrival_ns, now_ns);
        p->deadline_ns = now_ns + e->lookup_timeout_ns;
        p->n_wanted_calls = 1;
    }
    p->first_pending = at;
    return at == end;
}

/* If the chunk at p->first_pending is missing in all levels, return true and end the hit before the
 * chunk; but if no search of the tiers was made for the chunk, the caller's next find() starts a
 * search. */
static bool
cut_at_missing(struct kvt_seq *seq)
{
    struct kvt__promise *p = &seq->promise;
    size_t chunk = p->first_pending / seq->engine->n_groups;
    uint32_t group = (uint32_t)(p->first_pending % seq->engine->n_groups);

    assert(chunk >= first_needed_chunk(seq, group) && chunk < p->n);
    if (kvt__hit_has(seq, chunk, group, KVT__ANYWHERE, false))
        return false;
    if (!(p->started_searches & (KVT__SEARCH_ALL | KVT__SEARCH_GALLOP)) &&
        seq->engine->groups[group].kind == KVT_GROUP_FULL)
        p->wanted_end = chunk; /* kvt_engine_wanted() returns the chunk again if a tier has it */
    else
        p->max_chunks = chunk;
    return true;
}

/* Return true if the time of FETCHING is over.  An arrival of a chunk for another request extends
 * the time: storage responds, and host memory has room. */
static bool
is_late(const struct kvt_seq *seq, int64_t now_ns)
{
    const struct kvt_engine *e = seq->engine;
    const struct kvt__promise *p = &seq->promise;

    return now_ns >= p->begun_ns + e->load_timeout_ns ||
           (now_ns >= p->deadline_ns &&
            now_ns - atomic_load(&e->last_arrival_ns) >= e->lookup_timeout_ns);
}

/* Fill in the range of a group's chunks, from chunk `from` on, that are not guaranteed.  Return
 * false if all are guaranteed. */
static bool
find_wanted(struct kvt_seq *seq, uint32_t group, size_t from, struct kvt_chunk_range *out)
{
    size_t first = SIZE_MAX, end = 0, at = seq->promise.first_pending / seq->engine->n_groups;
    enum kvt__where where = guaranteed_where(seq);

    for (size_t c = at > from ? at : from; c < seq->promise.n; c++) {
        if (c < first_needed_chunk(seq, group) || kvt__hit_has(seq, c, group, where, false))
            continue;
        first = first < c ? first : c;
        end = c + 1;
    }
    if (first >= end)
        return false;
    *out = (struct kvt_chunk_range){ .group = group, .first_chunk = first,
                                     .n_chunks = (uint32_t)(end - first) };
    return true;
}

size_t
kvt_engine_wanted(struct kvt_engine *engine, struct kvt_seq *seq,
                  struct kvt_chunk_range *out)
{
    struct kvt__promise *p = &seq->promise;
    size_t n = 0;

    if (kvt__engine_check(engine, "kvt_engine_wanted"))
        return 0;
    if (p->state != KVT__PROMISE_FETCHING && p->trial.n_chunks) {
        *out = p->trial;
        p->trial.n_chunks = 0;
        return 1;
    }
    if (p->state != KVT__PROMISE_FETCHING || (p->is_searching && !p->is_galloping) ||
        kvt__now_ns() < p->deadline_ns - engine->lookup_timeout_ns +
                            p->n_wanted_calls * kvt__arrival_grace_ns(engine))
        return 0;
    for (uint32_t g = 0; g < engine->n_groups; g++) {
        /* If the gallop has extended the hit, earlier calls have returned the chunks below
         * wanted_end. */
        bool known = !p->n_wanted_calls && engine->groups[g].kind == KVT_GROUP_FULL;

        n += find_wanted(seq, g, known ? p->wanted_end : 0, &out[n]);
    }
    if (p->wanted_end < p->n)
        p->wanted_end = p->n;
    p->n_wanted_calls++;
    if (n)
        kvt__flight_begin(seq);
    return n;
}

/* If the engine is also the worker, prefetch the chunks that kvt_engine_wanted() returns. */
static void
read_ahead(struct kvt_seq *seq)
{
    struct kvt_engine *e = seq->engine;
    struct kvt_chunk_range ranges[KVT__MAX_GROUPS];
    struct kvt_group_io ios[KVT__MAX_GROUPS];
    size_t n = e->pool ? kvt_engine_wanted(e, seq, ranges) : 0;

    for (size_t i = 0; i < n; i++)
        ios[i] = (struct kvt_group_io){ .group = ranges[i].group, .tags = seq->tags,
                                        .chunks = seq->chunks + ranges[i].first_chunk,
                                        .n_chunks = ranges[i].n_chunks };
    if (n && kvt__prefetch(e, ios, n))
        KVT__LOG_ONCE(KVT_LOG_WARN, "the chunks of a hit are not read ahead: %s", kvt__why());
}

/* Return true if the first rank's parts of all chunks that the hit needs are leased. */
static bool
is_leased(const struct kvt_seq *seq)
{
    const struct kvt_engine *e = seq->engine;
    const struct kvt__promise *p = &seq->promise;

    for (uint32_t g = 0; g < e->n_groups; g++)
        for (size_t c = first_needed_chunk(seq, g); c < p->n; c++)
            if (!p->leases[kvt__lease_index(e, c, e->first_rank, g)].level)
                return false;
    return true;
}

/* Return the time for which lookups may repeat the hit: half of the lease, or less, because a load
 * needs KVT__STORE_LOAD_NS before the first end of a chunk's life. */
static int64_t
time_of_hit(const struct kvt_seq *seq)
{
    int64_t half = seq->engine->lease_ns / 2, end = seq->promise.expires_ns - KVT__STORE_LOAD_NS;
    int64_t now = kvt__wall_ns();

    return end < now + half ? end - now : half;
}

/* Hold the hit.  A hit without chunks is not held, so the next lookup begins again.  With late,
 * also hold a hit without chunks: the next lookups must not wait again. */
static int
hold(struct kvt_seq *seq, bool late)
{
    struct kvt__promise *p = &seq->promise;

    assert(p->state == KVT__PROMISE_FETCHING && !p->is_galloping);
    assert(p->first <= p->n && p->n <= p->max_chunks && is_leased(seq));
    kvt__flight_end(seq);
    p->state = late || p->n > p->first ? KVT__PROMISE_HELD : KVT__PROMISE_NONE;
    p->deadline_ns = kvt__now_ns() + time_of_hit(seq);
    p->begun_ns = 0;
    return 0;
}

/* Return true if the leases, and the life of each leased chunk, last long enough for a hit that the
 * caller gets now. */
static bool
lasts(const struct kvt_seq *seq, int64_t now_ns)
{
    const struct kvt__promise *p = &seq->promise;

    return now_ns <= p->lease_until_ns - seq->engine->lease_ns &&
           p->expires_ns >= kvt__wall_ns() + KVT__STORE_LOAD_NS;
}

/* Continue until the promise's hit is final, guaranteed and leased.  0; -EAGAIN: a search or the
 * workers are not done; -ENOMEM with a sentence. */
static int
fetch(struct kvt_seq *seq)
{
    struct kvt__promise *p = &seq->promise;
    bool stale = p->state == KVT__PROMISE_NONE || has_progressed(seq);

    for (;; stale = true) {
        int err = stale ? begin(seq) : 0;
        if (err)
            return err;
        assert(p->state == KVT__PROMISE_FETCHING && p->begun_ns);
        assert(!p->is_galloping || p->is_searching);
        if (p->is_searching && !p->is_galloping)
            return -EAGAIN;
        int64_t now = kvt__now_ns();
        bool all = !seq->engine->lookups_wait || advance(seq, now);
        /* If the caller repeated the lookup late, or the reads took long: find and lease again. */
        if (all && (stale || lasts(seq, now)))
            return p->is_galloping ? -EAGAIN : hold(seq, false);
        if (all || cut_at_missing(seq))
            continue;
        if (is_late(seq, now)) {
            err = find(seq, p->n, KVT__GUARANTEED);
            return err ? err : hold(seq, true);
        }
        read_ahead(seq);
        return -EAGAIN;
    }
}

/* ------------------------------------------------------------------- the promise */

/* Return true if the promise, or the hit in FETCHING, answers a lookup with these arguments. */
static bool
answers(const struct kvt__promise *p, size_t first, uint64_t max_hit)
{
    if (p->state == KVT__PROMISE_HELD)
        return max_hit == p->max_hit && first >= p->first && kvt__now_ns() < p->deadline_ns;
    return p->state == KVT__PROMISE_FETCHING && max_hit == p->max_hit && first == p->first;
}

/* Begin a new promise.  begun_ns keeps the time of the first lookup that has no result. */
static void
restart(struct kvt_seq *seq, size_t first, uint64_t have_tokens, uint64_t max_hit)
{
    const struct kvt_engine *e = seq->engine;
    struct kvt__promise *p = &seq->promise;
    /* The last chunk may be the sequence's partial chunk, or may extend beyond max_hit. */
    uint64_t last = e->partial_chunks ? e->chunk_tokens - 1 : 0;

    kvt__flight_end(seq);
    if (!p->begun_ns)
        p->begun_ns = kvt__now_ns();
    assert(first * (uint64_t)e->chunk_tokens <= have_tokens && have_tokens <= max_hit);
    p->state = KVT__PROMISE_NONE;
    p->first = first;
    p->have_tokens = have_tokens;
    p->max_hit = max_hit;
    p->n_skipped = 0;
    p->trial.n_chunks = 0;
    p->max_chunks = max_hit > have_tokens ? (max_hit + last) / e->chunk_tokens : first;
    p->wanted_end = 0;
}

/* Count the result of the lookups, once for each sequence.  The scheduler that asks the workers
 * counts the lookups of the workers, which do not know the hit. */
static void
count(struct kvt_seq *seq, uint64_t asked, uint64_t hit)
{
    struct kvt__counters *counters = &seq->engine->counters;

    if (!seq->promise.counted && seq->engine->role & KVT_ROLE_SCHEDULER) {
        kvt__count(counters, KVT__N_lookup_tokens, asked);
        kvt__count(counters, KVT__N_hit_tokens, hit);
        kvt__count(counters, seq->promise.is_stalled ? KVT__N_skipped_tokens_stalled
                                                     : KVT__N_skipped_tokens_slower,
                   kvt_seq_skipped_tokens(seq));
    }
    seq->promise.counted = true;
}

/* Make the promise.  0; -EAGAIN: call again; -ENOMEM with a sentence. */
static int
make_promise(struct kvt_seq *seq)
{
    int err = seq->promise.max_chunks > seq->n_chunks ? kvt__seq_describe_tail(seq) : 0;

    if (err)
        return err;
    assert(seq->promise.max_chunks <= seq->n_chunks + seq->tail_known);
    kvt__store_refresh_liveness(seq->engine->store);
    kvt__store_renew_indexes(seq->engine->store);
    err = fetch(seq);
    if (err && err != -EAGAIN)
        seq->promise.state = KVT__PROMISE_NONE;
    return err;
}

int
kvt_engine_lookup(struct kvt_engine *engine, struct kvt_seq *seq,
                  uint64_t have_tokens, uint64_t max_tokens, uint64_t *hit_tokens)
{
    struct kvt__promise *p = &seq->promise;
    int err = kvt__engine_check(engine, "kvt_engine_lookup");

    *hit_tokens = 0;
    if (err)
        return err;
    uint64_t tokens = kvt_seq_tokens(seq), max_hit = tokens < max_tokens ? tokens : max_tokens;
    if (have_tokens > max_hit)
        have_tokens = max_hit;
    size_t first = (size_t)(have_tokens / engine->chunk_tokens);
    if (!answers(p, first, max_hit))
        restart(seq, first, have_tokens, max_hit);
    if (p->state != KVT__PROMISE_HELD)
        err = make_promise(seq);
    if (err)
        return err;
    if (p->trial.n_chunks)
        read_ahead(seq);
    uint64_t hit = kvt__hit_end(engine, max_hit, p->n);
    if (hit > have_tokens)
        *hit_tokens = hit;
    count(seq, max_hit - have_tokens, hit > have_tokens ? hit - have_tokens : 0);
    return 0;
}

void
kvt_engine_release(struct kvt_engine *engine, struct kvt_seq *seq)
{
    struct kvt__promise *p = &seq->promise;

    if (kvt__engine_check(engine, "kvt_engine_release"))
        return;
    kvt__flight_end(seq);
    kvt__hit_unlease(seq, 0);
    kvt__search_abandon(p->search);
    p->search = NULL;
    p->started_searches = p->n_window_searches = 0;
    p->state = KVT__PROMISE_NONE;
    p->begun_ns = 0;
}

/* Return true if all leases of a chunk are leases of host memory, and the chunk has a lease. */
static bool
is_in_memory(const struct kvt_seq *seq, size_t chunk)
{
    const struct kvt_engine *e = seq->engine;
    const struct kvt__promise *p = &seq->promise;
    bool leased = false;

    if (chunk >= p->max_leased_chunks)
        return false;
    for (size_t i = kvt__lease_index(e, chunk, 0, 0), end = kvt__lease_index(e, chunk + 1, 0, 0);
         i < end; i++) {
        if (p->leases[i].level && !kvt__store_is_memory(e->store, p->leases[i].level - 1))
            return false;
        leased = leased || p->leases[i].level;
    }
    return leased;
}

void
kvt_seq_in_memory(const struct kvt_seq *seq, size_t first, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = is_in_memory(seq, first + i);
}

uint64_t
kvt_seq_skipped_tokens(const struct kvt_seq *seq)
{
    return seq->promise.n_skipped;
}
