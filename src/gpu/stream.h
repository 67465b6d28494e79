/* SPDX-License-Identifier: Apache-2.0
 *
 * Copying past the caches: for bytes that the copying processor does not read again
 * soon.  Saves reading the destination first, too.  Any thread. */
#ifndef KVT_GPU_STREAM_H
#define KVT_GPU_STREAM_H

#include <stdbool.h>
#include <stddef.h>

/* Copy n bytes of any alignment. */
void kvt__stream_copy(unsigned char *to, const unsigned char *from, size_t n);

/* After it, what the calling thread copied may be handed to others. */
void kvt__stream_fence(void);

/* The instructions that do it. */
struct kvt__stream {
    const char *name;
    bool (*usable)(void); /* on this processor */
    /* Copy n lines of 64 bytes; to is a multiple of 64. */
    void (*lines)(unsigned char *to, const unsigned char *from, size_t n);
};

/* Set number i, the best first; NULL: there are fewer. */
const struct kvt__stream *kvt__stream_at(size_t i);

/* Use another than the best usable set.  For tests. */
void kvt__stream_use(const struct kvt__stream *stream);

#endif
