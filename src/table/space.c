/* SPDX-License-Identifier: Apache-2.0
 *
 * Spaces: key texts with an empty hash.  An entry stores the number of a space.  A space without
 * entries is unused, and the next new text may take the number. */
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

/* Copy the text word by word, because another process may be writing the text.  Returns the bytes
 * of the text; 0: there is no text. */
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

    TB_STORE(&s->digest, UINT64_C(1)); /* the digest of no text, while the text changes */
    TB_STORE(&s->n_bytes, (uint32_t)n);
    for (size_t i = 0; i * 8 < n; i++) {
        uint64_t word = 0;
        memcpy(&word, text + i * 8, n - i * 8 < 8 ? n - i * 8 : 8);
        TB_STORE(&s->text[i], word);
    }
    TB_STORE(&s->digest, digest);
}

static bool
has_text(const struct tb_space *s, const char *text)
{
    char present[TB_TEXT_WORDS * 8];

    return get_text(s, present) && !strcmp(present, text);
}

int
kvt__table_space_text(const struct kvt__table *t, uint32_t space, char *out, size_t size)
{
    char text[TB_TEXT_WORDS * 8];

    if (!tb_is_usable(t) || space >= TB_N_SPACES || !get_text(&t->spaces[space], text) ||
        strlen(text) >= size)
        return -ENOENT;
    strcpy(out, text);
    return 0;
}

int
kvt__tb_intern_space(struct kvt__table *t, const char *text, uint64_t digest, bool has_tags)
{
    uint32_t first = has_tags ? TB_N_UNTAGGED : 0, unused = TB_NO_SPACE;
    uint32_t n = has_tags ? TB_N_SPACES - first : TB_N_UNTAGGED;

    if (!text)
        return TB_NO_SPACE;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = first + (uint32_t)((digest + i) % n);
        const struct tb_space *s = &t->spaces[at];
        uint64_t present = TB_LOAD(&s->digest);

        if (present == digest && has_text(s, text))
            return (int)at;
        if (unused == TB_NO_SPACE && !TB_LOAD(&s->n_entries))
            unused = at;
        if (!present)
            break;
    }
    if (unused == TB_NO_SPACE)
        return -ENFILE;
    set_text(&t->spaces[unused], text, digest);
    return (int)unused;
}

void
kvt__tb_count_space(struct tb_change *c, uint32_t space, int by)
{
    struct tb_space *s = &c->table->spaces[space];

    if (space >= TB_N_SPACES)
        return;
    uint32_t n = TB_LOAD(&s->n_entries);
    if (!n && by < 0)
        kvt__tb_mark_corrupt(c->table, "the count of a space");
    tb_set32(c, &s->n_entries, n + (uint32_t)by);
}
