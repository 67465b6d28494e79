/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies without kernels.  Each run of bytes that is contiguous in block and chunk is one copy of
 * the driver; runs at a fixed distance are the rows of one 2D copy. */
#include <stdlib.h>

#include "gpu/private.h"

#define AT_ONCE 512
#define MAX_PITCH INT32_MAX /* limit of the driver's 2D copies */

struct batch {
    const struct kvt__driver *d;
    void *stream;
    bool gather;
    int error;
    size_t n;
    uint64_t to[AT_ONCE];
    uint64_t from[AT_ONCE];
    size_t sizes[AT_ONCE];
};

static void
flush(struct batch *b)
{
    if (!b->error)
        b->error = kvt__driver_copy_batch(b->d, b->to, b->from, b->sizes, b->n, b->stream);
    b->n = 0;
}

/* Add n contiguous bytes.  place: the address in a block; flat: the address in the chunk. */
static void
add_run(struct batch *b, uint64_t place, uint64_t flat, size_t n)
{
    b->to[b->n] = b->gather ? flat : place;
    b->from[b->n] = b->gather ? place : flat;
    b->sizes[b->n] = n;
    if (++b->n == AT_ONCE)
        flush(b);
}

/* Add n rows of width bytes, at a distance of stride bytes in the block and of flat_pitch bytes
 * in the chunk. */
static void
add_rows(struct batch *b, uint64_t place, int64_t stride, uint64_t flat, size_t flat_pitch,
         size_t width, size_t n)
{
    struct kvt__rect rect = { .to = flat, .from = place, .to_pitch = flat_pitch,
                              .from_pitch = (size_t)stride, .width = width, .height = n };

    if (n < 2 || stride < (int64_t)width || stride > MAX_PITCH || flat_pitch > MAX_PITCH) {
        for (size_t i = 0; i < n; i++)
            add_run(b, place + (uint64_t)((int64_t)i * stride), flat + i * flat_pitch,
                    width);
        return;
    }
    if (!b->gather)
        rect = (struct kvt__rect){ .to = place, .from = flat, .to_pitch = (size_t)stride,
                                   .from_pitch = flat_pitch, .width = width, .height = n };
    if (!b->error)
        b->error = kvt__driver_copy_rect(b->d, &rect, b->stream);
}

/* Add n tokens of one block of one plane. */
static void
add_block(struct batch *b, const struct kvt__view *view, uint64_t place, uint64_t flat,
          size_t n)
{
    size_t token = (size_t)view->n_heads * view->head_bytes;

    if (view->n_heads > 1 && view->head_stride != (int64_t)view->head_bytes) {
        for (uint32_t h = 0; h < view->n_heads; h++)
            add_rows(b, place + (uint64_t)((int64_t)h * view->head_stride),
                     view->token_stride, flat + (uint64_t)h * view->head_bytes, token,
                     view->head_bytes, n);
    } else if (view->token_stride == (int64_t)token) {
        add_run(b, place, flat, n * token);
    } else {
        add_rows(b, place, view->token_stride, flat, token, token, n);
    }
}

static uint64_t
block_at(const struct kvt__view *view, size_t plane, int32_t block)
{
    return (uintptr_t)view->base[plane] + (uint64_t)((int64_t)block * view->block_stride);
}

static void
add_planes(struct batch *b, const struct kvt__gpu_copy *copy, uint64_t flat)
{
    const struct kvt__view *view = copy->view;
    uint64_t token = (uint64_t)view->n_heads * view->head_bytes;

    for (size_t plane = 0; plane < (size_t)view->n_kv * view->n_layers; plane++) {
        for (uint32_t at = 0; at < copy->n_tokens; at += view->block_tokens) {
            uint32_t left = copy->n_tokens - at;
            uint32_t n = left < view->block_tokens ? left : view->block_tokens;
            int32_t block = copy->blocks[at / view->block_tokens];

            if (kvt__block_real(view, block))
                add_block(b, view, block_at(view, plane, block), flat, n);
            flat += n * token;
        }
    }
}

static void
add_opaque(struct batch *b, const struct kvt__gpu_copy *copy, uint64_t flat)
{
    const struct kvt__view *view = copy->view;

    for (uint32_t at = 0; at < copy->n_tokens; at += view->block_tokens) {
        int32_t block = copy->blocks[at / view->block_tokens];

        for (size_t layer = 0; layer < view->n_layers; layer++) {
            if (kvt__block_real(view, block))
                add_run(b, block_at(view, layer, block), flat, view->block_bytes);
            flat += view->block_bytes;
        }
    }
}

int
kvt__batch_copy(const struct kvt__driver *d, const struct kvt__gpu_copy *copy, bool gather,
                void *stream)
{
    struct batch b;

    b.d = d;
    b.stream = stream;
    b.gather = gather;
    b.error = 0;
    b.n = 0;
    if (copy->view->opaque)
        add_opaque(&b, copy, (uintptr_t)copy->chunk);
    else
        add_planes(&b, copy, (uintptr_t)copy->chunk);
    flush(&b);
    return b.error;
}
