/* SPDX-License-Identifier: Apache-2.0
 *
 * Paged KV in GPU memory with known bytes: a number and the offset in the chunk determine each
 * word.  The blocks of a chunk are filled and compared in an image in host memory, [layer][block].
 * This file computes the addresses in a block independently of the measured code, so that a
 * wrong address in that code is found. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

#define N_KV 2u

/* --------------------------------------------------------------------- open and close */

int
kv_open(struct kv *kv, const struct machine *m, bool quick, bool hnd, size_t n_chunks)
{
    *kv = (struct kv){ .m = m, .shape = bench_chunks_shape(quick), .n_chunks = n_chunks };
    int64_t both = N_KV * (int64_t)kv->shape.head_bytes; /* K and V of a head of a token */

    kv->token_stride = hnd ? both : both * kv->shape.n_heads;
    kv->head_stride = hnd ? both * CLI_BLOCK_TOKENS : both;
    kv->block_bytes = (size_t)both * kv->shape.n_heads * CLI_BLOCK_TOKENS;
    kv->chunk_bytes = bench_chunk_bytes(&kv->shape);
    int code = machine_alloc(m, n_chunks * kv->chunk_bytes, &kv->memory);
    if (!code)
        code = machine_alloc_pinned(m, kv->chunk_bytes, &kv->image);
    if (code)
        return code;
    size_t layer_bytes = n_chunks * BENCH_CHUNK_BLOCKS * kv->block_bytes;
    for (size_t layer = 0; layer < kv->shape.n_layers; layer++) {
        kv->base[layer] = kv->memory + layer * layer_bytes;
        kv->base[kv->shape.n_layers + layer] = kv->memory + layer * layer_bytes +
                                               kv->shape.head_bytes;
    }
    return 0;
}

void
kv_close(struct kv *kv)
{
    if (!kv->m)
        return;
    machine_free(kv->m, kv->memory);
    machine_free_pinned(kv->m, kv->image);
}

static uint32_t
n_blocks(const struct kv *kv)
{
    return (uint32_t)(kv->n_chunks * BENCH_CHUNK_BLOCKS);
}

struct kvt__view
kv_view(const struct kv *kv)
{
    return (struct kvt__view){
        .base = kv->base, .n_kv = N_KV, .n_layers = kv->shape.n_layers,
        .n_heads = kv->shape.n_heads, .head_bytes = kv->shape.head_bytes,
        .block_tokens = CLI_BLOCK_TOKENS, .n_blocks = n_blocks(kv),
        .block_stride = (int64_t)kv->block_bytes, .head_stride = kv->head_stride,
        .token_stride = kv->token_stride, .null_block = -1 };
}

int
kv_set_view(void *ctx, struct kvt_engine *engine)
{
    struct kv *kv = ctx;
    struct kvt_kv_view view = KVT_INIT(struct kvt_kv_view);

    view.base = kv->base;
    view.n_kv = N_KV;
    view.n_blocks = n_blocks(kv);
    view.block_stride = (int64_t)kv->block_bytes;
    view.head_stride = kv->head_stride;
    view.token_stride = kv->token_stride;
    view.null_block = -1;
    view.memory = kv->m->d.kind == KVT__GPU_CUDA ? KVT_MEMORY_CUDA : KVT_MEMORY_HIP;
    view.device = 0;
    int err = kvt_engine_set_view(engine, 0, &view);
    if (!err)
        err = kvt_engine_set_stream(engine, kv->m->stream);
    return err ? cli_fail(err) : 0;
}

void
kv_shuffle(int32_t *blocks, size_t n)
{
    uint64_t state = 1;

    for (size_t i = n; i-- > 1;) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        size_t j = (size_t)(state >> 33) % (i + 1);
        int32_t block = blocks[i];

        blocks[i] = blocks[j];
        blocks[j] = block;
    }
}

/* --------------------------------------------------------------------- expected bytes */

/* Return the expected word number `at` of the chunk of `number`. */

static uint64_t
word(uint64_t number, size_t at)
{
    uint64_t x = (number + 1) * UINT64_C(0x9e3779b97f4a7c15) + at;

    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ (x >> 27);
}

void
kv_chunk(const struct kv *kv, uint64_t number, unsigned char *out)
{
    for (size_t i = 0; i < kv->chunk_bytes / sizeof(uint64_t); i++) {
        uint64_t w = word(number, i);

        memcpy(out + i * sizeof w, &w, sizeof w);
    }
}

/* Visit one head of one token in the image; `first` is the offset of these bytes in the chunk.
 * make: write the expected bytes; else compare, and return false if the bytes differ. */
static bool
visit(const struct kv *kv, uint64_t number, unsigned char *at, size_t first, bool make)
{
    for (size_t i = 0; i < kv->shape.head_bytes; i += sizeof(uint64_t)) {
        uint64_t w = word(number, (first + i) / sizeof(uint64_t));

        if (make)
            memcpy(at + i, &w, sizeof w);
        else if (memcmp(at + i, &w, sizeof w))
            return false;
    }
    return true;
}

/* Write or compare the whole image.  A chunk is [K, V][layer][token][head]. */
static bool
visit_all(const struct kv *kv, uint64_t number, bool make)
{
    const struct cli_shape *s = &kv->shape;
    size_t n = (size_t)N_KV * s->n_layers * BENCH_CHUNK_TOKENS * s->n_heads;
    bool good = true;

    for (size_t i = 0; good && i < n; i++) { /* in the chunk's order */
        size_t head = i % s->n_heads, token = i / s->n_heads % BENCH_CHUNK_TOKENS;
        size_t plane = i / s->n_heads / BENCH_CHUNK_TOKENS;
        size_t layer = plane % s->n_layers, which = plane / s->n_layers;
        size_t block = layer * BENCH_CHUNK_BLOCKS + token / CLI_BLOCK_TOKENS;
        unsigned char *at = kv->image + block * kv->block_bytes + which * s->head_bytes +
                            head * (size_t)kv->head_stride +
                            token % CLI_BLOCK_TOKENS * (size_t)kv->token_stride;

        good = visit(kv, number, at, i * s->head_bytes, make);
    }
    return good;
}

/* Copy the image to the blocks, or the blocks to the image, and wait. */
static int
move_image(const struct kv *kv, const int32_t *blocks, bool to_device)
{
    const struct machine *m = kv->m;
    int error = 0;

    for (size_t i = 0; !error && i < kv->shape.n_layers * BENCH_CHUNK_BLOCKS; i++) {
        unsigned char *image = kv->image + i * kv->block_bytes;
        unsigned char *at = (unsigned char *)kv->base[i / BENCH_CHUNK_BLOCKS] +
                            (size_t)blocks[i % BENCH_CHUNK_BLOCKS] * kv->block_bytes;

        error = kvt__driver_copy(&m->d, to_device ? at : image, to_device ? image : at,
                                 kv->block_bytes, m->stream);
    }
    int late = m->d.stream_sync(m->stream);
    error = error ? error : late;
    return error ? machine_fail(m, error, "copy memory") : 0;
}

int
kv_fill(const struct kv *kv, const int32_t *blocks, uint64_t number)
{
    visit_all(kv, number, true);
    return move_image(kv, blocks, true);
}

int
kv_check(const struct kv *kv, const int32_t *blocks, uint64_t number)
{
    memset(kv->image, 0, kv->chunk_bytes);
    int code = move_image(kv, blocks, false);
    if (code || visit_all(kv, number, false))
        return code;
    fprintf(stderr, "kvtier-bench: WRONG BYTES: the blocks that were loaded differ from the "
            "blocks that were stored. No figure of this run counts.\n");
    return CLI_NEGATIVE;
}
