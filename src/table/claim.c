/* SPDX-License-Identifier: Apache-2.0
 *
 * Claims: a writer claims a name, writes or deletes the object without a lock, and ends the
 * claim.  A claim writes the fields of a FREE entry in place, because no reader uses the fields;
 * all other changes are transactions.  The states of an entry: ARCHITECTURE.md, Index. */
#include <assert.h>
#include <errno.h>

#include "base/clock.h"
#include "base/error.h"
#include "table/private.h"

/* A flag of a record: the claim fails with -EEXIST if the name has any READY entry. */
#define TB_ONLY_NEW 0x80000000u

/* Return the number of an unused record for a claim of this handle; TB_N_CLAIMS: all records are
 * in use. */
static uint32_t
unused_number(const struct kvt__table *t)
{
    const struct tb_claim *mine = tb_claim_at(t, t->owner, 0);
    uint32_t i = 0;

    while (i < TB_N_CLAIMS && (TB_LOAD(&mine[i].packed) & 0xff) != TB_NO_CLAIM)
        i++;
    return i;
}

/* Add to a change: a claim of this handle begins, and the entry's word becomes `word`. */
static void
begin_claim(struct tb_change *c, uint32_t entry, uint64_t word, enum kvt__claim_kind kind,
            struct kvt__claim *out)
{
    struct kvt__table *t = c->table;
    struct tb_claim *claim = tb_claim_at(t, t->owner, out->number);

    assert(out->number < TB_N_CLAIMS);
    tb_set64(c, &t->hot[entry].word, word);
    tb_set64(c, &claim->packed, tb_pack_claim(kind, entry, word));
    if (kind == KVT__CLAIM_REPLACE)
        tb_set64(c, &claim->bytes, out->bytes);
    out->entry = entry;
    out->word = word;
    out->kind = kind;
}

/* ------------------------------------------------------------------- claims */

/* The arguments of a claim, and the reason of -EBUSY. */
struct plan {
    const struct kvt__name *name;
    const struct kvt__record *record;
    const char *text;
    bool has_tags;   /* the text has tags */
    unsigned blocker; /* out: owner of the present claim of the name; TB_N_OWNERS: no claim */
};

/* Add to a change: take an entry from the free list, or the first entry that was never
 * used.  0; -ENOMEM: the table is full; -ESTALE: the entry is in use. */
static int
take_free(struct tb_change *c, uint32_t *out)
{
    struct kvt__table *t = c->table;
    struct tb_header *h = t->header;
    uint32_t n_made = TB_LOAD(&h->n_made), n_fresh = TB_LOAD(&h->n_fresh);
    uint32_t entry = TB_LOAD(&h->free);
    bool is_fresh = entry == TB_NONE;

    if (is_fresh)
        entry = n_fresh;
    if (is_fresh && entry >= n_made)
        return -ENOMEM;
    if (entry >= n_made || tb_state(TB_LOAD(&t->hot[entry].word)) != TB_FREE) {
        kvt__tb_mark_corrupt(t, "the free list");
        return -ESTALE;
    }
    if (is_fresh)
        tb_set32(c, &h->n_fresh, entry + 1);
    else
        tb_set32(c, &h->free, TB_LOAD(&t->hot[entry].next));
    *out = entry;
    return 0;
}

static uint64_t
now_recency(const struct kvt__table *t, const struct kvt__record *record)
{
    uint64_t time = record->recency_ns ? (uint64_t)record->recency_ns
                                       : (uint64_t)tb_wall_ns(t);

    return (time & ~TB_USES) | record->n_uses;
}

/* Write the fields of a FREE entry in place. */
static void
fill(struct kvt__table *t, uint32_t entry, const struct plan *p)
{
    const struct kvt__hash *hash = &p->name->hash;
    uint64_t id[2];

    memcpy(id, p->record->id.b, sizeof id);
    TB_STORE(&t->hot[entry].id[0], id[0]);
    TB_STORE(&t->hot[entry].id[1], id[1]);
    TB_STORE(&t->hot[entry].lease, tb_next_life(TB_LOAD(&t->hot[entry].lease)));
    TB_STORE(&t->cold[entry].hash, hash->bits[0]);
    TB_STORE(&t->cold[entry].packed,
             tb_pack(p->record->bytes, hash->form, tb_note_expiry(t, p->record->expires_ns)));
    TB_STORE(&t->cold[entry].recency, now_recency(t, p->record));
    for (int i = 0; t->wide && i < KVT__HASH_WORDS - 1; i++)
        TB_STORE(&t->wide[entry].bits[i], hash->bits[i + 1]);
}

/* The name has no entry: claim a FREE entry. */
static int
claim_new(struct tb_change *c, const struct plan *p, struct kvt__claim *out)
{
    struct kvt__table *t = c->table;
    struct tb_header *h = t->header;
    int space = kvt__tb_intern_space(t, p->text, p->name->digest, p->has_tags);

    if (space < 0)
        return space;
    uint32_t entry;
    int err = take_free(c, &entry);
    if (err)
        return err;
    fill(t, entry, p);
    uint64_t word = TB_LOAD(&t->hot[entry].word);
    word = ((word >> 28) + 1) << 28 | (uint64_t)space << 12 | (uint64_t)t->owner << 4 |
           tb_flags(p->record->flags) | TB_CLAIMED;
    begin_claim(c, entry, word, KVT__CLAIM_NEW, out);
    kvt__tb_link(c, entry, kvt__tb_hash(t, p->name));
    tb_set64(c, &h->n_entries, TB_LOAD(&h->n_entries) + 1);
    tb_set64(c, &h->used_bytes, TB_LOAD(&h->used_bytes) + p->record->bytes);
    if (word & TB_UNREAD)
        tb_set64(c, &h->n_unread, TB_LOAD(&h->n_unread) + 1);
    kvt__tb_count_space(c, (uint32_t)space, 1);
    kvt__tb_commit(c);
    return 0;
}

/* Begin the next life of a CLAIMED entry, unless a lease holds.  Returns true if a lease
 * holds. */
static bool
end_life(struct tb_hot *e)
{
    uint32_t old = TB_LOAD(&e->lease);

    do
        if (tb_lease_holds(old, kvt__now_ns()))
            return true;
    while (!tb_swap(&e->lease, &old, tb_next_life(old)));
    return false;
}

/* Add to a change: the entry lives at most until expires_ns.  If the process of a claim dies, the
 * entry may describe the old or the new object, so the earlier end counts. */
static void
shorten(struct tb_change *c, uint32_t entry, int64_t expires_ns)
{
    struct kvt__table *t = c->table;
    uint64_t packed = TB_LOAD(&t->cold[entry].packed);
    int64_t old_ns = tb_expires_ns(tb_expiry(packed), kvt__wall_ns());

    if (expires_ns && (!old_ns || expires_ns < old_ns))
        tb_set64(c, &t->cold[entry].packed,
                 tb_with_expiry(packed, tb_note_expiry(t, expires_ns)));
}

/* Make a READY entry CLAIMED.  The claim writes the word and then reads the lease; a reader
 * writes the lease and then reads the word.  So either the claim sees the lease, or the reader
 * sees the claim.  0; -EBUSY: a lease holds, and force is false. */
static int
claim_ready(struct tb_change *c, uint32_t entry, enum kvt__claim_kind kind, bool force,
            struct kvt__claim *out)
{
    struct kvt__table *t = c->table;
    struct tb_header *h = t->header;
    uint64_t word = TB_LOAD(&t->hot[entry].word);

    if (!force && tb_lease_holds(TB_LOAD(&t->hot[entry].lease), kvt__now_ns()))
        return -EBUSY;
    word = tb_next_word(word, TB_CLAIMED, t->owner);
    begin_claim(c, entry, word, kind, out);
    if (kind == KVT__CLAIM_REPLACE) {
        tb_set64(c, &h->used_bytes, TB_LOAD(&h->used_bytes) + out->bytes);
        shorten(c, entry, out->expires_ns);
    }
    kvt__tb_commit(c);
    if (!end_life(&t->hot[entry]) || force)
        return 0;
    kvt__tb_end_claim(c, out, false);
    return -EBUSY;
}

/* Return true if the budget has room for an object.  freed: bytes that the table counts for the
 * name's present entry, and that the claim frees. */
static bool
has_room(const struct kvt__table *t, uint64_t bytes, uint64_t freed)
{
    uint64_t limit = TB_LOAD(&t->header->limit_bytes);
    uint64_t used = TB_LOAD(&t->header->used_bytes);

    if (bytes <= freed)
        return true;
    bytes -= freed;
    return !limit || (bytes <= limit && used <= limit - bytes);
}

/* Return true if the record replaces an expired entry.  A listing and a file of the index do not
 * replace the entry: the entry stays until its object is deleted. */
static bool
may_renew(const struct kvt__record *record)
{
    return !(record->flags & (TB_ONLY_NEW | KVT__TABLE_UNREAD));
}

static bool
is_expired(const struct kvt__table *t, uint32_t entry)
{
    int64_t wall = kvt__wall_ns();
    int64_t end = tb_expires_ns(tb_expiry(TB_LOAD(&t->cold[entry].packed)), wall);

    return end && end <= wall;
}

/* Return true if a PUT without end must write the object of the entry again: the object has an end,
 * so the object has a mark (store/private.h), which chunks in memory do not have. */
static bool
needs_other_object(const struct kvt__table *t, uint32_t entry, const struct kvt__record *record)
{
    return !t->of_memory && !record->expires_ns && !(record->flags & KVT__TABLE_FOUND) &&
           tb_expiry(TB_LOAD(&t->cold[entry].packed));
}

/* Return true if the entry of the name already describes the record. */
static bool
is_present(const struct kvt__table *t, uint32_t entry, const struct kvt__record *record)
{
    const struct tb_hot *e = &t->hot[entry];
    uint64_t id[2];

    memcpy(id, record->id.b, sizeof id);
    return record->flags & KVT__TABLE_UNREAD ||
           (!(TB_LOAD(&e->word) & TB_UNREAD) && TB_LOAD(&e->id[0]) == id[0] &&
            TB_LOAD(&e->id[1]) == id[1] && !needs_other_object(t, entry, record));
}

/* Correct the bytes of an entry and of the table, because a listing found the entry's object with
 * another size. */
static void
correct_bytes(struct tb_change *c, uint32_t entry, uint64_t bytes)
{
    struct kvt__table *t = c->table;
    uint64_t *used = &t->header->used_bytes;
    uint64_t packed = TB_LOAD(&t->cold[entry].packed), old = tb_bytes(packed);

    if (bytes == old)
        return;
    tb_set64(c, &t->cold[entry].packed, packed - old + bytes);
    if (bytes < old)
        kvt__tb_decrease(c, used, old - bytes);
    else
        tb_set64(c, used, TB_LOAD(used) + (bytes - old));
    kvt__tb_commit(c);
}

/* Claim a name; the caller holds the lock.  publishes: the caller publishes the claim in the same
 * hold of the lock, so the bytes of a present object are freed at once.  The errors of
 * kvt__table_claim(); -ENOMEM: all entries with memory are used. */
static int
claim_locked(struct tb_change *c, struct plan *p, bool publishes, struct kvt__claim *out)
{
    struct kvt__table *t = c->table;
    uint32_t entry = kvt__tb_find_locked(t, p->name);

    p->blocker = TB_N_OWNERS;
    if (entry != TB_NONE && tb_state(TB_LOAD(&t->hot[entry].word)) != TB_READY) {
        p->blocker = tb_owner(TB_LOAD(&t->hot[entry].word));
        return -EBUSY;
    }
    bool overwrites = p->record->flags & KVT__TABLE_OVERWRITE ||
                      (entry != TB_NONE && may_renew(p->record) && is_expired(t, entry));
    if (entry != TB_NONE && !overwrites && (p->record->flags & TB_ONLY_NEW ||
                                            is_present(t, entry, p->record))) {
        if (publishes && p->record->flags & KVT__TABLE_FOUND)
            correct_bytes(c, entry, p->record->bytes);
        return -EEXIST;
    }
    uint32_t number = unused_number(t);
    if (number == TB_N_CLAIMS)
        return -EAGAIN;
    bool frees = entry != TB_NONE && (publishes || p->record->flags & KVT__TABLE_FOUND);
    if (!has_room(t, p->record->bytes,
                  frees ? tb_bytes(TB_LOAD(&t->cold[entry].packed)) : 0))
        return -ENOSPC;
    *out = (struct kvt__claim){ .number = number, .bytes = p->record->bytes,
                                .id = p->record->id, .flags = p->record->flags,
                                .expires_ns = p->record->expires_ns };
    if (entry == TB_NONE) {
        kvt__tb_split_chain(c);
        return tb_is_usable(t) ? claim_new(c, p, out) : -ESTALE;
    }
    return claim_ready(c, entry, KVT__CLAIM_REPLACE, overwrites, out);
}

/* Claim the READY entry `seen` for an eviction. */
static int
evict_locked(struct tb_change *c, const struct kvt__record *seen, bool force,
             struct kvt__claim *out)
{
    struct kvt__table *t = c->table;

    if (seen->entry >= t->max_entries || tb_state(seen->word) != TB_READY ||
        TB_LOAD(&t->hot[seen->entry].word) != seen->word)
        return -ENOENT;
    out->number = unused_number(t);
    if (out->number == TB_N_CLAIMS)
        return -EAGAIN;
    return claim_ready(c, seen->entry, KVT__CLAIM_EVICT, force, out);
}

static int
check(const struct kvt__table *t, const struct kvt__name *name,
      const struct kvt__record *record, const char *text)
{
    if (record->bytes >= TB_MAX_BYTES ||
        (text && (!*text || strlen(text) > KVT__TABLE_TEXT_MAX)))
        return kvt__fail(EINVAL, "index: the size or the key text of a chunk is out of range");
    return name->hash.form == KVT__HASH_WIDE && !t->wide ? -ENOTSUP : 0;
}

/* Claim a name in a transaction; with `publishes`, also publish in the same hold of the lock.
 * -ERESTART: the table was full and has grown. */
static int
claim(struct kvt__table *t, struct plan *p, bool publishes, struct kvt__claim *out)
{
    uint32_t n_made = TB_LOAD(&t->header->n_made);
    uint64_t hash = kvt__tb_hash(t, p->name);
    struct tb_change c;

    kvt__tb_prefetch(t, &hash, 1); /* keeps the hold of the lock short */
    int err = kvt__tb_begin(t, &c);
    if (err)
        return err;
    err = claim_locked(&c, p, publishes, out);
    if (!err && publishes)
        kvt__tb_end_claim(&c, out, true);
    kvt__tb_end(&c);
    if (err == -ENOMEM) {
        pthread_mutex_lock(&t->mutex);
        int grown = kvt__tb_grow(t, n_made);
        pthread_mutex_unlock(&t->mutex);
        if (grown == -ENOSPC)
            kvt__tb_warn_full(t);
        err = !grown ? -ERESTART : grown == -EFBIG ? -ENOSPC : grown;
    }
    return err;
}

#define TRIES 4 /* attempts: a growth or the end of a dead owner's claims makes a retry useful */

/* Return true if the claims or the limit of a dead owner may have caused the error, and this call
 * ended them. */
static bool
recovers(struct kvt__table *t, const struct plan *p, int err)
{
    if (err == -EBUSY)
        return kvt__tb_recover_owner(t, p->blocker);
    if (err != -ENOSPC)
        return false;
    uint64_t limit = TB_LOAD(&t->header->limit_bytes);
    return kvt__tb_recover_if_due(t) || TB_LOAD(&t->header->limit_bytes) != limit;
}

static int
claim_name(struct kvt__table *t, const struct kvt__name *name,
           const struct kvt__record *record, const char *text, bool publishes,
           struct kvt__claim *out)
{
    struct plan p = { .name = name, .record = record, .text = text,
                      .has_tags = text && kvt__key_has_tags(text), .blocker = TB_N_OWNERS };
    int err = tb_is_usable(t) ? check(t, name, record, text) : -ESTALE;

    assert(!text == !name->digest);
    *out = (struct kvt__claim){ .table = NULL };
    for (int i = 0; !err && i < TRIES; i++) {
        err = claim(t, &p, publishes, out);
        if (!err && !publishes)
            out->table = t;
        if (err != -ERESTART && !recovers(t, &p, err))
            return err;
        err = 0;
    }
    return err ? err : -EBUSY;
}

int
kvt__table_claim(struct kvt__table *t, const struct kvt__name *name,
                 const struct kvt__record *record, const char *text,
                 struct kvt__claim *out)
{
    return claim_name(t, name, record, text, false, out);
}

int
kvt__table_enter(struct kvt__table *t, const struct kvt__name *name,
                 const struct kvt__record *record, const char *text)
{
    struct kvt__claim claim;

    return claim_name(t, name, record, text, true, &claim);
}

int
kvt__table_evict(struct kvt__table *t, const struct kvt__record *seen, bool force,
                 struct kvt__claim *out)
{
    struct tb_change c;
    int err = kvt__tb_begin(t, &c);

    *out = (struct kvt__claim){ .table = NULL };
    if (err)
        return err;
    err = evict_locked(&c, seen, force, out);
    kvt__tb_end(&c);
    if (!err)
        out->table = t;
    return err;
}

int
kvt__table_forget(struct kvt__table *t, const struct kvt__record *seen, bool force)
{
    struct kvt__claim claim = { .number = 0 };
    struct tb_change c;
    int err = kvt__tb_begin(t, &c);

    if (err)
        return err;
    err = evict_locked(&c, seen, force, &claim);
    if (!err)
        kvt__tb_end_claim(&c, &claim, true);
    kvt__tb_end(&c);
    return err;
}

/* ----------------------------------------------------------- entries of a file */

int
kvt__tb_check_restore(const struct kvt__table *t)
{
    if (!tb_is_usable(t))
        return -ESTALE;
    if (!tb_is_writer(t))
        return -EINVAL;
    return t->area ? -ENOENT : 0;
}

int
kvt__tb_enter_saved(struct kvt__table *t, const struct kvt__name *name,
                    struct kvt__record *record, uint64_t recency, const char *text,
                    int64_t *n_entered)
{
    record->flags |= TB_ONLY_NEW;
    record->n_uses = (uint32_t)(recency & TB_USES);
    record->recency_ns = (int64_t)(recency & ~TB_USES);
    if (record->recency_ns < 0 || record->recency_ns > kvt__wall_ns())
        record->recency_ns = 0; /* now */
    int err = kvt__table_enter(t, name, record, text);
    *n_entered += !err;
    return err == -ESTALE || err == -EINVAL || err == -ETIMEDOUT ? err : 0;
}
