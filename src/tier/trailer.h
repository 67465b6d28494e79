/* SPDX-License-Identifier: Apache-2.0
 *
 * What is stored with a payload to know it again: behind it in files, beside it where a
 * store has room for that.  docs/formats.md, Trailer.  Bytes only; any thread. */
#ifndef KVT_TIER_TRAILER_H
#define KVT_TIER_TRAILER_H

#include "tier/tier.h"

#define KVT__TRAILER_BYTES 64

/* What is in a trailer. */
struct kvt__trailer {
    uint64_t payload_bytes;
    uint32_t payload_at;
    uint32_t crc;
    uint32_t tokens;
    bool id_of_key;
    struct kvt__id id;
};

void kvt__trailer_put(const struct kvt__trailer *t,
                      unsigned char out[KVT__TRAILER_BYTES]);

/* False: not a trailer, or damaged. */
bool kvt__trailer_get(const unsigned char in[KVT__TRAILER_BYTES],
                      struct kvt__trailer *t);

/* What was found, from a trailer. */
void kvt__found_from_trailer(const struct kvt__trailer *t, struct kvt__found *found);

#endif
