/* SPDX-License-Identifier: Apache-2.0
 *
 * The directories over which a layout spreads files: named after the decimal hash, as
 * LMCache's GDS back end does. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tier/layout/layout.h"

#define DIGITS 78 /* of 2^256 - 1 */

/* Write the decimal digits of 256 bits. */
static void
wide_decimal(const struct kvt__hash *hash, char out[DIGITS + 1])
{
    uint64_t left[KVT__HASH_WORDS], any;
    char *at = out + DIGITS;

    memcpy(left, hash->bits, sizeof left);
    *at = '\0';
    do {
        unsigned __int128 rest = 0;

        any = 0;
        for (int i = 0; i < KVT__HASH_WORDS; i++) {
            rest = rest << 64 | left[i];
            left[i] = (uint64_t)(rest / 10);
            rest %= 10;
            any |= left[i];
        }
        *--at = (char)('0' + (int)rest);
    } while (any);
    memmove(out, at, strlen(at) + 1);
}

/* Write the first two characters of the decimal hash and the next two as directories; a hash
 * of one or two characters has one directory. */
void
kvt__layout_spread(const struct kvt__hash *hash, char out[KVT__SPREAD_BYTES])
{
    char text[DIGITS + 1];

    if (hash->form == KVT__HASH_WIDE)
        wide_decimal(hash, text);
    else if (hash->form == KVT__HASH_UNSIGNED)
        snprintf(text, sizeof text, "%" PRIu64, hash->bits[0]);
    else
        snprintf(text, sizeof text, "%" PRId64, (int64_t)hash->bits[0]);
    if (strlen(text) > 2)
        snprintf(out, KVT__SPREAD_BYTES, "%.2s/%.2s/", text, text + 2);
    else
        snprintf(out, KVT__SPREAD_BYTES, "%.2s/", text);
}
