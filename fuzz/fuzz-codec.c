/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: encoded planes.  The first 4 bytes of an input choose codec and shape; the rest are
 * the encoded plane.  All forms of the codec must agree, and what can be decoded must survive
 * another encoding: bit for bit, or without a crash if the codec is lossy. */
#include <stdlib.h>
#include <string.h>

#include "codec/affine.h"
#include "codec/codec.h"
#include "codec/lossless.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
expect(bool holds)
{
    if (!holds)
        abort();
}

static void
encode_again(const struct kvt__codec *codec, const struct kvt__plane_shape *shape,
             const unsigned char *plane, size_t bytes)
{
    unsigned char *encoded = malloc(codec->room(shape)), *decoded = malloc(bytes);

    expect(encoded && decoded);
    size_t n = codec->encode(shape, plane, encoded);
    expect(n <= bytes + 1);
    expect(codec->decode(shape, encoded, n, decoded));
    expect(codec != &kvt__codec_lossless || !memcmp(decoded, plane, bytes));
    free(encoded);
    free(decoded);
}

/* Decode by each form of a codec into `plane`, then `other`.  bits: 0 for the lossless codec. */
static bool
decode_by_all(unsigned bits, const struct kvt__plane_shape *shape, const unsigned char *in,
              size_t n, unsigned char *plane, unsigned char *other, size_t bytes)
{
    bool is_plane = bits ? kvt__affine_decode(&kvt__affine_plain, bits, shape, in, n, plane)
                         : kvt__lossless_decode(&kvt__lossless_plain, shape, in, n, plane);

    for (size_t i = 0; bits ? !!kvt__affine_forms()[i] : !!kvt__lossless_forms()[i]; i++) {
        expect(is_plane ==
               (bits ? kvt__affine_decode(kvt__affine_forms()[i], bits, shape, in, n, other)
                     : kvt__lossless_decode(kvt__lossless_forms()[i], shape, in, n, other)));
        expect(!is_plane || !memcmp(plane, other, bytes));
    }
    return is_plane;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct kvt__codec *const codecs[] = { &kvt__codec_lossless, &kvt__codec_kv8,
                                                       &kvt__codec_kv4 };
    static const unsigned bits[] = { 0, 8, 4 };

    if (size < 4)
        return 0;
    size_t codec = data[0] / KVT__N_ELEMENTS % 3;
    struct kvt__plane_shape shape = { .element = data[0] % KVT__N_ELEMENTS, .row = 1 + data[1],
                                      .n = 1 + (data[2] | (data[3] & 7u) << 8),
                                      .is_transposed = data[3] & 8, .n_layers = !(data[3] & 16) };
    size_t bytes = (size_t)shape.n * kvt__element_bytes(shape.element);
    unsigned char *plane = malloc(bytes), *other = malloc(bytes);
    unsigned char *in = malloc(size - 4 ? size - 4 : 1); /* a buffer without a byte to spare */

    expect(plane && other && in);
    memcpy(in, data + 4, size - 4);
    if (decode_by_all(bits[codec], &shape, in, size - 4, plane, other, bytes))
        encode_again(codecs[codec], &shape, plane, bytes);
    free(plane);
    free(other);
    free(in);
    return 0;
}
