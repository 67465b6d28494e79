/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of spaces: small numbers for key texts.  A space is made under the
 * lock and then never changes, so looking one up needs none. */
#include <errno.h>

#include "base/error.h"
#include "index/table.h"

static bool
text_equals(const struct ix_space *s, const uint64_t *words, size_t len)
{
    if (IX_LOAD(&s->state) != IX_SPACE_VALID || IX_LOAD(&s->n_bytes) != len)
        return false;
    for (size_t i = 0; i < (len + 7) / 8; i++)
        if (IX_LOAD(&s->text[i]) != words[i])
            return false;
    return true;
}

static int
find(const struct kvt__index *ix, const uint64_t *words, size_t len)
{
    for (unsigned i = 0; i < IX_N_SPACES; i++)
        if (text_equals(&ix->map->spaces[i], words, len))
            return (int)i;
    return -ENOENT;
}

/* One that is being written while the lock is ours was left by a dead writer. */
static int
make(struct kvt__index *ix, const char *text, const uint64_t *words, size_t len)
{
    for (unsigned i = 0; i < IX_N_SPACES; i++) {
        struct ix_space *s = &ix->map->spaces[i];
        if (IX_LOAD(&s->state) == IX_SPACE_VALID)
            continue;
        IX_STORE(&s->state, IX_SPACE_WRITING);
        IX_STORE(&s->epoch, kvt__ix_kept_epoch(ix, text));
        IX_STORE(&s->n_bytes, (uint32_t)len);
        for (size_t w = 0; w < IX_TEXT_WORDS; w++)
            IX_STORE(&s->text[w], words[w]);
        IX_STORE(&s->state, IX_SPACE_VALID);
        return (int)i;
    }
    return kvt__fail(ENOSPC, "index: all %u spaces are taken; stop its users "
                     "and delete its file.", IX_N_SPACES);
}

int
kvt__index_space(struct kvt__index *ix, const char *text)
{
    uint64_t words[IX_TEXT_WORDS] = { 0 };
    size_t len = strlen(text);

    if (!len || len > KVT__INDEX_SPACE_TEXT_MAX)
        return kvt__fail(EINVAL, "index: a space's text has 1 to %d bytes, not "
                         "%zu.", KVT__INDEX_SPACE_TEXT_MAX, len);
    if (!ix_usable(ix))
        return kvt__fail(ESTALE, "the index was opened before a fork or was "
                                 "replaced; open it again.");
    memcpy(words, text, len);
    int n = find(ix, words, len);
    if (n >= 0)
        return n;
    int rc = kvt__ix_lock(ix, IX_LOCK_WAIT_NS);
    if (rc)
        return rc;
    n = find(ix, words, len);
    if (n < 0)
        n = make(ix, text, words, len);
    kvt__ix_unlock(ix);
    return n;
}

static struct ix_space *
valid(const struct kvt__index *ix, uint32_t space)
{
    if (space >= IX_N_SPACES || !ix_usable(ix))
        return NULL;
    struct ix_space *s = &ix->map->spaces[space];
    return IX_LOAD(&s->state) == IX_SPACE_VALID ? s : NULL;
}

int
kvt__index_space_text(const struct kvt__index *ix, uint32_t space, char *out,
                      size_t size)
{
    uint64_t words[IX_TEXT_WORDS];
    const struct ix_space *s = valid(ix, space);

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
kvt__index_epoch(const struct kvt__index *ix, uint32_t space)
{
    const struct ix_space *s = valid(ix, space);

    return s ? IX_LOAD(&s->epoch) : 0;
}

int
kvt__index_next_epoch(struct kvt__index *ix, uint32_t space)
{
    char text[KVT__INDEX_SPACE_TEXT_MAX + 1];
    struct ix_space *s = valid(ix, space);
    int rc;

    if (!s)
        return 0;
    bool locked = !kvt__ix_lock(ix, IX_LOCK_WAIT_NS);
    uint64_t epoch = IX_ADD(&s->epoch, 1) + 1;
    if (!locked)
        return -ETIMEDOUT;
    rc = kvt__index_space_text(ix, space, text, sizeof text);
    if (!rc)
        rc = kvt__ix_keep_epoch(ix, text, epoch);
    kvt__ix_unlock(ix);
    return rc;
}
