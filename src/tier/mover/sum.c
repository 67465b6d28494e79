/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces of an extent and their checksum, for all movers. */
#include "base/crc32c.h"
#include "tier/mover/mover.h"

void
kvt__sum_add(struct kvt__sum *sum, const unsigned char *piece, size_t n)
{
    if (!sum)
        return;
    const unsigned char *from = piece < sum->payload ? sum->payload : piece;
    const unsigned char *end = piece + n < sum->end ? piece + n : sum->end;

    if (from < end)
        sum->crc = kvt__crc32c_cold(sum->crc, from, (size_t)(end - from));
}

size_t
kvt__piece_bytes(size_t left, size_t usual)
{
    return left < usual + usual / 2 ? left : usual;
}
