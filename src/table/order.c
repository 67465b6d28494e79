/* SPDX-License-Identifier: Apache-2.0
 *
 * Which entries are evicted first.  The recency of an entry holds the time of the last use
 * (FIFO: of the claim) and, in the low bits, the number of uses.  So processes with different
 * policies can share a table: each process evicts by its own policy. */
#include "base/clock.h"
#include "table/private.h"

static uint64_t
by_time(uint64_t recency)
{
    return recency;
}

static uint64_t
by_uses(uint64_t recency)
{
    return (recency & TB_USES) << 52 | recency >> 12;
}

static uint64_t
newest_first(uint64_t recency)
{
    return ~recency;
}

static const struct {
    const char *name;
    bool keeps_time; /* a use does not change the time */
    uint64_t (*key)(uint64_t recency);
} orders[] = {
    [KVT__EVICT_LRU] = { "LRU", false, by_time },
    [KVT__EVICT_LFU] = { "LFU", false, by_uses },
    [KVT__EVICT_FIFO] = { "FIFO", true, by_time },
    [KVT__EVICT_MRU] = { "MRU", false, newest_first },
};

enum kvt__order
kvt__order_named(const char *name)
{
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
        if (!strcmp(orders[i].name, name))
            return (enum kvt__order)i;
    return KVT__EVICT_LRU;
}

uint64_t
kvt__tb_key(enum kvt__order order, uint64_t recency)
{
    return orders[order].key(recency);
}

uint64_t
kvt__tb_recency(const struct kvt__table *t, uint32_t entry, int64_t wall_ns)
{
    uint64_t *at = &t->cold[entry].recency, recency = TB_LOAD(at);

    if (recency <= (uint64_t)(wall_ns + KVT__NS_PER_S))
        return recency;
    recency = ((uint64_t)wall_ns & ~TB_USES) | (recency & TB_USES);
    TB_STORE(at, recency);
    return recency;
}

void
kvt__tb_used(const struct kvt__table *t, uint32_t entry)
{
    uint64_t *at = &t->cold[entry].recency;
    uint64_t old = TB_LOAD(at), uses = old & TB_USES;
    uint64_t time = orders[t->order].keeps_time ? old : (uint64_t)kvt__wall_ns();

    TB_STORE(at, (time & ~TB_USES) | (uses < TB_USES ? uses + 1 : uses));
    if (!TB_LOAD(&t->header->touched)) /* the readers share the cache line */
        TB_STORE(&t->header->touched, 1);
}
