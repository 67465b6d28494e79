/* SPDX-License-Identifier: Apache-2.0
 *
 * Internal interface of the lossless codec.
 *
 * The mantissas of KV are noise, the exponents are not: most exponents of a column are within
 * seven neighbours.  So an element is rotated left by one bit, which moves the sign behind the
 * mantissa and the exponent to the top.  Of the top byte the exponent becomes a code of 3 bits,
 * and the other bits of the element are copied.
 *
 * Each column of a plane, or each span of a row if the plane is transposed, has a base: the largest
 * exponent that has a code.  code = base - exponent (modulo 256) if this is 0 to 6; otherwise the
 * code is 7, and the top byte's exponent follows among the escapes of the plane.  A group of 64
 * elements is stored as
 *
 *   - 3 bit planes of the codes, the lowest bit first.  A bit plane is a little-endian word of 64
 *     bits; bit i belongs to element i;
 *   - a bit plane for each bit of the top byte below the exponent, the lowest bit first;
 *   - the lowest bytes of the 64 elements, the next bytes, and so on, without the top bytes.
 *
 * All forms of a function produce the same bytes. */
#ifndef KVT_CODEC_LOSSLESS_H
#define KVT_CODEC_LOSSLESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVT__GROUP 64u      /* elements of a group */
#define KVT__CODE_BITS 3u
#define KVT__ESCAPE 7u      /* the code of an exponent without a code of its own */

/* How the elements of a type are divided. */
struct kvt__split {
    uint32_t bytes;    /* of an element; 1, 2 or 4 */
    uint32_t low_bits; /* bits of the top byte below the exponent */
};

/* Return the bytes of an encoded group, without escapes. */
static inline size_t
kvt__group_bytes(struct kvt__split split)
{
    return (KVT__CODE_BITS + split.low_bits) * (KVT__GROUP / 8) +
           (split.bytes - 1) * KVT__GROUP;
}

/* A form of the functions, for some processors. */
struct kvt__lossless_form {
    const char *name;
    bool (*is_supported)(void);

    /* Encode n consecutive groups.  base: KVT__GROUP * n bases.  out: n * kvt__group_bytes() bytes.
     * escapes: where the next escape belongs, with room for KVT__GROUP * n bytes; the function
     * may write to all of this room.  Return the end of the escapes. */
    unsigned char *(*encode)(struct kvt__split split, const unsigned char *in, size_t n,
                             const unsigned char *base, unsigned char *out,
                             unsigned char *escapes);

    /* Decode n consecutive groups; in and base as out and base above.  Return the first escape
     * that was not used; NULL if there are fewer escapes than codes KVT__ESCAPE. */
    const unsigned char *(*decode)(struct kvt__split split, const unsigned char *in, size_t n,
                                   const unsigned char *base, unsigned char *out,
                                   const unsigned char *escapes, const unsigned char *end);
};

extern const struct kvt__lossless_form kvt__lossless_plain, kvt__lossless_avx2,
    kvt__lossless_avx512, kvt__lossless_neon;

/* Return all forms of this build that the processor supports, the fastest first; NULL ends the
 * list. */
const struct kvt__lossless_form *const *kvt__lossless_forms(void);

/* Encode and decode as kvt__codec_lossless does, by the functions of a form. */
struct kvt__plane_shape;
size_t kvt__lossless_encode(const struct kvt__lossless_form *form,
                            const struct kvt__plane_shape *shape, const unsigned char *plane,
                            unsigned char *out);
bool kvt__lossless_decode(const struct kvt__lossless_form *form,
                          const struct kvt__plane_shape *shape, const unsigned char *in, size_t n,
                          unsigned char *plane);

/* ---------------------------------------------------------------- shared by the forms */

/* Load element i, rotated left by one bit. */
static inline uint32_t
kvt__load_rotated(struct kvt__split split, const unsigned char *in, size_t i)
{
    const unsigned char *at = in + i * split.bytes;

    if (split.bytes == 1)
        return (uint8_t)(at[0] << 1 | at[0] >> 7);
    if (split.bytes == 2) {
        uint32_t v = at[0] | (uint32_t)at[1] << 8;
        return (uint16_t)(v << 1 | v >> 15);
    }
    uint32_t v = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
    return v << 1 | v >> 31;
}

/* Store element i from its rotated value. */
static inline void
kvt__store_rotated(struct kvt__split split, unsigned char *out, size_t i, uint32_t v)
{
    unsigned char *at = out + i * split.bytes;

    if (split.bytes == 1) {
        at[0] = (uint8_t)(v >> 1 | v << 7);
        return;
    }
    v = split.bytes == 2 ? (uint16_t)(v >> 1 | v << 15) : v >> 1 | v << 31;
    for (uint32_t b = 0; b < split.bytes; b++)
        at[b] = (uint8_t)(v >> 8 * b);
}

/* Divide a group into the top bytes of its rotated elements and the other bytes, as stored. */
static inline void
kvt__split_group(struct kvt__split split, const unsigned char *in, unsigned char *top,
                 unsigned char *rest)
{
    for (size_t i = 0; i < KVT__GROUP; i++) {
        uint32_t v = kvt__load_rotated(split, in, i);

        for (uint32_t b = 0; b + 1 < split.bytes; b++)
            rest[b * KVT__GROUP + i] = (uint8_t)(v >> 8 * b);
        top[i] = (uint8_t)(v >> 8 * (split.bytes - 1));
    }
}

/* Reverse kvt__split_group(). */
static inline void
kvt__join_group(struct kvt__split split, const unsigned char *top, const unsigned char *rest,
                unsigned char *out)
{
    for (size_t i = 0; i < KVT__GROUP; i++) {
        uint32_t v = (uint32_t)top[i] << 8 * (split.bytes - 1);

        for (uint32_t b = 0; b + 1 < split.bytes; b++)
            v |= (uint32_t)rest[b * KVT__GROUP + i] << 8 * b;
        kvt__store_rotated(split, out, i, v);
    }
}

#endif
