/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of spaces: small numbers for key texts.  An entry's file name begins with the
 * text of the entry's space.
 *
 * Only the holder of the file's lock makes or frees a space; lookups need no lock.  Unused
 * spaces are freed when a text needs a space: the holder marks a space as checked, reads all
 * entries, and frees the space if no entry has the number; otherwise the space becomes valid
 * again.  A claim first writes the number to the entry and then checks that the space is
 * still valid (entry.c).  All four accesses are sequentially consistent, so the search
 * sees the entry or the claim sees the mark.  The text of a
 * checked space stays readable for evictions. */
#include <errno.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/sha256.h"
#include "index/table.h"

/* A search reads the whole table, and clients may send new texts without limit: after a
 * search that freed few spaces, the handle pauses searches. */
#define SEARCH_PAUSE_NS KVT__NS_PER_S
#define WORTH_A_SEARCH (IX_N_SPACES / 32)

/* A text in the table's format. */
struct text {
    uint64_t words[IX_TEXT_WORDS];
    uint64_t digest;
    uint32_t len;
    unsigned first, end; /* the spaces for this kind of text */
};

uint64_t
kvt__index_text_digest(const char *text)
{
    return kvt__sha256_word(text);
}

static void
take_text(struct text *t, const char *text)
{
    bool tagged = kvt__key_has_tags(text);

    memset(t->words, 0, sizeof t->words);
    t->len = (uint32_t)strlen(text);
    memcpy(t->words, text, t->len);
    t->digest = kvt__index_text_digest(text);
    t->first = tagged ? IX_N_UNTAGGED : 0;
    t->end = tagged ? IX_N_SPACES : IX_N_UNTAGGED;
}

/* ----------------------------------------------------------------------- finding */

/* Read the state first: from then on, a space used by an entry of the caller keeps its
 * text. */
static bool
has_text(const struct ix_space *s, const struct text *t)
{
    if (IX_LOAD_SEQ(&s->state) != IX_SPACE_VALID || IX_LOAD(&s->n_bytes) != t->len)
        return false;
    for (size_t i = 0; i < (t->len + 7) / 8; i++)
        if (IX_LOAD(&s->text[i]) != t->words[i])
            return false;
    return true;
}

/* The first space in which to look for a text; the others follow in a circle. */
static unsigned
first_place(const struct text *t)
{
    return t->first + (unsigned)(t->digest % (t->end - t->first));
}

static unsigned
next_place(const struct text *t, unsigned i)
{
    return i + 1 < t->end ? i + 1 : t->first;
}

static int
find(const struct kvt__index *ix, const struct text *t)
{
    unsigned i = first_place(t);

    for (unsigned n = t->first; n < t->end; n++, i = next_place(t, i))
        if (IX_LOAD(&ix->map->spaces[i].digest) == t->digest &&
            has_text(&ix->map->spaces[i], t))
            return (int)i;
    return -ENOENT;
}

bool
kvt__ix_space_has(const struct kvt__index *ix, uint32_t space, const char *text)
{
    struct text t;

    take_text(&t, text);
    return space < IX_N_SPACES && has_text(&ix->map->spaces[space], &t);
}

/* ------------------------------------------------------- making, under the lock */

/* Repair the states that a dead holder of the lock left. */
static void
settle(struct kvt__index *ix, const struct text *t)
{
    for (unsigned i = t->first; i < t->end; i++) {
        struct ix_space *s = &ix->map->spaces[i];
        uint32_t state = IX_LOAD(&s->state);

        if (state == IX_SPACE_CHECKED)
            IX_STORE(&s->state, IX_SPACE_VALID);
        else if (state != IX_SPACE_VALID && state != IX_SPACE_FREE)
            IX_STORE(&s->state, IX_SPACE_FREE);
    }
}

static int
make(struct kvt__index *ix, const struct text *t)
{
    unsigned i = first_place(t);

    for (unsigned n = t->first; n < t->end; n++, i = next_place(t, i)) {
        struct ix_space *s = &ix->map->spaces[i];

        if (IX_LOAD(&s->state) != IX_SPACE_FREE)
            continue;
        IX_STORE(&s->state, IX_SPACE_WRITING);
        IX_STORE(&s->digest, t->digest);
        IX_STORE(&s->n_bytes, t->len);
        for (size_t w = 0; w < IX_TEXT_WORDS; w++)
            IX_STORE(&s->text[w], t->words[w]);
        IX_STORE_SEQ(&s->state, IX_SPACE_VALID);
        return (int)i;
    }
    return -ENFILE;
}

/* Set the bit of each used space.  An entry being filled may not have a number yet: the
 * entry's owner checks the space later. */
static void
find_used(const struct kvt__index *ix, uint64_t used[IX_N_SPACES / 64])
{
    for (uint64_t i = 0; i < ix->n_entries; i++) {
        const struct ix_entry *e = &ix->map->entries[i];

        if (ix_word_state(IX_LOAD_SEQ(&e->word)) == IX_FREE)
            continue;
        uint32_t space = ix_packed_space(IX_LOAD(&e->packed));
        if (space < IX_N_SPACES)
            used[space / 64] |= UINT64_C(1) << space % 64;
    }
}

/* Free the unused spaces for this kind of text. */
static void
free_unused(struct kvt__index *ix, const struct text *t)
{
    uint64_t used[IX_N_SPACES / 64] = { 0 };
    int64_t now = kvt__now_ns();
    unsigned n_free = 0;

    if (now < ix->search_from_ns)
        return;
    for (unsigned i = t->first; i < t->end; i++)
        IX_STORE_SEQ(&ix->map->spaces[i].state, IX_SPACE_CHECKED);
    find_used(ix, used);
    for (unsigned i = t->first; i < t->end; i++) {
        bool is_used = used[i / 64] >> i % 64 & 1;

        n_free += !is_used;
        IX_STORE_SEQ(&ix->map->spaces[i].state, is_used ? IX_SPACE_VALID : IX_SPACE_FREE);
    }
    ix->search_from_ns = n_free < WORTH_A_SEARCH ? now + SEARCH_PAUSE_NS : now;
}

static int
find_or_make(struct kvt__index *ix, const struct text *t)
{
    settle(ix, t);
    int n = find(ix, t);
    if (n < 0)
        n = make(ix, t);
    if (n < 0) {
        free_unused(ix, t);
        n = make(ix, t);
    }
    return n >= 0 ? n : kvt__fail(ENFILE, "index: stored chunks have %u different names but "
                                  "for their hashes, and more are not possible%s",
                                  t->end - t->first, t->first ? " with tags" : "");
}

int
kvt__ix_space(struct kvt__index *ix, const char *text)
{
    size_t len = strlen(text);
    struct text t;

    if (!len || len > KVT__INDEX_SPACE_TEXT_MAX)
        return kvt__fail(EINVAL, "index: a space's text has 1 to %d bytes, not "
                         "%zu.", KVT__INDEX_SPACE_TEXT_MAX, len);
    if (!ix_usable(ix))
        return kvt__fail(ESTALE, "the index was opened before a fork or was "
                                 "replaced; open it again.");
    take_text(&t, text);
    int n = find(ix, &t);
    if (n >= 0)
        return n;
    int rc = kvt__ix_lock(ix, IX_LOCK_WAIT_NS);
    if (rc)
        return rc;
    n = find_or_make(ix, &t);
    kvt__ix_unlock(ix);
    return n;
}

/* ------------------------------------------------------------------------ queries */

static const struct ix_space *
with_text(const struct kvt__index *ix, uint32_t space)
{
    if (space >= IX_N_SPACES || !ix_usable(ix))
        return NULL;
    const struct ix_space *s = &ix->map->spaces[space];
    uint32_t state = IX_LOAD(&s->state);

    return state == IX_SPACE_VALID || state == IX_SPACE_CHECKED ? s : NULL;
}

int
kvt__index_space_text(const struct kvt__index *ix, uint32_t space, char *out,
                      size_t size)
{
    uint64_t words[IX_TEXT_WORDS];
    const struct ix_space *s = with_text(ix, space);

    if (!s)
        return -ENOENT;
    size_t len = IX_LOAD(&s->n_bytes);
    if (len > KVT__INDEX_SPACE_TEXT_MAX || len >= size)
        return -ENOENT;
    for (size_t i = 0; i < IX_TEXT_WORDS; i++)
        words[i] = IX_LOAD(&s->text[i]);
    memcpy(out, words, len);
    out[len] = '\0';
    return len && strlen(out) == len ? 0 : -ENOENT;
}

uint64_t
kvt__index_space_digest(const struct kvt__index *ix, uint32_t space)
{
    const struct ix_space *s = with_text(ix, space);

    return s ? IX_LOAD(&s->digest) : 0;
}
