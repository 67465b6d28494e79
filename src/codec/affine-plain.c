/* SPDX-License-Identifier: Apache-2.0
 *
 * The codecs kv8 and kv4 in plain C, for all processors. */
#include "codec/affine.h"

#include <math.h>

static bool
is_supported(void)
{
    return true;
}

static void
measure(const unsigned char *in, size_t n, float *min, float *max, bool *is_finite)
{
    for (size_t i = 0; i < n; i++) {
        float x = kvt__load_bf16(in + 2 * i);

        min[i] = x < min[i] ? x : min[i];
        max[i] = x > max[i] ? x : max[i];
        *is_finite = *is_finite && isfinite(x);
    }
}

static uint8_t
code_of(struct kvt__affine_row row, const unsigned char *in, size_t i, float most)
{
    float x = (kvt__load_bf16(in + 2 * i) - row.min[i]) * row.factor[i];

    return (uint8_t)rintf(x < most ? x : most);
}

static void
encode8(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    for (size_t i = 0; i < row.n; i++)
        out[i] = code_of(row, in, i, 255);
}

static void
encode4(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    for (size_t i = 0; i < row.n; i += 2) {
        uint8_t second = i + 1 < row.n ? code_of(row, in, i + 1, 15) : 0;

        out[i / 2] = (uint8_t)(code_of(row, in, i, 15) | second << 4);
    }
}

static void
decode8(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    for (size_t i = 0; i < row.n; i++)
        kvt__store_bf16(out + 2 * i, fmaf(in[i], row.factor[i], row.min[i]));
}

static void
decode4(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    for (size_t i = 0; i < row.n; i++) {
        uint8_t code = (uint8_t)(in[i / 2] >> 4 * (i % 2) & 15);

        kvt__store_bf16(out + 2 * i, fmaf(code, row.factor[i], row.min[i]));
    }
}

const struct kvt__affine_form kvt__affine_plain = { "plain C", is_supported, measure, encode8,
                                                    encode4, decode8, decode4 };
