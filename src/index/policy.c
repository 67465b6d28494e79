/* SPDX-License-Identifier: Apache-2.0
 *
 * Which entries go first.  An entry's recency has both what the policies look at:
 * the time of its last use (of its making, where uses do not count) and, in the low
 * bits, how often it was used.  So processes of different policies share one index:
 * each evicts by its own. */
#include <string.h>

#include "base/clock.h"
#include "index/table.h"

static uint64_t
by_time(uint64_t recency)
{
    return recency;
}

static uint64_t
by_uses(uint64_t recency)
{
    return (recency & IX_USES) << 52 | recency >> 12;
}

static uint64_t
newest_first(uint64_t recency)
{
    return ~recency;
}

static const struct {
    const char *name;
    bool keeps_time; /* of making: a use does not renew it */
    uint64_t (*key)(uint64_t recency); /* the smallest goes first */
} policies[] = {
    [KVT__LRU] = { "LRU", false, by_time },
    [KVT__LFU] = { "LFU", false, by_uses },
    [KVT__FIFO] = { "FIFO", true, by_time },
    [KVT__MRU] = { "MRU", false, newest_first },
};

enum kvt__policy
kvt__policy_named(const char *name)
{
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        if (!strcmp(policies[i].name, name))
            return (enum kvt__policy)i;
    return KVT__LRU;
}

uint64_t
kvt__ix_policy_key(enum kvt__policy policy, uint64_t recency)
{
    return policies[policy].key(recency);
}

void
kvt__ix_used(const struct kvt__index *ix, struct ix_entry *e)
{
    uint64_t old = IX_LOAD(&e->recency), uses = old & IX_USES;
    uint64_t time = policies[ix->policy].keeps_time ? old : (uint64_t)kvt__wall_ns();

    IX_STORE(&e->recency, (time & ~IX_USES) | (uses < IX_USES ? uses + 1 : uses));
}
