/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec cachegen in plain C, for all processors. */
#include <math.h>

#include "codec/affine.h"
#include "codec/cachegen.h"

static bool
is_supported(void)
{
    return true;
}

/* ----------------------------------------------------------------------- numbers */

/* Return a float whose lowest bits are x, rounded to the nearest whole number; ties to even.
 * 0 <= x < 2^22. */
static uint32_t
round_to_even(float x)
{
    return kvt__bits_of_float(x + 0x1.8p23f) & 0x3fffff;
}

static float
load_f16(const unsigned char *at)
{
    uint32_t bits = kvt__load_word16(at), sign = bits >> 15 << 31, low = bits & 0x7fff;

    if (low < 0x400) { /* a subnormal number */
        float x = (float)low * 0x1p-24f;

        return kvt__float_of_bits(sign | kvt__bits_of_float(x));
    }
    return kvt__float_of_bits(sign | ((low << 13) + ((low < 0x7c00 ? 112u : 224u) << 23)));
}

/* Store a number that is at most the largest finite float16; ties to even. */
static void
store_f16(unsigned char *at, float x)
{
    uint32_t bits = kvt__bits_of_float(x), sign = bits >> 16 & 0x8000, low = bits & 0x7fffffff;

    if (low < 113u << 23) /* below 2^-14: a subnormal number */
        low = round_to_even(kvt__float_of_bits(low) * 0x1p24f);
    else
        low = (low + 0xfff + (low >> 13 & 1) - (112u << 23)) >> 13;
    kvt__store_word16(at, sign | low);
}

static void
load(enum kvt__element element, const unsigned char *in, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        switch (element) {
        case KVT__ELEMENT_BF16:
            out[i] = kvt__load_bf16(in + 2 * i);
            break;
        case KVT__ELEMENT_F16:
            out[i] = load_f16(in + 2 * i);
            break;
        default:
            out[i] = kvt__float_of_bits(kvt__load_word32(in + 4 * i));
        }
}

static void
store(enum kvt__element element, float x, unsigned char *out, size_t i)
{
    switch (element) {
    case KVT__ELEMENT_BF16:
        kvt__store_bf16(out + 2 * i, x);
        break;
    case KVT__ELEMENT_F16:
        store_f16(out + 2 * i, x);
        break;
    default:
        kvt__store_word32(out + 4 * i, kvt__bits_of_float(x));
    }
}

static void
quantise(const struct kvt__levels *levels, const unsigned char *in, size_t n, const float *factor,
         uint8_t *symbols)
{
    size_t bytes = kvt__element_bytes(levels->element);
    float c = (float)levels->c, most = 2 * c;

    for (size_t i = 0; i < n; i++) {
        float x;

        load(levels->element, in + i * bytes, 1, &x);
        x = fmaf(x, factor[i], c);
        symbols[i] = (uint8_t)round_to_even(x < most ? x : most); /* NaN becomes `most` */
    }
}

static void
dequantise(const struct kvt__levels *levels, const uint8_t *symbols, size_t n, const float *max,
           unsigned char *out)
{
    for (size_t i = 0; i < n; i++)
        store(levels->element, levels->level[symbols[i]] * max[i], out, i);
}

/* ----------------------------------------------------------------- entropy coder */

static unsigned char *
encode(const struct kvt__rans_symbol *table, const uint8_t *symbols, const uint8_t *classes,
       size_t n, uint32_t *states, unsigned char *end)
{
    for (size_t i = n; i-- > 0;) {
        uint32_t *state = &states[i % KVT__LANES];

        *state = kvt__rans_put(table[classes[i] * KVT__SYMBOLS + symbols[i]], *state, &end);
    }
    return end;
}

static const unsigned char *
decode(const uint32_t *table, const uint8_t *classes, size_t n, uint32_t *states,
       const unsigned char *in, uint8_t *symbols)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t *state = &states[i % KVT__LANES];
        uint32_t entry = table[classes[i] * KVT__SLOTS + *state % KVT__SLOTS];

        symbols[i] = entry % KVT__SYMBOLS;
        *state = kvt__rans_get(entry, *state, &in);
    }
    return in;
}

const struct kvt__cachegen_form kvt__cachegen_plain = { "plain C", is_supported, load, quantise,
                                                        dequantise, encode, decode };
