/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations of readers: find, lease, touch, list.  They take no lock. */
#include <assert.h>

#include "base/clock.h"
#include "table/private.h"

#define TRIES 8 /* attempts if the entry changes meanwhile */

bool
kvt__tb_read(const struct kvt__table *t, uint32_t entry, struct kvt__record *out)
{
    const struct tb_hot *e = &t->hot[entry];
    const struct tb_cold *cold = &t->cold[entry];
    uint64_t word = TB_LOAD(&e->word);

    if (tb_state(word) != TB_READY)
        return false;
    uint64_t id[2] = { TB_LOAD(&e->id[0]), TB_LOAD(&e->id[1]) };
    uint64_t packed = TB_LOAD(&cold->packed), recency = TB_LOAD(&cold->recency);
    if (packed >> 62 > KVT__HASH_WIDE)
        return false;
    *out = (struct kvt__record){
        .hash = { .form = (enum kvt__hash_form)(packed >> 62) },
        .bytes = tb_bytes(packed), .space = tb_space(word),
        .expires_ns = tb_expiry(packed) ? tb_expires_ns(tb_expiry(packed), kvt__wall_ns()) : 0,
        .flags = (uint32_t)((word & TB_FLAGS) >> TB_FLAGS_SHIFT),
        .recency_ns = (int64_t)(recency & ~TB_USES),
        .n_uses = (uint32_t)(recency & TB_USES), .entry = entry, .word = word };
    memcpy(out->id.b, id, sizeof id);
    out->hash.bits[0] = TB_LOAD(&cold->hash);
    if (out->hash.form == KVT__HASH_WIDE && t->wide)
        for (int i = 0; i < KVT__HASH_WORDS - 1; i++)
            out->hash.bits[i + 1] = TB_LOAD(&t->wide[entry].bits[i]);
    return TB_LOAD(&e->word) == word;
}

bool
kvt__table_is_expired(const struct kvt__record *record)
{
    return record->expires_ns && record->expires_ns <= kvt__wall_ns();
}

bool
kvt__table_read(const struct kvt__table *t, uint32_t entry, struct kvt__record *out)
{
    return tb_is_usable(t) && entry < t->max_entries && kvt__tb_read(t, entry, out);
}

bool
kvt__table_is_used(const struct kvt__table *t, uint32_t entry)
{
    return !tb_is_usable(t) || (entry < t->max_entries &&
                                tb_state(TB_LOAD_SEQ(&t->hot[entry].word)) != TB_FREE);
}

bool
kvt__table_is_unchanged(const struct kvt__table *t, uint32_t entry, uint64_t word)
{
    return tb_is_usable(t) && entry < t->max_entries && tb_state(word) == TB_READY &&
           TB_LOAD_SEQ(&t->hot[entry].word) == word;
}

void
kvt__table_prefetch(const struct kvt__table *t, const struct kvt__name *names, size_t n)
{
    uint64_t hashes[TB_PREFETCHED];

    for (size_t first = 0; first < n && tb_is_usable(t); first += TB_PREFETCHED) {
        size_t some = n - first < TB_PREFETCHED ? n - first : TB_PREFETCHED;

        for (size_t i = 0; i < some; i++)
            hashes[i] = kvt__tb_hash(t, &names[first + i]);
        kvt__tb_prefetch(t, hashes, some);
    }
}

bool
kvt__table_find(const struct kvt__table *t, const struct kvt__name *name,
                const struct kvt__id *id, struct kvt__record *out)
{
    struct kvt__record record;
    uint64_t word;

    out = out ? out : &record;
    for (int i = 0; i < TRIES; i++) {
        uint32_t entry = kvt__tb_find(t, name, id, &word);

        if (entry == TB_NONE)
            return false;
        if (kvt__tb_read(t, entry, out) && out->word == word)
            return !kvt__table_is_expired(out);
    }
    return false;
}

/* ------------------------------------------------------------------- leases */

/* Extend the lease of an entry to `end`, and add a holder if `holder` is 1.  A lease never becomes
 * shorter.  False: the entry has another life. */
static bool
add_lease(struct tb_hot *e, uint32_t life, uint32_t end, uint32_t holder, int64_t now)
{
    uint32_t old = TB_LOAD(&e->lease), new;

    assert(holder <= 1 && !(life & ~TB_LIFE) && end && end <= TB_LEASE_S);
    do {
        if ((old & TB_LIFE) != life)
            return false;
        uint32_t left = tb_lease_left(old >> TB_LEASE_END, now);
        uint32_t holders = left ? old & TB_HOLDERS : 0;
        /* longer is also false if the end has passed since the caller computed the end. */
        bool longer = tb_lease_left(end, now) > left;

        /* With TB_HOLDERS holders or more, only time ends the lease. */
        holders = holders + holder < TB_HOLDERS ? holders + holder : TB_HOLDERS;
        new = (longer ? end << TB_LEASE_END : old & ~(TB_HOLDERS | TB_LIFE)) |
              (old & TB_LIFE) | holders;
    } while (!tb_swap(&e->lease, &old, new));
    return true;
}

/* Remove a holder; the last holder ends the lease. */
static void
end_lease(struct tb_hot *e, uint32_t life)
{
    uint32_t old = TB_LOAD(&e->lease), new;

    do {
        uint32_t holders = old & TB_HOLDERS;

        if ((old & TB_LIFE) != life || holders == TB_HOLDERS)
            return;
        new = holders > 1 ? old - 1 : life;
    } while (!tb_swap(&e->lease, &old, new));
}

/* Return the end of a lease in seconds, as an entry stores the end; never 0. */
static uint32_t
lease_end(int64_t until_ns, int64_t now)
{
    int64_t most = now + (int64_t)(TB_LEASE_MAX_S - 2) * KVT__NS_PER_S;

    if (until_ns > most)
        until_ns = most;
    uint32_t end = (uint32_t)((until_ns + KVT__NS_PER_S - 1) / KVT__NS_PER_S) & TB_LEASE_S;
    return end ? end : 1;
}

/* Return bits of the table's number; 0 for a private table. */
static uint16_t
number_bits(const struct kvt__table *t)
{
    return (uint16_t)TB_LOAD(&t->header->number[0]);
}

/* Lease the entry: write the lease, then test if the entry is still READY with this word.  An
 * eviction changes the word and then reads the lease, so at least one side sees the other.  The
 * life is read while the word is unchanged, and a claim of an entry without a lease begins
 * another life, so a late reader leases no other chunk. */
static bool
lease_entry(struct kvt__table *t, uint32_t entry, uint64_t word, int64_t until_ns,
            int64_t now, uint32_t holder, struct kvt__record *out)
{
    struct tb_hot *e = &t->hot[entry];
    uint32_t life = TB_LOAD(&e->lease) & TB_LIFE;

    if (TB_LOAD(&e->word) != word ||
        !add_lease(e, life, lease_end(until_ns, now), holder, now))
        return false;
    if (TB_LOAD_SEQ(&e->word) == word && kvt__tb_read(t, entry, out) && out->word == word) {
        if (holder)
            out->lease = (struct kvt__lease){ .entry = entry, .table = number_bits(t),
                                              .life = (uint8_t)(life / TB_LIFE_1 + 1) };
        return true;
    }
    if (holder)
        end_lease(e, life);
    return false;
}

static bool
lease(struct kvt__table *t, const struct kvt__name *name, const struct kvt__id *id,
      int64_t until_ns, uint32_t holder, struct kvt__record *out)
{
    struct kvt__record record;
    int64_t now = kvt__now_ns();
    uint64_t word;

    if (until_ns <= now)
        return kvt__table_find(t, name, id, out);
    for (int i = 0; i < TRIES; i++) {
        uint32_t entry = kvt__tb_find(t, name, id, &word);

        if (entry == TB_NONE)
            return false;
        if (!lease_entry(t, entry, word, until_ns, now, holder, out ? out : &record))
            continue;
        if (kvt__table_is_expired(out ? out : &record)) {
            if (holder && out)
                kvt__table_unlease(t, &out->lease);
            return false;
        }
        kvt__tb_mark_used(t, entry);
        return true;
    }
    return false;
}

bool
kvt__table_lease(struct kvt__table *t, const struct kvt__name *name,
                 const struct kvt__id *id, int64_t until_ns, struct kvt__record *out)
{
    return lease(t, name, id, until_ns, 1, out);
}

void
kvt__table_protect(struct kvt__table *t, const struct kvt__name *name,
                   const struct kvt__id *id, int64_t until_ns)
{
    lease(t, name, id, until_ns, 0, NULL);
}

static uint32_t
life_of(const struct kvt__lease *lease)
{
    return (lease->life - 1u) * TB_LIFE_1;
}

bool
kvt__table_has_lease(const struct kvt__table *t, const struct kvt__lease *lease)
{
    return tb_is_usable(t) && lease->life && lease->entry < t->max_entries &&
           lease->table == number_bits(t) &&
           (TB_LOAD(&t->hot[lease->entry].lease) & TB_LIFE) == life_of(lease);
}

void
kvt__table_unlease(struct kvt__table *t, const struct kvt__lease *lease)
{
    if (kvt__table_has_lease(t, lease))
        end_lease(&t->hot[lease->entry], life_of(lease));
}

void
kvt__tb_mark_used(const struct kvt__table *t, uint32_t entry)
{
    uint64_t *at = &t->cold[entry].recency;
    uint64_t old = TB_LOAD(at), uses = old & TB_USES;
    uint64_t time = t->order == KVT__EVICT_FIFO ? old : (uint64_t)tb_wall_ns(t);

    TB_STORE(at, (time & ~TB_USES) | (uses < TB_USES ? uses + 1 : uses));
    if (!TB_LOAD(&t->header->touched)) /* a store would take the cache line from other readers */
        TB_STORE(&t->header->touched, 1);
}

void
kvt__table_touch(struct kvt__table *t, const struct kvt__name *name,
                 const struct kvt__id *id)
{
    uint64_t word;
    uint32_t entry = kvt__tb_find(t, name, id, &word);

    if (entry != TB_NONE)
        kvt__tb_mark_used(t, entry);
}

/* ------------------------------------------------------------------ listing */

void
kvt__table_each(const struct kvt__table *t,
                bool (*fn)(void *ctx, const struct kvt__record *record), void *ctx)
{
    struct kvt__record record;

    for (uint32_t i = 0; tb_is_usable(t) && i < TB_LOAD(&t->header->n_fresh) &&
                         i < t->max_entries; i++)
        if (kvt__tb_read(t, i, &record) && !fn(ctx, &record))
            return;
}

void
kvt__table_get_totals(const struct kvt__table *t, struct kvt__table_totals *out)
{
    const struct tb_header *h = t->header;

    *out = (struct kvt__table_totals){ 0 };
    if (!tb_is_usable(t))
        return;
    out->n_entries = TB_LOAD(&h->n_entries);
    out->n_unread = TB_LOAD(&h->n_unread);
    out->max_entries = t->max_entries;
    out->used_bytes = TB_LOAD(&h->used_bytes);
    out->limit_bytes = TB_LOAD(&h->limit_bytes);
}
