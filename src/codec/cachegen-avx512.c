/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec cachegen with AVX-512.  The last elements, too few for a register, are left to plain
 * C. */
#include "codec/cachegen.h"

#ifdef __x86_64__
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,popcnt")))
#define STEP AVX512 __attribute__((always_inline)) static inline

static bool
is_supported(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("popcnt");
}

static size_t
whole(size_t n, size_t width)
{
    return n / width * width;
}

/* ----------------------------------------------------------------------- numbers */

/* Load element i and the next 15. */
STEP __m512
load_16(enum kvt__element element, const unsigned char *in, size_t i)
{
    if (element == KVT__ELEMENT_F32)
        return _mm512_loadu_ps(in + 4 * i);
    __m256i words = _mm256_loadu_si256((const void *)(in + 2 * i));
    if (element == KVT__ELEMENT_F16)
        return _mm512_cvtph_ps(words);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

STEP void
store_16(enum kvt__element element, __m512 x, unsigned char *out, size_t i)
{
    if (element == KVT__ELEMENT_F32) {
        _mm512_storeu_ps(out + 4 * i, x);
        return;
    }
    if (element == KVT__ELEMENT_F16) {
        _mm256_storeu_si256((void *)(out + 2 * i),
                            _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        return;
    }
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    _mm256_storeu_si256((void *)(out + 2 * i), _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}

STEP __m512i
load_bytes(const uint8_t *in)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)in));
}

STEP void
load_as(enum kvt__element element, const unsigned char *in, size_t n, float *out)
{
    for (size_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(out + i, load_16(element, in, i));
}

STEP void
quantise_as(enum kvt__element element, unsigned c, const unsigned char *in, size_t n,
            const float *factor, uint8_t *symbols)
{
    const __m512 middle = _mm512_set1_ps((float)c), most = _mm512_set1_ps((float)(2 * c));

    for (size_t i = 0; i < n; i += 16) {
        __m512 x = _mm512_fmadd_ps(load_16(element, in, i), _mm512_loadu_ps(factor + i), middle);

        /* The second operand is the minimum if the first is NaN. */
        x = _mm512_min_ps(x, most);
        _mm_storeu_si128((void *)(symbols + i), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
    }
}

STEP void
dequantise_as(enum kvt__element element, const float level[KVT__SYMBOLS], const uint8_t *symbols,
              size_t n, const float *max, unsigned char *out)
{
    const __m512 low = _mm512_loadu_ps(level), high = _mm512_loadu_ps(level + 16);

    for (size_t i = 0; i < n; i += 16) {
        __m512 x = _mm512_permutex2var_ps(low, load_bytes(symbols + i), high);

        store_16(element, _mm512_mul_ps(x, _mm512_loadu_ps(max + i)), out, i);
    }
}

AVX512 static void
load(enum kvt__element element, const unsigned char *in, size_t n, float *out)
{
    size_t end = whole(n, 16);

    if (element == KVT__ELEMENT_BF16)
        load_as(KVT__ELEMENT_BF16, in, end, out);
    else if (element == KVT__ELEMENT_F16)
        load_as(KVT__ELEMENT_F16, in, end, out);
    else
        load_as(KVT__ELEMENT_F32, in, end, out);
    kvt__cachegen_plain.load(element, in + end * kvt__element_bytes(element), n - end, out + end);
}

AVX512 static void
quantise(const struct kvt__levels *levels, const unsigned char *in, size_t n, const float *factor,
         uint8_t *symbols)
{
    size_t end = whole(n, 16);

    if (levels->element == KVT__ELEMENT_BF16)
        quantise_as(KVT__ELEMENT_BF16, levels->c, in, end, factor, symbols);
    else if (levels->element == KVT__ELEMENT_F16)
        quantise_as(KVT__ELEMENT_F16, levels->c, in, end, factor, symbols);
    else
        quantise_as(KVT__ELEMENT_F32, levels->c, in, end, factor, symbols);
    kvt__cachegen_plain.quantise(levels, in + end * kvt__element_bytes(levels->element), n - end,
                                 factor + end, symbols + end);
}

AVX512 static void
dequantise(const struct kvt__levels *levels, const uint8_t *symbols, size_t n, const float *max,
           unsigned char *out)
{
    size_t end = whole(n, 16);

    if (levels->element == KVT__ELEMENT_BF16)
        dequantise_as(KVT__ELEMENT_BF16, levels->level, symbols, end, max, out);
    else if (levels->element == KVT__ELEMENT_F16)
        dequantise_as(KVT__ELEMENT_F16, levels->level, symbols, end, max, out);
    else
        dequantise_as(KVT__ELEMENT_F32, levels->level, symbols, end, max, out);
    kvt__cachegen_plain.dequantise(levels, symbols + end, n - end, max + end,
                                   out + end * kvt__element_bytes(levels->element));
}

/* ----------------------------------------------------------------- entropy coder */

/* Load the entries of 16 symbols: the inverses, and start and frequency as a pair of words. */
STEP void
entries(const struct kvt__rans_symbol *table, const uint8_t *symbols, const uint8_t *classes,
        __m512i *inverse, __m512i *pair)
{
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26,
                                            28, 30);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    __m512i index = _mm512_add_epi32(load_bytes(symbols),
                                     _mm512_slli_epi32(load_bytes(classes), 5));
    __m512i a = _mm512_i32gather_epi64(_mm512_castsi512_si256(index), table, 8);
    __m512i b = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(index, 1), table, 8);

    *inverse = _mm512_permutex2var_epi32(a, evens, b);
    *pair = _mm512_permutex2var_epi32(a, odds, b);
}

/* Return the upper halves of products. */
STEP __m512i
multiply_high(__m512i x, __m512i y)
{
    __m512i even = _mm512_mul_epu32(x, y);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(y, 32));

    return _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
}

/* Encode 16 symbols. */
STEP __m512i
put_16(const struct kvt__rans_symbol *table, const uint8_t *symbols, const uint8_t *classes,
       __m512i x, unsigned char **end)
{
    __m512i inverse, pair, top = _mm512_srli_epi32(x, 32 - KVT__SLOT_BITS);

    entries(table, symbols, classes, &inverse, &pair);
    __m512i f = _mm512_srli_epi32(pair, 16);
    __m512i start = _mm512_and_si512(pair, _mm512_set1_epi32(0xffff));
    __mmask16 mask = _mm512_cmpge_epi32_mask(top, f);
    int n = __builtin_popcount(mask);
    __m512i words = _mm512_maskz_compress_epi32(mask, x);
    words = _mm512_maskz_expand_epi32((__mmask16)(0xffff0000u >> n), words);
    _mm256_storeu_si256((void *)(*end - 32), _mm512_cvtepi32_epi16(words));
    *end -= 2 * n;
    x = _mm512_mask_srli_epi32(x, mask, x, 16);
    __m512i quotient = multiply_high(x, inverse);
    __m512i remainder = _mm512_sub_epi32(x, _mm512_mullo_epi32(quotient, f));
    __mmask16 is_more = _mm512_cmpge_epi32_mask(remainder, f);
    remainder = _mm512_mask_add_epi32(remainder, is_more, remainder,
                                      _mm512_sub_epi32(_mm512_set1_epi32(KVT__SLOTS), f));
    return _mm512_add_epi32(_mm512_slli_epi32(quotient, KVT__SLOT_BITS),
                            _mm512_add_epi32(start, remainder));
}

AVX512 static unsigned char *
encode(const struct kvt__rans_symbol *table, const uint8_t *symbols, const uint8_t *classes,
       size_t n, uint32_t *states, unsigned char *end)
{
    size_t i = whole(n, KVT__LANES);

    end = kvt__cachegen_plain.encode(table, symbols + i, classes + i, n - i, states, end);
    __m512i low = _mm512_loadu_si512(states), high = _mm512_loadu_si512(states + 16);
    while (i) {
        i -= KVT__LANES;
        high = put_16(table, symbols + i + 16, classes + i + 16, high, &end);
        low = put_16(table, symbols + i, classes + i, low, &end);
    }
    _mm512_storeu_si512(states, low);
    _mm512_storeu_si512(states + 16, high);
    return end;
}

/* Decode 16 symbols. */
STEP __m512i
get_16(const uint32_t *table, const uint8_t *classes, __m512i x, const unsigned char **in,
       uint8_t *symbols)
{
    const __m512i slot_mask = _mm512_set1_epi32(KVT__SLOTS - 1);
    __m512i class = _mm512_slli_epi32(load_bytes(classes), KVT__SLOT_BITS);
    __m512i slot = _mm512_or_si512(class, _mm512_and_si512(x, slot_mask));
    __m512i entry = _mm512_i32gather_epi32(slot, table, 4);
    __m512i symbol = _mm512_and_si512(entry, _mm512_set1_epi32(KVT__SYMBOLS - 1));

    _mm_storeu_si128((void *)symbols, _mm512_cvtepi32_epi8(symbol));
    x = _mm512_mullo_epi32(_mm512_srli_epi32(entry, 16), _mm512_srli_epi32(x, KVT__SLOT_BITS));
    x = _mm512_add_epi32(x, _mm512_and_si512(_mm512_srli_epi32(entry, 5), slot_mask));
    __mmask16 mask = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(KVT__LEAST_STATE));
    __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)*in));
    words = _mm512_maskz_expand_epi32(mask, words);
    *in += 2 * __builtin_popcount(mask);
    x = _mm512_mask_slli_epi32(x, mask, x, 16);
    return _mm512_or_si512(x, words);
}

AVX512 static const unsigned char *
decode(const uint32_t *table, const uint8_t *classes, size_t n, uint32_t *states,
       const unsigned char *in, uint8_t *symbols)
{
    size_t end = whole(n, KVT__LANES);
    __m512i low = _mm512_loadu_si512(states), high = _mm512_loadu_si512(states + 16);

    for (size_t i = 0; i < end; i += KVT__LANES) {
        low = get_16(table, classes + i, low, &in, symbols + i);
        high = get_16(table, classes + i + 16, high, &in, symbols + i + 16);
    }
    _mm512_storeu_si512(states, low);
    _mm512_storeu_si512(states + 16, high);
    return kvt__cachegen_plain.decode(table, classes + end, n - end, states, in, symbols + end);
}

const struct kvt__cachegen_form kvt__cachegen_avx512 = { "AVX-512", is_supported, load, quantise,
                                                         dequantise, encode, decode };
#endif
