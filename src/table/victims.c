/* SPDX-License-Identifier: Apache-2.0
 *
 * Victims: the entries of a sample that the policy evicts first. */
#include "base/clock.h"
#include "table/private.h"

struct sample {
    uint64_t key;
    uint32_t entry;
};

/* Insert into the best `max` samples, which are sorted.  Returns their new number. */
static size_t
insert(struct sample *best, size_t n, size_t max, struct sample s)
{
    size_t i = n;

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

/* Choose among these entries. */
static size_t
choose(const struct kvt__table *t, const uint32_t *at, size_t n_at,
       kvt__table_suits_fn suits, void *ctx, struct kvt__record *out, size_t n)
{
    struct sample best[KVT__TABLE_VICTIMS];
    struct kvt__record record;
    size_t n_best = 0, n_out = 0, max = n < KVT__TABLE_VICTIMS ? n : KVT__TABLE_VICTIMS;
    int64_t now = kvt__now_ns(), wall = kvt__wall_ns();

    for (size_t i = 0; i < n_at; i++) {
        __builtin_prefetch(&t->hot[at[i]]);
        __builtin_prefetch(&t->cold[at[i]].recency);
    }
    for (size_t i = 0; max && i < n_at; i++) {
        const struct tb_hot *e = &t->hot[at[i]];

        if (tb_state(TB_LOAD(&e->word)) == TB_READY &&
            !tb_lease_holds(TB_LOAD(&e->lease), now) &&
            (!suits || (kvt__tb_read(t, at[i], &record) && suits(ctx, &record))))
            n_best = insert(best, n_best, max, (struct sample){
                kvt__tb_key(t->order, kvt__tb_recency(t, at[i], wall)), at[i] });
    }
    for (size_t i = 0; i < n_best; i++)
        n_out += kvt__tb_read(t, best[i].entry, &out[n_out]);
    return n_out;
}

size_t
kvt__table_victims_of(const struct kvt__table *t, const uint32_t *entries,
                      size_t n_entries, struct kvt__record *out, size_t n)
{
    uint32_t at[KVT__TABLE_SAMPLES];
    size_t n_at = 0;

    if (!tb_usable(t))
        return 0;
    for (size_t i = 0; i < n_entries && n_at < KVT__TABLE_SAMPLES; i++)
        if (entries[i] < t->max_entries)
            at[n_at++] = entries[i];
    return choose(t, at, n_at, NULL, NULL, out, n);
}

/* Fill a sample of n entries below n_fresh.  Neighbours are of equal age, so the samples lie
 * a stride apart. */
static void
fill_sample(struct kvt__table *t, uint32_t n_fresh, uint32_t *at, uint32_t n)
{
    uint32_t hand = __atomic_fetch_add(&t->header->hand, 1, __ATOMIC_RELAXED);

    for (uint32_t i = 0; i < n; i++)
        at[i] = (uint32_t)(((uint64_t)hand + (uint64_t)i * (n_fresh / n)) % n_fresh);
}

#define MAX_SAMPLES 256u

/* Most samples have victims.  After large chunks replaced many small chunks, most entries are
 * FREE. */
size_t
kvt__table_victims(struct kvt__table *t, kvt__table_suits_fn suits, void *ctx,
                   struct kvt__record *out, size_t n)
{
    uint32_t at[KVT__TABLE_SAMPLES];
    size_t n_out = 0;

    if (!tb_usable(t))
        return 0;
    uint32_t n_fresh = TB_LOAD(&t->header->n_fresh);
    n_fresh = n_fresh < t->max_entries ? n_fresh : (uint32_t)t->max_entries;
    uint32_t n_at = n_fresh < KVT__TABLE_SAMPLES ? n_fresh : KVT__TABLE_SAMPLES;
    if (!n_at)
        return 0;
    uint32_t n_samples = n_fresh / n_at + n_fresh % n_at; /* contain every entry */
    for (uint32_t i = 0; n && !n_out && i < n_samples && i < MAX_SAMPLES; i++) {
        fill_sample(t, n_fresh, at, n_at);
        n_out = choose(t, at, n_at, suits, ctx, out, n);
    }
    return n_out;
}
