/* SPDX-License-Identifier: Apache-2.0
 *
 * The administration of the memory: the description of the memory, the deletion of all chunks,
 * and the check of the host for `kvtier doctor`. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "kvtier.h"
#include "tier/shared_cpu/shared_cpu.h"

#define GIB ((double)(UINT64_C(1) << 30))
#define CLEAR_PASSES 10 /* several, because other processes may store chunks meanwhile */

static const struct sc_opened *
opened(const struct kvt__tier *tier)
{
    return atomic_load(&((const struct sc_tier *)tier)->opened);
}

/* ------------------------------------------------------------------- description */

static bool
see_recency(void *ctx, const struct kvt__record *record)
{
    int64_t *last = ctx;

    if (record->recency_ns > *last)
        *last = record->recency_ns;
    return true;
}

static uint64_t
allocated_bytes(const struct sc_memory *m)
{
    uint64_t populated = SC_LOAD(&m->header->populated_bytes);
    uint64_t all = kvt__sc_payload_bytes(m);

    return populated < all ? populated : all; /* populated_bytes may be garbage */
}

void
kvt__sc_info(const struct kvt__tier *tier, struct kvt_tier_info *info)
{
    const struct sc_memory *m = &opened(tier)->memory;

    info->limit_bytes = kvt__sc_payload_bytes(m);
    info->allocated_bytes = allocated_bytes(m);
    kvt__table_each(m->table, see_recency, &info->last_use_ns);
}

/* ------------------------------------------------------------------- deletion */

static bool
forget(void *ctx, const struct kvt__record *record)
{
    (void)kvt__table_forget(ctx, record, true);
    return true;
}

static unsigned
n_other_writers(const struct kvt__table *index)
{
    unsigned n = 0;

    for (unsigned i = 0; i < KVT__TABLE_OWNERS; i++)
        n += i != kvt__table_owner(index) && kvt__table_owner_lives(index, i);
    return n;
}

int
kvt__sc_clear(struct kvt__tier *tier)
{
    struct sc_tier *t = (struct sc_tier *)tier;
    struct kvt__table *index = opened(tier)->memory.table;
    struct kvt__table_totals totals = { .n_entries = 1 };

    for (int i = 0; i < CLEAR_PASSES && totals.n_entries; i++) {
        kvt__table_each(index, forget, index);
        kvt__table_get_totals(index, &totals);
    }
    unsigned n = n_other_writers(index);
    int err = kvt__table_delete(index, t->dir);
    if (err == -EBUSY && n)
        return kvt__fail(EBUSY, "shared_cpu: %u other process%s the memory open; the memory "
                         "stays. Clear again after the end of the processes.", n,
                         n == 1 ? " has" : "es have");
    if (err == -ESTALE)
        return kvt__fail(ESTALE, "shared_cpu: another process has replaced the memory; clear "
                         "again.");
    return err;
}

/* ------------------------------------------------------------------- checks of the host */

/* Report the existing memory.  0; -ENOENT: there is no memory; other errors with a sentence. */
static int
check_memory(const struct kvt__reporter *to, const struct sc_tier *t)
{
    struct kvt__table_params params = { .of_memory = true, .shm = t->path,
                                        .area_version = SC_VERSION };
    struct kvt__table *index;
    struct sc_memory m;

    int err = kvt__table_open(&params, t->dir, &index);
    if (err)
        return err;
    err = kvt__sc_view(index, &m);
    if (!err) {
        uint64_t all = kvt__sc_payload_bytes(&m);

        kvt__report(to, "shared memory", 0, "%.2f GiB in %s exist, %.2f GiB of them are "
                    "allocated%s", (double)all / GIB, t->path, (double)allocated_bytes(&m) / GIB,
                    all == t->payload_bytes ? "" : "; an engine makes a memory of the size "
                    "max_shared_cpu_size if no process uses the memory");
    }
    kvt__table_close(index);
    return err;
}

/* Report if the tmpfs and the host have room for a new memory.  0, or -errno with a sentence. */
static int
check_room(const struct kvt__reporter *to, const struct sc_tier *t)
{
    struct kvt__mem_claim claim = { .fd = -1 };
    int err = kvt__sc_check_room(t->dir, t->path, t->payload_bytes);

    if (!err)
        err = kvt__sc_claim(t->payload_bytes, &claim);
    kvt__mem_claim_end(&claim);
    if (!err)
        kvt__report(to, "shared memory", 0, "the host and %s have room for %.2f GiB, which the "
                    "first engine allocates", t->path, (double)t->payload_bytes / GIB);
    return err;
}

void
kvt__sc_check(const struct kvt__tier *tier, const struct kvt__reporter *to)
{
    const struct sc_tier *t = (const struct sc_tier *)tier;
    int err = check_memory(to, t);

    if (err == -ENOENT)
        err = check_room(to, t);
    if (err)
        kvt__report(to, "shared memory", err, "%s", kvt__why());
}
