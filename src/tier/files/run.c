/* SPDX-License-Identifier: Apache-2.0
 *
 * The row run of the tiers with files.  Each operation blocks. */
#include "tier/files/files.h"

int
kvt__files_run(struct kvt__tier *tier, struct kvt__tier_op *op)
{
    switch (op->kind) {
    case KVT__TIER_PUT:
        return kvt__file_put(tier, op->object, &op->slot, op->crc);
    case KVT__TIER_GET:
        return kvt__file_get(tier, op->object, &op->slot, op->may_be_shorter, &op->found);
    case KVT__TIER_PROBE:
        return kvt__file_probe(tier, op->object, &op->found);
    default:
        return kvt__file_remove(tier, op->object);
    }
}
