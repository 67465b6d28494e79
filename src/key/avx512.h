/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared parts of the AVX-512 code.  x86-64 only; call this code only if has_avx512() is true.
 * Any thread. */
#ifndef KVT_KEY_AVX512_H
#define KVT_KEY_AVX512_H

#include <immintrin.h>
#include <stdbool.h>

#define AVX512_CODE __attribute__((target("avx512f,avx512bw,avx512dq")))
#define AVX512_STEP AVX512_CODE __attribute__((always_inline)) static inline

/* The compiler keeps arrays in registers only if all loops are unrolled. */
#define AVX512_UNROLL _Pragma("GCC unroll 16")

/* Return true if this processor has the instructions of AVX512_CODE. */
static inline bool
has_avx512(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}

/* Transpose a matrix of 16 * 16 words: register i holds row i before, and column i after. */
AVX512_STEP void
avx512_transpose(__m512i w[16])
{
    __m512i t[16];

    AVX512_UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(w[i], w[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(w[i], w[i + 1]);
    }
    AVX512_UNROLL
    for (int i = 0; i < 16; i += 4)
        AVX512_UNROLL
        for (int k = 0; k < 2; k++) {
            w[i + 2 * k] = _mm512_unpacklo_epi64(t[i + k], t[i + k + 2]);
            w[i + 2 * k + 1] = _mm512_unpackhi_epi64(t[i + k], t[i + k + 2]);
        }
    AVX512_UNROLL
    for (int i = 0; i < 16; i += 8)
        AVX512_UNROLL
        for (int k = 0; k < 4; k++) {
            t[i + k] = _mm512_shuffle_i32x4(w[i + k], w[i + k + 4], 0x88);
            t[i + k + 4] = _mm512_shuffle_i32x4(w[i + k], w[i + k + 4], 0xdd);
        }
    AVX512_UNROLL
    for (int k = 0; k < 8; k++) {
        w[k] = _mm512_shuffle_i32x4(t[k], t[k + 8], 0x88);
        w[k + 8] = _mm512_shuffle_i32x4(t[k], t[k + 8], 0xdd);
    }
}

#endif
