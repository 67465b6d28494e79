/* SPDX-License-Identifier: Apache-2.0
 *
 * Spaces: the key texts with an empty hash, which entries name by number.  A space without
 * entries is unused, and the next new text may take the space. */
#include <errno.h>

#include "base/error.h"
#include "base/sha256.h"
#include "table/private.h"

uint64_t
kvt__table_digest(const char *text)
{
    uint8_t sha[KVT__SHA256_BYTES];
    struct kvt__sha256 state;
    uint64_t digest;

    kvt__sha256_init(&state);
    kvt__sha256_add(&state, text, strlen(text));
    kvt__sha256_end(&state, sha);
    memcpy(&digest, sha, sizeof digest);
    return digest ? digest : 1;
}

/* Copy the text word by word: another process may write the text now. */
static size_t
get_text(const struct tb_space *s, char out[TB_TEXT_WORDS * 8])
{
    uint32_t n = TB_LOAD(&s->n_bytes);

    if (n > KVT__TABLE_TEXT_MAX)
        return 0;
    for (unsigned i = 0; i * 8 < n; i++) {
        uint64_t word = TB_LOAD(&s->text[i]);
        memcpy(out + i * 8, &word, 8);
    }
    out[n] = '\0';
    return n;
}

static void
set_text(struct tb_space *s, const char *text, uint64_t digest)
{
    size_t n = strlen(text);

    TB_STORE(&s->digest, UINT64_C(1)); /* of no text */
    TB_STORE(&s->n_bytes, (uint32_t)n);
    for (size_t i = 0; i * 8 < n; i++) {
        uint64_t word = 0;
        memcpy(&word, text + i * 8, n - i * 8 < 8 ? n - i * 8 : 8);
        TB_STORE(&s->text[i], word);
    }
    TB_STORE(&s->digest, digest);
}

static bool
has_text(const struct tb_space *s, const char *text, uint64_t digest)
{
    char present[TB_TEXT_WORDS * 8];

    return TB_LOAD(&s->digest) == digest && get_text(s, present) &&
           !strcmp(present, text);
}

int
kvt__table_space_text(const struct kvt__table *t, uint32_t space, char *out, size_t size)
{
    char text[TB_TEXT_WORDS * 8];

    if (!tb_usable(t) || space >= TB_N_SPACES || !get_text(&t->spaces[space], text) ||
        strlen(text) >= size)
        return -ENOENT;
    strcpy(out, text);
    return 0;
}

/* Find the space of a text, or an unused space.  Needs no lock: the result is a hint. */
static uint32_t
search(const struct kvt__table *t, const char *text, uint64_t digest)
{
    uint32_t first = kvt__key_has_tags(text) ? TB_N_UNTAGGED : 0;
    uint32_t n = first ? TB_N_SPACES - first : TB_N_UNTAGGED;
    uint32_t unused = TB_NO_SPACE;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = first + (uint32_t)((digest + i) % n);
        const struct tb_space *s = &t->spaces[at];
        uint64_t present = TB_LOAD(&s->digest);

        if (present == digest && has_text(s, text, digest))
            return at;
        if (unused == TB_NO_SPACE && !TB_LOAD(&s->n_entries))
            unused = at;
        if (!present)
            break;
    }
    return unused;
}

/* Two spaces can get one text if a text was searched while another process stored it.  That
 * is harmless: names are compared by digest. */
uint32_t
kvt__tb_space_hint(const struct kvt__table *t, const char *text, uint64_t digest)
{
    return text ? search(t, text, digest) : TB_NO_SPACE;
}

int
kvt__tb_space(struct kvt__table *t, const char *text, uint64_t digest, uint32_t hint)
{
    if (!text)
        return TB_NO_SPACE;
    if (hint == TB_NO_SPACE)
        return -ENFILE;
    if (has_text(&t->spaces[hint], text, digest))
        return (int)hint;
    if (TB_LOAD(&t->spaces[hint].n_entries))
        return -ERESTART;
    set_text(&t->spaces[hint], text, digest);
    return (int)hint;
}
