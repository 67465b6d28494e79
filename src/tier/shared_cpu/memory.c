/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the area. */
#include "tier/shared_cpu/memory.h"

#include <errno.h>

#include "base/bytes.h"
#include "base/error.h"

#define MIN_ENTRIES UINT64_C(1024) /* minimum of a table */
#define FIRST_BYTES (UINT64_C(64) << 20) /* allocated by the maker, for the first chunks */

/* The offsets of the parts, and the end of the area. */
struct parts {
    uint64_t pins, places, units, payload, end;
};

/* Return the number of entries of an area: as many as units, because an entry has at least one
 * unit. */
static uint64_t
n_entries_for(uint64_t n_units)
{
    return n_units > MIN_ENTRIES ? n_units : MIN_ENTRIES;
}

static struct parts
parts_of(uint64_t n_units)
{
    struct parts p = { .pins = kvt__round_up(sizeof(struct sc_header), 64) };

    p.places = p.pins + KVT__TABLE_OWNERS * sizeof(struct sc_pins);
    p.units = p.places + n_entries_for(n_units) * sizeof(uint64_t);
    p.payload = kvt__round_up(p.units + n_units * sizeof(uint32_t), SC_ALIGN);
    p.end = p.payload + n_units * SC_UNIT;
    return p;
}

/* Return the largest number of units whose area has at most these bytes. */
static uint64_t
n_units_in(uint64_t bytes)
{
    uint64_t least = 0, most = bytes / SC_UNIT;

    while (least < most) {
        uint64_t n = most - (most - least) / 2;

        if (parts_of(n).end <= bytes)
            least = n;
        else
            most = n - 1;
    }
    return least;
}

void
kvt__sc_set_params(struct kvt__table_params *params, uint64_t payload_bytes)
{
    uint64_t n_units = payload_bytes / SC_UNIT;

    params->max_entries = n_entries_for(n_units);
    params->area_version = SC_VERSION;
    params->area_bytes = parts_of(n_units).end;
}

int
kvt__sc_view(struct kvt__table *table, struct sc_memory *out)
{
    uint64_t bytes;
    unsigned char *area = kvt__table_area(table, &bytes);
    uint64_t n_units = n_units_in(bytes);
    struct parts p = parts_of(n_units);
    struct kvt__table_totals totals;

    kvt__table_get_totals(table, &totals);
    if (!area || p.end != bytes || totals.max_entries > n_entries_for(n_units))
        return kvt__fail(EINVAL, "shared_cpu: the index has no memory for chunks");
    *out = (struct sc_memory){
        .table = table, .header = (struct sc_header *)area,
        .pins = (struct sc_pins *)(area + p.pins), .places = (uint64_t *)(area + p.places),
        .units = (uint32_t *)(area + p.units), .payload = area + p.payload,
        .payload_at = p.payload, .n_entries = n_entries_for(n_units),
        .n_units = (uint32_t)n_units };
    return 0;
}

int
kvt__sc_allocate(const struct sc_memory *m, uint64_t at, uint64_t bytes)
{
    /* Page faults of the mapping can allocate huge pages where fallocate() cannot.  If madvise()
     * fails, kvt__table_allocate_area() fails too and reports the error. */
    (void)madvise(m->payload + at, bytes, MADV_POPULATE_WRITE);
    int err = kvt__table_allocate_area(m->table, m->payload_at + at, bytes);
    if (err) /* return the pages of the part to the file system */
        (void)madvise(m->payload + at, bytes, MADV_REMOVE);
    return err;
}

int
kvt__sc_make_area(struct kvt__table *table)
{
    struct sc_memory m;
    int err = kvt__sc_view(table, &m);

    if (!err)
        err = kvt__table_allocate_area(table, 0, m.payload_at);
    if (err)
        return err;
    uint64_t all = kvt__sc_payload_bytes(&m), first = all < FIRST_BYTES ? all : FIRST_BYTES;
    err = kvt__sc_allocate(&m, 0, first);
    if (!err)
        m.header->populated_bytes = first;
    return err;
}
