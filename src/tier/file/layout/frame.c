/* SPDX-License-Identifier: Apache-2.0
 *
 * LMCache's header in front of a payload. */
#include <string.h>

#include "base/bytes.h"
#include "tier/file/layout/layout.h"

#define MAX_CODE 63u /* LMCache's formats and dtypes are numbered from 0 on */

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
