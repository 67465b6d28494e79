/* SPDX-License-Identifier: Apache-2.0
 *
 * The lossless codec with AVX2, and with AVX-512 (VBMI2: Intel from Ice Lake, AMD from Zen 4).
 * Elements of 2 bytes are divided and joined in registers, other elements by plain C. */
#include "codec/lossless.h"

#ifdef __x86_64__
#include <immintrin.h>
#include <string.h>

/* ----------------------------------------------------------------------- AVX2 */

#define AVX2 __attribute__((target("avx2")))
#define AVX2_STEP AVX2 __attribute__((always_inline)) static inline

static bool
has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}

AVX2_STEP __m256i
load_32(const void *at)
{
    return _mm256_loadu_si256(at);
}

/* Divide 32 elements of 2 bytes: store the low bytes, return the top bytes. */
AVX2_STEP __m256i
split_32(const unsigned char *in, unsigned char *low)
{
    const __m256i byte = _mm256_set1_epi16(0xff);
    __m256i a = load_32(in), b = load_32(in + 32);

    a = _mm256_or_si256(_mm256_slli_epi16(a, 1), _mm256_srli_epi16(a, 15));
    b = _mm256_or_si256(_mm256_slli_epi16(b, 1), _mm256_srli_epi16(b, 15));
    __m256i l = _mm256_packus_epi16(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
    __m256i t = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
    _mm256_storeu_si256((void *)low, _mm256_permute4x64_epi64(l, 0xd8));
    return _mm256_permute4x64_epi64(t, 0xd8);
}

/* Reverse split_32(). */
AVX2_STEP void
join_32(__m256i top, const unsigned char *low, unsigned char *out)
{
    __m256i l = _mm256_permute4x64_epi64(load_32(low), 0xd8);
    __m256i t = _mm256_permute4x64_epi64(top, 0xd8);
    __m256i a = _mm256_unpacklo_epi8(l, t), b = _mm256_unpackhi_epi8(l, t);

    a = _mm256_or_si256(_mm256_srli_epi16(a, 1), _mm256_slli_epi16(a, 15));
    b = _mm256_or_si256(_mm256_srli_epi16(b, 1), _mm256_slli_epi16(b, 15));
    _mm256_storeu_si256((void *)out, a);
    _mm256_storeu_si256((void *)(out + 32), b);
}

/* Return bit number `bit` of each byte. */
AVX2_STEP uint32_t
plane_of_32(__m256i bytes, uint32_t bit)
{
    return (uint32_t)_mm256_movemask_epi8(
        _mm256_sll_epi16(bytes, _mm_cvtsi32_si128((int)(7 - bit))));
}

/* Return `value` in each byte whose bit is set. */
AVX2_STEP __m256i
bytes_of_32(uint32_t bits, uint8_t value)
{
    const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2,
                                            2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i b = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread);

    b = _mm256_cmpeq_epi8(_mm256_and_si256(b, bit), bit);
    return _mm256_and_si256(b, _mm256_set1_epi8((char)value));
}

AVX2_STEP __m256i
exponents_32(__m256i top, uint32_t low_bits)
{
    __m256i e = _mm256_srl_epi16(top, _mm_cvtsi32_si128((int)low_bits));

    return _mm256_and_si256(e, _mm256_set1_epi8((char)(0xff >> low_bits)));
}

/* Encode 32 top bytes: half of a group. */
AVX2_STEP unsigned char *
encode_32(__m256i top, const unsigned char *base, uint32_t low_bits, unsigned char *planes,
          unsigned char *escapes)
{
    __m256i e = exponents_32(top, low_bits);
    __m256i code = _mm256_min_epu8(_mm256_sub_epi8(load_32(base), e),
                                   _mm256_set1_epi8(KVT__ESCAPE));
    uint32_t escaped = (uint32_t)_mm256_movemask_epi8(
        _mm256_cmpeq_epi8(code, _mm256_set1_epi8(KVT__ESCAPE)));
    unsigned char exponents[32];

    for (uint32_t p = 0; p < KVT__CODE_BITS + low_bits; p++) {
        uint32_t word = p < KVT__CODE_BITS ? plane_of_32(code, p)
                                           : plane_of_32(top, p - KVT__CODE_BITS);
        memcpy(planes + 8 * p, &word, sizeof word);
    }
    if (!escaped)
        return escapes;
    _mm256_storeu_si256((void *)exponents, e);
    for (; escaped; escaped &= escaped - 1)
        *escapes++ = exponents[__builtin_ctz(escaped)];
    return escapes;
}

/* Decode 32 top bytes without regard to escapes.  Set *escaped to the elements with an escape. */
AVX2_STEP __m256i
decode_32(const unsigned char *planes, const unsigned char *base, uint32_t low_bits,
          uint32_t *escaped)
{
    __m256i e = load_32(base), low = _mm256_setzero_si256();
    uint32_t word;

    *escaped = UINT32_MAX;
    for (uint32_t p = 0; p < KVT__CODE_BITS; p++) {
        memcpy(&word, planes + 8 * p, sizeof word);
        *escaped &= word;
        e = _mm256_sub_epi8(e, bytes_of_32(word, (uint8_t)(1 << p)));
    }
    if (!low_bits)
        return e;
    for (uint32_t p = 0; p < low_bits; p++) {
        memcpy(&word, planes + 8 * (KVT__CODE_BITS + p), sizeof word);
        low = _mm256_or_si256(low, bytes_of_32(word, (uint8_t)(1 << p)));
    }
    e = _mm256_and_si256(e, _mm256_set1_epi8((char)(0xff >> low_bits)));
    return _mm256_or_si256(low, _mm256_sll_epi16(e, _mm_cvtsi32_si128((int)low_bits)));
}

AVX2_STEP unsigned char *
encode_avx2_as(struct kvt__split split, const unsigned char *in, size_t n,
               const unsigned char *base, unsigned char *out, unsigned char *escapes)
{
    size_t n_planes = KVT__CODE_BITS + split.low_bits;

    for (size_t g = 0; g < n; g++) {
        unsigned char top[KVT__GROUP];

        if (split.bytes != 2)
            kvt__split_group(split, in, top, out + 8 * n_planes);
        for (size_t i = 0; i < KVT__GROUP; i += 32) {
            __m256i t = split.bytes == 2 ? split_32(in + 2 * i, out + 8 * n_planes + i)
                                         : load_32(top + i);
            escapes = encode_32(t, base + i, split.low_bits, out + i / 8, escapes);
        }
        in += KVT__GROUP * split.bytes;
        base += KVT__GROUP;
        out += kvt__group_bytes(split);
    }
    return escapes;
}

/* Replace the top bytes of the escaped elements. */
AVX2_STEP const unsigned char *
apply_escapes(struct kvt__split split, uint32_t escaped, const unsigned char *escapes,
              unsigned char *out)
{
    uint32_t mask = 0xffu << 8 * (split.bytes - 1);

    for (; escaped; escaped &= escaped - 1) {
        size_t i = (size_t)__builtin_ctz(escaped);
        uint32_t v = kvt__load_rotated(split, out, i);
        uint32_t low = v >> 8 * (split.bytes - 1) & ((1u << split.low_bits) - 1);
        uint32_t top = (uint8_t)(*escapes++ << split.low_bits | low);

        kvt__store_rotated(split, out, i, (v & ~mask) | top << 8 * (split.bytes - 1));
    }
    return escapes;
}

AVX2_STEP const unsigned char *
decode_avx2_as(struct kvt__split split, const unsigned char *in, size_t n,
               const unsigned char *base, unsigned char *out, const unsigned char *escapes,
               const unsigned char *end)
{
    size_t n_planes = KVT__CODE_BITS + split.low_bits;

    for (size_t g = 0; g < n; g++) {
        unsigned char top[KVT__GROUP];
        uint32_t escaped[2];

        for (size_t h = 0; h < 2; h++) {
            __m256i t = decode_32(in + 4 * h, base + 32 * h, split.low_bits, &escaped[h]);

            if (split.bytes == 2)
                join_32(t, in + 8 * n_planes + 32 * h, out + 64 * h);
            else
                _mm256_storeu_si256((void *)(top + 32 * h), t);
        }
        if (split.bytes != 2)
            kvt__join_group(split, top, in + 8 * n_planes, out);
        if (__builtin_popcount(escaped[0]) + __builtin_popcount(escaped[1]) > end - escapes)
            return NULL;
        for (size_t h = 0; h < 2; h++)
            escapes = apply_escapes(split, escaped[h], escapes, out + 32 * h * split.bytes);
        in += kvt__group_bytes(split);
        base += KVT__GROUP;
        out += KVT__GROUP * split.bytes;
    }
    return escapes;
}

AVX2 static unsigned char *
encode_avx2(struct kvt__split split, const unsigned char *in, size_t n, const unsigned char *base,
            unsigned char *out, unsigned char *escapes)
{
    struct kvt__split bf16 = { 2, 0 }; /* a constant for the compiler */

    return split.bytes == 2 && split.low_bits == 0
         ? encode_avx2_as(bf16, in, n, base, out, escapes)
         : encode_avx2_as(split, in, n, base, out, escapes);
}

AVX2 static const unsigned char *
decode_avx2(struct kvt__split split, const unsigned char *in, size_t n, const unsigned char *base,
            unsigned char *out, const unsigned char *escapes, const unsigned char *end)
{
    struct kvt__split bf16 = { 2, 0 };

    return split.bytes == 2 && split.low_bits == 0
         ? decode_avx2_as(bf16, in, n, base, out, escapes, end)
         : decode_avx2_as(split, in, n, base, out, escapes, end);
}

const struct kvt__lossless_form kvt__lossless_avx2 = { "AVX2", has_avx2, encode_avx2,
                                                       decode_avx2 };

/* -------------------------------------------------------------------- AVX-512 */

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi2,popcnt")))
#define AVX512_STEP AVX512 __attribute__((always_inline)) static inline

static bool
has_avx512(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi2") &&
           __builtin_cpu_supports("bmi2");
}

AVX512_STEP __m512i
narrow(__m512i a, __m512i b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)),
                              _mm512_cvtepi16_epi8(b), 1);
}

AVX512_STEP __m512i
split_64(const unsigned char *in, unsigned char *low)
{
    __m512i a = _mm512_loadu_si512(in), b = _mm512_loadu_si512(in + 64);

    a = _mm512_shldi_epi16(a, a, 1);
    b = _mm512_shldi_epi16(b, b, 1);
    _mm512_storeu_si512(low, narrow(a, b));
    return narrow(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
}

AVX512_STEP void
join_64(__m512i top, const unsigned char *low, unsigned char *out)
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    __m512i l = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(low));
    __m512i t = _mm512_permutexvar_epi64(order, top);
    __m512i a = _mm512_unpacklo_epi8(l, t), b = _mm512_unpackhi_epi8(l, t);

    _mm512_storeu_si512(out, _mm512_shrdi_epi16(a, a, 1));
    _mm512_storeu_si512(out + 64, _mm512_shrdi_epi16(b, b, 1));
}

AVX512_STEP unsigned char *
encode_64(__m512i top, const unsigned char *base, uint32_t low_bits, unsigned char *planes,
          unsigned char *escapes)
{
    const __m512i escape = _mm512_set1_epi8(KVT__ESCAPE);
    __m512i e = _mm512_and_si512(_mm512_srl_epi16(top, _mm_cvtsi32_si128((int)low_bits)),
                                 _mm512_set1_epi8((char)(0xff >> low_bits)));
    __m512i code = _mm512_min_epu8(_mm512_sub_epi8(_mm512_loadu_si512(base), e), escape);
    uint64_t escaped = _mm512_cmpeq_epi8_mask(code, escape);

    for (uint32_t p = 0; p < KVT__CODE_BITS + low_bits; p++) {
        uint64_t word = p < KVT__CODE_BITS
            ? _mm512_test_epi8_mask(code, _mm512_set1_epi8((char)(1 << p)))
            : _mm512_test_epi8_mask(top, _mm512_set1_epi8((char)(1 << (p - KVT__CODE_BITS))));
        memcpy(planes + 8 * p, &word, sizeof word);
    }
    _mm512_storeu_si512(escapes, _mm512_maskz_compress_epi8(escaped, e));
    return escapes + _mm_popcnt_u64(escaped);
}

/* Decode 64 top bytes.  Advance *escapes; NULL if there are too few. */
AVX512_STEP __m512i
decode_64(const unsigned char *planes, const unsigned char *base, uint32_t low_bits,
          const unsigned char **escapes, const unsigned char *end)
{
    __m512i e = _mm512_loadu_si512(base), low = _mm512_setzero_si512();
    uint64_t escaped = UINT64_MAX, word;

    for (uint32_t p = 0; p < KVT__CODE_BITS; p++) {
        memcpy(&word, planes + 8 * p, sizeof word);
        escaped &= word;
        e = _mm512_mask_sub_epi8(e, word, e, _mm512_set1_epi8((char)(1 << p)));
    }
    uint32_t n = (uint32_t)_mm_popcnt_u64(escaped);
    if (n > end - *escapes) {
        *escapes = NULL;
        return e;
    }
    e = _mm512_mask_expand_epi8(e, escaped,
                                _mm512_maskz_loadu_epi8(_bzhi_u64(UINT64_MAX, n), *escapes));
    *escapes += n;
    if (!low_bits)
        return e;
    for (uint32_t p = 0; p < low_bits; p++) {
        memcpy(&word, planes + 8 * (KVT__CODE_BITS + p), sizeof word);
        low = _mm512_mask_add_epi8(low, word, low, _mm512_set1_epi8((char)(1 << p)));
    }
    e = _mm512_and_si512(e, _mm512_set1_epi8((char)(0xff >> low_bits)));
    return _mm512_or_si512(low, _mm512_sll_epi16(e, _mm_cvtsi32_si128((int)low_bits)));
}

AVX512_STEP unsigned char *
encode_avx512_as(struct kvt__split split, const unsigned char *in, size_t n,
                 const unsigned char *base, unsigned char *out, unsigned char *escapes)
{
    size_t n_planes = KVT__CODE_BITS + split.low_bits;

    for (size_t g = 0; g < n; g++) {
        unsigned char top[KVT__GROUP];

        if (split.bytes != 2)
            kvt__split_group(split, in, top, out + 8 * n_planes);
        __m512i t = split.bytes == 2 ? split_64(in, out + 8 * n_planes) : _mm512_loadu_si512(top);
        escapes = encode_64(t, base, split.low_bits, out, escapes);
        in += KVT__GROUP * split.bytes;
        base += KVT__GROUP;
        out += kvt__group_bytes(split);
    }
    return escapes;
}

AVX512_STEP const unsigned char *
decode_avx512_as(struct kvt__split split, const unsigned char *in, size_t n,
                 const unsigned char *base, unsigned char *out, const unsigned char *escapes,
                 const unsigned char *end)
{
    size_t n_planes = KVT__CODE_BITS + split.low_bits;

    for (size_t g = 0; g < n; g++) {
        unsigned char top[KVT__GROUP];
        __m512i t = decode_64(in, base, split.low_bits, &escapes, end);

        if (!escapes)
            return NULL;
        if (split.bytes == 2) {
            join_64(t, in + 8 * n_planes, out);
        } else {
            _mm512_storeu_si512(top, t);
            kvt__join_group(split, top, in + 8 * n_planes, out);
        }
        in += kvt__group_bytes(split);
        base += KVT__GROUP;
        out += KVT__GROUP * split.bytes;
    }
    return escapes;
}

AVX512 static unsigned char *
encode_avx512(struct kvt__split split, const unsigned char *in, size_t n,
              const unsigned char *base, unsigned char *out, unsigned char *escapes)
{
    struct kvt__split bf16 = { 2, 0 };

    return split.bytes == 2 && split.low_bits == 0
         ? encode_avx512_as(bf16, in, n, base, out, escapes)
         : encode_avx512_as(split, in, n, base, out, escapes);
}

AVX512 static const unsigned char *
decode_avx512(struct kvt__split split, const unsigned char *in, size_t n,
              const unsigned char *base, unsigned char *out, const unsigned char *escapes,
              const unsigned char *end)
{
    struct kvt__split bf16 = { 2, 0 };

    return split.bytes == 2 && split.low_bits == 0
         ? decode_avx512_as(bf16, in, n, base, out, escapes, end)
         : decode_avx512_as(split, in, n, base, out, escapes, end);
}

const struct kvt__lossless_form kvt__lossless_avx512 = { "AVX-512", has_avx512, encode_avx512,
                                                         decode_avx512 };
#endif
