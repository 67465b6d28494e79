/* SPDX-License-Identifier: Apache-2.0
 *
 * Pauses of failing storage.  A word for reads and a word for writes contain the end of the
 * pause on the monotonic clock; 0: no pause. */
#include <assert.h>

#include "base/clock.h"
#include "table/private.h"

bool
kvt__table_is_paused(const struct kvt__table *t, enum kvt__table_pause kind)
{
    int64_t until = tb_is_usable(t) ? (int64_t)TB_LOAD(&t->header->paused_until[kind]) : 0;

    if (!until)
        return false;
    int64_t left = until - kvt__now_ns();
    /* A longer pause is garbage, or was set before a reboot. */
    return left > 0 && left <= KVT__TABLE_PAUSE_MAX_NS;
}

bool
kvt__table_pause(struct kvt__table *t, enum kvt__table_pause kind, int64_t ns)
{
    assert(ns > 0);
    return tb_is_usable(t) &&
           !__atomic_exchange_n(&t->header->paused_until[kind],
                                (uint64_t)(kvt__now_ns() + ns), __ATOMIC_SEQ_CST);
}

bool
kvt__table_resume(struct kvt__table *t, enum kvt__table_pause kind)
{
    return tb_is_usable(t) &&
           __atomic_exchange_n(&t->header->paused_until[kind], 0, __ATOMIC_SEQ_CST);
}
