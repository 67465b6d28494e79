/* SPDX-License-Identifier: Apache-2.0
 *
 * Hits that may not be promised yet.  Chunks that lie only where other hosts delete are
 * waited for until workers have read and verified them: they lie in host memory then.
 * With enable_async_loading those of this host's storage are too, for a shorter time.
 * The leases move to memory as the chunks come, so that they stay.
 *
 * Waiting is asking again: the first chunk that is not there is looked for and nothing
 * else.  No lock. */
#include <string.h>

#include "base/clock.h"
#include "engine/private.h"

/* Return the first chunk of a group that a hit of n chunks needs; n: the hit needs no chunk
 * of the group.  While a gallop extends the hit, its sliding windows are not known. */
static size_t
needs_from(const struct kvt_seq *seq, uint32_t group, size_t first, size_t n)
{
    if (seq->wait.grows && seq->engine->groups[group].kind != KVT_GROUP_FULL)
        return n;
    return kvt__needs_from(seq->engine, seq->max_hit, group, first, n);
}

static bool
needs(const struct kvt_seq *seq, size_t chunk, uint32_t group)
{
    return chunk >= needs_from(seq, group, seq->wait.first, seq->wait.n);
}

/* Where a chunk must lie to be waited for no longer. */
static enum kvt__where
where_now(const struct kvt_seq *seq, int64_t now_ns)
{
    const struct kvt_engine *e = seq->engine;

    return e->reads_ahead && now_ns < seq->wait.since_ns + e->lookup_timeout_ns
        ? KVT__IN_MEMORY : KVT__CERTAIN;
}

/* Lease a rank's part of a chunk there, in place of where it was.  False: it is not. */
static bool
hold(struct kvt_seq *seq, size_t chunk, uint32_t rank, uint32_t group,
     enum kvt__where where)
{
    struct kvt__store *store = seq->engine->store;
    uint8_t *held = &seq->leases[kvt__seq_part(seq, chunk, rank, group)];
    const struct kvt__space *space;
    const struct kvt__id *id = kvt__seq_id(seq, chunk, rank, group, &space);

    if (!id)
        return false;
    if (*held && kvt__store_covers(store, where, *held - 1, space))
        return true;
    int level = kvt__store_lease(store, space, id, seq->flags & KVT_CHUNK_OWN, where,
                                 seq->lease_until_ns);
    if (level < 0)
        return false;
    if (*held && kvt__now_ns() < seq->lease_until_ns)
        kvt__store_unlease(store, *held - 1, space, id);
    *held = (uint8_t)(level + 1);
    return true;
}

static bool
all_hold(struct kvt_seq *seq, size_t chunk, uint32_t group, enum kvt__where where)
{
    for (uint32_t rank = 0; rank < seq->engine->world_size; rank++)
        if (!hold(seq, chunk, rank, group, where))
            return false;
    return true;
}

/* Whether the first rank's part of a leased chunk takes host memory when it is promised:
 * no storage that holds it would do. */
static bool
takes_memory(struct kvt_seq *seq, size_t chunk, uint32_t group)
{
    const struct kvt__store *store = seq->engine->store;
    uint8_t held = seq->leases[kvt__seq_part(seq, chunk, 0, group)];
    const struct kvt__space *space;

    return held && kvt__seq_id(seq, chunk, 0, group, &space) &&
           (kvt__store_covers(store, KVT__IN_MEMORY, held - 1, space) ||
            !kvt__store_covers(store, KVT__CERTAIN, held - 1, space));
}

size_t
kvt__wait_room(struct kvt_seq *seq, size_t first, size_t n)
{
    const struct kvt_engine *e = seq->engine;
    size_t phase = kvt__store_phase(e->store), left = e->memory_bytes;

    for (size_t c = first; c < n; c++) {
        for (uint32_t g = 0; g < e->n_groups; g++) {
            if (c < needs_from(seq, g, first, n) || !takes_memory(seq, c, g))
                continue;
            size_t bytes = kvt__slot_footprint(
                phase, kvt__chunk_bytes(&e->groups[g].view, seq->chunks[c].n_tokens));
            if (bytes > left)
                return c;
            left -= bytes;
        }
    }
    return n;
}

/* ------------------------------------------------------------------ reading ahead */

/* Fill in the range of a group's chunks that the hit waits for, from chunk `from` on.
 * False: the hit waits for none. */
static bool
wanted(struct kvt_seq *seq, uint32_t group, size_t from, int64_t now_ns,
       struct kvt_chunk_range *out)
{
    size_t first = SIZE_MAX, end = 0, at = seq->wait.at / seq->engine->n_groups;

    for (size_t c = at > from ? at : from; c < seq->wait.n; c++) {
        if (!needs(seq, c, group) ||
            kvt__seq_have(seq, c, group, where_now(seq, now_ns), false))
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
    int64_t now = kvt__now_ns();
    size_t n = 0;

    if (kvt__engine_check(engine, "kvt_engine_wanted") || !seq->wait.on ||
        now < seq->wait.tell_ns)
        return 0;
    for (uint32_t g = 0; g < engine->n_groups; g++) {
        /* The gallop has extended the hit: workers already know the earlier chunks. */
        bool known = !seq->wait.tell_ns && engine->groups[g].kind == KVT_GROUP_FULL;

        n += wanted(seq, g, known ? seq->wait.told : 0, now, &out[n]);
    }
    if (seq->wait.told < seq->wait.n)
        seq->wait.told = seq->wait.n;
    seq->wait.tell_ns = now + kvt__patience_ns(engine);
    return n;
}

/* An engine that is its own worker needs nobody to tell it. */
static void
read_ahead(struct kvt_seq *seq)
{
    struct kvt_engine *e = seq->engine;
    struct kvt_chunk_range ranges[KVT__MAX_GROUPS];
    size_t n = e->pool ? kvt_engine_wanted(e, seq, ranges) : 0;

    for (size_t i = 0; i < n; i++)
        kvt__prefetch(e, seq->tags, ranges[i].group,
                      seq->chunks + ranges[i].first_chunk, ranges[i].n_chunks);
}

/* ----------------------------------------------------------------------- waiting */

void
kvt__wait_begin(struct kvt_seq *seq, size_t first, size_t n)
{
    seq->wait.on = true;
    seq->wait.first = first;
    seq->wait.n = n;
    seq->wait.max_hit = seq->max_hit;
    seq->wait.at = first * seq->engine->n_groups;
    seq->wait.since_ns = kvt__now_ns();
    seq->wait.tell_ns = 0;
}

void
kvt__wait_end(struct kvt_seq *seq)
{
    seq->wait.on = false;
    seq->wait.told = 0;
    seq->wait.missing = SIZE_MAX;
    seq->wait.until_ns = 0;
}

bool
kvt__wait_has_grown(struct kvt_seq *seq)
{
    bool gallops;
    size_t known;

    return seq->wait.grows &&
           (!kvt__probe_runs(seq->probe, &gallops, &known) || known != seq->wait.known ||
            kvt__now_ns() >= seq->probe_until_ns);
}

/* Whether nothing that any request waits for has come for too long: storage does not
 * answer, or memory is full of what others were promised. */
static bool
stands_still(const struct kvt_seq *seq, int64_t now_ns)
{
    const struct kvt_engine *e = seq->engine;
    int64_t moved = atomic_load(&e->arrived_ns);

    if (moved < seq->wait.since_ns)
        moved = seq->wait.since_ns;
    return now_ns - moved >= e->lookup_timeout_ns;
}

/* Go on behind the chunks that may be promised.  False: one may not. */
static bool
advance(struct kvt_seq *seq, int64_t now_ns)
{
    struct kvt_engine *e = seq->engine;
    enum kvt__where where = where_now(seq, now_ns);
    size_t at = seq->wait.at, end = seq->wait.n * e->n_groups;

    for (; at < end; at++) {
        size_t chunk = at / e->n_groups;
        uint32_t group = (uint32_t)(at % e->n_groups);

        if (needs(seq, chunk, group) && !all_hold(seq, chunk, group, where))
            break;
    }
    if (at != seq->wait.at && seq->wait.tell_ns) { /* they were asked for */
        atomic_store(&e->arrived_ns, now_ns);
        seq->wait.tell_ns = now_ns + kvt__patience_ns(e);
    }
    seq->wait.at = at;
    return at == end;
}

/* A chunk of the hit is missing: the hit ends before the chunk, unless the tiers were not
 * searched yet. */
static void
note_missing(struct kvt_seq *seq, size_t chunk, uint32_t group)
{
    if (!(seq->probes & (KVT__PROBE_ALL | KVT__PROBE_GALLOP)) &&
        seq->engine->groups[group].kind == KVT_GROUP_FULL)
        seq->wait.told = chunk; /* named again if a tier has the chunk */
    else
        seq->wait.missing = chunk;
}

enum kvt__wait
kvt__wait_look(struct kvt_seq *seq)
{
    const struct kvt_engine *e = seq->engine;
    int64_t now = kvt__now_ns();

    if (advance(seq, now)) {
        if (now >= seq->wait.since_ns + e->lease_ns / 2)
            return KVT__WAIT_STALE;
        return seq->wait.grows ? KVT__WAIT_ON : KVT__WAIT_OVER;
    }
    size_t chunk = seq->wait.at / e->n_groups;
    uint32_t group = (uint32_t)(seq->wait.at % e->n_groups);
    if (!kvt__seq_have(seq, chunk, group, KVT__ANYWHERE, false)) {
        note_missing(seq, chunk, group);
        return KVT__WAIT_STALE;
    }
    if (now >= seq->wait.until_ns || stands_still(seq, now))
        return KVT__WAIT_LATE;
    read_ahead(seq);
    return KVT__WAIT_ON;
}
