/* SPDX-License-Identifier: Apache-2.0
 *
 * The lossless codec with NEON.  Elements of 2 bytes are divided and joined in registers, other
 * elements by plain C. */
#include "codec/lossless.h"

#ifdef __aarch64__
#include <arm_neon.h>
#include <string.h>

#define STEP __attribute__((always_inline)) static inline
#define N 4 /* registers of a group */

static const uint8_t weights[16] = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
static const uint8_t spread[16] = { 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1 };

static bool
is_supported(void)
{
    return true;
}

/* Return a bit for each byte of the group: 1 if the byte and `mask` have a common bit. */
STEP uint64_t
bits_of(const uint8x16_t bytes[N], uint8_t mask)
{
    const uint8x16_t weight = vld1q_u8(weights);
    uint8x16_t m[N];

    for (int i = 0; i < N; i++)
        m[i] = vandq_u8(vtstq_u8(bytes[i], vdupq_n_u8(mask)), weight);
    uint8x16_t sum = vpaddq_u8(vpaddq_u8(m[0], m[1]), vpaddq_u8(m[2], m[3]));
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sum, sum)), 0);
}

/* Return a byte for each of 16 bits: 0xff if the bit is 1, otherwise 0. */
STEP uint8x16_t
bytes_of(uint16_t bits)
{
    uint8x16_t both = vreinterpretq_u8_u16(vdupq_n_u16(bits));

    return vtstq_u8(vqtbl1q_u8(both, vld1q_u8(spread)), vld1q_u8(weights));
}

STEP void
split_group(struct kvt__split split, const unsigned char *in, uint8x16_t top[N],
            unsigned char *rest)
{
    unsigned char bytes[KVT__GROUP];

    if (split.bytes != 2)
        kvt__split_group(split, in, bytes, rest);
    for (int i = 0; i < N; i++) {
        if (split.bytes != 2) {
            top[i] = vld1q_u8(bytes + 16 * i);
            continue;
        }
        uint16x8_t a = vreinterpretq_u16_u8(vld1q_u8(in + 32 * i));
        uint16x8_t b = vreinterpretq_u16_u8(vld1q_u8(in + 32 * i + 16));
        uint8x16_t x = vreinterpretq_u8_u16(vsriq_n_u16(vshlq_n_u16(a, 1), a, 15));
        uint8x16_t y = vreinterpretq_u8_u16(vsriq_n_u16(vshlq_n_u16(b, 1), b, 15));
        vst1q_u8(rest + 16 * i, vuzp1q_u8(x, y));
        top[i] = vuzp2q_u8(x, y);
    }
}

STEP void
join_group(struct kvt__split split, const uint8x16_t top[N], const unsigned char *rest,
           unsigned char *out)
{
    unsigned char bytes[KVT__GROUP];

    for (int i = 0; i < N; i++) {
        if (split.bytes != 2) {
            vst1q_u8(bytes + 16 * i, top[i]);
            continue;
        }
        uint8x16_t low = vld1q_u8(rest + 16 * i);
        uint16x8_t a = vreinterpretq_u16_u8(vzip1q_u8(low, top[i]));
        uint16x8_t b = vreinterpretq_u16_u8(vzip2q_u8(low, top[i]));
        vst1q_u8(out + 32 * i, vreinterpretq_u8_u16(vsliq_n_u16(vshrq_n_u16(a, 1), a, 15)));
        vst1q_u8(out + 32 * i + 16,
                 vreinterpretq_u8_u16(vsliq_n_u16(vshrq_n_u16(b, 1), b, 15)));
    }
    if (split.bytes != 2)
        kvt__join_group(split, bytes, rest, out);
}

STEP uint8x16_t
shifted(uint8x16_t bytes, int left)
{
    return vshlq_u8(bytes, vdupq_n_s8((int8_t)left));
}

STEP unsigned char *
encode_group(struct kvt__split split, const unsigned char *in, const unsigned char *base,
             unsigned char *out, unsigned char *escapes)
{
    uint32_t n_planes = KVT__CODE_BITS + split.low_bits;
    uint8x16_t top[N], code[N];
    unsigned char exponents[KVT__GROUP];

    split_group(split, in, top, out + 8 * n_planes);
    for (int i = 0; i < N; i++) {
        uint8x16_t e = shifted(top[i], -(int)split.low_bits);

        vst1q_u8(exponents + 16 * i, e);
        code[i] = vminq_u8(vsubq_u8(vld1q_u8(base + 16 * i), e), vdupq_n_u8(KVT__ESCAPE));
    }
    uint64_t escaped = UINT64_MAX;
    for (uint32_t p = 0; p < n_planes; p++) {
        uint64_t word = p < KVT__CODE_BITS ? bits_of(code, (uint8_t)(1 << p))
                                           : bits_of(top, (uint8_t)(1 << (p - KVT__CODE_BITS)));

        escaped &= p < KVT__CODE_BITS ? word : UINT64_MAX;
        memcpy(out + 8 * p, &word, sizeof word);
    }
    for (; escaped; escaped &= escaped - 1)
        *escapes++ = exponents[__builtin_ctzll(escaped)];
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

/* Decode the exponents of a group, with escapes.  Return the rest of the escapes, or NULL. */
STEP const unsigned char *
decode_exponents(const unsigned char *in, const unsigned char *base, unsigned char *exponents,
                 const unsigned char *escapes, const unsigned char *end)
{
    uint64_t words[KVT__CODE_BITS], escaped = UINT64_MAX;

    memcpy(words, in, sizeof words);
    for (uint32_t p = 0; p < KVT__CODE_BITS; p++)
        escaped &= words[p];
    if (__builtin_popcountll(escaped) > end - escapes)
        return NULL;
    for (int i = 0; i < N; i++) {
        uint8x16_t e = vld1q_u8(base + 16 * i);

        for (uint32_t p = 0; p < KVT__CODE_BITS; p++)
            e = vsubq_u8(e, vandq_u8(bytes_of((uint16_t)(words[p] >> 16 * i)),
                                     vdupq_n_u8((uint8_t)(1 << p))));
        vst1q_u8(exponents + 16 * i, e);
    }
    for (; escaped; escaped &= escaped - 1)
        exponents[__builtin_ctzll(escaped)] = *escapes++;
    return escapes;
}

static const unsigned char *
decode_group(struct kvt__split split, const unsigned char *in, const unsigned char *base,
             unsigned char *out, const unsigned char *escapes, const unsigned char *end)
{
    unsigned char exponents[KVT__GROUP];
    uint8x16_t top[N];

    escapes = decode_exponents(in, base, exponents, escapes, end);
    if (!escapes)
        return NULL;
    for (int i = 0; i < N; i++)
        top[i] = shifted(vld1q_u8(exponents + 16 * i), (int)split.low_bits);
    in += 8 * KVT__CODE_BITS;
    for (uint32_t p = 0; p < split.low_bits; p++, in += 8) {
        uint64_t word;

        memcpy(&word, in, sizeof word);
        for (int i = 0; i < N; i++)
            top[i] = vorrq_u8(top[i], vandq_u8(bytes_of((uint16_t)(word >> 16 * i)),
                                               vdupq_n_u8((uint8_t)(1 << p))));
    }
    join_group(split, top, in, out);
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

const struct kvt__lossless_form kvt__lossless_neon = { "NEON", is_supported, encode, decode };
#endif
