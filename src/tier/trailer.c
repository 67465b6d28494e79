/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding of the trailer of a payload. */
#include "tier/trailer.h"

#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"

static const unsigned char magic[8] = { 'K', 'V', 'T', 'T', 'R', 'L', 'R', '1' };

void
kvt__trailer_put(const struct kvt__trailer *t,
                 unsigned char out[KVT__TRAILER_BYTES])
{
    memset(out, 0, KVT__TRAILER_BYTES);
    memcpy(out, magic, sizeof magic);
    kvt__put_le32(out + 8, KVT__TRAILER_BYTES);
    kvt__put_le32(out + 12, t->crc);
    kvt__put_le64(out + 16, t->payload_bytes);
    memcpy(out + 24, t->id.b, sizeof t->id.b);
    kvt__put_le32(out + 40, t->tokens);
    kvt__put_le32(out + 44, t->payload_at);
    kvt__put_le32(out + 48, t->id_of_key);
    kvt__put_le32(out + 60, kvt__crc32c(0, out, 60));
}

bool
kvt__trailer_get(const unsigned char in[KVT__TRAILER_BYTES],
                 struct kvt__trailer *t)
{
    if (memcmp(in, magic, sizeof magic) ||
        kvt__get_le32(in + 8) != KVT__TRAILER_BYTES ||
        kvt__get_le32(in + 60) != kvt__crc32c(0, in, 60))
        return false;
    t->crc = kvt__get_le32(in + 12);
    t->payload_bytes = kvt__get_le64(in + 16);
    memcpy(t->id.b, in + 24, sizeof t->id.b);
    t->tokens = kvt__get_le32(in + 40);
    t->payload_at = kvt__get_le32(in + 44);
    t->id_of_key = kvt__get_le32(in + 48) & 1;
    return true;
}

void
kvt__found_from_trailer(const struct kvt__trailer *t, struct kvt__found *found)
{
    found->has_id = true;
    found->id = t->id;
    found->id_of_key = t->id_of_key;
    found->crc = t->crc;
    found->tokens = t->tokens;
    found->payload_bytes = t->payload_bytes;
}
