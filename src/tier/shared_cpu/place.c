/* SPDX-License-Identifier: Apache-2.0
 *
 * Places for chunks.  A search looks at the next chunks after the last place for enough free
 * units in a row.  If the search finds none, a window of units around an entry that the
 * policy evicts first becomes free: with chunks of equal size the window is the place of the
 * evicted chunk.
 *
 * A process killed while it holds the lock leaves nothing to mend: `places` is written
 * before the claimed entry is READY, and `units` are hints. */
#include <errno.h>

#include "base/clock.h"
#include "base/error.h"
#include "tier/shared_cpu/memory.h"

#define LOOKS 128u      /* chunks that a search passes */
#define ROUNDS 8        /* of victims for a place */
#define LOCK_WAIT_NS KVT__NS_PER_S /* a busy host may suspend the owner of the lock */
#define NEVER INT64_MAX /* no eviction makes the window free */

/* Units that have memory. */
static uint32_t
n_populated(const struct sc_memory *m)
{
    uint64_t n = SC_LOAD(&m->header->populated_bytes) / SC_UNIT;

    return n < m->n_units ? (uint32_t)n : m->n_units;
}

/* Return true if a used entry has the unit; out: the entry and the end of its place. */
static bool
is_taken(const struct sc_memory *m, uint32_t unit, uint32_t *entry, uint32_t *end)
{
    *entry = SC_LOAD(&m->units[unit]) - 1;
    if (*entry >= m->n_entries || !kvt__table_is_used(m->table, *entry))
        return false;
    uint64_t place = SC_LOAD(&m->places[*entry]);
    uint64_t last = (uint64_t)sc_first(place) + sc_n(place);
    *end = (uint32_t)last;
    return sc_first(place) <= unit && unit < last && last <= m->n_units;
}

/* ------------------------------------------------------------------- free places */

/* Search from `at` to `limit` for n free units in a row.  looks: of the search, counted
 * down.  Sets `at` to the first unit, or to the end of the search. */
static bool
find_between(const struct sc_memory *m, uint32_t *at, uint32_t limit, uint32_t n,
             uint32_t *looks)
{
    uint32_t unit = *at, entry, end;

    while (unit < limit && *looks) {
        if (is_taken(m, unit, &entry, &end)) {
            *at = unit = end;
            --*looks;
        } else if (++unit - *at == n) {
            uint32_t pinned = kvt__sc_pinned_end(m, *at, n);

            if (!pinned)
                return true;
            *at = unit = pinned;
            --*looks;
        }
    }
    return false;
}

/* The next search continues at the end of a search without result.  So later searches find
 * free units behind many leased chunks, which nothing else makes reachable. */
static bool
find_free(const struct sc_memory *m, uint32_t n, uint32_t *first)
{
    uint32_t limit = n_populated(m), looks = LOOKS;
    uint32_t hand = SC_LOAD(&m->header->hand);

    *first = hand < limit ? hand : 0;
    if (find_between(m, first, limit, n, &looks))
        return true;
    if (looks)
        *first = 0;
    if (find_between(m, first, limit, n, &looks))
        return true;
    SC_STORE(&m->header->hand, *first);
    return false;
}

/* ------------------------------------------------------------------- windows */

struct window {
    uint32_t first;
    int64_t recency_ns; /* of the entry that was used last; NEVER: cannot be evicted */
};

/* Consider n units from `first` on, or as near as the memory has n units. */
static void
consider(const struct sc_memory *m, int64_t first, uint32_t n, struct window *best)
{
    int64_t last = (int64_t)n_populated(m) - n;
    struct window w = { .first = (uint32_t)(first < 0 ? 0 : first < last ? first : last) };
    struct kvt__record record;
    uint32_t entry, end;

    if (last < 0 || kvt__sc_pinned_end(m, w.first, n))
        return;
    for (uint32_t unit = w.first; unit < w.first + n;) {
        if (!is_taken(m, unit, &entry, &end)) {
            unit++;
            continue;
        }
        if (!kvt__table_is_victim(m->table, entry, &record))
            return; /* has a lease, or is being stored */
        w.recency_ns = record.recency_ns > w.recency_ns ? record.recency_ns : w.recency_ns;
        unit = end;
    }
    if (w.recency_ns < best->recency_ns)
        *best = w;
}

/* Consider the windows that begin and end where the place of an entry does. */
static void
consider_at(const struct sc_memory *m, uint32_t entry, uint32_t n, struct window *best)
{
    uint64_t place = SC_LOAD(&m->places[entry]);

    consider(m, sc_first(place), n, best);
    if (n > sc_n(place))
        consider(m, (int64_t)sc_first(place) + sc_n(place) - n, n, best);
}

struct search {
    const struct sc_memory *m;
    uint32_t n;
};

static bool
has_window(void *ctx, const struct kvt__record *record)
{
    const struct search *s = ctx;
    struct window w = { .recency_ns = NEVER };

    consider_at(s->m, record->entry, s->n, &w);
    return w.recency_ns != NEVER;
}

/* Evict the entries of a window.  Return true if the window is free. */
static bool
evict(const struct sc_memory *m, uint32_t first, uint32_t n, struct sc_evicted *evicted)
{
    struct kvt__record record;
    uint32_t entry, end;

    for (uint32_t unit = first; unit < first + n;) {
        if (!is_taken(m, unit, &entry, &end)) {
            unit++;
            continue;
        }
        if (!kvt__table_is_victim(m->table, entry, &record) ||
            kvt__table_forget(m->table, &record, false))
            return false;
        evicted->n++;
        evicted->bytes += record.bytes;
        unit = end;
    }
    return !kvt__sc_pinned_end(m, first, n);
}

/* Pins and neighbours can make the windows of all chunks that the policy evicts first unusable.
 * The second round samples only chunks with a usable window, which takes longer. */
static bool
find_by_eviction(const struct sc_memory *m, uint32_t n, uint32_t *first,
                 struct sc_evicted *evicted)
{
    struct kvt__record victims[KVT__TABLE_VICTIMS];
    struct search search = { m, n };

    for (int round = 0; round < ROUNDS; round++) {
        size_t n_victims = kvt__table_victims(m->table, round ? has_window : NULL, &search,
                                              victims, KVT__TABLE_VICTIMS);
        struct window best = { .recency_ns = NEVER };

        if (!n_victims) /* the search has been long */
            return false;
        for (size_t i = 0; i < n_victims; i++)
            consider_at(m, victims[i].entry, n, &best);
        *first = best.first;
        if (best.recency_ns != NEVER && evict(m, best.first, n, evicted))
            return true;
    }
    return false;
}

/* ------------------------------------------------------------------- taking */

static void
take(const struct sc_memory *m, uint32_t entry, uint32_t first, uint32_t n)
{
    SC_STORE(&m->places[entry], sc_place(first, n));
    for (uint32_t unit = first; unit < first + n; unit++)
        SC_STORE(&m->units[unit], entry + 1);
    SC_STORE(&m->header->hand, first + n);
}

int
kvt__sc_take(struct sc_memory *m, uint32_t entry, uint64_t bytes, struct sc_evicted *evicted)
{
    uint32_t n = (uint32_t)((bytes + SC_UNIT - 1) / SC_UNIT), first;

    *evicted = (struct sc_evicted){ 0 };
    if (bytes > kvt__sc_payload_bytes(m))
        return kvt__fail(EFBIG, "shared_cpu: a chunk of %llu bytes does not fit %llu bytes",
                         (unsigned long long)bytes,
                         (unsigned long long)kvt__sc_payload_bytes(m));
    if (kvt__table_lock_word(m->table, &m->header->lock, LOCK_WAIT_NS, &m->stuck))
        return kvt__fail(ETIMEDOUT, "shared_cpu: other processes stored for too long");
    SC_STORE(&m->places[entry], 0); /* of the entry's last chunk: these units may be free */
    bool found = find_free(m, n, &first) || find_by_eviction(m, n, &first, evicted);
    if (found)
        take(m, entry, first, n);
    kvt__table_unlock_word(&m->header->lock);
    return found ? 0 : kvt__fail(ENOSPC, "shared_cpu: no room for %llu bytes and nothing to "
                                 "evict", (unsigned long long)bytes);
}

static unsigned char *
payload_of(const struct sc_memory *m, uint64_t place, uint64_t bytes)
{
    uint64_t end = (uint64_t)sc_first(place) + sc_n(place);

    return end <= n_populated(m) && bytes <= sc_n(place) * SC_UNIT
        ? m->payload + sc_first(place) * SC_UNIT : NULL;
}

unsigned char *
kvt__sc_payload(const struct sc_memory *m, uint32_t entry, uint64_t bytes)
{
    return payload_of(m, SC_LOAD(&m->places[entry]), bytes);
}

unsigned char *
kvt__sc_pinned(const struct sc_memory *m, unsigned pin, uint64_t bytes)
{
    return payload_of(m, SC_LOAD(&m->pins[kvt__table_owner(m->table)].place[pin]), bytes);
}
