/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: encoded planes.  The first 4 bytes of an input choose codec and shape; the rest are
 * the encoded plane.  All forms of the codec must agree, and what can be decoded must survive
 * another encoding: bit for bit, or without a crash if the codec is lossy. */
#include <stdlib.h>
#include <string.h>

#include "codec/affine.h"
#include "codec/cachegen.h"
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

enum { LOSSLESS, KV8, KV4, CACHEGEN, N_CODECS };

static size_t
count_forms(size_t codec)
{
    size_t n = 0;

    while (codec == LOSSLESS   ? !!kvt__lossless_forms()[n]
           : codec == CACHEGEN ? !!kvt__cachegen_forms()[n]
                               : !!kvt__affine_forms()[n])
        n++;
    return n;
}

static bool
decode_by(size_t codec, size_t form, const struct kvt__plane_shape *shape,
          const unsigned char *in, size_t n, unsigned char *plane)
{
    switch (codec) {
    case LOSSLESS:
        return kvt__lossless_decode(kvt__lossless_forms()[form], shape, in, n, plane);
    case CACHEGEN:
        return kvt__cachegen_decode(kvt__cachegen_forms()[form], shape, in, n, plane);
    default:
        return kvt__affine_decode(kvt__affine_forms()[form], codec == KV8 ? 8 : 4, shape, in, n,
                                  plane);
    }
}

/* Decode by each form of a codec into `plane`, then `other`. */
static bool
decode_by_all(size_t codec, const struct kvt__plane_shape *shape, const unsigned char *in,
              size_t n, unsigned char *plane, unsigned char *other, size_t bytes)
{
    bool is_plane = decode_by(codec, 0, shape, in, n, plane);

    for (size_t form = 1; form < count_forms(codec); form++) {
        expect(is_plane == decode_by(codec, form, shape, in, n, other));
        expect(!is_plane || !memcmp(plane, other, bytes));
    }
    return is_plane;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct kvt__codec *const codecs[N_CODECS] = {
        &kvt__codec_lossless, &kvt__codec_kv8, &kvt__codec_kv4, &kvt__codec_cachegen };

    if (size < 4)
        return 0;
    size_t codec = data[0] / KVT__N_ELEMENTS % N_CODECS;
    struct kvt__plane_shape shape = {
        .element = data[0] % KVT__N_ELEMENTS, .row = 1 + data[1],
        .n = 1 + (data[2] | (data[3] & 7u) << 8), .is_transposed = data[3] & 8,
        .is_value = data[3] & 16, .layer = data[3] & 32 ? 31 : 0, .n_layers = data[3] & 64 ? 0 : 32,
    };
    size_t bytes = (size_t)shape.n * kvt__element_bytes(shape.element);
    unsigned char *plane = malloc(bytes), *other = malloc(bytes);
    unsigned char *in = malloc(size - 4 ? size - 4 : 1); /* a buffer without a byte to spare */

    expect(plane && other && in);
    memcpy(in, data + 4, size - 4);
    if (decode_by_all(codec, &shape, in, size - 4, plane, other, bytes))
        encode_again(codecs[codec], &shape, plane, bytes);
    free(plane);
    free(other);
    free(in);
    return 0;
}
