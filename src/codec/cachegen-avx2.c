/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec cachegen with AVX2, FMA and F16C.  The last elements, too few for a
 * register, are left to plain C. */
#include "codec/cachegen.h"

#ifdef __x86_64__
#include <immintrin.h>

static size_t
whole(size_t n, size_t width)
{
    return n / width * width;
}

/* ------------------------------------------------------------------ permutations */

/* Lanes of 8 whose bit is set in a mask exchange words with a stream.  expand[mask]: the number of
 * the stream's word for each lane.  compress[mask]: the lane of each of 8 words, so that the words
 * of the mask's lanes are the last words, in the order of the lanes. */
#define BELOW(m, i) __builtin_popcount((m) & ((1 << (i)) - 1))
#define EXPAND(m)                                                                                  \
    { BELOW(m, 0), BELOW(m, 1), BELOW(m, 2), BELOW(m, 3),                                          \
      BELOW(m, 4), BELOW(m, 5), BELOW(m, 6), BELOW(m, 7) }

/* The number of lanes at which the mask has at most `rank` bits: the lane of bit number `rank`. */
#define AT_MOST(m, i, rank) (BELOW(m, (i) + 1) <= (rank))
#define LANE_OF(m, rank)                                                                           \
    ((AT_MOST(m, 0, rank) + AT_MOST(m, 1, rank) + AT_MOST(m, 2, rank) + AT_MOST(m, 3, rank) +      \
      AT_MOST(m, 4, rank) + AT_MOST(m, 5, rank) + AT_MOST(m, 6, rank) + AT_MOST(m, 7, rank)) & 7)
#define FROM_END(m, i) LANE_OF(m, BELOW(m, 8) - (i))
#define COMPRESS(m)                                                                                \
    { FROM_END(m, 8), FROM_END(m, 7), FROM_END(m, 6), FROM_END(m, 5),                              \
      FROM_END(m, 4), FROM_END(m, 3), FROM_END(m, 2), FROM_END(m, 1) }

#define ROWS_4(row, m) row(m), row(m + 1), row(m + 2), row(m + 3)
#define ROWS_16(row, m)                                                                            \
    ROWS_4(row, m), ROWS_4(row, m + 4), ROWS_4(row, m + 8), ROWS_4(row, m + 12)
#define ROWS_64(row, m)                                                                            \
    ROWS_16(row, m), ROWS_16(row, m + 16), ROWS_16(row, m + 32), ROWS_16(row, m + 48)
#define ROWS_256(row) ROWS_64(row, 0), ROWS_64(row, 64), ROWS_64(row, 128), ROWS_64(row, 192)

static const uint8_t expand[256][8] = { ROWS_256(EXPAND) };
static const uint8_t compress[256][8] = { ROWS_256(COMPRESS) };

/* ----------------------------------------------------------------------- AVX2 */

#define AVX2 __attribute__((target("avx2,fma,f16c,popcnt")))
#define AVX2_STEP AVX2 __attribute__((always_inline)) static inline

static bool
has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c") && __builtin_cpu_supports("popcnt");
}

/* Load element i and the next 7. */
AVX2_STEP __m256
load_avx2(enum kvt__element element, const unsigned char *in, size_t i)
{
    if (element == KVT__ELEMENT_F32)
        return _mm256_loadu_ps((const void *)(in + 4 * i));
    __m128i words = _mm_loadu_si128((const void *)(in + 2 * i));
    if (element == KVT__ELEMENT_F16)
        return _mm256_cvtph_ps(words);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}

AVX2_STEP void
store_avx2(enum kvt__element element, __m256 x, unsigned char *out, size_t i)
{
    if (element == KVT__ELEMENT_F32) {
        _mm256_storeu_ps((void *)(out + 4 * i), x);
        return;
    }
    if (element == KVT__ELEMENT_F16) {
        _mm_storeu_si128((void *)(out + 2 * i),
                         _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        return;
    }
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
    bits = _mm256_srli_epi32(bits, 16);
    bits = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
    _mm_storeu_si128((void *)(out + 2 * i), _mm256_castsi256_si128(bits));
}

/* Store the lowest byte of each of 8 lanes; the other bytes are 0. */
AVX2_STEP void
store_bytes_avx2(__m256i x, uint8_t *out)
{
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));

    _mm_storel_epi64((void *)out, _mm_packus_epi16(words, words));
}

AVX2_STEP __m256i
load_bytes_avx2(const uint8_t *in)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)in));
}

AVX2_STEP void
load_as_avx2(enum kvt__element element, const unsigned char *in, size_t n, float *out)
{
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(out + i, load_avx2(element, in, i));
}

AVX2_STEP void
quantise_as_avx2(enum kvt__element element, unsigned c, const unsigned char *in, size_t n,
                 const float *factor, uint8_t *symbols)
{
    const __m256 middle = _mm256_set1_ps((float)c), most = _mm256_set1_ps((float)(2 * c));

    for (size_t i = 0; i < n; i += 8) {
        __m256 x = _mm256_fmadd_ps(load_avx2(element, in, i), _mm256_loadu_ps(factor + i), middle);

        /* The second operand is the minimum if the first is NaN. */
        store_bytes_avx2(_mm256_cvtps_epi32(_mm256_min_ps(x, most)), symbols + i);
    }
}

AVX2_STEP void
dequantise_as_avx2(enum kvt__element element, unsigned c, const uint8_t *symbols, size_t n,
                   const float *max, unsigned char *out)
{
    const __m256i middle = _mm256_set1_epi32((int)c);
    const __m256 divisor = _mm256_set1_ps((float)c);

    for (size_t i = 0; i < n; i += 8) {
        __m256i q = _mm256_sub_epi32(load_bytes_avx2(symbols + i), middle);
        __m256 level = _mm256_div_ps(_mm256_cvtepi32_ps(q), divisor);

        store_avx2(element, _mm256_mul_ps(level, _mm256_loadu_ps(max + i)), out, i);
    }
}

AVX2 static void
all_load_avx2(enum kvt__element element, const unsigned char *in, size_t n, float *out)
{
    size_t end = whole(n, 8);

    if (element == KVT__ELEMENT_BF16)
        load_as_avx2(KVT__ELEMENT_BF16, in, end, out);
    else if (element == KVT__ELEMENT_F16)
        load_as_avx2(KVT__ELEMENT_F16, in, end, out);
    else
        load_as_avx2(KVT__ELEMENT_F32, in, end, out);
    kvt__cachegen_plain.load(element, in + end * kvt__element_bytes(element), n - end, out + end);
}

AVX2 static void
quantise_avx2(const struct kvt__levels *levels, const unsigned char *in, size_t n,
              const float *factor, uint8_t *symbols)
{
    size_t end = whole(n, 8);

    if (levels->element == KVT__ELEMENT_BF16)
        quantise_as_avx2(KVT__ELEMENT_BF16, levels->c, in, end, factor, symbols);
    else if (levels->element == KVT__ELEMENT_F16)
        quantise_as_avx2(KVT__ELEMENT_F16, levels->c, in, end, factor, symbols);
    else
        quantise_as_avx2(KVT__ELEMENT_F32, levels->c, in, end, factor, symbols);
    kvt__cachegen_plain.quantise(levels, in + end * kvt__element_bytes(levels->element), n - end,
                                 factor + end, symbols + end);
}

AVX2 static void
dequantise_avx2(const struct kvt__levels *levels, const uint8_t *symbols, size_t n,
                const float *max, unsigned char *out)
{
    size_t end = whole(n, 8);

    if (levels->element == KVT__ELEMENT_BF16)
        dequantise_as_avx2(KVT__ELEMENT_BF16, levels->c, symbols, end, max, out);
    else if (levels->element == KVT__ELEMENT_F16)
        dequantise_as_avx2(KVT__ELEMENT_F16, levels->c, symbols, end, max, out);
    else
        dequantise_as_avx2(KVT__ELEMENT_F32, levels->c, symbols, end, max, out);
    kvt__cachegen_plain.dequantise(levels, symbols + end, n - end, max + end,
                                   out + end * kvt__element_bytes(levels->element));
}

/* Load the entries of 8 symbols: the inverses, and start and frequency as a pair of words. */
AVX2_STEP void
entries_avx2(const struct kvt__rans_symbol *table, const uint8_t *symbols, const uint8_t *classes,
             __m256i *inverse, __m256i *pair)
{
    __m256i index = _mm256_add_epi32(load_bytes_avx2(symbols),
                                     _mm256_slli_epi32(load_bytes_avx2(classes), 5));
    __m256i a = _mm256_i32gather_epi64((const void *)table, _mm256_castsi256_si128(index), 8);
    __m256i b = _mm256_i32gather_epi64((const void *)table, _mm256_extracti128_si256(index, 1), 8);
    __m256 even = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88);
    __m256 odd = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd);

    *inverse = _mm256_permute4x64_epi64(_mm256_castps_si256(even), 0xd8);
    *pair = _mm256_permute4x64_epi64(_mm256_castps_si256(odd), 0xd8);
}

/* Return the upper halves of products. */
AVX2_STEP __m256i
multiply_high_avx2(__m256i x, __m256i y)
{
    __m256i even = _mm256_mul_epu32(x, y);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32));

    return _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

/* Encode 8 symbols. */
AVX2_STEP __m256i
put_avx2(const struct kvt__rans_symbol *table, const uint8_t *symbols, const uint8_t *classes,
         __m256i x, unsigned char **end)
{
    __m256i inverse, pair, top = _mm256_srli_epi32(x, 32 - KVT__SLOT_BITS);

    entries_avx2(table, symbols, classes, &inverse, &pair);
    __m256i f = _mm256_srli_epi32(pair, 16);
    __m256i start = _mm256_and_si256(pair, _mm256_set1_epi32(0xffff));
    __m256i stays = _mm256_cmpgt_epi32(f, top);
    uint32_t mask = ~(uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(stays)) & 0xff;
    __m256i words = _mm256_and_si256(
        _mm256_permutevar8x32_epi32(x, load_bytes_avx2(compress[mask])),
        _mm256_set1_epi32(0xffff));
    _mm_storeu_si128((void *)(*end - 16), _mm_packus_epi32(_mm256_castsi256_si128(words),
                                                           _mm256_extracti128_si256(words, 1)));
    *end -= 2 * __builtin_popcount(mask);
    x = _mm256_blendv_epi8(_mm256_srli_epi32(x, 16), x, stays);
    __m256i quotient = multiply_high_avx2(x, inverse);
    __m256i remainder = _mm256_sub_epi32(x, _mm256_mullo_epi32(quotient, f));
    __m256i correction = _mm256_andnot_si256(_mm256_cmpgt_epi32(f, remainder),
                                             _mm256_sub_epi32(_mm256_set1_epi32(KVT__SLOTS), f));
    return _mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(quotient, KVT__SLOT_BITS), start),
                            _mm256_add_epi32(remainder, correction));
}

AVX2 static unsigned char *
encode_avx2(const struct kvt__rans_symbol *table, const uint8_t *symbols, const uint8_t *classes,
            size_t n, uint32_t *states, unsigned char *end)
{
    size_t i = whole(n, KVT__LANES);
    __m256i x[KVT__LANES / 8];

    end = kvt__cachegen_plain.encode(table, symbols + i, classes + i, n - i, states, end);
    for (size_t k = 0; k < KVT__LANES / 8; k++)
        x[k] = _mm256_loadu_si256((const void *)(states + 8 * k));
    while (i) {
        i -= KVT__LANES;
        for (size_t k = KVT__LANES / 8; k-- > 0;)
            x[k] = put_avx2(table, symbols + i + 8 * k, classes + i + 8 * k, x[k], &end);
    }
    for (size_t k = 0; k < KVT__LANES / 8; k++)
        _mm256_storeu_si256((void *)(states + 8 * k), x[k]);
    return end;
}

/* Decode 8 symbols. */
AVX2_STEP __m256i
get_avx2(const uint32_t *table, const uint8_t *classes, __m256i x, const unsigned char **in,
         uint8_t *symbols)
{
    const __m256i slot_mask = _mm256_set1_epi32(KVT__SLOTS - 1);
    __m256i class = _mm256_slli_epi32(load_bytes_avx2(classes), KVT__SLOT_BITS);
    __m256i entry = _mm256_i32gather_epi32((const void *)table,
                                           _mm256_or_si256(class, _mm256_and_si256(x, slot_mask)),
                                           4);

    store_bytes_avx2(_mm256_and_si256(entry, _mm256_set1_epi32(KVT__SYMBOLS - 1)), symbols);
    x = _mm256_mullo_epi32(_mm256_srli_epi32(entry, 16), _mm256_srli_epi32(x, KVT__SLOT_BITS));
    x = _mm256_add_epi32(x, _mm256_and_si256(_mm256_srli_epi32(entry, 5), slot_mask));
    __m256i is_low = _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
    uint32_t mask = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(is_low));
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)*in));
    words = _mm256_permutevar8x32_epi32(words, load_bytes_avx2(expand[mask]));
    *in += 2 * __builtin_popcount(mask);
    return _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 16), words), is_low);
}

AVX2 static const unsigned char *
decode_avx2(const uint32_t *table, const uint8_t *classes, size_t n, uint32_t *states,
            const unsigned char *in, uint8_t *symbols)
{
    size_t end = whole(n, KVT__LANES);
    __m256i x[KVT__LANES / 8];

    for (size_t k = 0; k < KVT__LANES / 8; k++)
        x[k] = _mm256_loadu_si256((const void *)(states + 8 * k));
    for (size_t i = 0; i < end; i += KVT__LANES)
        for (size_t k = 0; k < KVT__LANES / 8; k++)
            x[k] = get_avx2(table, classes + i + 8 * k, x[k], &in, symbols + i + 8 * k);
    for (size_t k = 0; k < KVT__LANES / 8; k++)
        _mm256_storeu_si256((void *)(states + 8 * k), x[k]);
    return kvt__cachegen_plain.decode(table, classes + end, n - end, states, in, symbols + end);
}

const struct kvt__cachegen_form kvt__cachegen_avx2 = {
    "AVX2", has_avx2, all_load_avx2, quantise_avx2, dequantise_avx2, encode_avx2, decode_avx2,
};
#endif
