/* SPDX-License-Identifier: Apache-2.0
 *
 * zstd, lz4, and blosc's byte shuffle in front of zstd or lz4, on a single thread. */
#include "libraries.h"

#ifdef HAVE_ZSTD
#include <zstd.h>

static size_t
zstd_compress(const void *in, size_t n, void *out, size_t room)
{
    size_t bytes = ZSTD_compress(out, room, in, n, 1);

    return ZSTD_isError(bytes) ? 0 : bytes;
}

static int
zstd_decompress(const void *in, size_t n_in, void *out, size_t n)
{
    return ZSTD_decompress(out, n, in, n_in) != n;
}
#endif

#ifdef HAVE_LZ4
#include <lz4.h>

static size_t
lz4_compress(const void *in, size_t n, void *out, size_t room)
{
    return (size_t)LZ4_compress_default(in, out, (int)n, (int)room);
}

static int
lz4_decompress(const void *in, size_t n_in, void *out, size_t n)
{
    return LZ4_decompress_safe(in, out, (int)n_in, (int)n) != (int)n;
}
#endif

#ifdef HAVE_BLOSC
#include <blosc.h>

#define ELEMENT_BYTES 2

static size_t
shuffled_compress(const char *by, const void *in, size_t n, void *out, size_t room)
{
    int bytes = blosc_compress_ctx(1, BLOSC_SHUFFLE, ELEMENT_BYTES, n, in, out, room, by, 0, 1);

    return bytes > 0 ? (size_t)bytes : 0;
}

static size_t
shuffled_zstd_compress(const void *in, size_t n, void *out, size_t room)
{
    return shuffled_compress("zstd", in, n, out, room);
}

static size_t
shuffled_lz4_compress(const void *in, size_t n, void *out, size_t room)
{
    return shuffled_compress("lz4", in, n, out, room);
}

static int
shuffled_decompress(const void *in, size_t n_in, void *out, size_t n)
{
    (void)n_in;
    return blosc_decompress_ctx(in, out, n, 1) != (int)n;
}
#endif

const struct library libraries[] = {
#ifdef HAVE_ZSTD
    { "zstd -1", zstd_compress, zstd_decompress },
#endif
#ifdef HAVE_LZ4
    { "lz4", lz4_compress, lz4_decompress },
#endif
#ifdef HAVE_BLOSC
    { "blosc shuffle zstd -1", shuffled_zstd_compress, shuffled_decompress },
    { "blosc shuffle lz4 -1", shuffled_lz4_compress, shuffled_decompress },
#endif
    { NULL, NULL, NULL },
};
