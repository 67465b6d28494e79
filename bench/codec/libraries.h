/* SPDX-License-Identifier: Apache-2.0
 *
 * Compression libraries, for comparison on the same bytes: those that were installed when the
 * program was built. */
#ifndef KVT_BENCH_CODEC_LIBRARIES_H
#define KVT_BENCH_CODEC_LIBRARIES_H

#include <stddef.h>

struct library {
    const char *name; /* with the level and filter */

    /* Compress n bytes to out, which has room for n + n / 8 + 4096 bytes.  Return the compressed
     * bytes; 0: failure. */
    size_t (*compress)(const void *in, size_t n, void *out, size_t room);

    /* Decompress to exactly n bytes.  Return 0 after success. */
    int (*decompress)(const void *in, size_t n_in, void *out, size_t n);
};

extern const struct library libraries[]; /* a NULL name ends the list */

#endif
