/* SPDX-License-Identifier: Apache-2.0
 *
 * The redo record.  A change collects values and their offsets in the mapping in the redo record
 * of the header.  kvt__tb_commit() stores the number of values, writes the values to their
 * offsets and resets the number.  If a process is killed before the number is stored, the
 * process has changed nothing.  If a process is killed later, the next writer completes the
 * change.  A value may be written twice, because only transactions write these words. */
#include <assert.h>

#include "base/log.h"
#include "table/private.h"

void
kvt__tb_mark_corrupt(struct kvt__table *t, const char *part)
{
    if (TB_LOAD(&t->header->use) == TB_IN_USE)
        kvt__log(KVT_LOG_WARN, "index: %s of the index is corrupt; the index is replaced", part);
    TB_STORE(&t->header->use, TB_REPLACED);
}

bool
kvt__tb_redo(struct kvt__table *t)
{
    struct tb_header *h = t->header;
    uint32_t n = TB_LOAD(&h->n_redo);

    if (n > TB_REDO_MAX)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t offset = TB_LOAD(&h->redo[i].offset), value = TB_LOAD(&h->redo[i].value);
        size_t at = (size_t)(offset & ~UINT64_C(1)), width = offset & 1 ? 8 : 4;

        if (at % width || at < offsetof(struct tb_header, limit_bytes) ||
            at > t->map_bytes - width)
            return false;
        if (offset & 1)
            TB_STORE((uint64_t *)((char *)h + at), value);
        else
            TB_STORE((uint32_t *)((char *)h + at), (uint32_t)value);
    }
    TB_STORE(&h->n_redo, 0);
    return true;
}

void
kvt__tb_commit(struct tb_change *c)
{
    struct kvt__table *t = c->table;

    assert(c->n <= TB_REDO_MAX);
    if (!c->n)
        return;
    TB_STORE(&t->header->n_redo, c->n);
    if (!kvt__tb_redo(t)) /* another process wrote garbage just now */
        kvt__tb_mark_corrupt(t, "the redo record");
    c->n = 0;
}

void
kvt__tb_decrease(struct tb_change *c, uint64_t *at, uint64_t n)
{
    uint64_t old = TB_LOAD(at);

    if (old < n)
        kvt__tb_mark_corrupt(c->table, "a count");
    tb_set64(c, at, old < n ? 0 : old - n);
}
