/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: frames of encoded chunks, without their checksum, so that mutations reach the
 * shapes and the planes. */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "codec/frame.h"

#define MAX_CHUNK (UINT64_C(1) << 22)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char *in = malloc(size ? size : 1); /* a buffer without a byte to spare */
    struct kvt__frame frame;

    if (!in)
        abort();
    memcpy(in, data, size);
    if (!kvt__frame_parse(in, size, true, &frame) &&
        kvt__chunk_shape_bytes(&frame.shape) <= MAX_CHUNK) {
        size_t bytes = (size_t)kvt__chunk_shape_bytes(&frame.shape);
        unsigned char *chunk = malloc(bytes);
        unsigned char *plane = malloc(kvt__chunk_plane_bytes(&frame.shape));

        if (!chunk || !plane)
            abort();
        bool is_chunk = kvt__frame_decode(&frame, chunk);
        frame.crc = is_chunk ? kvt__crc32c(0, chunk, bytes) : 0;
        if (kvt__frame_verify(&frame, plane) != is_chunk)
            abort();
        free(chunk);
        free(plane);
    }
    free(in);
    return 0;
}
