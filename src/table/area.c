/* SPDX-License-Identifier: Apache-2.0
 *
 * The area: a part of the table's file for the caller.  The table allocates and maps the area,
 * and never reads or writes the area. */
#include <assert.h>
#include <inttypes.h>

#include "base/error.h"
#include "table/private.h"

int
kvt__tb_check_area(const struct kvt__table_params *params)
{
    assert(!params->area_bytes || (params->area_version && params->of_memory));
    if (params->area_bytes > TB_MAX_AREA)
        return kvt__fail(EINVAL, "index: an area of %" PRIu64 " bytes is too large",
                         params->area_bytes);
    return 0;
}

void *
kvt__table_area(const struct kvt__table *t, uint64_t *bytes)
{
    bool is_mapped = t->area && t->generation == kvt__fork_generation_now();

    *bytes = is_mapped ? t->area_bytes : 0;
    return is_mapped ? t->area : NULL;
}

int
kvt__table_allocate_area(struct kvt__table *t, uint64_t offset, uint64_t bytes)
{
    if (t->generation != kvt__fork_generation_now())
        return -ESTALE;
    if (offset > t->area_bytes || bytes > t->area_bytes - offset)
        return -EINVAL;
    int err = kvt__tb_allocate_bytes(t, (off_t)(tb_area_at(t->map_bytes) + offset),
                                     (off_t)bytes);
    return err ? kvt__fail(-err, "index: allocate %" PRIu64 " bytes of the area", bytes) : 0;
}
