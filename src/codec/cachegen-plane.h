/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of the codec cachegen that the encoder and the decoder share. */
#ifndef KVT_CODEC_CACHEGEN_PLANE_H
#define KVT_CODEC_CACHEGEN_PLANE_H

#include "codec/cachegen.h"

enum { KVT__CACHEGEN_STORED, KVT__CACHEGEN_CODED }; /* the first byte of an encoded plane */

/* Elements that are encoded or decoded together; a multiple of KVT__LANES. */
#define KVT__SEGMENT 1024u
#define KVT__STATES_BYTES (4 * KVT__LANES)

struct kvt__cachegen_plane {
    struct kvt__layout layout;
    struct kvt__levels levels;
    size_t element_bytes, bytes; /* of the plane */
    bool is_coded;               /* the shape allows codes */
    uint32_t least_max;          /* 2^-100 or, if larger, the least number above 0; as bits */
    uint32_t infinity;           /* as bits */
};

struct kvt__cachegen_plane kvt__cachegen_plane_of(const struct kvt__plane_shape *shape);

/* Return the bytes of the classes of all channels, `bits` each. */
size_t kvt__class_bytes(const struct kvt__cachegen_plane *p, unsigned bits);

/* The elements of a token: n elements from number `at`, with this step. */
struct kvt__span {
    size_t at, step, n;
};

struct kvt__span kvt__token_of(const struct kvt__cachegen_plane *p, size_t token);

/* Write the class of each of n consecutive elements, from element `at`. */
void kvt__fill_classes(const struct kvt__cachegen_plane *p, const struct kvt__classes *classes,
                       size_t at, size_t n, uint8_t *out);

/* Write the number of the token of each of n consecutive elements, from element `at`.  numbers: of
 * all tokens, as elements of this type. */
void kvt__fill_numbers(const struct kvt__cachegen_form *form, const struct kvt__cachegen_plane *p,
                       enum kvt__element element, const unsigned char *numbers, size_t at,
                       size_t n, float *out);

/* Load an element as bits. */
static inline uint32_t
kvt__load_bits(const struct kvt__cachegen_plane *p, const unsigned char *at)
{
    return p->element_bytes == 2 ? kvt__load_word16(at) : kvt__load_word32(at);
}

#endif
