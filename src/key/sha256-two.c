/* SPDX-License-Identifier: Apache-2.0
 *
 * Two SHA-256 (FIPS 180-4) side by side.  Where the processor lacks x86's SHA
 * instructions, one after the other.  Any thread. */
#include "key/sha256-two.h"

#include <assert.h>
#include <endian.h>
#include <stdbool.h>
#include <string.h>

static void
one_after_the_other(const void *head, size_t n_head, const void *a,
                    const void *b, size_t n, uint8_t *out_a, uint8_t *out_b)
{
    struct kvt__sha256 sha;

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, head, n_head);
    kvt__sha256_add(&sha, a, n);
    kvt__sha256_end(&sha, out_a);
    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, head, n_head);
    kvt__sha256_add(&sha, b, n);
    kvt__sha256_end(&sha, out_b);
}

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

#define BLOCK 64
#define SHA_CODE __attribute__((target("sha,sse4.1")))
#define SHA_STEP SHA_CODE __attribute__((always_inline)) static inline

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

/* One message: the eight state words in the order the instructions want them,
 * and a window of 16 words of the message schedule. */
struct lane {
    __m128i abef;
    __m128i cdgh;
    __m128i w[4];
};

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

/* Put the four words 16 further on in the place of window part i. */
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
compress(struct lane state[2], const uint8_t *a, const uint8_t *b,
         size_t n_blocks)
{
    struct lane s = state[0], t = state[1];

    for (; n_blocks; n_blocks--, a += BLOCK, b += BLOCK) {
        struct lane was_s = s, was_t = t;
        load(&s, a);
        load(&t, b);
        sixteen_rounds(&s, &t, round_constants, true);
        sixteen_rounds(&s, &t, round_constants + 16, true);
        sixteen_rounds(&s, &t, round_constants + 32, true);
        sixteen_rounds(&s, &t, round_constants + 48, false);
        s.abef = _mm_add_epi32(s.abef, was_s.abef);
        s.cdgh = _mm_add_epi32(s.cdgh, was_s.cdgh);
        t.abef = _mm_add_epi32(t.abef, was_t.abef);
        t.cdgh = _mm_add_epi32(t.cdgh, was_t.cdgh);
    }
    state[0] = s;
    state[1] = t;
}

SHA_CODE static void
digest(const struct lane *l, uint8_t out[KVT__SHA256_BYTES])
{
    uint32_t abef[4], cdgh[4];

    _mm_storeu_si128((__m128i *)abef, l->abef);
    _mm_storeu_si128((__m128i *)cdgh, l->cdgh);
    const uint32_t words[8] = {abef[3], abef[2], cdgh[3], cdgh[2],
                               abef[1], abef[0], cdgh[1], cdgh[0]};
    for (size_t i = 0; i < 8; i++) {
        uint32_t word = htobe32(words[i]);
        memcpy(out + i * sizeof word, &word, sizeof word);
    }
}

SHA_CODE static void
init(struct lane *l)
{
    l->abef = _mm_set_epi32(0x6a09e667, (int)0xbb67ae85, 0x510e527f,
                            (int)0x9b05688c);
    l->cdgh = _mm_set_epi32(0x3c6ef372, (int)0xa54ff53a, 0x1f83d9ab,
                            0x5be0cd19);
    for (int i = 0; i < 4; i++)
        l->w[i] = _mm_setzero_si128();
}

/* A message's first block, or its whole when that is shorter, is put together
 * in a buffer; then blocks are read in place; its end goes through the buffer
 * again, with the padding. */
SHA_CODE static void
side_by_side(const void *head, size_t n_head, const uint8_t *a,
             const uint8_t *b, size_t n, uint8_t *out_a, uint8_t *out_b)
{
    uint8_t buffer[2][2 * BLOCK];
    const uint64_t n_bits = htobe64((uint64_t)(n_head + n) * 8);
    size_t held = n_head;
    struct lane state[2];

    init(&state[0]);
    init(&state[1]);
    memcpy(buffer[0], head, n_head);
    memcpy(buffer[1], head, n_head);
    if (n_head + n >= BLOCK) {
        size_t fill = BLOCK - n_head;
        memcpy(buffer[0] + n_head, a, fill);
        memcpy(buffer[1] + n_head, b, fill);
        compress(state, buffer[0], buffer[1], 1);
        size_t whole = (n - fill) / BLOCK;
        compress(state, a + fill, b + fill, whole);
        fill += whole * BLOCK;
        a += fill;
        b += fill;
        n -= fill;
        held = 0;
    }
    size_t end = held + n + 1 + sizeof n_bits <= BLOCK ? BLOCK : 2 * BLOCK;
    for (int i = 0; i < 2; i++) {
        uint8_t *at = buffer[i] + held;
        memcpy(at, i ? b : a, n);
        memset(at + n, 0, end - held - n);
        at[n] = 0x80;
        memcpy(buffer[i] + end - sizeof n_bits, &n_bits, sizeof n_bits);
    }
    compress(state, buffer[0], buffer[1], end / BLOCK);
    digest(&state[0], out_a);
    digest(&state[1], out_b);
}

static bool
has_sha(void)
{
    static int known; /* 0 not asked yet, 1 no, 2 yes */
    unsigned a, b, c, d;
    int answer = __atomic_load_n(&known, __ATOMIC_RELAXED);

    if (!answer) {
        answer = 1;
        if (__get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_1) &&
            __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA))
            answer = 2;
        __atomic_store_n(&known, answer, __ATOMIC_RELAXED);
    }
    return answer == 2;
}
#endif

void
kvt__sha256_two(const void *head, size_t n_head, const void *a, const void *b,
                size_t n, uint8_t out_a[KVT__SHA256_BYTES],
                uint8_t out_b[KVT__SHA256_BYTES])
{
    assert(n_head <= KVT__SHA256_TWO_HEAD_MAX);
#ifdef __x86_64__
    if (has_sha()) {
        side_by_side(head, n_head, a, b, n, out_a, out_b);
        return;
    }
#endif
    one_after_the_other(head, n_head, a, b, n, out_a, out_b);
}
