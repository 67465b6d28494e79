/* SPDX-License-Identifier: Apache-2.0
 *
 * What readers do: find, lease, touch.  Any thread, no lock, no system call but
 * the clock.  An entry is read between two looks at its word; a reader that is
 * overtaken eight times answers miss. */
#include "base/clock.h"
#include "index/table.h"

#define TRIES 8

unsigned
kvt__ix_groups(const struct kvt__index *ix, const uint64_t id[2],
               struct ix_entry *groups[2])
{
    uint64_t first = id[0] & ix->group_mask;
    uint64_t second = id[1] & ix->group_mask;

    groups[0] = &ix->map->entries[first * IX_GROUP];
    groups[1] = &ix->map->entries[second * IX_GROUP];
    return first == second ? 1 : 2;
}

static void
unpack(struct kvt__index_entry *out, uint64_t packed, uint64_t tokens_flags)
{
    out->hash.form = ix_hash_form(packed, tokens_flags);
    out->bytes = ix_packed_bytes(packed);
    out->space = ix_packed_space(packed);
    out->path = (uint32_t)(packed >> 56 & 127);
    out->tokens = (uint32_t)tokens_flags;
    out->flags = (uint32_t)(tokens_flags >> 32)
                 & (KVT__INDEX_UNREAD | KVT__INDEX_FOREIGN | KVT__INDEX_EXPECTED);
}

/* Garbage may call a hash wide where no wide one has room. */
static void
read_hash_rest(const struct kvt__index *ix, const struct ix_entry *e,
               struct kvt__hash *hash)
{
    bool wide = hash->form == KVT__HASH_WIDE && ix->rests;
    const struct ix_hash_rest *rest = wide ? &ix->rests[e - ix->map->entries] : NULL;

    for (size_t i = 1; i < KVT__HASH_WORDS; i++)
        hash->bits[i] = rest ? IX_LOAD(&rest->bits[i - 1]) : 0;
}

bool
kvt__ix_read(const struct kvt__index *ix, const struct ix_entry *e, uint64_t *word,
             struct kvt__index_entry *out)
{
    uint64_t id[2];

    for (int i = 0; i < TRIES; i++) {
        *word = IX_LOAD(&e->word);
        if (ix_word_state(*word) != IX_READY)
            return false;
        id[0] = IX_LOAD(&e->id[0]);
        id[1] = IX_LOAD(&e->id[1]);
        memcpy(out->id.b, id, sizeof id);
        out->hash.bits[0] = IX_LOAD(&e->hash);
        unpack(out, IX_LOAD(&e->packed), IX_LOAD(&e->tokens_flags));
        read_hash_rest(ix, e, &out->hash);
        uint64_t recency = IX_LOAD(&e->recency);
        out->recency_ns = (int64_t)(recency & ~IX_USES);
        out->n_uses = (uint32_t)(recency & IX_USES);
        out->lease_ns = ix_lease_end(IX_LOAD(&e->lease));
        out->slot = (uint64_t)(e - ix->map->entries);
        out->word = *word;
        if (IX_LOAD(&e->word) == *word)
            return ix_space_in_range(out->space);
    }
    return false;
}

struct ix_entry *
kvt__ix_find(const struct kvt__index *ix, const struct kvt__id *id,
             uint64_t *word, struct kvt__index_entry *out)
{
    struct ix_entry *groups[2];
    uint64_t key[2];

    ix_id_words(id, key);
    unsigned n = kvt__ix_groups(ix, key, groups);
    /* Groups fill from their start: side by side fewer places are looked at. */
    for (unsigned i = 0; i < IX_GROUP; i++) {
        for (unsigned g = 0; g < n; g++) {
            struct ix_entry *e = &groups[g][i];
            if (__builtin_expect(IX_LOAD(&e->id[0]) != key[0], 1))
                continue;
            if (kvt__ix_read(ix, e, word, out) && kvt__id_equal(&out->id, id))
                return e;
        }
    }
    return NULL;
}

void
kvt__index_prefetch(const struct kvt__index *ix, const struct kvt__id *id)
{
    struct ix_entry *groups[2];
    uint64_t key[2];

    ix_id_words(id, key);
    unsigned n = kvt__ix_groups(ix, key, groups);
    for (unsigned g = 0; g < n; g++)
        __builtin_prefetch(groups[g]);
}

bool
kvt__index_find(const struct kvt__index *ix, const struct kvt__id *id,
                struct kvt__index_entry *out)
{
    struct kvt__index_entry entry;
    uint64_t word;

    return ix_usable(ix) && kvt__ix_find(ix, id, &word, out ? out : &entry);
}

/* So many more holders until then; those of a lease that has ended do not count. */
static uint64_t
lease_more(uint64_t lease, unsigned more, int64_t until, int64_t now)
{
    uint64_t end = ((uint64_t)until + IX_HOLDERS) & ~IX_HOLDERS;
    uint64_t holders = lease & IX_HOLDERS;

    if (!ix_lease_holds(lease, now))
        return end | more;
    if ((uint64_t)ix_lease_end(lease) > end)
        end = (uint64_t)ix_lease_end(lease);
    return end | (holders < IX_HOLDERS ? holders + more : holders);
}

static bool
lease_for(struct kvt__index *ix, const struct kvt__id *id, unsigned holders,
          int64_t until_ns, struct kvt__index_entry *out)
{
    struct kvt__index_entry entry;
    int64_t now = kvt__now_ns();
    uint64_t word, lease;

    if (!out)
        out = &entry;
    if (until_ns - now > IX_LEASE_MAX_NS)
        until_ns = now + IX_LEASE_MAX_NS;
    if (until_ns < 0)
        until_ns = 0;
    for (int i = 0; ix_usable(ix) && i < TRIES; i++) {
        struct ix_entry *e = kvt__ix_find(ix, id, &word, out);
        if (!e)
            return false;
        uint64_t old = IX_LOAD(&e->lease);
        do
            lease = lease_more(old, holders, until_ns, now);
        while (!ix_swap(&e->lease, &old, lease));
        /* The lease stands before this look: an eviction that moved the word
         * first is seen here, a later one sees the lease. */
        if (IX_LOAD_SEQ(&e->word) == word) {
            kvt__ix_used(ix, e);
            out->lease_ns = ix_lease_end(lease);
            return true;
        }
        /* The lease stays: an equal lease may be another holder's, of the entry that took
         * this place.  What stays too long costs its time. */
    }
    return false;
}

bool
kvt__index_lease(struct kvt__index *ix, const struct kvt__id *id,
                 int64_t until_ns, struct kvt__index_entry *out)
{
    return lease_for(ix, id, 1, until_ns, out);
}

void
kvt__index_hold(struct kvt__index *ix, const struct kvt__id *id, int64_t until_ns)
{
    lease_for(ix, id, 0, until_ns, NULL);
}

void
kvt__index_unlease(struct kvt__index *ix, const struct kvt__id *id)
{
    struct kvt__index_entry entry;
    uint64_t word, less;

    if (!ix_usable(ix))
        return;
    struct ix_entry *e = kvt__ix_find(ix, id, &word, &entry);
    if (!e)
        return;
    uint64_t old = IX_LOAD(&e->lease);
    int64_t now = kvt__now_ns();
    do {
        uint64_t holders = old & IX_HOLDERS;
        /* A count that is full has lost some: such a lease ends by time. */
        if (!old || (holders == IX_HOLDERS && ix_lease_holds(old, now)))
            return;
        less = holders > 1 && ix_lease_holds(old, now) ? old - 1 : 0;
    } while (!ix_swap(&e->lease, &old, less));
}

void
kvt__index_touch(struct kvt__index *ix, const struct kvt__id *id)
{
    struct kvt__index_entry entry;
    uint64_t word;

    if (!ix_usable(ix))
        return;
    struct ix_entry *e = kvt__ix_find(ix, id, &word, &entry);
    if (e)
        kvt__ix_used(ix, e);
}
