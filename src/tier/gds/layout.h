/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of LMCache's GDS back end.  Bytes only, no I/O: any thread. */
#ifndef KVT_TIER_GDS_LAYOUT_H
#define KVT_TIER_GDS_LAYOUT_H

#include "tier/layout/layout.h"

/* Size of the safetensors header before a payload of the GDS back end. */
#define KVT__GDS_HEADER_BYTES 4096

/* Write the header of a payload.  trailer: fields that kvtier adds to the header; NULL: the
 * header has the bytes that LMCache writes. */
void kvt__gds_header_put(const struct kvt__shape *shape, uint64_t payload_bytes,
                         const struct kvt__trailer *trailer,
                         unsigned char out[KVT__GDS_HEADER_BYTES]);

/* Read a header: payload_bytes, and the fields of has_id if kvtier wrote the header.  0;
 * -EBADMSG: the bytes are corrupt or no header; -ENOENT: another version of LMCache wrote the
 * header. */
int kvt__gds_header_get(const unsigned char in[KVT__GDS_HEADER_BYTES],
                        struct kvt__found *found);

/* The layouts differ only in the file suffix; kvt__layout_gds_weka is for directories on wekafs. */
extern const struct kvt__layout kvt__layout_gds, kvt__layout_gds_weka;

#endif
