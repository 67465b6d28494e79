/* SPDX-License-Identifier: Apache-2.0
 *
 * Copying past the caches: for bytes that the copying processor does not read again
 * soon.  Saves reading the destination first, too.  Any thread. */
#ifndef KVT_GPU_STREAM_H
#define KVT_GPU_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Copy n bytes of any alignment. */
void kvt__stream_copy(unsigned char *to, const unsigned char *from, size_t n);

/* The same, and return the CRC32C of a || b, where crc is the CRC32C of a and b is the n
 * bytes. */
uint32_t kvt__stream_copy_sum(unsigned char *to, const unsigned char *from, size_t n,
                              uint32_t crc);

/* After it, what the calling thread copied may be handed to others. */
void kvt__stream_fence(void);

/* The instructions that do it. */
struct kvt__stream {
    const char *name;
    bool (*usable)(void); /* on this processor */
    /* Copy n lines of 64 bytes; to is a multiple of 64. */
    void (*lines)(unsigned char *to, const unsigned char *from, size_t n);
    /* The same for a multiple of KVT__SUM_LINES lines, and return the CRC32C as
     * kvt__stream_copy_sum().  NULL: the set has no such instructions. */
    uint32_t (*lines_sum)(unsigned char *to, const unsigned char *from, size_t n,
                          uint32_t crc);
};

#define KVT__SUM_LINES 4

/* Set number i, the best first; NULL: there are fewer. */
const struct kvt__stream *kvt__stream_at(size_t i);

/* Use another than the best usable set.  For tests. */
void kvt__stream_use(const struct kvt__stream *stream);

#endif
