/* SPDX-License-Identifier: Apache-2.0
 *
 * The directories over which a layout spreads files: named after the decimal hash, as
 * LMCache's GDS back end does. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tier/layout/layout.h"

/* The digits of 256 bits, the last one first. */
static size_t
wide_digits(const struct kvt__hash *hash, char out[80])
{
    uint64_t left[KVT__HASH_WORDS], any;
    size_t n = 0;

    memcpy(left, hash->bits, sizeof left);
    do {
        unsigned __int128 rest = 0;

        any = 0;
        for (int i = 0; i < KVT__HASH_WORDS; i++) {
            rest = rest << 64 | left[i];
            left[i] = (uint64_t)(rest / 10);
            rest %= 10;
            any |= left[i];
        }
        out[n++] = (char)('0' + (int)rest);
    } while (any);
    return n;
}

static void
decimal(const struct kvt__hash *hash, char out[81])
{
    char digits[80];

    if (hash->form == KVT__HASH_WIDE) {
        size_t n = wide_digits(hash, digits);

        for (size_t i = 0; i < n; i++)
            out[i] = digits[n - 1 - i];
        out[n] = '\0';
    } else if (hash->form == KVT__HASH_UNSIGNED) {
        snprintf(out, 81, "%" PRIu64, hash->bits[0]);
    } else {
        snprintf(out, 81, "%" PRId64, (int64_t)hash->bits[0]);
    }
}

/* The first two characters of the decimal hash, and the two after them: where there are
 * none, no directory. */
void
kvt__layout_spread(const struct kvt__hash *hash, char out[KVT__SPREAD_BYTES])
{
    char text[81];

    decimal(hash, text);
    if (strlen(text) > 2)
        snprintf(out, KVT__SPREAD_BYTES, "%.2s/%.2s/", text, text + 2);
    else
        snprintf(out, KVT__SPREAD_BYTES, "%.2s/", text);
}
