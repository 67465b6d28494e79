/* SPDX-License-Identifier: Apache-2.0
 *
 * Internal interface of the codecs kv8 and kv4.
 *
 * Elements are quantised in groups: one channel of up to KVT__GROUP_TOKENS tokens.  The plane's
 * shape says where the channel is, in a column or in a row.  A group has a minimum and a scale,
 * both in bfloat16; a code is the nearest whole number of scales above the minimum.  The minimum is
 * not above any element of the group, and the scale is rounded up.  So each element is within the
 * range of the codes, the encoders need not limit a code, and the error is at most half a scale
 * plus the rounding to the element's type.
 *
 * All forms of a function produce the same bytes: sums are fused multiply-adds, which have one
 * rounding on each processor. */
#ifndef KVT_CODEC_AFFINE_H
#define KVT_CODEC_AFFINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KVT__GROUP_SHIFT 6u
#define KVT__GROUP_TOKENS (1u << KVT__GROUP_SHIFT)

/* The groups of the n columns of one row.  Column i belongs to group i >> shift: shift is 0, or
 * KVT__GROUP_SHIFT for a row of a transposed plane.  For the encoder `factor` is 1 / scale, for the
 * decoder the scale. */
struct kvt__affine_row {
    const float *min;
    const float *factor;
    size_t n;
    unsigned shift;
};

/* A form of the functions, for some processors.  Elements are bfloat16. */
struct kvt__affine_form {
    const char *name;
    bool (*is_supported)(void);

    /* Enter a row into the minimum and maximum of each column.  Set *is_finite to false if an
     * element is NaN or infinite.  Zeros are equal: any of them may be a minimum or maximum. */
    void (*measure)(const unsigned char *in, size_t n, float *min, float *max, bool *is_finite);

    /* Set the minimum and maximum of each KVT__GROUP_TOKENS consecutive elements of n, and
     * *is_finite as measure() does.  The last group may be shorter. */
    void (*measure_groups)(const unsigned char *in, size_t n, float *min, float *max,
                           bool *is_finite);

    /* Encode and decode a row.  Codes of 4 bits: column 2 i is in the low bits of byte i. */
    void (*encode8)(struct kvt__affine_row row, const unsigned char *in, unsigned char *out);
    void (*encode4)(struct kvt__affine_row row, const unsigned char *in, unsigned char *out);
    void (*decode8)(struct kvt__affine_row row, const unsigned char *in, unsigned char *out);
    void (*decode4)(struct kvt__affine_row row, const unsigned char *in, unsigned char *out);
};

extern const struct kvt__affine_form kvt__affine_plain, kvt__affine_avx2, kvt__affine_avx512,
    kvt__affine_neon;

/* Return all forms of this build that the processor supports, the fastest first; NULL ends the
 * list. */
const struct kvt__affine_form *const *kvt__affine_forms(void);

/* Encode and decode as kvt__codec_kv8 (bits 8) or kvt__codec_kv4 (bits 4), by a form. */
struct kvt__plane_shape;
size_t kvt__affine_encode(const struct kvt__affine_form *form, unsigned bits,
                          const struct kvt__plane_shape *shape, const unsigned char *plane,
                          unsigned char *out);
bool kvt__affine_decode(const struct kvt__affine_form *form, unsigned bits,
                        const struct kvt__plane_shape *shape, const unsigned char *in, size_t n,
                        unsigned char *plane);

/* ------------------------------------------------------------------------ bfloat16 */

static inline float
kvt__float_of_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t
kvt__bits_of_float(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float
kvt__load_bf16(const unsigned char *at)
{
    return kvt__float_of_bits((uint32_t)at[0] << 16 | (uint32_t)at[1] << 24);
}

/* Store a finite number, rounded to the nearest; ties to even. */
static inline void
kvt__store_bf16(unsigned char *at, float x)
{
    uint32_t bits = kvt__bits_of_float(x);

    bits += 0x7fff + (bits >> 16 & 1);
    at[0] = (unsigned char)(bits >> 16);
    at[1] = (unsigned char)(bits >> 24);
}

#endif
