/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec cachegen: which channels share a table of frequencies.
 *
 * The channels are sorted by their mean distance from the middle symbol and divided into classes of
 * equal size.  A few rounds then move each channel to the class whose frequencies encode the
 * channel's symbols in the fewest bits.  All numbers are integers, so all processors choose the
 * same classes. */
#include <stdlib.h>

#include "codec/cachegen.h"

#define MAX_TOKENS 32767u /* a count fits in 15 bits */
#define ROUNDS 2
#define BUCKETS 256u /* of the mean distances from the middle symbol, up to a quarter of C */
#define TABLE_BYTES 32u /* of an encoded table, about */
#define BITS_UNIT 256u /* costs are in 1/256 bit */

/* Symbols of a channel.  With a length of 64 bytes, the counts of equal symbols would be in one
 * bank of the cache. */
typedef uint16_t counts_row[KVT__SYMBOLS + 4];

/* Return the logarithm of the number of classes that tables may pay for. */
static unsigned
class_bits(const struct kvt__layout *layout)
{
    if (layout->n_channels > KVT__CLASS_CHANNELS || layout->n_tokens > MAX_TOKENS)
        return 0;
    return layout->n_tokens >= 48 ? 3 : layout->n_tokens >= 16 ? 2 : layout->n_tokens >= 8;
}

size_t
kvt__counts_bytes(const struct kvt__layout *layout)
{
    return class_bits(layout) ? layout->n_channels * sizeof(counts_row) : 0;
}

/* ------------------------------------------------------------------------ counts */

/* Count the symbols of consecutive channels in a plane whose rows are tokens. */
static void
count_columns(const struct kvt__layout *layout, const uint8_t *symbols, size_t first, size_t n,
              counts_row *counts)
{
    for (size_t at = first; at < layout->n; at += layout->row) {
        size_t end = layout->n - at < n ? layout->n - at : n;

        for (size_t i = 0; i < end; i++)
            counts[first + i][symbols[at + i]]++;
    }
}

/* Count the symbols of a channel in a plane whose rows are channels.  Four tables: equal symbols
 * would wait for each other. */
static void
count_row(const uint8_t *symbols, size_t n, uint16_t *counts)
{
    counts_row parts[4] = { { 0 } };

    for (size_t i = 0; i < n; i++)
        parts[i % 4][symbols[i]]++;
    for (size_t s = 0; s < KVT__SYMBOLS; s++)
        counts[s] = (uint16_t)(parts[0][s] + parts[1][s] + parts[2][s] + parts[3][s]);
}

static void
count_channels(const struct kvt__layout *layout, const uint8_t *symbols, counts_row *counts)
{
    const size_t block = 64; /* channels whose counts fit in the first-level cache */

    memset(counts, 0, layout->n_channels * sizeof *counts);
    for (size_t c = 0; !layout->is_transposed && c < layout->n_channels; c += block)
        count_columns(layout, symbols, c,
                      layout->n_channels - c < block ? layout->n_channels - c : block, counts);
    for (size_t c = 0; layout->is_transposed && c < layout->n_channels; c++) {
        size_t at = c * layout->row, left = layout->n - at;

        count_row(symbols + at, left < layout->row ? left : layout->row, counts[c]);
    }
}

static void
count_plane(const struct kvt__layout *layout, const uint8_t *symbols, uint32_t *total)
{
    uint32_t parts[4][KVT__SYMBOLS] = { { 0 } };

    for (size_t i = 0; i < layout->n; i++)
        parts[i % 4][symbols[i]]++;
    for (size_t s = 0; s < KVT__SYMBOLS; s++)
        total[s] = parts[0][s] + parts[1][s] + parts[2][s] + parts[3][s];
}

/* Add up the counts of each class. */
static void
count_classes(const struct kvt__layout *layout, counts_row *counts, const uint8_t *class_of,
              uint32_t total[][KVT__SYMBOLS])
{
    memset(total, 0, KVT__CLASSES * sizeof *total);
    for (size_t c = 0; c < layout->n_channels; c++)
        for (size_t s = 0; s < KVT__SYMBOLS; s++)
            total[class_of[c]][s] += counts[c][s];
}

/* ------------------------------------------------------------------------- costs */

/* Return the binary logarithm of x > 0 in 1 / BITS_UNIT, rounded down. */
static uint32_t
log2_of(uint32_t x)
{
    uint32_t zeros = (uint32_t)__builtin_clz(x), result = 31 - zeros;
    uint64_t y = (uint64_t)x << zeros; /* 2^31 <= y < 2^32 */

    for (unsigned unit = 1; unit < BITS_UNIT; unit *= 2) {
        y = y * y >> 31;
        result = 2 * result + (y >> 32 != 0);
        y >>= y >> 32;
    }
    return result;
}

/* Compute the cost of each symbol.  A symbol that does not occur counts as 1/8. */
static void
cost_of(const uint32_t total[KVT__SYMBOLS], int16_t cost[KVT__SYMBOLS])
{
    uint32_t sum = 0;

    for (size_t s = 0; s < KVT__SYMBOLS; s++)
        sum += total[s];
    for (size_t s = 0; s < KVT__SYMBOLS; s++)
        cost[s] = (int16_t)(log2_of(sum + 1) + 3 * BITS_UNIT - log2_of(8 * total[s] + 1));
}

static int32_t
channel_cost(const uint16_t *counts, const int16_t *cost)
{
    int32_t sum = 0;

    for (size_t s = 0; s < KVT__SYMBOLS; s++) /* this loop is vectorized */
        sum += (int16_t)counts[s] * cost[s];
    return sum;
}

/* Move the counts of a channel to the totals of another class. */
static void
move_counts(const uint16_t *counts, uint32_t *from, uint32_t *to)
{
    for (size_t s = 0; s < KVT__SYMBOLS; s++) {
        from[s] -= counts[s];
        to[s] += counts[s];
    }
}

/* Move each channel to the class with the least cost, by the totals at the start.  Return the cost
 * of all channels. */
static uint64_t
assign(const struct kvt__layout *layout, counts_row *counts, unsigned n_classes,
       uint32_t total[][KVT__SYMBOLS], uint8_t *class_of)
{
    int16_t cost[KVT__CLASSES][KVT__SYMBOLS];
    uint64_t sum = 0;

    for (unsigned k = 0; k < n_classes; k++)
        cost_of(total[k], cost[k]);
    for (size_t c = 0; c < layout->n_channels; c++) {
        int32_t least = INT32_MAX;
        unsigned best = 0;

        for (unsigned k = 0; k < n_classes; k++) {
            int32_t x = channel_cost(counts[c], cost[k]);

            best = x < least ? k : best;
            least = x < least ? x : least;
        }
        if (best != class_of[c])
            move_counts(counts[c], total[class_of[c]], total[best]);
        class_of[c] = (uint8_t)best;
        sum += (uint32_t)least;
    }
    return sum;
}

/* Divide the channels into classes of about equal size, by the mean distance of their symbols from
 * the middle symbol. */
static void
divide(const struct kvt__layout *layout, unsigned c, counts_row *counts, unsigned n_classes,
       uint8_t *class_of)
{
    uint32_t below[BUCKETS + 1] = { 0 }; /* channels in lower buckets */
    uint32_t most = (uint32_t)layout->n_tokens * c + 1;
    int16_t distance[KVT__SYMBOLS];

    for (unsigned s = 0; s < KVT__SYMBOLS; s++)
        distance[s] = (int16_t)abs((int)s - (int)c);
    for (size_t i = 0; i < layout->n_channels; i++) {
        uint32_t bucket = (uint32_t)channel_cost(counts[i], distance) * 4 * BUCKETS / most;

        class_of[i] = (uint8_t)(bucket < BUCKETS ? bucket : BUCKETS - 1);
        below[class_of[i] + 1]++;
    }
    for (size_t i = 1; i <= BUCKETS; i++)
        below[i] += below[i - 1];
    for (size_t i = 0; i < layout->n_channels; i++)
        class_of[i] = (uint8_t)(below[class_of[i]] * n_classes / layout->n_channels);
}

/* Add up the totals of all classes.  Return the cost of all channels in one class. */
static uint64_t
add_up(uint32_t total[][KVT__SYMBOLS], unsigned n_classes, uint32_t sum[KVT__SYMBOLS])
{
    int16_t cost[KVT__SYMBOLS];
    uint64_t result = 0;

    memset(sum, 0, KVT__SYMBOLS * sizeof *sum);
    for (unsigned k = 0; k < n_classes; k++)
        for (size_t s = 0; s < KVT__SYMBOLS; s++)
            sum[s] += total[k][s];
    cost_of(sum, cost);
    for (size_t s = 0; s < KVT__SYMBOLS; s++)
        result += (uint64_t)sum[s] * (uint16_t)cost[s];
    return result;
}

/* -------------------------------------------------------------------- frequencies */

/* Scale counts to frequencies with the sum KVT__SLOTS.  Each symbol that occurs gets at least 1.
 * The largest frequency, at least 33, takes the difference, at most 31. */
static void
scale(const uint32_t total[KVT__SYMBOLS], unsigned c, uint16_t frequency[KVT__SYMBOLS])
{
    uint64_t sum = 0;
    uint32_t left = KVT__SLOTS;
    unsigned largest = c;

    for (unsigned s = 0; s < KVT__SYMBOLS; s++)
        sum += total[s];
    for (unsigned s = 0; s < KVT__SYMBOLS; s++) {
        uint64_t f = sum ? (total[s] * UINT64_C(2) * KVT__SLOTS + sum) / (2 * sum) : 0;

        frequency[s] = (uint16_t)(f || !total[s] ? f : 1);
        left -= frequency[s];
        largest = total[s] > total[largest] ? s : largest;
    }
    frequency[largest] = (uint16_t)(frequency[largest] + left);
}

void
kvt__choose_classes(const struct kvt__layout *layout, unsigned c, const uint8_t *symbols,
                    uint16_t *counts_memory, struct kvt__classes *out)
{
    counts_row *counts = (void *)counts_memory;
    uint32_t total[KVT__CLASSES][KVT__SYMBOLS], sum[KVT__SYMBOLS];

    out->bits = class_bits(layout);
    if (!out->bits) {
        count_plane(layout, symbols, total[0]);
        scale(total[0], c, out->frequency[0]);
        return;
    }
    unsigned n_classes = 1u << out->bits;
    count_channels(layout, symbols, counts);
    divide(layout, c, counts, n_classes, out->of);
    count_classes(layout, counts, out->of, total);
    uint64_t cost = 0, single = add_up(total, n_classes, sum);
    for (int i = 0; i < ROUNDS; i++)
        cost = assign(layout, counts, n_classes, total, out->of);
    cost += (n_classes - 1) * TABLE_BYTES * 8 * BITS_UNIT;
    if (cost + layout->n_channels * out->bits * BITS_UNIT >= single) {
        out->bits = 0;
        memcpy(total[0], sum, sizeof sum);
    }
    for (unsigned k = 0; k < 1u << out->bits; k++)
        scale(total[k], c, out->frequency[k]);
}
