/* SPDX-License-Identifier: Apache-2.0
 *
 * What writers do: claim, publish, abort, evict.  Any thread, no lock.
 *
 * Two claims of one identity: each fills an entry that nobody else touches, shows
 * it as claiming, then looks at all places of the identity.  Whoever showed its own
 * later sees the other.  It gives way to one that is further than claiming or stands at a
 * lower place; one that is claiming at a higher place it pushes out, by moving
 * that word before its owner confirms it.  So just one is confirmed.
 *
 * The numbers of the header: they grow before an entry's move and shrink after
 * it, so that they never wrap; a filling or claiming entry counts in none, its bytes are
 * still the owner's reservation. */
#include <errno.h>

#include "base/clock.h"
#include "base/error.h"
#include "index/table.h"

#define TRIES 8
#define NO_SLOT UINT64_MAX

struct places {
    uint64_t id[2];
    struct ix_entry *groups[2];
    unsigned n;
};

static void
get_places(const struct kvt__index *ix, const struct kvt__id *id,
           struct places *p)
{
    ix_id_words(id, p->id);
    p->n = kvt__ix_groups(ix, p->id, p->groups);
}

static struct ix_entry *
place(const struct places *p, unsigned i)
{
    return i < p->n * IX_GROUP ? &p->groups[i / IX_GROUP][i % IX_GROUP] : NULL;
}

static int
check_writer(const struct kvt__index *ix)
{
    if (!ix_usable(ix))
        return kvt__fail(ESTALE, "the index was opened before a fork or was "
                                 "replaced; open it again.");
    if (ix->owner < 0)
        return kvt__fail(EINVAL, "the index was opened for readers only.");
    return 0;
}

/* ------------------------------------------------------------------- budget */

int
kvt__index_reserve(struct kvt__index *ix, uint64_t bytes)
{
    int rc = check_writer(ix);

    if (rc)
        return rc;
    struct ix_header *h = &ix->map->header;
    struct ix_owner *o = &ix->map->owners[ix->owner];
    uint64_t limit = IX_LOAD(&h->limit_bytes);
    if (!limit || (ix->limit_bytes && ix->limit_bytes < limit))
        limit = ix->limit_bytes;
    if (!limit)
        limit = UINT64_MAX;
    ix_begin(ix);
    IX_ADD(&o->reserved_bytes, bytes);
    uint64_t used = IX_LOAD(&h->used_bytes);
    do {
        if (used > limit || bytes > limit - used) {
            ix_sub(&o->reserved_bytes, bytes);
            rc = -ENOSPC;
            break;
        }
    } while (!ix_swap(&h->used_bytes, &used, used + bytes));
    ix_done(ix);
    return rc;
}

void
kvt__index_unreserve(struct kvt__index *ix, uint64_t bytes)
{
    if (check_writer(ix))
        return;
    ix_begin(ix);
    ix_sub(&ix->map->header.used_bytes, bytes);
    ix_sub(&ix->map->owners[ix->owner].reserved_bytes, bytes);
    ix_done(ix);
}

/* -------------------------------------------------------------------- claim */

/* Free what a dead owner left.  Its bytes stay in used_bytes: its record still
 * stands and makes the next recovery count anew.  The file of a claimed or evicting entry
 * may exist without an entry: clear scanned before freeing the entry, so that a process
 * dying in between costs only a scan. */
static bool
free_if_dead(struct kvt__index *ix, struct ix_entry *e, uint64_t word)
{
    if (kvt__ix_owner_lives(ix, ix_word_owner(word)))
        return false;
    if (!ix_is_tentative(ix_word_state(word)))
        ix_clear_scanned(&ix->map->header);
    return ix_move(e, word, ix_word_next(word, IX_FREE, 0));
}

/* A ready entry out of range, which no reader finds. */
static int
free_garbage(struct kvt__index *ix, struct ix_entry *e, uint64_t word)
{
    if (!ix_move(e, word, ix_word_next(word, IX_FREE, 0)))
        return -EAGAIN;
    IX_STORE(&ix->map->header.recount, 1);
    return 0;
}

/* Deal with another entry of the same identity.  0 when it is no more in the
 * way, -EAGAIN: look at it again. */
static int
meet(struct kvt__index *ix, struct ix_entry *e, uint64_t word,
     const struct ix_entry *mine)
{
    enum ix_state state = ix_word_state(word);

    if (state == IX_READY && !ix_space_in_range(ix_packed_space(IX_LOAD(&e->packed))))
        return free_garbage(ix, e, word);
    if (state == IX_READY)
        return -EEXIST;
    if (!kvt__ix_owner_lives(ix, ix_word_owner(word)))
        return free_if_dead(ix, e, word) ? 0 : -EAGAIN;
    if (state != IX_CLAIMING || !mine || e < mine)
        return -EEXIST;
    return ix_move(e, word, ix_word_next(word, IX_FREE, 0)) ? 0 : -EAGAIN;
}

/* Look for the identity at all its places but mine (NULL: all).  0 when it is at
 * none, else -EEXIST. */
static int
look_round(struct kvt__index *ix, const struct places *p,
           const struct ix_entry *mine)
{
    struct ix_entry *e;

    for (unsigned i = 0; (e = place(p, i)); i++) {
        int rc = e == mine ? 0 : -EAGAIN;
        for (int t = 0; rc == -EAGAIN && t < TRIES; t++) {
            uint64_t word = IX_LOAD_SEQ(&e->word);
            /* Who fills an entry looks round afterwards, and sees us. */
            if (ix_word_state(word) == IX_FREE || ix_word_state(word) == IX_FILLING
                || IX_LOAD_SEQ(&e->id[0]) != p->id[0]
                || IX_LOAD_SEQ(&e->id[1]) != p->id[1])
                rc = 0;
            else if (IX_LOAD_SEQ(&e->word) == word)
                rc = meet(ix, e, word, mine);
        }
        if (rc)
            return -EEXIST;
    }
    return 0;
}

/* The first free entry of the group with more free ones becomes ours to fill. */
static struct ix_entry *
take_free(struct kvt__index *ix, const struct places *p, uint64_t *word)
{
    for (int t = 0; t < 4 * TRIES; t++) {
        struct ix_entry *first[2] = { NULL, NULL }, *e;
        uint64_t words[2] = { 0, 0 };
        unsigned n_free[2] = { 0, 0 };
        for (unsigned i = 0; (e = place(p, i)); i++) {
            uint64_t w = IX_LOAD(&e->word);
            unsigned g = i / IX_GROUP;
            if (ix_word_state(w) == IX_FREE && !n_free[g]++) {
                first[g] = e;
                words[g] = w;
            }
        }
        unsigned g = n_free[1] > n_free[0];
        if (!first[g])
            return NULL;
        *word = ix_word_next(words[g], IX_FILLING, (unsigned)ix->owner);
        if (ix_move(first[g], words[g], *word))
            return first[g];
    }
    return NULL;
}

/* Whether a place became free of what a dead owner left in it. */
static bool
free_dead(struct kvt__index *ix, const struct places *p)
{
    struct ix_entry *e;
    bool any = false;

    for (unsigned i = 0; (e = place(p, i)); i++) {
        uint64_t word = IX_LOAD(&e->word);
        enum ix_state state = ix_word_state(word);
        if (state != IX_FREE && state != IX_READY)
            any |= free_if_dead(ix, e, word);
    }
    return any;
}

static void
fill_hash(struct kvt__index *ix, struct ix_entry *e, const struct kvt__hash *hash)
{
    IX_STORE(&e->hash, hash->bits[0]);
    if (hash->form != KVT__HASH_WIDE)
        return;
    for (size_t i = 1; i < KVT__HASH_WORDS; i++)
        IX_STORE(&ix->rests[e - ix->map->entries].bits[i - 1], hash->bits[i]);
}

/* Write the fields, and show them: filling -> claiming, from where on a rival may
 * push the entry out and it is not ours to write any more.  The new word. */
static uint64_t
fill(struct kvt__index *ix, struct ix_entry *e, uint64_t word,
     const struct kvt__index_entry *entry)
{
    int64_t now = kvt__wall_ns();
    int64_t recency = entry->recency_ns < now ? entry->recency_ns : now;
    enum kvt__hash_form form = entry->hash.form;
    uint64_t id[2];

    ix_id_words(&entry->id, id);
    IX_STORE(&e->lease, 0);
    IX_STORE(&e->recency, recency > 0 ? (uint64_t)recency & ~IX_USES : 0);
    fill_hash(ix, e, &entry->hash);
    IX_STORE(&e->packed, entry->bytes | (uint64_t)entry->space << 40
                             | (uint64_t)entry->path << 56
                             | (uint64_t)(form == KVT__HASH_UNSIGNED) << 63);
    IX_STORE(&e->tokens_flags,
             (uint64_t)(entry->flags | (form == KVT__HASH_WIDE ? IX_WIDE : 0)) << 32
                 | entry->tokens);
    IX_STORE_SEQ(&e->id[0], id[0]);
    IX_STORE_SEQ(&e->id[1], id[1]);
    uint64_t next = ix_word_next(word, IX_CLAIMING, (unsigned)ix->owner);
    ix_move(e, word, next);
    return next;
}

/* claiming -> claimed; false when another pushed it out. */
static bool
confirm(struct kvt__index *ix, struct ix_entry *e, uint64_t word,
        struct kvt__index_claim *claim, uint64_t bytes)
{
    uint64_t next = ix_word_next(word, IX_CLAIMED, (unsigned)ix->owner);

    ix_begin(ix);
    bool ours = ix_move(e, word, next);
    if (ours) {
        ix_sub(&ix->map->owners[ix->owner].reserved_bytes, bytes);
        IX_ADD(&ix->n_claims, 1);
        claim->slot = (uint64_t)(e - ix->map->entries);
        claim->word = next;
        claim->bytes = bytes;
        claim->map = ix->map;
    }
    ix_done(ix);
    return ours;
}

static int
check_entry(const struct kvt__index *ix, const struct kvt__index_entry *entry)
{
    if (entry->bytes >= IX_MAX_BYTES || !ix_space_in_range(entry->space)
        || entry->path >= IX_MAX_PATHS)
        return kvt__fail(EINVAL, "index: an entry of %llu bytes in space %u, "
                         "directory %u is out of range.",
                         (unsigned long long)entry->bytes, entry->space,
                         entry->path);
    if (entry->hash.form == KVT__HASH_WIDE && !ix->rests)
        return kvt__fail(ENOTSUP, "index: it was made without room for hashes of 64 "
                         "digits; set lmcache_release to the LMCache that makes them.");
    return 0;
}

/* Claim an entry in a known space.  As kvt__index_claim(); -EAGAIN: the space has
 * another text by now. */
static int
claim_in_space(struct kvt__index *ix, const struct kvt__index_entry *entry,
               const char *text, struct kvt__index_claim *claim)
{
    struct places p;
    uint64_t word;

    get_places(ix, &entry->id, &p);
    for (int t = 0; t < TRIES; t++) {
        int rc = look_round(ix, &p, NULL);
        if (rc)
            return rc;
        struct ix_entry *e = take_free(ix, &p, &word);
        if (!e && free_dead(ix, &p))
            continue;
        if (!e)
            return -ENOSPC;
        word = fill(ix, e, word, entry);
        rc = look_round(ix, &p, e);
        /* The claim writes the entry and then reads the space; the search marks the space
         * and then reads the entries: the claim sees the mark or the search sees the entry. */
        if (!rc && text && !kvt__ix_space_has(ix, entry->space, text))
            rc = -EAGAIN;
        if (rc) {
            ix_move(e, word, ix_word_next(word, IX_FREE, 0));
            return rc;
        }
        if (confirm(ix, e, word, claim, entry->bytes))
            return 0;
    }
    return -EEXIST;
}

/* Make *claim name no entry, and check that the handle may claim. */
static int
check_claim(struct kvt__index *ix, struct kvt__index_claim *claim)
{
    claim->slot = NO_SLOT;
    return check_writer(ix);
}

int
kvt__index_claim(struct kvt__index *ix, const struct kvt__index_entry *entry,
                 const char *text, struct kvt__index_claim *claim)
{
    struct kvt__index_entry e = *entry;
    int rc = check_claim(ix, claim);

    for (int t = 0; !rc && t < TRIES; t++) {
        int space = text ? kvt__ix_space(ix, text) : (int)e.space;

        if (space < 0)
            return space;
        e.space = (uint32_t)space;
        rc = check_entry(ix, &e);
        if (!rc)
            rc = claim_in_space(ix, &e, text, claim);
        if (rc != -EAGAIN)
            return rc;
        rc = 0;
    }
    return rc ? rc : kvt__fail(ENFILE, "index: the space of '%s' is taken away each time "
                               "that it is made", text);
}

/* ----------------------------------------------------------- ends of a claim */

static struct ix_entry *
claimed(struct kvt__index *ix, const struct kvt__index_claim *claim)
{
    if (claim->slot >= ix->n_entries || claim->map != ix->map || check_writer(ix))
        return NULL;
    return &ix->map->entries[claim->slot];
}

static void
end_claim(struct kvt__index *ix, struct kvt__index_claim *claim, bool ours)
{
    /* Only garbage in the file can have taken it from its live owner. */
    if (!ours)
        IX_STORE(&ix->map->header.recount, 1);
    ix_sub(&ix->n_claims, 1);
    claim->slot = NO_SLOT;
}

static bool
to_ready(struct kvt__index *ix, struct kvt__index_claim *claim)
{
    struct ix_entry *e = claimed(ix, claim);

    if (!e)
        return claim->slot == NO_SLOT;
    struct ix_header *h = &ix->map->header;
    uint64_t unread = ix_is_unread(IX_LOAD(&e->tokens_flags));
    if (!IX_LOAD(&e->recency))
        IX_STORE(&e->recency, (uint64_t)kvt__wall_ns() & ~IX_USES);
    ix_begin(ix);
    IX_ADD(&h->n_ready, 1);
    IX_ADD(&h->n_unread, unread);
    bool ours = ix_move(e, claim->word, ix_word_next(claim->word, IX_READY, 0));
    if (!ours) {
        ix_sub(&h->n_ready, 1);
        ix_sub(&h->n_unread, unread);
    }
    end_claim(ix, claim, ours);
    ix_done(ix);
    return true;
}

static void
to_free(struct kvt__index *ix, struct kvt__index_claim *claim)
{
    struct ix_entry *e = claimed(ix, claim);

    if (!e)
        return;
    ix_begin(ix);
    bool ours = ix_move(e, claim->word, ix_word_next(claim->word, IX_FREE, 0));
    if (ours)
        ix_sub(&ix->map->header.used_bytes, claim->bytes);
    end_claim(ix, claim, ours);
    ix_done(ix);
}

bool
kvt__index_publish(struct kvt__index *ix, struct kvt__index_claim *claim)
{
    return to_ready(ix, claim);
}

void
kvt__index_abort(struct kvt__index *ix, struct kvt__index_claim *claim)
{
    to_free(ix, claim);
}

/* -------------------------------------------------------------------- evict */

/* ready -> evicting; false when the entry changed. */
static bool
begin_eviction(struct kvt__index *ix, struct ix_entry *e, uint64_t word,
               const struct kvt__index_entry *entry,
               struct kvt__index_claim *claim)
{
    struct ix_header *h = &ix->map->header;
    uint64_t next = ix_word_next(word, IX_EVICTING, (unsigned)ix->owner);

    ix_begin(ix);
    bool ours = ix_move(e, word, next);
    if (ours) {
        ix_sub(&h->n_ready, 1);
        ix_sub(&h->n_unread, entry->flags & KVT__INDEX_UNREAD);
        IX_ADD(&ix->n_claims, 1);
        claim->slot = (uint64_t)(e - ix->map->entries);
        claim->word = next;
        claim->bytes = entry->bytes;
        claim->map = ix->map;
    }
    ix_done(ix);
    return ours;
}

int
kvt__index_evict_seen(struct kvt__index *ix, const struct kvt__index_entry *seen,
                      struct kvt__index_claim *claim)
{
    struct kvt__index_entry entry;
    uint64_t word;
    int rc = check_claim(ix, claim);

    if (rc)
        return rc;
    if (seen->slot >= ix->n_entries)
        return -ENOENT;
    struct ix_entry *e = &ix->map->entries[seen->slot];
    bool same = kvt__ix_read(ix, e, &word, &entry) && word == seen->word
                && kvt__id_equal(&entry.id, &seen->id);
    return same && begin_eviction(ix, e, word, &entry, claim) ? 0 : -ENOENT;
}

int
kvt__index_evict(struct kvt__index *ix, const struct kvt__id *id, bool force,
                 struct kvt__index_entry *out, struct kvt__index_claim *claim)
{
    struct kvt__index_entry entry;
    struct places p;
    uint64_t word;
    int rc = check_claim(ix, claim);

    if (rc)
        return rc;
    if (!out)
        out = &entry;
    for (int t = 0; t < TRIES; t++) {
        int64_t now = kvt__now_ns();
        struct ix_entry *e = kvt__ix_find(ix, id, &word, out);
        if (!e)
            break;
        if (!force && ix_lease_holds(IX_LOAD(&e->lease), now))
            return -EBUSY;
        if (!begin_eviction(ix, e, word, out, claim))
            continue;
        /* The word moved before this look: a lease that was stored earlier is
         * seen here, a later one sees the word. */
        if (force || !ix_lease_holds(IX_LOAD_SEQ(&e->lease), now))
            return 0;
        to_ready(ix, claim);
        return -EBUSY;
    }
    get_places(ix, id, &p);
    return look_round(ix, &p, NULL) ? -EBUSY : -ENOENT;
}

void
kvt__index_removed(struct kvt__index *ix, struct kvt__index_claim *claim)
{
    to_free(ix, claim);
}

void
kvt__index_restore(struct kvt__index *ix, struct kvt__index_claim *claim)
{
    to_ready(ix, claim);
}
