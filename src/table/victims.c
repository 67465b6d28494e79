/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of victims.  The recency of an entry contains the time of the last use (FIFO: of the
 * claim) and, in the low bits, the number of uses.  So processes with different policies can
 * share a table: each process evicts by the policy of the process. */
#include <assert.h>

#include "base/clock.h"
#include "table/private.h"

enum kvt__order
kvt__order_from_name(const char *name)
{
    static const char *const names[] = { [KVT__EVICT_LRU] = "LRU", [KVT__EVICT_LFU] = "LFU",
                                         [KVT__EVICT_FIFO] = "FIFO",
                                         [KVT__EVICT_MRU] = "MRU" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name))
            return (enum kvt__order)i;
    return KVT__EVICT_LRU;
}

struct sample {
    uint64_t key; /* the entry with the smallest key is evicted first */
    uint32_t entry;
};

static uint64_t
key_of(enum kvt__order order, uint64_t recency)
{
    switch (order) {
    case KVT__EVICT_LFU:
        return (recency & TB_USES) << 52 | recency >> 12;
    case KVT__EVICT_MRU:
        return ~recency;
    default:
        return recency;
    }
}

void
kvt__table_make_last_victim(struct kvt__table *t, uint32_t entry)
{
    uint64_t time = t->order == KVT__EVICT_MRU ? 0 : (uint64_t)tb_wall_ns(t);

    if (!tb_is_usable(t) || entry >= t->max_entries)
        return;
    uint64_t *at = &t->cold[entry].recency;
    uint64_t uses = t->order == KVT__EVICT_LFU ? TB_USES : TB_LOAD(at) & TB_USES;
    TB_STORE(at, (time & ~TB_USES) | uses);
}

/* Return the recency of an entry.  wall_ns: the time now.  If the clock was set back, an entry can
 * have a time in the future.  The time then becomes wall_ns: otherwise the entry would stay until
 * the clock reaches the time, and all younger entries would be evicted first. */
static uint64_t
recency_of(const struct kvt__table *t, uint32_t entry, int64_t wall_ns)
{
    uint64_t *at = &t->cold[entry].recency, recency = TB_LOAD(at);

    if (recency <= (uint64_t)(wall_ns + KVT__NS_PER_S))
        return recency;
    recency = ((uint64_t)wall_ns & ~TB_USES) | (recency & TB_USES);
    TB_STORE(at, recency);
    return recency;
}

/* Insert a sample into the sorted best samples, at most `max`.  Returns the new number of
 * samples. */
static size_t
insert(struct sample *best, size_t n, size_t max, struct sample s)
{
    size_t i = n;

    assert(n <= max && max);
    if (n == max) {
        if (s.key >= best[n - 1].key)
            return n;
        i = n - 1;
    }
    for (; i && best[i - 1].key > s.key; i--)
        best[i] = best[i - 1];
    best[i] = s;
    return n < max ? n + 1 : n;
}

static bool
is_evictable(const struct kvt__table *t, uint32_t entry, int64_t now)
{
    const struct tb_hot *e = &t->hot[entry];

    return tb_state(TB_LOAD(&e->word)) == TB_READY &&
           !tb_lease_holds(TB_LOAD(&e->lease), now);
}

bool
kvt__table_is_victim(const struct kvt__table *t, uint32_t entry, struct kvt__record *out)
{
    return tb_is_usable(t) && entry < t->max_entries &&
           is_evictable(t, entry, kvt__now_ns()) && kvt__tb_read(t, entry, out);
}

/* Prefetch the chains of the victims together.  The caller frees the victims, and the prefetch
 * keeps the caller's hold of the lock short. */
static void
prefetch_chains(const struct kvt__table *t, const struct kvt__record *victims, size_t n)
{
    uint64_t hashes[KVT__TABLE_VICTIMS];

    assert(n <= KVT__TABLE_VICTIMS);
    for (size_t i = 0; i < n; i++)
        hashes[i] = kvt__tb_entry_hash(t, victims[i].entry);
    kvt__tb_prefetch(t, hashes, n);
}

/* Return the key of an entry: an expired entry is evicted first, unless its recency is after the
 * end, because kvt__table_make_last_victim() was called.  expires_ns: the end of the time to live,
 * 0: none. */
static uint64_t
key_at(enum kvt__order order, uint64_t recency, int64_t expires_ns, int64_t wall_ns)
{
    return expires_ns <= wall_ns && (int64_t)recency < expires_ns ? 0 : key_of(order, recency);
}

/* Choose up to `max` victims among the entries at[0..n_at).  Returns the number of victims. */
static size_t
best_of(const struct kvt__table *t, const uint32_t *at, size_t n_at,
        kvt__table_filter_fn filter, void *ctx, struct sample *best, size_t max)
{
    struct kvt__record record;
    size_t n_best = 0;
    int64_t now = kvt__now_ns(), wall = kvt__wall_ns();

    for (size_t i = 0; i < n_at; i++) {
        __builtin_prefetch(&t->hot[at[i]]);
        __builtin_prefetch(&t->cold[at[i]].recency);
    }
    for (size_t i = 0; i < n_at; i++)
        if (is_evictable(t, at[i], now) &&
            (!filter || (kvt__tb_read(t, at[i], &record) && filter(ctx, &record))))
            n_best = insert(best, n_best, max, (struct sample){
                key_at(t->order, recency_of(t, at[i], wall),
                       tb_expires_ns(tb_expiry(TB_LOAD(&t->cold[at[i]].packed)), wall), wall),
                at[i] });
    return n_best;
}

/* Copy the chosen entries whose recency is unchanged since the choice.  An entry with another
 * recency was used meanwhile, or has a new chunk.  Returns the number of copies. */
static size_t
copy_unchanged(const struct kvt__table *t, const struct sample *best, size_t n_best,
               struct kvt__record *out)
{
    int64_t wall = kvt__wall_ns();
    size_t n = 0;

    for (size_t i = 0; i < n_best; i++)
        n += kvt__tb_read(t, best[i].entry, &out[n]) &&
             key_at(t->order, (uint64_t)out[n].recency_ns | out[n].n_uses, out[n].expires_ns,
                    wall) == best[i].key;
    return n;
}

#define TRIES 16 /* choices, as long as every chosen entry changes before the copy */

static size_t
choose(const struct kvt__table *t, const uint32_t *at, size_t n_at,
       kvt__table_filter_fn filter, void *ctx, struct kvt__record *out, size_t max)
{
    struct sample best[KVT__TABLE_VICTIMS];
    size_t n_best = 1, n = 0;

    for (int i = 0; n_best && !n && i < TRIES; i++) {
        n_best = best_of(t, at, n_at, filter, ctx, best, max);
        n = copy_unchanged(t, best, n_best, out);
    }
    prefetch_chains(t, out, n);
    return n;
}

#define N_SAMPLES 128u     /* entries of a sample */
#define MAX_SAMPLES 256u

/* Fill a sample of n entries below n_fresh.  The entries of a sample are a stride apart, because
 * neighbours have equal ages. */
static void
fill_sample(struct kvt__table *t, uint32_t n_fresh, uint32_t *at, uint32_t n)
{
    uint32_t first = __atomic_fetch_add(&t->header->next_sample, 1, __ATOMIC_RELAXED);

    for (uint32_t i = 0; i < n; i++)
        at[i] = (uint32_t)(((uint64_t)first + (uint64_t)i * (n_fresh / n)) % n_fresh);
}

/* Usually the first sample has victims.  If large chunks have replaced many small chunks, most
 * entries are FREE, and the loop needs more samples. */
size_t
kvt__table_victims(struct kvt__table *t, kvt__table_filter_fn filter, void *ctx,
                   struct kvt__record *out, size_t n)
{
    uint32_t at[N_SAMPLES];
    size_t n_out = 0;

    if (!tb_is_usable(t))
        return 0;
    uint32_t n_fresh = TB_LOAD(&t->header->n_fresh);
    n_fresh = n_fresh < t->max_entries ? n_fresh : (uint32_t)t->max_entries;
    uint32_t n_at = n_fresh < N_SAMPLES ? n_fresh : N_SAMPLES;
    if (!n_at)
        return 0;
    n = n < KVT__TABLE_VICTIMS ? n : KVT__TABLE_VICTIMS;
    uint32_t n_samples = n_fresh / n_at + n_fresh % n_at; /* together they contain every entry */
    for (uint32_t i = 0; n && !n_out && i < n_samples && i < MAX_SAMPLES; i++) {
        fill_sample(t, n_fresh, at, n_at);
        n_out = choose(t, at, n_at, filter, ctx, out, n);
    }
    return n_out;
}
