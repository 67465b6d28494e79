/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes of SHA-256 on x86-64: sixteen messages in the words of AVX-512 registers, or two messages
 * in turn with the SHA instructions, whose throughput is twice the throughput of a single
 * dependent chain.  Other processors have no lanes.  Any thread.
 *
 * No library replaces these lanes.  Nanoseconds for a leaf of 1033 bytes and for an identity of 49
 * bytes, on an AMD EPYC with AVX-512 and SHA instructions (make bench-libraries):
 *
 *     lanes                             345   33
 *     OpenSSL, a message at a time      625   52
 *     ISA-L_crypto                      394   57
 *     ISA-L_crypto without AVX-512      800   67    a pair of lanes: 350   36
 *     OpenSSL without SHA instructions 2020  133
 *
 * The last row is for processors with AVX-512 and without SHA instructions, such as Intel's before
 * Ice Lake.  Debian 12 has no package of ISA-L_crypto, which would add 91 KB; this file has
 * 10 KB. */
#include "key/sha256-many.h"

#include <stdbool.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

#include "key/avx512.h"

#define BLOCK KVT__SHA256_BLOCK

static const uint32_t round_constants[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
    0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* ---------------------------------------- two messages, by SHA instructions */

#define SHA_CODE __attribute__((target("sha,sse4.1")))
#define SHA_STEP SHA_CODE __attribute__((always_inline)) static inline

/* A message: the eight state words in the order of the SHA instructions, and a window of 16 words
 * of the message schedule. */
struct lane {
    __m128i abef;
    __m128i cdgh;
    __m128i w[4];
};

SHA_STEP __m128i
four_words(const struct kvt__sha256_states *s, int lane, int w3, int w2, int w1,
           int w0)
{
    return _mm_set_epi32((int)s->word[w3][lane], (int)s->word[w2][lane],
                         (int)s->word[w1][lane], (int)s->word[w0][lane]);
}

SHA_STEP void
put_words(struct kvt__sha256_states *s, int lane, __m128i v, int w3, int w2, int w1,
          int w0)
{
    s->word[w3][lane] = (uint32_t)_mm_extract_epi32(v, 3);
    s->word[w2][lane] = (uint32_t)_mm_extract_epi32(v, 2);
    s->word[w1][lane] = (uint32_t)_mm_extract_epi32(v, 1);
    s->word[w0][lane] = (uint32_t)_mm_extract_epi32(v, 0);
}

SHA_STEP void
load(struct lane *l, const uint8_t *block)
{
    const __m128i swap =
        _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);

    for (int i = 0; i < 4; i++)
        l->w[i] = _mm_shuffle_epi8(
            _mm_loadu_si128((const __m128i *)(block + 16 * i)), swap);
}

SHA_STEP void
four_rounds(struct lane *l, const uint32_t *k, int i)
{
    __m128i w = _mm_add_epi32(l->w[i], _mm_load_si128((const __m128i *)k));

    l->cdgh = _mm_sha256rnds2_epu32(l->cdgh, l->abef, w);
    w = _mm_shuffle_epi32(w, 0x0e);
    l->abef = _mm_sha256rnds2_epu32(l->abef, l->cdgh, w);
}

/* Replace part i of the window by the four words 16 positions later in the schedule. */
SHA_STEP void
schedule(struct lane *l, int i)
{
    __m128i w1 = l->w[(i + 1) & 3], w2 = l->w[(i + 2) & 3], w3 = l->w[(i + 3) & 3];
    __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(l->w[i], w1),
                                _mm_alignr_epi8(w3, w2, 4));

    l->w[i] = _mm_sha256msg2_epu32(sum, w3);
}

SHA_STEP void
step(struct lane *a, struct lane *b, const uint32_t *k, int i, bool more)
{
    four_rounds(a, k + 4 * i, i);
    four_rounds(b, k + 4 * i, i);
    if (more) {
        schedule(a, i);
        schedule(b, i);
    }
}

SHA_STEP void
sixteen_rounds(struct lane *a, struct lane *b, const uint32_t *k, bool more)
{
    step(a, b, k, 0, more);
    step(a, b, k, 1, more);
    step(a, b, k, 2, more);
    step(a, b, k, 3, more);
}

SHA_CODE static void
compress_2(struct kvt__sha256_states *states, const uint8_t *const *blocks,
           size_t n_blocks)
{
    struct lane s = { four_words(states, 0, 0, 1, 4, 5),
                      four_words(states, 0, 2, 3, 6, 7), { { 0 } } };
    struct lane t = { four_words(states, 1, 0, 1, 4, 5),
                      four_words(states, 1, 2, 3, 6, 7), { { 0 } } };

    for (size_t at = 0; at < n_blocks * BLOCK; at += BLOCK) {
        struct lane was_s = s, was_t = t;
        load(&s, blocks[0] + at);
        load(&t, blocks[1] + at);
        sixteen_rounds(&s, &t, round_constants, true);
        sixteen_rounds(&s, &t, round_constants + 16, true);
        sixteen_rounds(&s, &t, round_constants + 32, true);
        sixteen_rounds(&s, &t, round_constants + 48, false);
        s.abef = _mm_add_epi32(s.abef, was_s.abef);
        s.cdgh = _mm_add_epi32(s.cdgh, was_s.cdgh);
        t.abef = _mm_add_epi32(t.abef, was_t.abef);
        t.cdgh = _mm_add_epi32(t.cdgh, was_t.cdgh);
    }
    put_words(states, 0, s.abef, 0, 1, 4, 5);
    put_words(states, 0, s.cdgh, 2, 3, 6, 7);
    put_words(states, 1, t.abef, 0, 1, 4, 5);
    put_words(states, 1, t.cdgh, 2, 3, 6, 7);
}

/* --------------------------------------------- sixteen messages, by AVX-512 */

#define CHOOSE 0xca   /* a ? b : c, bit by bit, in the code of _mm512_ternarylogic */
#define MAJORITY 0xe8
#define XOR3 0x96

/* Load the blocks at offset `at` of all messages: register i gets word i of each message. */
AVX512_STEP void
load_16(__m512i w[16], const uint8_t *const *blocks, size_t at)
{
    const __m512i swap = _mm512_broadcast_i32x4(
        _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));

    AVX512_UNROLL
    for (int i = 0; i < 16; i++)
        w[i] = _mm512_shuffle_epi8(_mm512_loadu_si512(blocks[i] + at), swap);
    avx512_transpose(w);
}

/* Replace word i of the window by the word 16 positions later in the schedule. */
AVX512_STEP void
schedule_16(__m512i w[16], int i)
{
    __m512i x = w[(i + 1) & 15], y = w[(i + 14) & 15];
    __m512i s0 = _mm512_ternarylogic_epi32(_mm512_ror_epi32(x, 7),
                                           _mm512_ror_epi32(x, 18),
                                           _mm512_srli_epi32(x, 3), XOR3);
    __m512i s1 = _mm512_ternarylogic_epi32(_mm512_ror_epi32(y, 17),
                                           _mm512_ror_epi32(y, 19),
                                           _mm512_srli_epi32(y, 10), XOR3);

    w[i] = _mm512_add_epi32(_mm512_add_epi32(w[i], s0),
                            _mm512_add_epi32(w[(i + 9) & 15], s1));
}

/* Do round i.  In round i, s[-i & 7] is the state's word a, the next word is b, and so on: each
 * round starts a word earlier, instead of moving all words. */
AVX512_STEP void
round_16(__m512i s[8], __m512i w, uint32_t k, int i)
{
    __m512i a = s[(0 - i) & 7], b = s[(1 - i) & 7], c = s[(2 - i) & 7];
    __m512i e = s[(4 - i) & 7], f = s[(5 - i) & 7], g = s[(6 - i) & 7];
    __m512i *d = &s[(3 - i) & 7], *h = &s[(7 - i) & 7];
    __m512i s1 = _mm512_ternarylogic_epi32(_mm512_ror_epi32(e, 6),
                                           _mm512_ror_epi32(e, 11),
                                           _mm512_ror_epi32(e, 25), XOR3);
    __m512i s0 = _mm512_ternarylogic_epi32(_mm512_ror_epi32(a, 2),
                                           _mm512_ror_epi32(a, 13),
                                           _mm512_ror_epi32(a, 22), XOR3);
    __m512i in = _mm512_add_epi32(w, _mm512_set1_epi32((int)k));
    __m512i t = _mm512_add_epi32(_mm512_add_epi32(*h, in),
                                 _mm512_ternarylogic_epi32(e, f, g, CHOOSE));

    t = _mm512_add_epi32(t, s1);
    *d = _mm512_add_epi32(*d, t);
    *h = _mm512_add_epi32(_mm512_add_epi32(t, s0),
                          _mm512_ternarylogic_epi32(a, b, c, MAJORITY));
}

AVX512_CODE static void
compress_16(struct kvt__sha256_states *states, const uint8_t *const *blocks,
            size_t n_blocks)
{
    __m512i s[8], w[16];

    for (int i = 0; i < 8; i++)
        s[i] = _mm512_loadu_si512(states->word[i]);
    for (size_t at = 0; at < n_blocks * BLOCK; at += BLOCK) {
        load_16(w, blocks, at);
        AVX512_UNROLL
        for (int i = 0; i < 16; i++)
            round_16(s, w[i], round_constants[i], i);
        for (int k = 16; k < 64; k += 16) {
            AVX512_UNROLL
            for (int i = 0; i < 16; i++) {
                schedule_16(w, i);
                round_16(s, w[i], round_constants[k + i], i);
            }
        }
        for (int i = 0; i < 8; i++) {
            s[i] = _mm512_add_epi32(s[i], _mm512_loadu_si512(states->word[i]));
            _mm512_storeu_si512(states->word[i], s[i]);
        }
    }
}

/* --------------------------------------- the instructions of this processor */

static bool
has_sha(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_1) &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
}

const struct kvt__sha256_lanes *
kvt__sha256_lanes(size_t count)
{
    static const struct kvt__sha256_lanes two = { 2, compress_2 };
    static const struct kvt__sha256_lanes sixteen = { 16, compress_16 };
    static int known_sha; /* 0: unknown, 1: no SHA instructions, 2: SHA instructions */

    if (count >= sixteen.n && has_avx512())
        return &sixteen;
    int sha = __atomic_load_n(&known_sha, __ATOMIC_RELAXED);
    if (!sha) {
        sha = has_sha() ? 2 : 1;
        __atomic_store_n(&known_sha, sha, __ATOMIC_RELAXED);
    }
    return count >= two.n && sha == 2 ? &two : NULL;
}

#else

const struct kvt__sha256_lanes *
kvt__sha256_lanes(size_t count)
{
    (void)count;
    return NULL;
}
#endif
