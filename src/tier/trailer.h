/* SPDX-License-Identifier: Apache-2.0
 *
 * The trailer: the identity and the checksum that are stored with a payload.  Files have the
 * trailer behind the payload; other storage keeps the trailer as metadata, if possible.
 * docs/formats.md, Trailer, has the format.  The functions have no state; any thread. */
#ifndef KVT_TIER_TRAILER_H
#define KVT_TIER_TRAILER_H

#include "tier/tier.h"

#define KVT__TRAILER_BYTES 64

/* Contents of a trailer.  payload_at: offset of the payload in the file.  crc: CRC32C of the
 * payload. */
struct kvt__trailer {
    uint64_t payload_bytes;
    uint32_t payload_at;
    uint32_t crc;
    uint32_t tokens;
    bool id_of_key;
    struct kvt__id id;
};

/* Encode a trailer. */
void kvt__trailer_put(const struct kvt__trailer *t,
                      unsigned char out[KVT__TRAILER_BYTES]);

/* Decode a trailer.  False: the bytes are no trailer, or a corrupt trailer. */
bool kvt__trailer_get(const unsigned char in[KVT__TRAILER_BYTES],
                      struct kvt__trailer *t);

/* Copy the contents of a trailer to *found, and set found->has_id. */
void kvt__found_from_trailer(const struct kvt__trailer *t, struct kvt__found *found);

#endif
