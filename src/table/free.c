/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts of the table, and the step of an entry to FREE. */
#include "table/private.h"

void
kvt__tb_lower(struct tb_change *c, uint64_t *at, uint64_t n)
{
    uint64_t old = TB_LOAD(at);

    if (old < n)
        kvt__tb_garbage(c->table, "a count");
    tb_set64(c, at, old < n ? 0 : old - n);
}

void
kvt__tb_count_space(struct tb_change *c, uint32_t space, int by)
{
    struct tb_space *s = &c->table->spaces[space];

    if (space >= TB_N_SPACES)
        return;
    uint32_t n = TB_LOAD(&s->n_entries);
    if (!n && by < 0)
        kvt__tb_garbage(c->table, "the count of a space");
    tb_set32(c, &s->n_entries, n + (uint32_t)by);
}

bool
kvt__tb_free(struct tb_change *c, uint32_t entry, uint64_t bytes)
{
    struct kvt__table *t = c->table;
    struct tb_header *h = t->header;
    struct tb_hot *e = &t->hot[entry];
    uint64_t word = TB_LOAD(&e->word);

    if (!kvt__tb_unlink(c, entry, kvt__tb_entry_hash(t, entry))) {
        kvt__tb_garbage(t, "a chain");
        return false;
    }
    tb_set64(c, &e->word, tb_next_word(word, TB_FREE, 0));
    tb_set32(c, &e->next, TB_LOAD(&h->free));
    tb_set32(c, &h->free, entry);
    kvt__tb_lower(c, &h->n_entries, 1);
    kvt__tb_lower(c, &h->used_bytes, bytes);
    if (word & TB_UNREAD)
        kvt__tb_lower(c, &h->n_unread, 1);
    kvt__tb_count_space(c, tb_space(word), -1);
    return true;
}
