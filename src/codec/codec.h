/* SPDX-License-Identifier: Apache-2.0
 *
 * Codecs: encode the bytes of a chunk for storage, plane by plane, and decode them.  A plane is
 * encoded and decoded on its own, so several threads can share a chunk, and a plane can be decoded
 * as soon as its bytes have arrived.  Pure functions of their arguments: any thread; no memory is
 * allocated. */
#ifndef KVT_CODEC_CODEC_H
#define KVT_CODEC_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Type of the elements.  The numbers are stored in chunks. */
enum kvt__element {
    KVT__ELEMENT_BYTE, /* no known structure */
    KVT__ELEMENT_BF16,
    KVT__ELEMENT_F16,
    KVT__ELEMENT_F32,
    KVT__ELEMENT_E4M3, /* 8 bits, of these 4 bits of exponent */
    KVT__ELEMENT_E5M2,
    KVT__N_ELEMENTS,
};

/* The elements of a plane.  A plane consists of rows; the last row may be incomplete.  Elements in
 * one column of the rows have similar magnitudes: a column is a channel of the KV, and a row is a
 * token.  is_transposed: a row is a channel, and a column is a token. */
struct kvt__plane_shape {
    enum kvt__element element;
    uint32_t row; /* elements of a row; at least 1 */
    uint32_t n;   /* elements of a plane; at least 1, at most KVT__CODEC_MAX_PLANE */
    bool is_transposed;
    bool is_value;     /* a plane of V, or of K */
    uint32_t layer;    /* number of the plane's layer in the chunk */
    uint32_t n_layers; /* layers in the chunk; 0: the plane has no known structure */
};

#define KVT__CODEC_MAX_PLANE (UINT32_C(1) << 26)

/* Return the bytes of an element. */
uint32_t kvt__element_bytes(enum kvt__element element);

struct kvt__codec {
    const char *name;

    /* Return the size of the buffer that encode() needs for one plane. */
    size_t (*room)(const struct kvt__plane_shape *shape);

    /* Encode a plane into out, a buffer of room() bytes.  Return the encoded bytes: at most the
     * bytes of the plane and 1. */
    size_t (*encode)(const struct kvt__plane_shape *shape, const unsigned char *plane,
                     unsigned char *out);

    /* Decode n encoded bytes into a plane.  False: the bytes are no plane of this shape; the plane
     * has any content.  Any bytes whatever are safe: the function reads only n bytes and writes
     * only the plane, in a time that the shape bounds. */
    bool (*decode)(const struct kvt__plane_shape *shape, const unsigned char *in, size_t n,
                   unsigned char *plane);
};

/* lossless restores each bit.  kv8 and kv4 are lossy, with 8 or 4 bits an element and 32 bits for
 * each channel of 64 tokens.  For types other than bfloat16, for planes without a known structure,
 * and for planes with NaN or infinities, kv8 and kv4 restore each bit and save nothing. */
extern const struct kvt__codec kvt__codec_lossless, kvt__codec_kv8, kvt__codec_kv4;

/* cachegen is lossy: the quantiser of CacheGen with 16 or 32 bins, which the layer and the number
 * of layers choose, and an entropy coder; cachegen.h describes the format.  The error of an
 * element is at most 1/30 (32 bins) or 1/14 (16 bins) of the largest magnitude m of the element's
 * token, plus the rounding to the element's type.  cachegen restores each bit of tokens with NaN,
 * with infinities, or with 0 < m < 2^-100; of planes without known structure (n_layers is 0) or
 * with more than 32,768 tokens; and of types other than bfloat16, float16 and float32. */
extern const struct kvt__codec kvt__codec_cachegen;

#endif
