/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands around a payload: LMCache's header before it, our trailer behind. */
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "tier/file/layout/layout.h"

#define MAX_CODE 63u /* LMCache's formats and dtypes are numbered from 0 on */

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
kvt__fs_header_put(const struct kvt__shape *shape, uint64_t payload_bytes,
                   unsigned char out[KVT__FS_HEADER_BYTES])
{
    kvt__put_le32(out, (uint32_t)payload_bytes);
    kvt__put_le32(out + 4, shape->format);
    kvt__put_le32(out + 8, shape->dtype);
    for (int i = 0; i < 4; i++)
        kvt__put_le32(out + 12 + 4 * i, shape->dims[i]);
}

bool
kvt__fs_header_agrees(const unsigned char in[KVT__FS_HEADER_BYTES])
{
    uint64_t bytes = kvt__get_le32(in), product = 1;

    if (kvt__get_le32(in + 4) > MAX_CODE || kvt__get_le32(in + 8) > MAX_CODE)
        return false;
    for (int i = 0; i < 4; i++) {
        uint32_t dim = kvt__get_le32(in + 12 + 4 * i);

        if (dim > INT32_MAX || (dim && product > bytes / dim))
            return false;
        product *= dim ? dim : 1;
    }
    return product > 1 && (bytes == product || bytes == 2 * product ||
                           bytes == 4 * product || bytes == 8 * product);
}

int64_t
kvt__fs_header_get(const unsigned char in[KVT__FS_HEADER_BYTES])
{
    uint32_t bytes = kvt__get_le32(in);

    return bytes > INT32_MAX ? -1 : (int64_t)bytes;
}
