/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies in host memory between an engine's paged KV and one contiguous chunk.  Pure functions of
 * their arguments: any thread, if no other thread writes the source or uses the destination. */
#ifndef KVT_GPU_COPY_H
#define KVT_GPU_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Addresses and layout of a group's KV, and the order of the bytes in a chunk.  A plane is K or V
 * of one layer.  Strides in bytes. */
struct kvt__view {
    void *const *base; /* addresses of block 0 of each plane: [kv][layer]; the array is borrowed */
    uint32_t n_kv;
    uint32_t n_layers;
    uint32_t n_heads;
    uint32_t head_bytes;
    uint32_t block_tokens;
    uint32_t n_blocks;
    bool opaque;          /* true: whole blocks are copied, in the order [block][layer];
                           * false: the order in a chunk is [kv][layer][token][head] */
    uint64_t block_bytes; /* opaque: bytes of a block of one layer */
    int64_t block_stride;
    int64_t head_stride;
    int64_t token_stride;
    int32_t null_block;   /* id of the block that is never read or written; negative ids also name
                           * no block */
};

/* Return the bytes of a chunk of n_tokens tokens. */
uint64_t kvt__chunk_bytes(const struct kvt__view *view, uint32_t n_tokens);

/* Return true if the id names a real block, which may be read and written. */
static inline bool
kvt__block_real(const struct kvt__view *view, int32_t block)
{
    return block >= 0 && block != view->null_block;
}

/* Copy n_tokens tokens from the blocks to the chunk, and set *crc to the CRC32C of the chunk.
 * crc NULL: compute no checksum.  blocks: ceil(n_tokens / block_tokens) ids, all real and below
 * n_blocks.  After the return any thread or device may read the chunk. */
void kvt__gather(const struct kvt__view *view, const int32_t *blocks,
                 uint32_t n_tokens, unsigned char *chunk, uint32_t *crc);

/* Copy a chunk to the real blocks among `blocks`, and set *crc to the CRC32C of the whole chunk,
 * including the bytes of blocks that are not real.  crc NULL: compute no checksum. */
void kvt__scatter(const struct kvt__view *view, const int32_t *blocks,
                  uint32_t n_tokens, const unsigned char *chunk, uint32_t *crc);

#endif
