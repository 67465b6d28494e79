/* SPDX-License-Identifier: Apache-2.0
 *
 * Gather and scatter on host memory.  The checksum is taken piece by piece of
 * what was just written, while it is still in the cache. */
#include "gpu/copy.h"

#include <string.h>

#include "base/crc32c.h"

/* Small enough for the first cache, large enough to be quick. */
#define CRC_PIECE ((size_t)16 << 10)

uint64_t
kvt__chunk_bytes(const struct kvt__view *view, uint32_t n_tokens)
{
    uint64_t n_blocks = (n_tokens + view->block_tokens - 1) / view->block_tokens;

    if (view->opaque)
        return n_blocks * view->n_layers * view->block_bytes;
    return (uint64_t)view->n_kv * view->n_layers * n_tokens * view->n_heads *
           view->head_bytes;
}

static unsigned char *
block_at(const struct kvt__view *view, size_t plane, int32_t block)
{
    return (unsigned char *)view->base[plane] + (int64_t)block * view->block_stride;
}

/* Copy the tokens of one block of one plane, to or from where they lie together. */
static void
copy_tokens(const struct kvt__view *view, unsigned char *block, unsigned char *flat,
            uint32_t n_tokens, bool gather)
{
    size_t run = view->head_bytes, n_heads = view->n_heads;
    size_t n_runs = n_tokens;

    if (view->head_stride == (int64_t)view->head_bytes || n_heads == 1) {
        run *= n_heads;
        n_heads = 1;
        if (view->token_stride == (int64_t)run) {
            run *= n_runs;
            n_runs = 1;
        }
    }
    for (size_t t = 0; t < n_runs; t++) {
        for (size_t h = 0; h < n_heads; h++) {
            unsigned char *at = block + (int64_t)t * view->token_stride +
                                (int64_t)h * view->head_stride;
            if (gather)
                memcpy(flat, at, run);
            else
                memcpy(at, flat, run);
            flat += run;
        }
    }
}

static uint32_t
gather_opaque(const struct kvt__view *view, const int32_t *blocks,
              uint32_t n_tokens, unsigned char *chunk)
{
    uint32_t n_blocks = (n_tokens + view->block_tokens - 1) / view->block_tokens;
    uint32_t crc = 0;

    for (uint32_t b = 0; b < n_blocks; b++) {
        for (uint32_t layer = 0; layer < view->n_layers; layer++) {
            memcpy(chunk, block_at(view, layer, blocks[b]), view->block_bytes);
            crc = kvt__crc32c(crc, chunk, view->block_bytes);
            chunk += view->block_bytes;
        }
    }
    return crc;
}

static void
scatter_opaque(const struct kvt__view *view, const int32_t *blocks,
               uint32_t n_tokens, const unsigned char *chunk)
{
    uint32_t n_blocks = (n_tokens + view->block_tokens - 1) / view->block_tokens;

    for (uint32_t b = 0; b < n_blocks; b++) {
        for (uint32_t layer = 0; layer < view->n_layers; layer++) {
            if (kvt__block_real(view, blocks[b]))
                memcpy(block_at(view, layer, blocks[b]), chunk, view->block_bytes);
            chunk += view->block_bytes;
        }
    }
}

/* One plane: all tokens of the chunk for one layer's K or V.  crc: the checksum of
 * what was gathered goes on; NULL: scatter. */
static void
copy_plane(const struct kvt__view *view, size_t plane, const int32_t *blocks,
           uint32_t n_tokens, unsigned char *flat, uint32_t *crc)
{
    size_t token_bytes = (size_t)view->n_heads * view->head_bytes;
    size_t begun = 0, end = 0; /* copied, not in the checksum yet */

    for (uint32_t at = 0; at < n_tokens; at += view->block_tokens) {
        uint32_t left = n_tokens - at;
        uint32_t n = left < view->block_tokens ? left : view->block_tokens;
        int32_t block = blocks[at / view->block_tokens];

        if (kvt__block_real(view, block))
            copy_tokens(view, block_at(view, plane, block),
                        flat + at * token_bytes, n, crc != NULL);
        end = (at + n) * token_bytes;
        if (crc && (end - begun >= CRC_PIECE || at + n == n_tokens)) {
            *crc = kvt__crc32c(*crc, flat + begun, end - begun);
            begun = end;
        }
    }
}

uint32_t
kvt__gather(const struct kvt__view *view, const int32_t *blocks,
            uint32_t n_tokens, unsigned char *chunk)
{
    if (view->opaque)
        return gather_opaque(view, blocks, n_tokens, chunk);

    size_t plane_bytes = (size_t)n_tokens * view->n_heads * view->head_bytes;
    size_t n_planes = (size_t)view->n_kv * view->n_layers;
    uint32_t crc = 0;

    for (size_t plane = 0; plane < n_planes; plane++) {
        copy_plane(view, plane, blocks, n_tokens, chunk, &crc);
        chunk += plane_bytes;
    }
    return crc;
}

void
kvt__scatter(const struct kvt__view *view, const int32_t *blocks,
             uint32_t n_tokens, const unsigned char *chunk)
{
    if (view->opaque) {
        scatter_opaque(view, blocks, n_tokens, chunk);
        return;
    }
    size_t plane_bytes = (size_t)n_tokens * view->n_heads * view->head_bytes;
    size_t n_planes = (size_t)view->n_kv * view->n_layers;

    for (size_t plane = 0; plane < n_planes; plane++) {
        /* copy_plane only reads it in this direction */
        copy_plane(view, plane, blocks, n_tokens, (unsigned char *)chunk, NULL);
        chunk += plane_bytes;
    }
}
