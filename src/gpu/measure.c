/* SPDX-License-Identifier: Apache-2.0
 *
 * Choose between kernels and batch copies when a GPU is opened: gather and scatter a small chunk
 * several times by each method, and compare the best times. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "gpu/private.h"

/* 2 MiB of KV in a common layout: 8 heads of 128 elements of 2 bytes, 16 tokens a block, the
 * heads of a token adjacent. */
enum { N_KV = 2, N_LAYERS = 2, N_HEADS = 8, HEAD_BYTES = 256, BLOCK_TOKENS = 16,
       N_BLOCKS = 16, ROUNDS = 3 };
#define TOKEN_BYTES ((int64_t)N_HEADS * HEAD_BYTES)
#define PLANE_BYTES ((size_t)TOKEN_BYTES * BLOCK_TOKENS * N_BLOCKS)
#define ALL_BYTES (N_KV * N_LAYERS * PLANE_BYTES)

struct trial {
    struct kvt__gpu_copy copy; /* first */
    struct kvt__view view;
    void *base[N_KV * N_LAYERS];
    int32_t blocks[N_BLOCKS];
    void *memory;
    void *chunk;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
    int err;
};

static void
on_copy_done(struct kvt__gpu_copy *copy, int err, uint32_t crc)
{
    struct trial *t = (void *)copy;

    (void)crc;
    pthread_mutex_lock(&t->lock);
    t->done = true;
    t->err = err;
    pthread_cond_signal(&t->ended);
    pthread_mutex_unlock(&t->lock);
}

static int
copy_once(struct kvt__gpu *gpu, struct trial *t, bool gather)
{
    struct kvt__gpu_copy *list[] = { &t->copy };

    t->copy = (struct kvt__gpu_copy){
        .view = &t->view, .blocks = t->blocks, .n_tokens = N_BLOCKS * BLOCK_TOKENS,
        .sums = true, .chunk = t->chunk, .on_done = on_copy_done };
    t->done = false;
    int lane = gather ? KVT__LANE_GATHER : KVT__LANE_SCATTER;
    int err = kvt__lane_copy(gpu->lanes[lane], list, 1);
    pthread_mutex_lock(&t->lock);
    while (!err && !t->done)
        pthread_cond_wait(&t->ended, &t->lock);
    err = err ? err : t->err;
    pthread_mutex_unlock(&t->lock);
    return err;
}

/* Return the shortest time in ns for a gather and a scatter; INT64_MAX: a copy failed. */
static int64_t
time_of(struct kvt__gpu *gpu, struct trial *t, bool by_kernels)
{
    int64_t best = INT64_MAX;

    gpu->by_kernels = by_kernels;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t begin = kvt__now_ns();

        if (copy_once(gpu, t, true) || copy_once(gpu, t, false))
            return INT64_MAX;
        int64_t ns = kvt__now_ns() - begin;
        best = ns < best ? ns : best;
    }
    return best;
}

static void
set_up(struct trial *t)
{
    t->view = (struct kvt__view){
        .base = t->base, .n_kv = N_KV, .n_layers = N_LAYERS, .n_heads = N_HEADS,
        .head_bytes = HEAD_BYTES, .block_tokens = BLOCK_TOKENS, .n_blocks = N_BLOCKS,
        .block_stride = TOKEN_BYTES * BLOCK_TOKENS, .head_stride = HEAD_BYTES,
        .token_stride = TOKEN_BYTES, .null_block = -1 };
    for (size_t i = 0; i < N_KV * N_LAYERS; i++)
        t->base[i] = (char *)t->memory + i * PLANE_BYTES;
    for (int32_t i = 0; i < N_BLOCKS; i++)
        t->blocks[i] = (7 * i) % N_BLOCKS;
}

int
kvt__measure(struct kvt__gpu *gpu)
{
    const struct kvt__driver *d = &gpu->driver;
    struct trial t = { .memory = NULL };

    int error = d->mem_alloc(&t.memory, ALL_BYTES);
    if (!error)
        error = d->host_alloc(&t.chunk, ALL_BYTES, KVT__HOST_PORTABLE);
    int err = error ? kvt__gpu_fail(gpu, error, "No memory to measure copies on the GPU") : 0;
    if (!err) {
        pthread_mutex_init(&t.lock, NULL);
        pthread_cond_init(&t.ended, NULL);
        set_up(&t);
        int64_t batch = time_of(gpu, &t, false), kernels = time_of(gpu, &t, true);

        if (batch == INT64_MAX && kernels == INT64_MAX)
            err = kvt__fail(EIO, "Copies on the GPU fail, with kernels and without.");
        gpu->by_kernels = kernels <= batch;
        pthread_mutex_destroy(&t.lock);
        pthread_cond_destroy(&t.ended);
    }
    if (t.chunk)
        d->host_free(t.chunk);
    if (t.memory)
        d->mem_free(t.memory);
    return err;
}
