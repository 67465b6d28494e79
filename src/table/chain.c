/* SPDX-License-Identifier: Apache-2.0
 *
 * Chains of entries with equal hash buckets.  The array of heads grows by linear hashing.  A
 * chain ends with the number of the chain's head.  If an insert, a removal or a split leads a
 * reader into another chain, the reader finds another number at the end and walks again. */
#include "table/private.h"

static uint64_t
fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t
hash_of(const struct kvt__table *t, uint64_t digest, uint64_t bits)
{
    uint64_t key = t->header->hash_key;
    uint64_t x = fold(bits ^ key, digest ^ ~key ^ UINT64_C(0x9e3779b97f4a7c15));

    return fold(x ^ key, UINT64_C(0xd6e8feb86659fd93));
}

/* Use all bits of a wide hash, because a client can choose names with equal first 64 bits. */
static uint64_t
hash_of_wide(const struct kvt__table *t, uint64_t digest,
             const uint64_t bits[KVT__HASH_WORDS])
{
    for (int i = 0; i < KVT__HASH_WORDS; i++)
        digest = hash_of(t, digest, bits[i]);
    return digest;
}

uint64_t
kvt__tb_hash(const struct kvt__table *t, const struct kvt__name *name)
{
    return name->hash.form == KVT__HASH_WIDE
        ? hash_of_wide(t, name->digest, name->hash.bits)
        : hash_of(t, name->digest, name->hash.bits[0]);
}

/* Return the digest of the space of an entry with this word. */
static inline uint64_t
space_digest(const struct kvt__table *t, uint64_t word)
{
    uint32_t space = tb_space(word);

    return space < TB_N_SPACES ? TB_LOAD(&t->spaces[space].digest) : 0;
}

uint64_t
kvt__tb_entry_hash(const struct kvt__table *t, uint32_t entry)
{
    uint64_t digest = space_digest(t, TB_LOAD(&t->hot[entry].word));
    uint64_t bits[KVT__HASH_WORDS] = { TB_LOAD(&t->cold[entry].hash) };

    if (!t->wide || TB_LOAD(&t->cold[entry].packed) >> 62 != KVT__HASH_WIDE)
        return hash_of(t, digest, bits[0]);
    for (int i = 1; i < KVT__HASH_WORDS; i++)
        bits[i] = TB_LOAD(&t->wide[entry].bits[i - 1]);
    return hash_of_wide(t, digest, bits);
}

void
kvt__tb_prefetch(const struct kvt__table *t, const uint64_t *hashes, size_t n)
{
    uint32_t n_heads = TB_LOAD(&t->header->n_heads), at[TB_PREFETCHED];

    for (size_t i = 0; i < n; i++) {
        at[i] = tb_bucket(hashes[i], n_heads);
        at[i] = at[i] < t->max_entries ? at[i] : 0;
        __builtin_prefetch(&t->heads[at[i]]);
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t link = TB_LOAD(&t->heads[at[i]]);

        at[i] = tb_linked(t, link);
        if (at[i] != TB_NONE)
            __builtin_prefetch(&t->hot[at[i]]);
        if ((link & ~TB_ENTRY) == tb_link_bits(hashes[i]))
            at[i] = TB_NONE;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t next = at[i] == TB_NONE ? TB_NONE
                                         : tb_linked(t, TB_LOAD(&t->hot[at[i]].next));

        if (next != TB_NONE)
            __builtin_prefetch(&t->hot[next]);
    }
}

/* ------------------------------------------------------------------- finds */

static bool
has_hash(const struct kvt__table *t, uint32_t entry, const struct kvt__hash *hash)
{
    if (TB_LOAD(&t->cold[entry].hash) != hash->bits[0] ||
        TB_LOAD(&t->cold[entry].packed) >> 62 != (uint64_t)hash->form)
        return false;
    for (int i = 0; hash->form == KVT__HASH_WIDE && i < KVT__HASH_WORDS - 1; i++)
        if (!t->wide || TB_LOAD(&t->wide[entry].bits[i]) != hash->bits[i + 1])
            return false;
    return true;
}

/* Return true if the entry has the identity, or without id the hash, and the name's space.  The
 * identity implies the hash. */
static inline bool
matches(const struct kvt__table *t, uint32_t entry, uint64_t word,
        const struct kvt__name *name, const struct kvt__id *id)
{
    const struct tb_hot *e = &t->hot[entry];
    uint64_t bits[2];

    if (id)
        memcpy(bits, id->b, sizeof bits);
    return (id ? TB_LOAD(&e->id[0]) == bits[0] && TB_LOAD(&e->id[1]) == bits[1]
               : has_hash(t, entry, &name->hash)) &&
           space_digest(t, word) == name->digest;
}

/* Walk a chain to the entry of a name in the state READY or, if `claimed`, CLAIMED.  Returns 1:
 * found, *entry and *word are set; 0: the chain lacks the entry; -1: the walk ended in another
 * chain, or a split was in progress during the walk. */
static inline int
walk(const struct kvt__table *t, const struct kvt__name *name, uint64_t hash,
     const struct kvt__id *id, bool claimed, uint32_t *entry, uint64_t *word)
{
    const struct tb_header *h = t->header;
    uint32_t split = TB_LOAD(&h->split);
    uint32_t head = tb_bucket(hash, TB_LOAD(&h->n_heads));
    uint32_t link = head < t->max_entries ? TB_LOAD(&t->heads[head]) : TB_NONE, at;

    for (unsigned n = 0; (at = tb_linked(t, link)) != TB_NONE && n <= TB_MAX_CHAIN; n++) {
        *word = TB_LOAD(&t->hot[at].word);
        enum tb_state state = tb_state(*word);
        if ((link & ~TB_ENTRY) == tb_link_bits(hash) &&
            (state == TB_READY || (claimed && state == TB_CLAIMED)) &&
            matches(t, at, *word, name, id)) {
            *entry = at;
            return 1;
        }
        link = TB_LOAD(&t->hot[at].next);
    }
    return link == (TB_END | head) && !(split & 1) && TB_LOAD(&h->split) == split ? 0 : -1;
}

#define TRIES 8 /* walks of a chain that changes */

uint32_t
kvt__tb_find(const struct kvt__table *t, const struct kvt__name *name,
             const struct kvt__id *id, uint64_t *word)
{
    uint32_t entry;

    if (!tb_is_usable(t))
        return TB_NONE;
    uint64_t hash = kvt__tb_hash(t, name);

    for (int i = 0; i < TRIES; i++) {
        int found = walk(t, name, hash, id, false, &entry, word);

        if (!found)
            return TB_NONE;
        if (found > 0 && TB_LOAD(&t->hot[entry].word) == *word)
            return entry;
    }
    return TB_NONE;
}

uint32_t
kvt__tb_find_locked(struct kvt__table *t, const struct kvt__name *name)
{
    uint32_t entry;
    uint64_t word;
    int found = walk(t, name, kvt__tb_hash(t, name), NULL, true, &entry, &word);

    if (found < 0)
        kvt__tb_mark_corrupt(t, "a chain");
    return found > 0 ? entry : TB_NONE;
}

/* ----------------------------------------------------------------- changes */

void
kvt__tb_link(struct tb_change *c, uint32_t entry, uint64_t hash)
{
    struct kvt__table *t = c->table;
    uint32_t head = tb_bucket(hash, TB_LOAD(&t->header->n_heads));

    tb_set32(c, &t->hot[entry].next, TB_LOAD(&t->heads[head]));
    tb_set32(c, &t->heads[head], entry | tb_link_bits(hash));
}

static bool
unlink_entry(struct tb_change *c, uint32_t entry, uint64_t hash)
{
    struct kvt__table *t = c->table;
    uint32_t *link = &t->heads[tb_bucket(hash, TB_LOAD(&t->header->n_heads))];

    for (unsigned n = 0; n <= TB_MAX_CHAIN; n++) {
        uint32_t at = tb_linked(t, TB_LOAD(link));

        if (at == TB_NONE)
            return false;
        if (at == entry) {
            tb_set32(c, link, TB_LOAD(&t->hot[at].next));
            return true;
        }
        link = &t->hot[at].next;
    }
    return false;
}

bool
kvt__tb_free(struct tb_change *c, uint32_t entry, uint64_t bytes)
{
    struct kvt__table *t = c->table;
    struct tb_header *h = t->header;
    struct tb_hot *e = &t->hot[entry];
    uint64_t word = TB_LOAD(&e->word);

    if (!unlink_entry(c, entry, kvt__tb_entry_hash(t, entry))) {
        kvt__tb_mark_corrupt(t, "a chain");
        return false;
    }
    tb_set64(c, &e->word, tb_next_word(word, TB_FREE, 0));
    tb_set32(c, &e->next, TB_LOAD(&h->free));
    tb_set32(c, &h->free, entry);
    kvt__tb_decrease(c, &h->n_entries, 1);
    kvt__tb_decrease(c, &h->used_bytes, bytes);
    if (word & TB_UNREAD)
        kvt__tb_decrease(c, &h->n_unread, 1);
    kvt__tb_count_space(c, tb_space(word), -1);
    return true;
}

/* Add to a change: divide the chain of head `old` between `old` and the new head.  False: the
 * chain is garbage. */
static bool
divide(struct tb_change *c, uint32_t old, uint32_t new)
{
    struct kvt__table *t = c->table;
    uint32_t *last[2] = { &t->heads[old], &t->heads[new] };
    uint32_t link = TB_LOAD(&t->heads[old]), at;

    for (unsigned n = 0; (at = tb_linked(t, link)) != TB_NONE; n++) {
        unsigned side = tb_bucket(kvt__tb_entry_hash(t, at), new + 1) == new;

        if (n == TB_MAX_CHAIN)
            return false;
        tb_set32(c, last[side], link);
        last[side] = &t->hot[at].next;
        link = TB_LOAD(last[side]);
    }
    tb_set32(c, last[0], TB_END | old);
    tb_set32(c, last[1], TB_END | new);
    return link == (TB_END | old);
}

#define SPLITS_AHEAD 4 /* splits from the prefetch of a chain to its own split */

/* Prefetch the first entry of the chain of head `head`: a later split reads it with the lock. */
static void
prefetch_chain(const struct kvt__table *t, uint32_t head)
{
    uint32_t at = head < t->max_entries ? tb_linked(t, TB_LOAD(&t->heads[head])) : TB_NONE;

    if (at != TB_NONE) {
        __builtin_prefetch(&t->hot[at]);
        __builtin_prefetch(&t->cold[at]);
    }
}

/* The change writes its values in their order.  The new head first leads to the whole chain, so a
 * reader that begins at any step finds every entry, even if the writer dies.  A reader that
 * walked the chain during the split may have missed an entry; this reader finds another number
 * in `split` and walks again. */
void
kvt__tb_split_chain(struct tb_change *c)
{
    struct tb_header *h = c->table->header;
    uint32_t n = TB_LOAD(&h->n_heads);

    if (TB_LOAD(&h->n_entries) < n || n >= TB_LOAD(&h->n_made))
        return;
    uint32_t old = n & (UINT32_MAX >> __builtin_clz(n)) >> 1;
    uint32_t split = TB_LOAD(&h->split) & ~UINT32_C(1);
    tb_set32(c, &h->split, split + 1);
    tb_set32(c, &c->table->heads[n], TB_LOAD(&c->table->heads[old]));
    tb_set32(c, &h->n_heads, n + 1);
    if (divide(c, old, n)) {
        tb_set32(c, &h->split, split + 2);
        kvt__tb_commit(c);
        prefetch_chain(c->table, old + SPLITS_AHEAD);
        return;
    }
    c->n = 0;
    kvt__tb_mark_corrupt(c->table, "a chain");
}
