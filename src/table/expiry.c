/* SPDX-License-Identifier: Apache-2.0
 *
 * Times to live of entries: longer ends, and searches for expired entries. */
#include "table/private.h"

/* Add to a change: the entry `seen` gets another time to live, unless the entry has changed. */
static void
set_expiry(struct tb_change *c, const struct kvt__record *seen, int64_t expires_ns)
{
    struct kvt__table *t = c->table;

    if (TB_LOAD(&t->hot[seen->entry].word) != seen->word)
        return;
    uint64_t *packed = &t->cold[seen->entry].packed;
    tb_set64(c, packed, tb_with_expiry(TB_LOAD(packed), tb_note_expiry(t, expires_ns)));
    kvt__tb_commit(c);
}

void
kvt__table_prolong(struct kvt__table *t, const struct kvt__record *seen, int64_t expires_ns)
{
    struct tb_change c;

    if (!seen->expires_ns || seen->entry >= t->max_entries ||
        (expires_ns && expires_ns < seen->expires_ns + TB_TTL_UNIT_NS) || kvt__tb_begin(t, &c))
        return;
    set_expiry(&c, seen, expires_ns);
    kvt__tb_end(&c);
}

bool
kvt__table_begin_expiry(struct kvt__table *t)
{
    uint32_t now = (uint32_t)(kvt__now_ns() / KVT__NS_PER_S);

    if (!tb_is_usable(t) || !tb_is_writer(t) || !TB_LOAD(&t->header->expires))
        return false;
    uint32_t last = TB_LOAD(&t->header->expired_s);
    return now - last >= TB_EXPIRED_S && tb_swap(&t->header->expired_s, &last, now);
}
