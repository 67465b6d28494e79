/* SPDX-License-Identifier: Apache-2.0
 *
 * Copying between an engine's paged KV and one chunk, which lies together.  Pure
 * functions of their arguments: any thread, as long as nobody writes the source. */
#ifndef KVT_GPU_COPY_H
#define KVT_GPU_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a group's KV lies, and how a chunk orders it.  Strides in bytes. */
struct kvt__view {
    void *const *base; /* n_kv * n_layers addresses */
    uint32_t n_kv;
    uint32_t n_layers;
    uint32_t n_heads;
    uint32_t head_bytes;
    uint32_t block_tokens;
    uint32_t n_blocks;
    bool opaque;          /* whole blocks of block_bytes; the order in a chunk is
                           * [block][layer]; else [kv][layer][token][head] */
    uint64_t block_bytes; /* opaque: of one layer */
    int64_t block_stride;
    int64_t head_stride;
    int64_t token_stride;
    int32_t null_block;
};

/* Bytes of a chunk of n_tokens. */
uint64_t kvt__chunk_bytes(const struct kvt__view *view, uint32_t n_tokens);

/* Whether a block id may be read or written. */
static inline bool
kvt__block_real(const struct kvt__view *view, int32_t block)
{
    return block >= 0 && block != view->null_block;
}

/* Copy the n_tokens tokens in the blocks to chunk, and set *crc to the CRC32C of
 * the chunk; NULL: none is taken.  All blocks are real and below n_blocks.  When
 * it returns any thread or device may be handed the chunk. */
void kvt__gather(const struct kvt__view *view, const int32_t *blocks,
                 uint32_t n_tokens, unsigned char *chunk, uint32_t *crc);

/* Copy a chunk to its blocks, but not to those that are not real, and set *crc to the CRC32C
 * of the whole chunk, with the bytes of blocks that are not real; NULL: none is taken. */
void kvt__scatter(const struct kvt__view *view, const int32_t *blocks,
                  uint32_t n_tokens, const unsigned char *chunk, uint32_t *crc);

#endif
