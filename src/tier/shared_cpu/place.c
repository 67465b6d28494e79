/* SPDX-License-Identifier: Apache-2.0
 *
 * The places of chunks.  A search passes the next chunks after the last place until it finds
 * enough consecutive free units.  If the search finds no free units, the chunks in a window of
 * units are evicted.  A window begins or ends at the place of a victim of the policy; if chunks
 * have equal sizes, the window is the place of one chunk.
 *
 * A process that is killed while it holds the lock leaves no damage: `places` is written before
 * the claimed entry is READY, and a wrong value of `units` only makes a unit look free. */
#include <errno.h>

#include "base/clock.h"
#include "base/error.h"
#include "tier/shared_cpu/memory.h"

#define MAX_PASSED 128u /* chunks that a search passes at most */
#define ROUNDS 8        /* attempts to evict a window */
#define LOCK_WAIT_NS KVT__NS_PER_S /* long, because a busy host may suspend the lock's owner */
#define NEVER INT64_MAX /* recency of a window that no eviction makes free */

/* Return the number of units that have memory. */
static uint32_t
n_populated(const struct sc_memory *m)
{
    uint64_t n = SC_LOAD(&m->header->populated_bytes) / SC_UNIT;

    return n < m->n_units ? (uint32_t)n : m->n_units;
}

/* Return true if the unit is in the place of an entry that is not FREE.  *entry: the entry; *end:
 * the end of the entry's place. */
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

/* Search units [*at, limit) for n consecutive free units.  n_left: chunks that the search may still
 * pass; the function counts down.  Returns true and sets *at to the first unit; or returns false
 * and sets *at to the end of the search. */
static bool
find_between(const struct sc_memory *m, uint32_t *at, uint32_t limit, uint32_t n,
             uint32_t *n_left)
{
    uint32_t unit = *at, entry, end;

    while (unit < limit && *n_left) {
        if (is_taken(m, unit, &entry, &end)) {
            *at = unit = end;
            --*n_left;
        } else if (++unit - *at == n) {
            uint32_t pinned = kvt__sc_pinned_end(m, *at, n);

            if (!pinned)
                return true;
            *at = unit = pinned;
            --*n_left;
        }
    }
    return false;
}

/* Find n consecutive free units.  If a search finds no units, the next search continues at the end
 * of this search.  So a later search finds free units behind many leased chunks; no other step
 * would reach these units. */
static bool
find_free(const struct sc_memory *m, uint32_t n, uint32_t *first)
{
    uint32_t limit = n_populated(m), n_left = MAX_PASSED;
    uint32_t at = SC_LOAD(&m->header->next_unit);

    *first = at < limit ? at : 0;
    if (find_between(m, first, limit, n, &n_left))
        return true;
    if (n_left)
        *first = 0;
    if (find_between(m, first, limit, n, &n_left))
        return true;
    SC_STORE(&m->header->next_unit, *first);
    return false;
}

/* ------------------------------------------------------------------- windows */

struct window {
    uint32_t first;
    int64_t recency_ns; /* last use of the window's youngest chunk; NEVER: cannot be evicted */
};

/* Replace *best by the window of n units at `first` if all chunks of the window can be evicted and
 * the window's youngest chunk is older.  If the memory ends before the window, the nearest window
 * in the memory is considered. */
static void
improve(const struct sc_memory *m, int64_t first, uint32_t n, struct window *best)
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
            return; /* the entry has a lease, or is CLAIMED */
        w.recency_ns = record.recency_ns > w.recency_ns ? record.recency_ns : w.recency_ns;
        unit = end;
    }
    if (w.recency_ns < best->recency_ns)
        *best = w;
}

/* Consider the window that begins at the begin of an entry's place, and the window that ends at the
 * end of the place. */
static void
improve_at(const struct sc_memory *m, uint32_t entry, uint32_t n, struct window *best)
{
    uint64_t place = SC_LOAD(&m->places[entry]);

    improve(m, sc_first(place), n, best);
    if (n > sc_n(place))
        improve(m, (int64_t)sc_first(place) + sc_n(place) - n, n, best);
}

struct search {
    const struct sc_memory *m;
    uint32_t n;
};

/* Return true if a window at the entry's place can be evicted. */
static bool
has_window(void *ctx, const struct kvt__record *record)
{
    const struct search *s = ctx;
    struct window w = { .recency_ns = NEVER };

    improve_at(s->m, record->entry, s->n, &w);
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

/* Evict the best window around a sample of victims.  Pins and neighbours can make all windows of a
 * sample unusable.  So from the second round on, only chunks with a usable window are sampled,
 * which takes longer. */
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

        if (!n_victims) /* no chunk can be evicted */
            return false;
        for (size_t i = 0; i < n_victims; i++)
            improve_at(m, victims[i].entry, n, &best);
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
    SC_STORE(&m->header->next_unit, first + n);
}

int
kvt__sc_acquire_place(struct sc_memory *m, uint32_t entry, uint64_t bytes,
                      struct sc_evicted *evicted)
{
    uint32_t n = (uint32_t)((bytes + SC_UNIT - 1) / SC_UNIT), first;

    *evicted = (struct sc_evicted){ 0 };
    if (bytes > kvt__sc_payload_bytes(m))
        return kvt__fail(EFBIG, "shared_cpu: a chunk of %llu bytes exceeds the shared memory of "
                         "%llu bytes; raise max_shared_cpu_size or lower chunk_size.",
                         (unsigned long long)bytes,
                         (unsigned long long)kvt__sc_payload_bytes(m));
    if (kvt__table_lock_word(m->table, &m->header->lock, LOCK_WAIT_NS, &m->timed_out))
        return kvt__fail(ETIMEDOUT, "shared_cpu: another process holds the lock of the shared "
                         "memory for too long");
    /* The place of the entry's last chunk: without this store its units would count as used. */
    SC_STORE(&m->places[entry], 0);
    bool found = find_free(m, n, &first) || find_by_eviction(m, n, &first, evicted);
    if (found)
        take(m, entry, first, n);
    kvt__table_unlock_word(&m->header->lock);
    return found ? 0 : kvt__fail(ENOSPC, "shared_cpu: the shared memory has no room for %llu "
                                 "bytes, and no chunk can be evicted now.",
                                 (unsigned long long)bytes);
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
kvt__sc_pinned_payload(const struct sc_memory *m, unsigned pin, uint64_t bytes)
{
    return payload_of(m, SC_LOAD(&m->pins[kvt__table_owner(m->table)].place[pin]), bytes);
}
