/* SPDX-License-Identifier: Apache-2.0
 *
 * The ends of claims, and the begin and end of transactions.  The end of a claim must not fail:
 * if another process holds the lock for too long, the handle queues the end, and the handle's
 * next transaction carries out the end. */
#include <assert.h>
#include <errno.h>

#include "base/clock.h"
#include "base/error.h"
#include "table/private.h"

/* Return the next word of an entry that becomes READY with these flags. */
static uint64_t
ready_word(uint64_t word, uint64_t flags)
{
    return (tb_next_word(word, TB_READY, 0) & ~TB_FLAGS) | flags;
}

/* Add to a change: the entry becomes READY with these flags; the entry keeps its space. */
static void
make_ready(struct tb_change *c, uint32_t entry, uint64_t flags)
{
    struct kvt__table *t = c->table;
    struct tb_header *h = t->header;
    uint64_t word = TB_LOAD(&t->hot[entry].word), n = TB_LOAD(&h->n_unread);

    if ((word ^ flags) & TB_UNREAD)
        tb_set64(c, &h->n_unread, flags & TB_UNREAD ? n + 1 : n ? n - 1 : 0);
    tb_set64(c, &t->hot[entry].word, ready_word(word, flags));
}

static inline uint64_t
packed_of(const struct kvt__table *t, uint32_t entry)
{
    return TB_LOAD(&t->cold[entry].packed);
}

/* Return true if the identity of a replaced entry differs from the claim's identity: leases on
 * the old chunk do not hold for the new chunk. */
static bool
ends_leases(const struct kvt__table *t, const struct kvt__claim *claim, const uint64_t id[2])
{
    const struct tb_hot *e = &t->hot[claim->entry];

    return !(TB_LOAD(&e->word) & TB_UNREAD) &&
           (TB_LOAD(&e->id[0]) != id[0] || TB_LOAD(&e->id[1]) != id[1] ||
            claim->flags & KVT__TABLE_UNREAD);
}

/* Add to a change: a replaced entry gets the claim's identity and bytes.  The entry is CLAIMED,
 * so no reader uses the identity before the word changes. */
static void
replace(struct tb_change *c, const struct kvt__claim *claim)
{
    struct kvt__table *t = c->table;
    struct tb_hot *e = &t->hot[claim->entry];
    uint64_t packed = packed_of(t, claim->entry), id[2];

    memcpy(id, claim->id.b, sizeof id);
    if (ends_leases(t, claim, id)) /* a late reader finds another life */
        TB_STORE(&e->lease, tb_next_life(TB_LOAD(&e->lease)));
    tb_set64(c, &e->id[0], id[0]);
    tb_set64(c, &e->id[1], id[1]);
    tb_set64(c, &t->cold[claim->entry].packed,
             tb_pack(claim->bytes, (enum kvt__hash_form)(packed >> 62),
                     tb_note_expiry(t, claim->expires_ns)));
    kvt__tb_decrease(c, &t->header->used_bytes, tb_bytes(packed));
}

/* Return the flags of the entry's word after the end of the claim. */
static uint64_t
flags_after(const struct kvt__claim *claim, bool done)
{
    return done ? tb_flags(claim->flags) : claim->word & TB_FLAGS;
}

/* Return true if the end of the claim frees the entry. */
static bool
frees(const struct kvt__claim *claim, bool done)
{
    return claim->kind == (done ? KVT__CLAIM_EVICT : KVT__CLAIM_NEW);
}

/* Add to a change: free the entry of an ended claim, or make the entry READY.  False: the table
 * is garbage. */
static bool
end_entry(struct tb_change *c, const struct kvt__claim *claim, bool done)
{
    struct kvt__table *t = c->table;

    if (frees(claim, done))
        return kvt__tb_free(c, claim->entry, tb_bytes(packed_of(t, claim->entry)));
    if (claim->kind == KVT__CLAIM_REPLACE && done)
        replace(c, claim);
    else if (claim->kind == KVT__CLAIM_REPLACE)
        kvt__tb_decrease(c, &t->header->used_bytes, claim->bytes);
    make_ready(c, claim->entry, flags_after(claim, done));
    return true;
}

/* Return the record of a claim; NULL: the record does not describe this entry (any more). */
static struct tb_claim *
record_of(const struct kvt__table *t, unsigned owner, uint32_t number, uint32_t entry)
{
    struct tb_claim *record = tb_claim_at(t, owner, number);
    uint64_t packed = TB_LOAD(&record->packed);

    if ((packed & 0xff) == TB_NO_CLAIM || packed >> 32 != entry || entry >= t->max_entries)
        return NULL;
    uint64_t word = TB_LOAD(&t->hot[entry].word);
    bool same = tb_state(word) == TB_CLAIMED && tb_owner(word) == owner &&
                packed == tb_pack_claim((enum kvt__claim_kind)(packed & 0xff), entry, word);
    return same ? record : NULL;
}

void
kvt__tb_end_claim(struct tb_change *c, const struct kvt__claim *claim, bool done)
{
    struct kvt__table *t = c->table;
    struct tb_claim *record = record_of(t, t->owner, claim->number, claim->entry);

    if (!record) {
        kvt__tb_mark_corrupt(t, "a claim");
        return;
    }
    if (end_entry(c, claim, done))
        tb_set64(c, &record->packed, TB_NO_CLAIM);
    else
        c->n = 0;
    kvt__tb_commit(c);
}

/* Carry out the queued ends of this handle's claims.  The caller holds the lock. */
static void
run_queued_ends(struct tb_change *c)
{
    struct kvt__table *t = c->table;

    while (t->n_queued) {
        uint32_t i = --t->n_queued;

        kvt__tb_end_claim(c, &t->queued[i].claim, t->queued[i].done);
    }
}

/* ------------------------------------------------------------- transactions */

int
kvt__tb_begin(struct kvt__table *t, struct tb_change *c)
{
    *c = (struct tb_change){ .table = t };
    if (!tb_is_usable(t))
        return -ESTALE;
    if (!tb_is_writer(t))
        return -EINVAL;
    pthread_mutex_lock(&t->mutex);
    kvt__tb_populate(t); /* another process may have grown the table */
    int err = kvt__tb_lock(t, t->lock_wait_ns);
    if (err) {
        pthread_mutex_unlock(&t->mutex);
        return err == -ETIMEDOUT
            ? kvt__fail(ETIMEDOUT, "index: another process holds the lock for too long") : err;
    }
    run_queued_ends(c);
    return 0;
}

void
kvt__tb_end(struct tb_change *c)
{
    assert(!c->n);
    kvt__tb_unlock(c->table);
    pthread_mutex_unlock(&c->table->mutex);
}

/* ----------------------------------------------------------- ends by callers */

/* Return true if the end of the claim changes only the word of the entry; *word: the new
 * word. */
static bool
changes_word_only(const struct kvt__claim *claim, bool done, uint64_t *word)
{
    uint64_t flags = flags_after(claim, done);

    *word = ready_word(claim->word, flags);
    return !frees(claim, done) && claim->kind != KVT__CLAIM_REPLACE &&
           !((claim->word ^ flags) & TB_UNREAD);
}

/* End a claim without the lock.  Only the owner of a claim writes the word of a CLAIMED entry,
 * and no redo record contains the word, because the change that made the claim is complete.  If
 * the process is killed between the two writes, the record of the ended claim stays; the record
 * describes no entry any more.  False: the table is garbage. */
static bool
end_alone(struct kvt__table *t, const struct kvt__claim *claim, uint64_t word)
{
    struct tb_claim *record = record_of(t, t->owner, claim->number, claim->entry);

    if (!record || !tb_swap64(&t->hot[claim->entry].word, claim->word, word)) {
        kvt__tb_mark_corrupt(t, "a claim");
        return false;
    }
    TB_STORE(&record->packed, TB_NO_CLAIM);
    if (!TB_LOAD(&t->header->touched)) /* the next snapshot differs from the last */
        TB_STORE(&t->header->touched, 1);
    return true;
}

/* End a claim now, or queue the end.  done: the object is stored, or deleted; false: undo the
 * claim.  False: the claim has ended, the claim is another handle's, or the table was replaced. */
static bool
end(struct kvt__table *t, struct kvt__claim *claim, bool done)
{
    struct tb_change c = { .table = t };
    uint64_t word;

    if (claim->table != t)
        return false;
    claim->table = NULL;
    if (!tb_is_usable(t))
        return false;
    if (changes_word_only(claim, done, &word))
        return end_alone(t, claim, word);
    pthread_mutex_lock(&t->mutex);
    int err = kvt__tb_lock(t, t->lock_wait_ns);
    /* A handle has at most TB_N_CLAIMS claims, unless the records of claims are garbage. */
    if (err == -ETIMEDOUT && t->n_queued < TB_N_CLAIMS)
        t->queued[t->n_queued++] = (struct tb_queued_end){ *claim, done };
    if (!err) {
        run_queued_ends(&c);
        kvt__tb_end_claim(&c, claim, done);
        kvt__tb_unlock(t);
    }
    pthread_mutex_unlock(&t->mutex);
    return !err || err == -ETIMEDOUT;
}

bool
kvt__table_publish(struct kvt__table *t, struct kvt__claim *claim)
{
    assert(!claim->table || claim->kind != KVT__CLAIM_EVICT);
    if (!end(t, claim, true))
        return false;
    if (claim->kind == KVT__CLAIM_REPLACE) /* the entry has the recency of the old object */
        kvt__tb_mark_used(t, claim->entry);
    return true;
}

void
kvt__table_evicted(struct kvt__table *t, struct kvt__claim *claim)
{
    assert(!claim->table || claim->kind == KVT__CLAIM_EVICT);
    (void)end(t, claim, true);
}

void
kvt__table_abort(struct kvt__table *t, struct kvt__claim *claim)
{
    (void)end(t, claim, false);
}

/* ------------------------------------------------------------- dead owners */

/* Add to a change: the end of a dead owner's claim in a table of objects.  An object of the name
 * may exist, so the entry becomes READY and unread.  Until a probe reads the object, the entry
 * counts the bytes of the old and of the new object. */
static bool
end_object(struct tb_change *c, uint32_t entry, enum kvt__claim_kind kind, uint64_t bytes)
{
    struct kvt__table *t = c->table;
    uint64_t packed = packed_of(t, entry), sum = tb_bytes(packed) + bytes;

    tb_set64(c, &t->hot[entry].id[0], 0);
    tb_set64(c, &t->hot[entry].id[1], 0);
    if (kind == KVT__CLAIM_REPLACE && sum < TB_MAX_BYTES)
        tb_set64(c, &t->cold[entry].packed, (packed & ~(TB_MAX_BYTES - 1)) | sum);
    make_ready(c, entry, TB_UNREAD);
    return true;
}

/* Add to a change: the end of a dead owner's claim in a table of memory.  An eviction is undone;
 * otherwise the copy of the chunk may be incomplete, and the entry becomes FREE.  False: the
 * table is garbage. */
static bool
end_memory(struct tb_change *c, uint32_t entry, enum kvt__claim_kind kind, uint64_t bytes)
{
    struct kvt__table *t = c->table;

    if (kind == KVT__CLAIM_EVICT) {
        make_ready(c, entry, TB_LOAD(&t->hot[entry].word) & TB_FLAGS);
        return true;
    }
    return kvt__tb_free(c, entry, tb_bytes(packed_of(t, entry)) +
                                  (kind == KVT__CLAIM_REPLACE ? bytes : 0));
}

bool
kvt__tb_end_dead_claim(struct tb_change *c, unsigned owner, uint32_t number)
{
    struct kvt__table *t = c->table;
    struct tb_claim *record = tb_claim_at(t, owner, number);
    uint64_t packed = TB_LOAD(&record->packed), bytes = TB_LOAD(&record->bytes);
    enum kvt__claim_kind kind = (enum kvt__claim_kind)(packed & 0xff);
    uint32_t entry = (uint32_t)(packed >> 32);

    if (kind == TB_NO_CLAIM)
        return false;
    if (!record_of(t, owner, number, entry) || kind > KVT__CLAIM_EVICT) {
        if (kind != KVT__CLAIM_NEW && kind != KVT__CLAIM_EVICT)
            kvt__tb_mark_corrupt(t, "a claim");
        TB_STORE(&record->packed, TB_NO_CLAIM); /* the owner died in end_alone() */
        return false;
    }
    if (t->of_memory ? end_memory(c, entry, kind, bytes)
                     : end_object(c, entry, kind, bytes))
        tb_set64(c, &record->packed, TB_NO_CLAIM);
    else
        c->n = 0;
    kvt__tb_commit(c);
    return true;
}
