/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of LMCache's GDS back end.  Bytes only, no I/O: any thread. */
#ifndef KVT_TIER_GDS_LAYOUT_H
#define KVT_TIER_GDS_LAYOUT_H

#include "tier/layout/layout.h"

/* What stands in front of a payload of the GDS back end: a header of safetensors. */
#define KVT__GDS_HEADER_BYTES 4096

/* With what kvtier adds of the trailer; NULL: as LMCache writes it. */
void kvt__gds_header_put(const struct kvt__shape *shape, uint64_t payload_bytes,
                         const struct kvt__trailer *trailer,
                         unsigned char out[KVT__GDS_HEADER_BYTES]);

/* What a header tells: payload_bytes, and if kvtier wrote it what has_id says.  0;
 * -EBADMSG: it is damaged, or none; -ENOENT: of another version of LMCache. */
int kvt__gds_header_get(const unsigned char in[KVT__GDS_HEADER_BYTES],
                        struct kvt__found *found);

/* The layouts are equal but for the suffix, which differs on wekafs. */
extern const struct kvt__layout kvt__layout_gds, kvt__layout_gds_weka;

#endif
