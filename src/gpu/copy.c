/* SPDX-License-Identifier: Apache-2.0
 *
 * Gather and scatter in host memory.  Both walk the blocks in the order of the chunk.  Bytes that
 * are contiguous in the blocks and in the chunk are one run, copied by non-temporal stores. */
#include "gpu/copy.h"

#include <assert.h>
#include <string.h>

#include "base/crc32c.h"
#include "gpu/nt-copy.h"

/* Bytes of short runs that scatter sums together: so few bytes stay in the L1 cache. */
#define STEP ((size_t)16 << 10)

/* Gather collects shorter runs in a stage, and copies the stage to the chunk at once. */
#define SHORT_RUN ((size_t)2 << 10)
#define STAGE ((size_t)8 << 10)

/* The state of a copy that goes through a chunk, or through half of a chunk, in order. */
struct cursor {
    void (*copy)(struct cursor *c, unsigned char *at, size_t n);
    unsigned char *begin; /* [begin, end): a run in the blocks that is not copied yet */
    unsigned char *end;
    unsigned char *flat;  /* address in the chunk of the next byte to copy */
    unsigned char *unsummed; /* scatter: the bytes from here to flat are not in crc yet */
    bool summed;
    uint32_t crc;
    size_t staged;
    unsigned char stage[STAGE] __attribute__((aligned(64)));
};

uint64_t
kvt__chunk_bytes(const struct kvt__view *view, uint32_t n_tokens)
{
    uint64_t n_blocks = (n_tokens + view->block_tokens - 1) / view->block_tokens;

    if (view->opaque)
        return n_blocks * view->n_layers * view->block_bytes;
    return (uint64_t)view->n_kv * view->n_layers * n_tokens * view->n_heads *
           view->head_bytes;
}

/* ------------------------------------------------------- the two directions */

static void
move(struct cursor *c, unsigned char *to, const unsigned char *from, size_t n)
{
    if (c->summed)
        c->crc = kvt__nt_copy_sum(to, from, n, c->crc);
    else
        kvt__nt_copy(to, from, n);
}

static void
append(struct cursor *c, const unsigned char *from, size_t n)
{
    move(c, c->flat, from, n);
    c->flat += n;
}

static void
flush_stage(struct cursor *c)
{
    append(c, c->stage, c->staged);
    c->staged = 0;
}

static void
gather_run(struct cursor *c, unsigned char *at, size_t n)
{
    if (c->staged + n > STAGE || (c->staged && n >= SHORT_RUN))
        flush_stage(c);
    if (n < SHORT_RUN) {
        memcpy(c->stage + c->staged, at, n);
        c->staged += n;
        return;
    }
    append(c, at, n);
}

/* Add the bytes of the chunk that are copied but not summed to the CRC. */
static void
sum(struct cursor *c)
{
    if (!c->summed)
        return;
    c->crc = kvt__crc32c(c->crc, c->unsummed, (size_t)(c->flat - c->unsummed));
    c->unsummed = c->flat;
}

/* The copy of a long run also sums the run.  Short runs are summed together after their copies,
 * because their bytes are contiguous in the chunk. */
static void
scatter_run(struct cursor *c, unsigned char *at, size_t n)
{
    if (n < SHORT_RUN) {
        kvt__nt_copy(at, c->flat, n);
        c->flat += n;
        if ((size_t)(c->flat - c->unsummed) >= STEP)
            sum(c);
        return;
    }
    sum(c);
    move(c, at, c->flat, n);
    c->flat += n;
    c->unsummed = c->flat;
}

/* --------------------------------------------------------------------- runs */

static void
init_cursor(struct cursor *c, unsigned char *flat, bool gather, bool summed)
{
    c->copy = gather ? gather_run : scatter_run;
    c->begin = c->end = NULL;
    c->flat = c->unsummed = flat;
    c->summed = summed;
    c->crc = 0;
    c->staged = 0;
}

/* Copy the pending run. */
static void
copy_run(struct cursor *c)
{
    if (c->begin != c->end)
        c->copy(c, c->begin, (size_t)(c->end - c->begin));
    c->begin = c->end;
}

/* Add the next n bytes of the chunk, whose place in a block is `at`.  `at` is often the end of the
 * pending run, which then grows. */
static inline void
add_run(struct cursor *c, unsigned char *at, size_t n)
{
    if (at != c->end) {
        copy_run(c);
        c->begin = at;
    }
    c->end = at + n;
}

/* Skip the next n bytes of the chunk, which belong to no real block. */
static void
skip(struct cursor *c, size_t n)
{
    copy_run(c);
    c->flat += n;
}

static void
finish_cursor(struct cursor *c)
{
    copy_run(c);
    if (c->staged)
        flush_stage(c);
    if (c->copy == scatter_run)
        sum(c);
    kvt__nt_fence();
}

/* --------------------------------------------------------------------- walk */

static unsigned char *
block_at(const struct kvt__view *view, size_t plane, int32_t block)
{
    return (unsigned char *)view->base[plane] + (int64_t)block * view->block_stride;
}

/* Add n_tokens tokens of one block of one plane. */
static void
walk_tokens(const struct kvt__view *view, unsigned char *block, uint32_t n_tokens,
            struct cursor *c)
{
    size_t run = view->head_bytes, n_heads = view->n_heads;
    size_t n_runs = n_tokens;

    if (view->head_stride == (int64_t)run || n_heads == 1) {
        run *= n_heads;
        n_heads = 1;
        if (view->token_stride == (int64_t)run) {
            run *= n_runs;
            n_runs = 1;
        }
    }
    for (size_t t = 0; t < n_runs; t++)
        for (size_t h = 0; h < n_heads; h++)
            add_run(c, block + (int64_t)t * view->token_stride +
                       (int64_t)h * view->head_stride, run);
}

/* Walk the planes of K and V of a layer together, block by block: in many layouts the two planes
 * are interleaved in memory, so that this order has better locality. */
static void
walk(const struct kvt__view *view, const int32_t *blocks, uint32_t n_tokens,
     struct cursor *cursors)
{
    size_t token_bytes = (size_t)view->n_heads * view->head_bytes;

    for (size_t layer = 0; layer < view->n_layers; layer++) {
        for (uint32_t at = 0; at < n_tokens; at += view->block_tokens) {
            uint32_t left = n_tokens - at;
            uint32_t n = left < view->block_tokens ? left : view->block_tokens;
            int32_t block = blocks[at / view->block_tokens];

            for (size_t kv = 0; kv < view->n_kv; kv++) {
                if (!kvt__block_real(view, block))
                    skip(&cursors[kv], n * token_bytes);
                else
                    walk_tokens(view, block_at(view, kv * view->n_layers + layer, block),
                                n, &cursors[kv]);
            }
        }
    }
}

static void
walk_opaque(const struct kvt__view *view, const int32_t *blocks, uint32_t n_tokens,
            struct cursor *c)
{
    uint32_t n_blocks = (n_tokens + view->block_tokens - 1) / view->block_tokens;

    for (uint32_t b = 0; b < n_blocks; b++) {
        for (uint32_t layer = 0; layer < view->n_layers; layer++) {
            if (kvt__block_real(view, blocks[b]))
                add_run(c, block_at(view, layer, blocks[b]), view->block_bytes);
            else
                skip(c, view->block_bytes);
        }
    }
}

static void
copy(const struct kvt__view *view, const int32_t *blocks, uint32_t n_tokens,
     unsigned char *chunk, bool gather, uint32_t *crc)
{
    uint64_t each = kvt__chunk_bytes(view, n_tokens) / view->n_kv;
    struct cursor cursors[2];

    assert(view->n_kv <= 2);
    for (size_t kv = 0; kv < view->n_kv; kv++)
        init_cursor(&cursors[kv], chunk + kv * each, gather, crc != NULL);
    if (view->opaque)
        walk_opaque(view, blocks, n_tokens, &cursors[0]);
    else
        walk(view, blocks, n_tokens, cursors);
    for (size_t kv = 0; kv < view->n_kv; kv++)
        finish_cursor(&cursors[kv]);
    if (crc)
        *crc = view->n_kv == 1 ? cursors[0].crc
             : kvt__crc32c_join(cursors[0].crc, cursors[1].crc, each);
}

void
kvt__gather(const struct kvt__view *view, const int32_t *blocks,
            uint32_t n_tokens, unsigned char *chunk, uint32_t *crc)
{
    copy(view, blocks, n_tokens, chunk, true, crc);
}

void
kvt__scatter(const struct kvt__view *view, const int32_t *blocks,
             uint32_t n_tokens, const unsigned char *chunk, uint32_t *crc)
{
    /* A scatter never writes to the chunk. */
    copy(view, blocks, n_tokens, (unsigned char *)chunk, false, crc);
}
