/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the area. */
#include "tier/shared_cpu/memory.h"

#include <errno.h>

#include "base/bytes.h"
#include "base/error.h"

#define MIN_ENTRIES UINT64_C(1024) /* of a table */
#define FIRST_BYTES (UINT64_C(64) << 20) /* with memory from the start: for first chunks */

/* Where the parts begin. */
struct parts {
    uint64_t pins, places, units, payload;
};

static struct parts
parts_of(uint64_t n_entries, uint64_t n_units)
{
    struct parts p = { .pins = kvt__round_up(sizeof(struct sc_header), 64) };

    p.places = p.pins + KVT__TABLE_OWNERS * sizeof(struct sc_pins);
    p.units = p.places + n_entries * sizeof(uint64_t);
    p.payload = kvt__round_up(p.units + n_units * sizeof(uint32_t), SC_ALIGN);
    return p;
}

/* An entry has at least one unit. */
static uint64_t
n_entries_for(uint64_t n_units)
{
    return n_units > MIN_ENTRIES ? n_units : MIN_ENTRIES;
}

void
kvt__sc_set_params(struct kvt__table_params *params, uint64_t payload_bytes)
{
    uint64_t n_units = payload_bytes / SC_UNIT;

    params->max_entries = n_entries_for(n_units);
    params->area_version = SC_VERSION;
    params->area_bytes = parts_of(params->max_entries, n_units).payload + n_units * SC_UNIT;
}

static void
set_parts(struct sc_memory *m, unsigned char *area, uint64_t n_units)
{
    struct parts p = parts_of(m->n_entries, n_units);

    m->header = (struct sc_header *)area;
    m->pins = (struct sc_pins *)(area + p.pins);
    m->places = (uint64_t *)(area + p.places);
    m->units = (uint32_t *)(area + p.units);
    m->payload = area + p.payload;
    m->payload_at = p.payload;
    m->n_units = (uint32_t)n_units;
}

int
kvt__sc_allocate(const struct sc_memory *m, uint64_t at, uint64_t bytes)
{
    /* Page faults of the mapping can have huge pages where fallocate() has none.  An error is
     * also an error of the allocation. */
    (void)madvise(m->payload + at, bytes, MADV_POPULATE_WRITE);
    int err = kvt__table_allocate_area(m->table, m->payload_at + at, bytes);
    if (err) /* the file system gets back what it has allocated */
        (void)madvise(m->payload + at, bytes, MADV_REMOVE);
    return err;
}

int
kvt__sc_make(struct kvt__table *table, uint64_t payload_bytes)
{
    uint64_t bytes, n_units = payload_bytes / SC_UNIT;
    struct sc_memory m = { .table = table, .n_entries = n_entries_for(n_units) };
    unsigned char *area = kvt__table_area(table, &bytes);

    int err = kvt__table_allocate_area(table, 0, parts_of(m.n_entries, n_units).payload);
    if (err)
        return err;
    set_parts(&m, area, n_units);
    m.header->payload_bytes = n_units * SC_UNIT;
    uint64_t all = m.header->payload_bytes, first = all < FIRST_BYTES ? all : FIRST_BYTES;
    err = kvt__sc_allocate(&m, 0, first);
    if (!err)
        m.header->populated_bytes = first;
    return err;
}

int
kvt__sc_view(struct kvt__table *table, struct sc_memory *out)
{
    uint64_t bytes;
    unsigned char *area = kvt__table_area(table, &bytes);
    struct kvt__table_totals totals;

    if (!area || bytes < sizeof *out->header)
        return kvt__fail(EINVAL, "shared_cpu: the index has no memory for chunks");
    uint64_t n_units = SC_LOAD(&((struct sc_header *)area)->payload_bytes) / SC_UNIT;
    *out = (struct sc_memory){ .table = table, .n_entries = n_entries_for(n_units) };
    kvt__table_get_totals(table, &totals);
    if (n_units > bytes / SC_UNIT || totals.max_entries > out->n_entries ||
        parts_of(out->n_entries, n_units).payload + n_units * SC_UNIT != bytes)
        return kvt__fail(EINVAL, "shared_cpu: the memory is corrupt");
    set_parts(out, area, n_units);
    return 0;
}
