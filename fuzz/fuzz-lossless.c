/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: encoded planes of the lossless codec.  The first 4 bytes of an input choose the
 * shape; the rest are the encoded plane.  All forms must agree, and what can be decoded must
 * survive another encoding. */
#include <stdlib.h>
#include <string.h>

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
encode_again(const struct kvt__codec_shape *shape, const unsigned char *plane, size_t bytes)
{
    unsigned char *encoded = malloc(kvt__codec_lossless.room(shape)), *decoded = malloc(bytes);

    expect(encoded && decoded);
    size_t n = kvt__codec_lossless.encode(shape, plane, encoded);
    expect(n <= bytes + 1);
    expect(kvt__codec_lossless.decode(shape, encoded, n, decoded));
    expect(!memcmp(decoded, plane, bytes));
    free(encoded);
    free(decoded);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4)
        return 0;
    struct kvt__codec_shape shape = { data[0] % KVT__N_ELEMENTS, 1 + data[1],
                                      1 + (data[2] | (data[3] & 7u) << 8), 1 };
    size_t bytes = (size_t)shape.n * kvt__element_bytes(shape.element);
    unsigned char *plane = malloc(bytes), *other = malloc(bytes);
    unsigned char *in = malloc(size - 4 ? size - 4 : 1); /* a buffer without a byte to spare */

    expect(plane && other && in);
    memcpy(in, data + 4, size - 4);
    bool is_plane = kvt__lossless_decode(&kvt__lossless_plain, &shape, in, size - 4, plane);
    for (const struct kvt__lossless_form *const *form = kvt__lossless_forms(); *form; form++) {
        expect(kvt__lossless_decode(*form, &shape, in, size - 4, other) == is_plane);
        expect(!is_plane || !memcmp(plane, other, bytes));
    }
    if (is_plane)
        encode_again(&shape, plane, bytes);
    free(plane);
    free(other);
    free(in);
    return 0;
}
