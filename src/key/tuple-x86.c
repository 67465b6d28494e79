/* SPDX-License-Identifier: Apache-2.0
 *
 * The tuple hash of tokens with AVX-512: eight chunks in each register.  Four registers are used
 * in turn, to hide the latency of a multiplication.  Any thread. */
#include "key/tuple.h"

#ifdef __x86_64__
#include "key/avx512.h"

/* Load 16 tokens of each of 16 chunks: register i gets token i of all chunks.  Python's hash(-1)
 * is -2. */
AVX512_STEP void
load_tokens(__m512i w[16], const int32_t *tokens, size_t n)
{
    const __m512i minus_one = _mm512_set1_epi32(-1);

    AVX512_UNROLL
    for (size_t i = 0; i < 16; i++) {
        __m512i row = _mm512_loadu_si512(tokens + i * n);
        w[i] = _mm512_mask_set1_epi32(row, _mm512_cmpeq_epi32_mask(row, minus_one),
                                      -2);
    }
    avx512_transpose(w);
}

AVX512_STEP __m512i
add_8(__m512i acc, __m256i tokens)
{
    __m512i item = _mm512_mullo_epi64(_mm512_cvtepi32_epi64(tokens),
                                      _mm512_set1_epi64((long long)TUPLE_ITEM));

    acc = _mm512_rol_epi64(_mm512_add_epi64(acc, item), TUPLE_ROTATION);
    return _mm512_mullo_epi64(acc, _mm512_set1_epi64((long long)TUPLE_MIX));
}

AVX512_CODE static void
add_32(const int32_t *tokens, size_t n, uint64_t acc[TUPLES])
{
    __m512i a[4], low[16], high[16];

    AVX512_UNROLL
    for (int i = 0; i < 4; i++)
        a[i] = _mm512_loadu_si512(acc + 8 * i);
    for (size_t at = 0; at < n; at += 16) {
        load_tokens(low, tokens + at, n);
        load_tokens(high, tokens + at + 16 * n, n);
        AVX512_UNROLL
        for (int i = 0; i < 16; i++) {
            a[0] = add_8(a[0], _mm512_castsi512_si256(low[i]));
            a[1] = add_8(a[1], _mm512_extracti64x4_epi64(low[i], 1));
            a[2] = add_8(a[2], _mm512_castsi512_si256(high[i]));
            a[3] = add_8(a[3], _mm512_extracti64x4_epi64(high[i], 1));
        }
    }
    AVX512_UNROLL
    for (int i = 0; i < 4; i++)
        _mm512_storeu_si512(acc + 8 * i, a[i]);
}

bool
kvt__tuples_add(const int32_t *tokens, size_t n, uint64_t acc[TUPLES])
{
    if (n % 16 || !has_avx512())
        return false;
    add_32(tokens, n, acc);
    return true;
}

#else

bool
kvt__tuples_add(const int32_t *tokens, size_t n, uint64_t acc[TUPLES])
{
    (void)tokens;
    (void)n;
    (void)acc;
    return false;
}
#endif
