/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations for tests that wrap the encoder and the decoder of frames (the linker's --wrap). */
#ifndef KVT_WRAPPED_FRAME_H
#define KVT_WRAPPED_FRAME_H

#include "codec/frame.h"

size_t __real_kvt__frame_encode(enum kvt__serde serde, const struct kvt__chunk_shape *shape,
                                const struct kvt__id *id, const unsigned char *chunk,
                                uint32_t crc, unsigned char *out);
size_t __wrap_kvt__frame_encode(enum kvt__serde serde, const struct kvt__chunk_shape *shape,
                                const struct kvt__id *id, const unsigned char *chunk,
                                uint32_t crc, unsigned char *out);
bool __real_kvt__frame_decode(const struct kvt__frame *frame, unsigned char *chunk);
bool __wrap_kvt__frame_decode(const struct kvt__frame *frame, unsigned char *chunk);

#endif
