/* SPDX-License-Identifier: Apache-2.0
 *
 * The codecs kv8 and kv4 with NEON.  The last columns of a row, too few for a register, are left to
 * plain C. */
#include "codec/affine.h"

#ifdef __aarch64__
#include <arm_neon.h>
#include <math.h>

#define STEP __attribute__((always_inline)) static inline

/* 8 numbers. */
struct pair {
    float32x4_t a, b;
};

static bool
is_supported(void)
{
    return true;
}

static size_t
whole(size_t n, size_t width)
{
    return n / width * width;
}

static struct kvt__affine_row
rest_of(struct kvt__affine_row row, size_t at)
{
    size_t g = at >> row.shift;

    return (struct kvt__affine_row){ row.min + g, row.factor + g, row.n - at, row.shift };
}

/* Load 8 elements. */
STEP struct pair
load(const unsigned char *in)
{
    const uint16x8_t zero = vdupq_n_u16(0);
    uint16x8_t words = vreinterpretq_u16_u8(vld1q_u8(in));

    return (struct pair){ vreinterpretq_f32_u16(vzip1q_u16(zero, words)),
                          vreinterpretq_f32_u16(vzip2q_u16(zero, words)) };
}

/* Return all bits in each element with NaN or an infinity. */
STEP uint32x4_t
not_finite(float32x4_t x)
{
    const uint32x4_t infinite = vdupq_n_u32(0x7f800000);

    return vceqq_u32(vandq_u32(vreinterpretq_u32_f32(x), infinite), infinite);
}

/* Load the numbers of the groups of 8 columns. */
STEP struct pair
numbers_of(struct kvt__affine_row row, const float *numbers, size_t i)
{
    if (!row.shift)
        return (struct pair){ vld1q_f32(numbers + i), vld1q_f32(numbers + i + 4) };
    float32x4_t number = vdupq_n_f32(numbers[i >> KVT__GROUP_SHIFT]);
    return (struct pair){ number, number };
}

static void
measure(const unsigned char *in, size_t n, float *min, float *max, bool *is_finite)
{
    size_t end = whole(n, 8);
    uint32x4_t is_bad = vdupq_n_u32(0);

    for (size_t i = 0; i < end; i += 8) {
        struct pair x = load(in + 2 * i);

        vst1q_f32(min + i, vminq_f32(x.a, vld1q_f32(min + i)));
        vst1q_f32(min + i + 4, vminq_f32(x.b, vld1q_f32(min + i + 4)));
        vst1q_f32(max + i, vmaxq_f32(x.a, vld1q_f32(max + i)));
        vst1q_f32(max + i + 4, vmaxq_f32(x.b, vld1q_f32(max + i + 4)));
        is_bad = vorrq_u32(is_bad, vorrq_u32(not_finite(x.a), not_finite(x.b)));
    }
    *is_finite = *is_finite && !vmaxvq_u32(is_bad);
    kvt__affine_plain.measure(in + 2 * end, n - end, min + end, max + end, is_finite);
}

static void
measure_groups(const unsigned char *in, size_t n, float *min, float *max, bool *is_finite)
{
    size_t end = whole(n, KVT__GROUP_TOKENS);

    for (size_t i = 0; i < end; i += KVT__GROUP_TOKENS, min++, max++) {
        float32x4_t low = load(in + 2 * i).a, high = low;

        for (size_t k = 0; k < KVT__GROUP_TOKENS; k += 8) {
            struct pair x = load(in + 2 * (i + k));

            low = vminq_f32(low, vminq_f32(x.a, x.b));
            high = vmaxq_f32(high, vmaxq_f32(x.a, x.b));
        }
        *min = vminvq_f32(low);
        *max = vmaxvq_f32(high);
        /* The minimum and the maximum of NaN and a number are NaN. */
        *is_finite = *is_finite && isfinite(*min) && isfinite(*max);
    }
    kvt__affine_plain.measure_groups(in + 2 * end, n - end, min, max, is_finite);
}

STEP uint16x4_t
code_of(float32x4_t x, float32x4_t min, float32x4_t factor)
{
    return vmovn_u32(vcvtnq_u32_f32(vmulq_f32(vsubq_f32(x, min), factor)));
}

/* Encode 8 elements. */
STEP uint8x8_t
codes_of(struct kvt__affine_row row, const unsigned char *in, size_t i)
{
    struct pair x = load(in + 2 * i), min = numbers_of(row, row.min, i);
    struct pair factor = numbers_of(row, row.factor, i);

    return vmovn_u16(vcombine_u16(code_of(x.a, min.a, factor.a), code_of(x.b, min.b, factor.b)));
}

static void
encode8(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    size_t end = whole(row.n, 8);

    for (size_t i = 0; i < end; i += 8)
        vst1_u8(out + i, codes_of(row, in, i));
    kvt__affine_plain.encode8(rest_of(row, end), in + 2 * end, out + end);
}

static void
encode4(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    size_t end = whole(row.n, 16);

    for (size_t i = 0; i < end; i += 16) {
        uint8x8_t a = codes_of(row, in, i), b = codes_of(row, in, i + 8);

        vst1_u8(out + i / 2, vsli_n_u8(vuzp1_u8(a, b), vuzp2_u8(a, b), 4));
    }
    kvt__affine_plain.encode4(rest_of(row, end), in + 2 * end, out + end / 2);
}

/* Decode 4 codes; the element is in the upper half of each number. */
STEP uint16x8_t
element_of(uint16x4_t codes, float32x4_t min, float32x4_t factor)
{
    float32x4_t x = vfmaq_f32(min, vcvtq_f32_u32(vmovl_u16(codes)), factor);
    uint32x4_t bits = vreinterpretq_u32_f32(x);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));

    return vreinterpretq_u16_u32(vaddq_u32(vaddq_u32(bits, odd), vdupq_n_u32(0x7fff)));
}

/* Decode 8 codes and store the elements. */
STEP void
store(struct kvt__affine_row row, size_t i, uint8x8_t codes, unsigned char *out)
{
    struct pair min = numbers_of(row, row.min, i), factor = numbers_of(row, row.factor, i);
    uint16x8_t words = vmovl_u8(codes);
    uint16x8_t a = element_of(vget_low_u16(words), min.a, factor.a);
    uint16x8_t b = element_of(vget_high_u16(words), min.b, factor.b);

    vst1q_u8(out + 2 * i, vreinterpretq_u8_u16(vuzp2q_u16(a, b)));
}

static void
decode8(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    size_t end = whole(row.n, 8);

    for (size_t i = 0; i < end; i += 8)
        store(row, i, vld1_u8(in + i), out);
    kvt__affine_plain.decode8(rest_of(row, end), in + end, out + 2 * end);
}

static void
decode4(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    size_t end = whole(row.n, 16);

    for (size_t i = 0; i < end; i += 16) {
        uint8x8_t bytes = vld1_u8(in + i / 2);
        uint8x8_t low = vand_u8(bytes, vdup_n_u8(15)), high = vshr_n_u8(bytes, 4);

        store(row, i, vzip1_u8(low, high), out);
        store(row, i + 8, vzip2_u8(low, high), out);
    }
    kvt__affine_plain.decode4(rest_of(row, end), in + end / 2, out + 2 * end);
}

const struct kvt__affine_form kvt__affine_neon = {
    "NEON", is_supported, measure, measure_groups, encode8, encode4, decode8, decode4,
};
#endif
