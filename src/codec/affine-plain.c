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

static void
measure_groups(const unsigned char *in, size_t n, float *min, float *max, bool *is_finite)
{
    for (size_t i = 0, end; i < n; i = end) {
        float low = kvt__load_bf16(in + 2 * i), high = low;

        end = n - i < KVT__GROUP_TOKENS ? n : i + KVT__GROUP_TOKENS;
        for (size_t k = i; k < end; k++) {
            float x = kvt__load_bf16(in + 2 * k);

            low = x < low ? x : low;
            high = x > high ? x : high;
            *is_finite = *is_finite && isfinite(x);
        }
        *min++ = low;
        *max++ = high;
    }
}

static uint8_t
code_of(struct kvt__affine_row row, const unsigned char *in, size_t i)
{
    size_t g = i >> row.shift;

    return (uint8_t)rintf((kvt__load_bf16(in + 2 * i) - row.min[g]) * row.factor[g]);
}

static void
encode8(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    for (size_t i = 0; i < row.n; i++)
        out[i] = code_of(row, in, i);
}

static void
encode4(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    for (size_t i = 0; i < row.n; i += 2) {
        uint8_t second = i + 1 < row.n ? code_of(row, in, i + 1) : 0;

        out[i / 2] = (uint8_t)(code_of(row, in, i) | second << 4);
    }
}

static void
store_code(struct kvt__affine_row row, unsigned char *out, size_t i, uint8_t code)
{
    size_t g = i >> row.shift;

    kvt__store_bf16(out + 2 * i, fmaf(code, row.factor[g], row.min[g]));
}

static void
decode8(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    for (size_t i = 0; i < row.n; i++)
        store_code(row, out, i, in[i]);
}

static void
decode4(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    for (size_t i = 0; i < row.n; i++) {
        uint8_t code = (uint8_t)(in[i / 2] >> 4 * (i % 2) & 15);

        store_code(row, out, i, code);
    }
}

const struct kvt__affine_form kvt__affine_plain = {
    "plain C", is_supported, measure, measure_groups, encode8, encode4, decode8, decode4,
};
