/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: frames of encoded chunks, without their checksum, so that mutations reach the
 * shapes and the planes. */
#include <stdlib.h>
#include <string.h>

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
        unsigned char *chunk = malloc((size_t)kvt__chunk_shape_bytes(&frame.shape));

        if (!chunk)
            abort();
        (void)kvt__frame_decode(&frame, chunk);
        free(chunk);
    }
    free(in);
    return 0;
}
