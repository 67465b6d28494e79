/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers, and planes with the statistics of KV, for the tests of codecs. */
#ifndef KVT_CODEC_TEST_H
#define KVT_CODEC_TEST_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvt-test.h"

#include "codec/codec.h"

static inline uint64_t
next_random(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Return a normally distributed number. */
static inline double
next_normal(uint64_t *state)
{
    double a = (double)(next_random(state) >> 11) / 0x1p53;
    double b = (double)(next_random(state) >> 11) / 0x1p53;

    return sqrt(-2 * log(1 - a)) * cos(6.283185307179586 * b);
}

static inline size_t
plane_bytes(const struct kvt__plane_shape *shape)
{
    return (size_t)shape->n * kvt__element_bytes(shape->element);
}

/* Return a copy without a byte to spare, so that the address sanitizer finds each access behind the
 * end.  The caller frees the copy. */
static inline unsigned char *
exact_copy(const unsigned char *bytes, size_t n)
{
    unsigned char *copy = malloc(n ? n : 1);

    assert_non_null(copy);
    memcpy(copy, bytes, n);
    return copy;
}

/* A plane, the plane encoded by a form and by the plain form, and the plane decoded twice. */
struct buffers {
    unsigned char *plane, *encoded, *expected, *decoded, *other;
};

/* Allocate buffers without a byte to spare. */
static inline struct buffers
buffers_for(const struct kvt__codec *codec, const struct kvt__plane_shape *shape)
{
    size_t room = codec->room(shape);
    struct buffers b = { malloc(plane_bytes(shape)), malloc(room), malloc(room),
                         malloc(plane_bytes(shape)), malloc(plane_bytes(shape)) };

    assert_true(b.plane && b.encoded && b.expected && b.decoded && b.other);
    return b;
}

static inline void
buffers_free(struct buffers *b)
{
    free(b->plane);
    free(b->encoded);
    free(b->expected);
    free(b->decoded);
    free(b->other);
}

/* Check the name of a codec's fastest form: each processor of aarch64 has NEON, and each processor
 * of x86-64 with AVX2 has the other instructions of the AVX2 forms. */
static inline void
expect_fastest(const char *name)
{
#ifdef __aarch64__
    assert_string_equal(name, "NEON");
#elif defined __x86_64__
    if (__builtin_cpu_supports("avx2"))
        assert_string_not_equal(name, "plain C");
#endif
    (void)name;
}

/* Write a number as an element.  Every rounding and every range is good enough. */
static inline void
put_element(enum kvt__element element, double x, unsigned char *at)
{
    float f = (float)x;
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = bits >> 31, mantissa = bits & 0x7fffff;
    int32_t exponent = (int32_t)(bits >> 23 & 0xff) - 127;

#define SMALL(e_bits, m_bits)                                                                      \
    ((sign << ((e_bits) + (m_bits))) |                                                             \
     (exponent + (1 << ((e_bits) - 1)) - 1 > 0                                                     \
      ? (uint32_t)(exponent + (1 << ((e_bits) - 1)) - 1) << (m_bits) | mantissa >> (23 - (m_bits)) \
      : 0))
    switch (element) {
    case KVT__ELEMENT_BF16:
        bits >>= 16;
        break;
    case KVT__ELEMENT_F16:
        bits = SMALL(5, 10);
        break;
    case KVT__ELEMENT_E4M3:
        bits = SMALL(4, 3);
        break;
    case KVT__ELEMENT_E5M2:
        bits = SMALL(5, 2);
        break;
    default:
        break;
    }
#undef SMALL
    for (uint32_t b = 0; b < kvt__element_bytes(element); b++)
        at[b] = (unsigned char)(bits >> 8 * b);
}

/* Fill a plane: each channel has a scale of its own. */
static inline void
fill_plane(const struct kvt__plane_shape *shape, uint64_t seed, unsigned char *plane)
{
    for (uint32_t i = 0; i < shape->n; i++) {
        uint64_t channel = seed + (shape->is_transposed ? i / shape->row : i % shape->row);
        uint64_t value = seed * 7919 + i;
        double scale = ldexp(1, (int)(next_random(&channel) % 6) - 4);

        put_element(shape->element, next_normal(&value) * scale,
                    plane + (size_t)i * kvt__element_bytes(shape->element));
    }
}

#endif
