/* SPDX-License-Identifier: Apache-2.0
 *
 * The codecs kv8 and kv4 with AVX2 and FMA, and with AVX-512.  The last columns of a row, too few
 * for a register, are left to plain C. */
#include "codec/affine.h"

#ifdef __x86_64__
#include <immintrin.h>

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

/* ----------------------------------------------------------------------- AVX2 */

#define AVX2 __attribute__((target("avx2,fma")))
#define AVX2_STEP AVX2 __attribute__((always_inline)) static inline

static bool
has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* Load 8 elements. */
AVX2_STEP __m256
load_avx2(const unsigned char *in)
{
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)in));

    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

/* Load the numbers of 8 columns from those of the groups. */
AVX2_STEP __m256
numbers_avx2(struct kvt__affine_row row, const float *numbers, size_t i)
{
    return row.shift ? _mm256_set1_ps(numbers[i >> KVT__GROUP_SHIFT])
                     : _mm256_loadu_ps(numbers + i);
}

/* Decode 8 codes and store the elements. */
AVX2_STEP void
store_avx2(struct kvt__affine_row row, size_t i, __m128i codes, unsigned char *out)
{
    __m256 x = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes)),
                               numbers_avx2(row, row.factor, i), numbers_avx2(row, row.min, i));
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));

    bits = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
    bits = _mm256_srli_epi32(bits, 16);
    bits = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
    _mm_storeu_si128((void *)(out + 2 * i), _mm256_castsi256_si128(bits));
}

/* Encode 8 elements. */
AVX2_STEP __m128i
codes_of_avx2(struct kvt__affine_row row, const unsigned char *in, size_t i)
{
    __m256 x = _mm256_sub_ps(load_avx2(in + 2 * i), numbers_avx2(row, row.min, i));

    x = _mm256_mul_ps(x, numbers_avx2(row, row.factor, i));
    __m256i codes = _mm256_cvtps_epi32(x);
    codes = _mm256_packus_epi32(codes, codes);
    codes = _mm256_permute4x64_epi64(codes, 0x08);
    __m128i words = _mm256_castsi256_si128(codes);
    return _mm_packus_epi16(words, words);
}

AVX2 static void
measure_avx2(const unsigned char *in, size_t n, float *min, float *max, bool *is_finite)
{
    const __m256i infinite = _mm256_set1_epi32(0x7f800000);
    size_t end = whole(n, 8);
    __m256i is_bad = _mm256_setzero_si256();

    for (size_t i = 0; i < end; i += 8) {
        __m256 x = load_avx2(in + 2 * i);

        _mm256_storeu_ps(min + i, _mm256_min_ps(x, _mm256_loadu_ps(min + i)));
        _mm256_storeu_ps(max + i, _mm256_max_ps(x, _mm256_loadu_ps(max + i)));
        __m256i exponent = _mm256_and_si256(_mm256_castps_si256(x), infinite);
        is_bad = _mm256_or_si256(is_bad, _mm256_cmpeq_epi32(exponent, infinite));
    }
    *is_finite = *is_finite && _mm256_testz_si256(is_bad, is_bad);
    kvt__affine_plain.measure(in + 2 * end, n - end, min + end, max + end, is_finite);
}

/* Return the smallest and the largest of 8 numbers. */
AVX2_STEP float
smallest_avx2(__m256 x)
{
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_min_ss(m, _mm_movehdup_ps(m)));
}

AVX2_STEP float
largest_avx2(__m256 x)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

AVX2 static void
measure_groups_avx2(const unsigned char *in, size_t n, float *min, float *max, bool *is_finite)
{
    const __m256i infinite = _mm256_set1_epi32(0x7f800000);
    size_t end = whole(n, KVT__GROUP_TOKENS);
    __m256i is_bad = _mm256_setzero_si256();

    for (size_t i = 0; i < end; i += KVT__GROUP_TOKENS) {
        __m256 low = load_avx2(in + 2 * i), high = low;

        for (size_t k = 0; k < KVT__GROUP_TOKENS; k += 8) {
            __m256 x = load_avx2(in + 2 * (i + k));

            low = _mm256_min_ps(low, x);
            high = _mm256_max_ps(high, x);
            __m256i exponent = _mm256_and_si256(_mm256_castps_si256(x), infinite);
            is_bad = _mm256_or_si256(is_bad, _mm256_cmpeq_epi32(exponent, infinite));
        }
        *min++ = smallest_avx2(low);
        *max++ = largest_avx2(high);
    }
    *is_finite = *is_finite && _mm256_testz_si256(is_bad, is_bad);
    kvt__affine_plain.measure_groups(in + 2 * end, n - end, min, max, is_finite);
}

AVX2 static void
encode8_avx2(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    size_t end = whole(row.n, 8);

    for (size_t i = 0; i < end; i += 8)
        _mm_storel_epi64((void *)(out + i), codes_of_avx2(row, in, i));
    kvt__affine_plain.encode8(rest_of(row, end), in + 2 * end, out + end);
}

AVX2 static void
encode4_avx2(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    const __m128i pair = _mm_set1_epi16(0x1001); /* low + 16 * high */
    size_t end = whole(row.n, 8);

    for (size_t i = 0; i < end; i += 8) {
        __m128i both = _mm_maddubs_epi16(codes_of_avx2(row, in, i), pair);

        uint32_t four = (uint32_t)_mm_cvtsi128_si32(_mm_packus_epi16(both, both));
        memcpy(out + i / 2, &four, sizeof four);
    }
    kvt__affine_plain.encode4(rest_of(row, end), in + 2 * end, out + end / 2);
}

AVX2 static void
decode8_avx2(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    size_t end = whole(row.n, 8);

    for (size_t i = 0; i < end; i += 8)
        store_avx2(row, i, _mm_loadl_epi64((const void *)(in + i)), out);
    kvt__affine_plain.decode8(rest_of(row, end), in + end, out + 2 * end);
}

AVX2 static void
decode4_avx2(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    const __m128i mask = _mm_set1_epi16(0x0f0f);
    size_t end = whole(row.n, 8);

    for (size_t i = 0; i < end; i += 8) {
        uint32_t four;
        memcpy(&four, in + i / 2, sizeof four);
        __m128i v = _mm_cvtepu8_epi16(_mm_cvtsi32_si128((int)four));
        store_avx2(row, i, _mm_and_si128(_mm_or_si128(v, _mm_slli_epi16(v, 4)), mask), out);
    }
    kvt__affine_plain.decode4(rest_of(row, end), in + end / 2, out + 2 * end);
}

const struct kvt__affine_form kvt__affine_avx2 = {
    "AVX2", has_avx2, measure_avx2, measure_groups_avx2, encode8_avx2, encode4_avx2,
    decode8_avx2, decode4_avx2,
};

/* -------------------------------------------------------------------- AVX-512 */

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define AVX512_STEP AVX512 __attribute__((always_inline)) static inline

static bool
has_avx512(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

/* Load 16 elements. */
AVX512_STEP __m512
load_avx512(const unsigned char *in)
{
    __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)in));

    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}

/* Load the numbers of 16 columns from those of the groups. */
AVX512_STEP __m512
numbers_avx512(struct kvt__affine_row row, const float *numbers, size_t i)
{
    return row.shift ? _mm512_set1_ps(numbers[i >> KVT__GROUP_SHIFT])
                     : _mm512_loadu_ps(numbers + i);
}

/* Decode 16 codes and store the elements. */
AVX512_STEP void
store_avx512(struct kvt__affine_row row, size_t i, __m128i codes, unsigned char *out)
{
    __m512 x = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes)),
                               numbers_avx512(row, row.factor, i), numbers_avx512(row, row.min, i));
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));

    bits = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    _mm256_storeu_si256((void *)(out + 2 * i), _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}

/* Encode 16 elements. */
AVX512_STEP __m128i
codes_of_avx512(struct kvt__affine_row row, const unsigned char *in, size_t i)
{
    __m512 x = _mm512_sub_ps(load_avx512(in + 2 * i), numbers_avx512(row, row.min, i));

    x = _mm512_mul_ps(x, numbers_avx512(row, row.factor, i));
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x));
}

AVX512 static void
measure_avx512(const unsigned char *in, size_t n, float *min, float *max, bool *is_finite)
{
    const __m512i infinite = _mm512_set1_epi32(0x7f800000);
    size_t end = whole(n, 16);
    __mmask16 is_bad = 0;

    for (size_t i = 0; i < end; i += 16) {
        __m512 x = load_avx512(in + 2 * i);

        _mm512_storeu_ps(min + i, _mm512_min_ps(x, _mm512_loadu_ps(min + i)));
        _mm512_storeu_ps(max + i, _mm512_max_ps(x, _mm512_loadu_ps(max + i)));
        __m512i exponent = _mm512_and_si512(_mm512_castps_si512(x), infinite);
        is_bad |= _mm512_cmpeq_epi32_mask(exponent, infinite);
    }
    *is_finite = *is_finite && !is_bad;
    kvt__affine_plain.measure(in + 2 * end, n - end, min + end, max + end, is_finite);
}

AVX512 static void
measure_groups_avx512(const unsigned char *in, size_t n, float *min, float *max, bool *is_finite)
{
    const __m512i infinite = _mm512_set1_epi32(0x7f800000);
    size_t end = whole(n, KVT__GROUP_TOKENS);
    __mmask16 is_bad = 0;

    for (size_t i = 0; i < end; i += KVT__GROUP_TOKENS) {
        __m512 low = load_avx512(in + 2 * i), high = low;

        for (size_t k = 0; k < KVT__GROUP_TOKENS; k += 16) {
            __m512 x = load_avx512(in + 2 * (i + k));

            low = _mm512_min_ps(low, x);
            high = _mm512_max_ps(high, x);
            __m512i exponent = _mm512_and_si512(_mm512_castps_si512(x), infinite);
            is_bad |= _mm512_cmpeq_epi32_mask(exponent, infinite);
        }
        *min++ = _mm512_reduce_min_ps(low);
        *max++ = _mm512_reduce_max_ps(high);
    }
    *is_finite = *is_finite && !is_bad;
    kvt__affine_plain.measure_groups(in + 2 * end, n - end, min, max, is_finite);
}

AVX512 static void
encode8_avx512(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    size_t end = whole(row.n, 16);

    for (size_t i = 0; i < end; i += 16)
        _mm_storeu_si128((void *)(out + i), codes_of_avx512(row, in, i));
    kvt__affine_plain.encode8(rest_of(row, end), in + 2 * end, out + end);
}

AVX512 static void
encode4_avx512(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    const __m128i pair = _mm_set1_epi16(0x1001); /* low + 16 * high */
    size_t end = whole(row.n, 16);

    for (size_t i = 0; i < end; i += 16) {
        __m128i both = _mm_maddubs_epi16(codes_of_avx512(row, in, i), pair);

        _mm_storel_epi64((void *)(out + i / 2), _mm_packus_epi16(both, both));
    }
    kvt__affine_plain.encode4(rest_of(row, end), in + 2 * end, out + end / 2);
}

AVX512 static void
decode8_avx512(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    size_t end = whole(row.n, 16);

    for (size_t i = 0; i < end; i += 16)
        store_avx512(row, i, _mm_loadu_si128((const void *)(in + i)), out);
    kvt__affine_plain.decode8(rest_of(row, end), in + end, out + 2 * end);
}

AVX512 static void
decode4_avx512(struct kvt__affine_row row, const unsigned char *in, unsigned char *out)
{
    const __m128i mask = _mm_set1_epi16(0x0f0f);
    size_t end = whole(row.n, 16);

    for (size_t i = 0; i < end; i += 16) {
        __m128i v = _mm_cvtepu8_epi16(_mm_loadl_epi64((const void *)(in + i / 2)));

        store_avx512(row, i, _mm_and_si128(_mm_or_si128(v, _mm_slli_epi16(v, 4)), mask), out);
    }
    kvt__affine_plain.decode4(rest_of(row, end), in + end / 2, out + 2 * end);
}

const struct kvt__affine_form kvt__affine_avx512 = {
    "AVX-512", has_avx512, measure_avx512, measure_groups_avx512, encode8_avx512,
    encode4_avx512, decode8_avx512, decode4_avx512,
};
#endif
