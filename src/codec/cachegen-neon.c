/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec cachegen with NEON: the quantiser.  The last elements, too few for a register, are left
 * to plain C.
 *
 * The entropy coder is in plain C too.  For each element the decoder loads an entry of the class's
 * table of 4 KB, and the encoder an entry of the class's table of 256 bytes.  NEON has no gather,
 * and TBL looks up at most 64 bytes, so a NEON form would still load each entry separately, and
 * move states and entries between general and NEON registers. */
#include "codec/cachegen.h"

#ifdef __aarch64__
#include <arm_neon.h>

#define STEP __attribute__((always_inline)) static inline

static bool
is_supported(void)
{
    return true;
}

static size_t
whole(size_t n)
{
    return n / 4 * 4;
}

/* Load element i and the next 3. */
STEP float32x4_t
load_4(enum kvt__element element, const unsigned char *in, size_t i)
{
    if (element == KVT__ELEMENT_F32)
        return vreinterpretq_f32_u8(vld1q_u8(in + 4 * i));
    uint16x4_t words = vreinterpret_u16_u8(vld1_u8(in + 2 * i));
    if (element == KVT__ELEMENT_F16)
        return vcvt_f32_f16(vreinterpret_f16_u16(words));
    return vreinterpretq_f32_u32(vshll_n_u16(words, 16));
}

STEP void
store_4(enum kvt__element element, float32x4_t x, unsigned char *out, size_t i)
{
    if (element == KVT__ELEMENT_F32) {
        vst1q_u8(out + 4 * i, vreinterpretq_u8_f32(x));
        return;
    }
    if (element == KVT__ELEMENT_F16) {
        vst1_u8(out + 2 * i, vreinterpret_u8_f16(vcvt_f16_f32(x)));
        return;
    }
    uint32x4_t bits = vreinterpretq_u32_f32(x);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    bits = vaddq_u32(vaddq_u32(bits, odd), vdupq_n_u32(0x7fff));
    vst1_u8(out + 2 * i, vreinterpret_u8_u16(vshrn_n_u32(bits, 16)));
}

static void
load(enum kvt__element element, const unsigned char *in, size_t n, float *out)
{
    size_t end = whole(n);

    for (size_t i = 0; i < end; i += 4)
        vst1q_f32(out + i, load_4(element, in, i));
    kvt__cachegen_plain.load(element, in + end * kvt__element_bytes(element), n - end, out + end);
}

STEP void
quantise_as(enum kvt__element element, unsigned c, const unsigned char *in, size_t n,
            const float *factor, uint8_t *symbols)
{
    const float32x4_t middle = vdupq_n_f32((float)c), most = vdupq_n_f32((float)(2 * c));

    for (size_t i = 0; i < n; i += 4) {
        float32x4_t x = vfmaq_f32(middle, load_4(element, in, i), vld1q_f32(factor + i));

        x = vminnmq_f32(x, most); /* NaN becomes `most` */
        uint16x4_t words = vmovn_u32(vcvtnq_u32_f32(x));
        uint8x8_t bytes = vmovn_u16(vcombine_u16(words, words));
        uint32_t four = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
        memcpy(symbols + i, &four, sizeof four);
    }
}

static void
quantise(const struct kvt__levels *levels, const unsigned char *in, size_t n, const float *factor,
         uint8_t *symbols)
{
    size_t end = whole(n);

    if (levels->element == KVT__ELEMENT_BF16)
        quantise_as(KVT__ELEMENT_BF16, levels->c, in, end, factor, symbols);
    else if (levels->element == KVT__ELEMENT_F16)
        quantise_as(KVT__ELEMENT_F16, levels->c, in, end, factor, symbols);
    else
        quantise_as(KVT__ELEMENT_F32, levels->c, in, end, factor, symbols);
    kvt__cachegen_plain.quantise(levels, in + end * kvt__element_bytes(levels->element), n - end,
                                 factor + end, symbols + end);
}

STEP void
dequantise_as(enum kvt__element element, const float level[KVT__SYMBOLS], const uint8_t *symbols,
              size_t n, const float *max, unsigned char *out)
{
    for (size_t i = 0; i < n; i += 4) {
        const float x[4] = { level[symbols[i]], level[symbols[i + 1]], level[symbols[i + 2]],
                             level[symbols[i + 3]] };

        store_4(element, vmulq_f32(vld1q_f32(x), vld1q_f32(max + i)), out, i);
    }
}

static void
dequantise(const struct kvt__levels *levels, const uint8_t *symbols, size_t n, const float *max,
           unsigned char *out)
{
    size_t end = whole(n);

    if (levels->element == KVT__ELEMENT_BF16)
        dequantise_as(KVT__ELEMENT_BF16, levels->level, symbols, end, max, out);
    else if (levels->element == KVT__ELEMENT_F16)
        dequantise_as(KVT__ELEMENT_F16, levels->level, symbols, end, max, out);
    else
        dequantise_as(KVT__ELEMENT_F32, levels->level, symbols, end, max, out);
    kvt__cachegen_plain.dequantise(levels, symbols + end, n - end, max + end,
                                   out + end * kvt__element_bytes(levels->element));
}

static unsigned char *
encode(const struct kvt__rans_symbol *table, const uint8_t *symbols, const uint8_t *classes,
       size_t n, uint32_t *states, unsigned char *end)
{
    return kvt__cachegen_plain.encode(table, symbols, classes, n, states, end);
}

static const unsigned char *
decode(const uint32_t *table, const uint8_t *classes, size_t n, uint32_t *states,
       const unsigned char *in, uint8_t *symbols)
{
    return kvt__cachegen_plain.decode(table, classes, n, states, in, symbols);
}

const struct kvt__cachegen_form kvt__cachegen_neon = { "NEON", is_supported, load, quantise,
                                                       dequantise, encode, decode };
#endif
