/* SPDX-License-Identifier: Apache-2.0
 *
 * Views with the layouts of engines, and random views. */
#ifndef KVT_TEST_PAGED_H
#define KVT_TEST_PAGED_H

#include <stdlib.h>
#include <string.h>

#include "kvt-test.h"

#include "gpu/copy.h"

/* Allocation of the views' memory.  A test may replace both functions. */
static void *(*paged_alloc)(size_t bytes) = malloc;
static void (*paged_free)(void *at) = free;

/* Orders of dimensions, outermost first: k(v), l(ayer), b(lock), h(ead), t(oken). */
static const char *const paged_orders[] = {
    "lkbth", /* a tensor for each layer, K and V separate, tokens before heads */
    "lkbht", /* a tensor for each layer, K and V separate, heads before tokens */
    "lbkth", /* K and V alternate, block by block */
    "lbkht",
    "lbhkt",
    "lbthk", /* K and V alternate, head by head */
    "lbhtk",
    "klbth", /* all keys, then all values */
    "blkth", /* one tensor for all layers, block by block */
    "blkht",
    "bhlkt",
    "tlkbh",
};

#define N_BLOCKS 9u
#define MAX_PLANES 64
#define MAX_CHUNK_BLOCKS 5
#define GUARD 64 /* bytes around each buffer that must not change */

static uint64_t seed = 1;

static inline uint32_t
below(uint32_t n)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

/* A view and the view's memory. */
struct paged {
    struct kvt__view view;
    void *base[MAX_PLANES];
    unsigned char *memory;
    size_t bytes;
};

/* Allocate random bytes for a view, and set the view's addresses and strides.  order: the
 * dimensions as in paged_orders.  pad: at most so many random bytes between elements of a
 * dimension.  mirrored: some dimensions have negative strides. */
static inline void
lay_out(struct paged *p, const char *order, uint32_t pad, bool mirrored)
{
    struct kvt__view *v = &p->view;
    const char *const letters = "klbht";
    const uint32_t extents[5] = { v->n_kv, v->n_layers, v->n_blocks, v->n_heads,
                                  v->block_tokens };
    int64_t strides[5], bytes = v->head_bytes, origin = 0;

    for (size_t i = 5; i--;) {
        size_t d = (size_t)(strchr(letters, order[i]) - letters);

        strides[d] = bytes + (pad ? (int64_t)below(pad) : 0);
        bytes = strides[d] * extents[d];
        if (mirrored && below(3) == 0) {
            origin += strides[d] * (extents[d] - 1);
            strides[d] = -strides[d];
        }
    }
    origin += GUARD + below(64);
    p->bytes = (size_t)bytes + 64 + 2 * GUARD;
    p->memory = paged_alloc(p->bytes);
    assert_non_null(p->memory);
    for (size_t i = 0; i < p->bytes; i++)
        p->memory[i] = (unsigned char)below(256);
    for (uint32_t kv = 0; kv < v->n_kv; kv++)
        for (uint32_t layer = 0; layer < v->n_layers; layer++)
            p->base[kv * v->n_layers + layer] =
                p->memory + origin + kv * strides[0] + layer * strides[1];
    v->base = p->base;
    v->block_stride = strides[2];
    v->head_stride = strides[3];
    v->token_stride = strides[4];
}

/* Return the address in the view's memory of byte i of a chunk.  *which: the index of the byte's
 * block in `blocks`. */
static inline unsigned char *
address_of(const struct kvt__view *v, const int32_t *blocks, uint32_t n_tokens,
           uint64_t i, uint32_t *which)
{
    uint64_t byte = i % v->head_bytes, head = i / v->head_bytes % v->n_heads;
    uint64_t token = i / v->head_bytes / v->n_heads % n_tokens;
    uint64_t plane = i / v->head_bytes / v->n_heads / n_tokens;

    *which = (uint32_t)token / v->block_tokens;
    return (unsigned char *)v->base[plane] + blocks[*which] * v->block_stride +
           (int64_t)head * v->head_stride +
           (int64_t)(token % v->block_tokens) * v->token_stride + byte;
}

static inline unsigned char *
address_of_opaque(const struct kvt__view *v, const int32_t *blocks, uint64_t i,
                  uint32_t *which)
{
    uint64_t byte = i % v->block_bytes, layer = i / v->block_bytes % v->n_layers;

    *which = (uint32_t)(i / v->block_bytes / v->n_layers);
    return (unsigned char *)v->base[layer] + blocks[*which] * v->block_stride + byte;
}

static inline unsigned char *
address(const struct kvt__view *v, const int32_t *blocks, uint32_t n_tokens,
        uint64_t i, uint32_t *which)
{
    return v->opaque ? address_of_opaque(v, blocks, i, which)
                     : address_of(v, blocks, n_tokens, i, which);
}

/* Choose distinct block ids: consecutive ids, or random ids. */
static inline void
choose_blocks(int32_t blocks[MAX_CHUNK_BLOCKS])
{
    int32_t all[N_BLOCKS];

    if (below(2)) {
        int32_t first = (int32_t)below(N_BLOCKS - MAX_CHUNK_BLOCKS + 1);

        for (int32_t i = 0; i < MAX_CHUNK_BLOCKS; i++)
            blocks[i] = first + i;
        return;
    }
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        all[i] = (int32_t)i;
    for (uint32_t i = 0; i < MAX_CHUNK_BLOCKS; i++) {
        uint32_t j = i + below(N_BLOCKS - i);
        int32_t block = all[j];

        all[j] = all[i];
        all[i] = block;
        blocks[i] = block;
    }
}

static inline struct paged
strided(uint32_t n_kv, uint32_t n_layers, uint32_t n_heads, uint32_t head_bytes,
        uint32_t block_tokens)
{
    return (struct paged){ .view = {
        .n_kv = n_kv, .n_layers = n_layers, .n_heads = n_heads,
        .head_bytes = head_bytes, .block_tokens = block_tokens,
        .n_blocks = N_BLOCKS, .null_block = -1 } };
}

#endif
