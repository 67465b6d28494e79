/* SPDX-License-Identifier: Apache-2.0
 *
 * Pauses: storage that fails is left alone for a while by all processes that have its
 * table.  One word for reads, one for writes: the end, monotonic clock; 0: none. */
#include "base/clock.h"
#include "index/table.h"

bool
kvt__index_is_paused(const struct kvt__index *ix, enum kvt__index_pause what)
{
    int64_t until = ix_usable(ix) ? (int64_t)IX_LOAD(&ix->map->header.paused_until[what])
                                  : 0;

    if (!until)
        return false;
    int64_t left = until - kvt__now_ns();
    /* An end that nobody can have set is garbage, or of an earlier boot. */
    return left > 0 && left <= KVT__INDEX_PAUSE_MAX_NS;
}

bool
kvt__index_pause(struct kvt__index *ix, enum kvt__index_pause what, int64_t ns)
{
    return ix_usable(ix) &&
           !__atomic_exchange_n(&ix->map->header.paused_until[what],
                                (uint64_t)(kvt__now_ns() + ns), __ATOMIC_SEQ_CST);
}

bool
kvt__index_resume(struct kvt__index *ix, enum kvt__index_pause what)
{
    if (!ix_usable(ix) || !IX_LOAD(&ix->map->header.paused_until[what]))
        return false;
    IX_STORE(&ix->map->header.paused_until[what], 0);
    return true;
}
