/* SPDX-License-Identifier: Apache-2.0
 *
 * The lossless codec in plain C, for all processors and types. */
#include "codec/lossless.h"

#include <string.h>

static bool
is_supported(void)
{
    return true;
}

static void
store_word(unsigned char *at, uint64_t word)
{
    for (unsigned i = 0; i < 8; i++)
        at[i] = (unsigned char)(word >> 8 * i);
}

static uint64_t
load_word(const unsigned char *at)
{
    uint64_t word = 0;

    for (unsigned i = 0; i < 8; i++)
        word |= (uint64_t)at[i] << 8 * i;
    return word;
}

static unsigned char *
encode_group(struct kvt__split split, const unsigned char *in, const unsigned char *base,
             unsigned char *out, unsigned char *escapes)
{
    uint32_t n_planes = KVT__CODE_BITS + split.low_bits;
    unsigned char top[KVT__GROUP];
    uint64_t planes[KVT__CODE_BITS + 8] = { 0 };

    kvt__split_group(split, in, top, out + n_planes * 8);
    for (uint32_t i = 0; i < KVT__GROUP; i++) {
        uint8_t exponent = (uint8_t)(top[i] >> split.low_bits);
        uint8_t code = (uint8_t)(base[i] - exponent);

        if (code >= KVT__ESCAPE) {
            code = KVT__ESCAPE;
            *escapes++ = exponent;
        }
        uint32_t bits = code | (uint32_t)top[i] << KVT__CODE_BITS;
        for (uint32_t b = 0; b < n_planes; b++)
            planes[b] |= (uint64_t)(bits >> b & 1) << i;
    }
    for (uint32_t p = 0; p < n_planes; p++)
        store_word(out + p * 8, planes[p]);
    return escapes;
}

static unsigned char *
encode(struct kvt__split split, const unsigned char *in, size_t n, const unsigned char *base,
       unsigned char *out, unsigned char *escapes)
{
    for (size_t g = 0; g < n; g++)
        escapes = encode_group(split, in + g * KVT__GROUP * split.bytes, base + g * KVT__GROUP,
                               out + g * kvt__group_bytes(split), escapes);
    return escapes;
}

static const unsigned char *
decode_group(struct kvt__split split, const unsigned char *in, const unsigned char *base,
             unsigned char *out, const unsigned char *escapes, const unsigned char *end)
{
    uint32_t n_planes = KVT__CODE_BITS + split.low_bits;
    unsigned char top[KVT__GROUP];
    uint64_t planes[KVT__CODE_BITS + 8];

    for (uint32_t p = 0; p < n_planes; p++)
        planes[p] = load_word(in + p * 8);
    for (uint32_t i = 0; i < KVT__GROUP; i++) {
        uint32_t bits = 0;

        for (uint32_t p = 0; p < n_planes; p++)
            bits |= (uint32_t)(planes[p] >> i & 1) << p;
        uint8_t code = bits & KVT__ESCAPE, exponent = (uint8_t)(base[i] - code);
        if (code == KVT__ESCAPE) {
            if (escapes == end)
                return NULL;
            exponent = *escapes++;
        }
        top[i] = (uint8_t)(exponent << split.low_bits | bits >> KVT__CODE_BITS);
    }
    kvt__join_group(split, top, in + n_planes * 8, out);
    return escapes;
}

static const unsigned char *
decode(struct kvt__split split, const unsigned char *in, size_t n, const unsigned char *base,
       unsigned char *out, const unsigned char *escapes, const unsigned char *end)
{
    for (size_t g = 0; escapes && g < n; g++)
        escapes = decode_group(split, in + g * kvt__group_bytes(split), base + g * KVT__GROUP,
                               out + g * KVT__GROUP * split.bytes, escapes, end);
    return escapes;
}

const struct kvt__lossless_form kvt__lossless_plain = { "plain C", is_supported, encode, decode };
