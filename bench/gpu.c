/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast chunks move between blocks on a GPU and memory, beside what the driver does with
 * the same bytes in one piece, in turns:
 *
 *   gather, scatter  blocks <-> the GPU's memory, CRC32C included: against a copy from
 *                    device to device (goal 0.85)
 *   store, load      blocks <-> pinned host memory, while another stream is busy: against
 *                    copies over the bus under the same load (goal 0.9)
 *
 * The shape is that of Llama-3.1-8B: 32 layers, 8 heads of 128, two bytes, blocks of 16
 * tokens in no order, chunks of 256 tokens.  bench-gpu [cuda|hip] [DEVICE] [CHUNKS] */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "gpu/device.h"
#include "gpu/driver.h"

#define N_LAYERS 32u
#define N_HEADS 8u
#define HEAD_BYTES 256u
#define BLOCK_TOKENS 16u
#define CHUNK_TOKENS 256u
#define CHUNK_BLOCKS (CHUNK_TOKENS / BLOCK_TOKENS)
#define BLOCK_BYTES (2u * BLOCK_TOKENS * N_HEADS * HEAD_BYTES)
#define CHUNK_BYTES ((size_t)N_LAYERS * CHUNK_BLOCKS * BLOCK_BYTES)
#define TURNS 9

struct rig {
    struct kvt__driver d;
    struct kvt__context context; /* entered by the main thread */
    struct kvt__gpu *gpu;
    void *stream;
    size_t n_chunks;
    uint32_t n_blocks;
    struct kvt__view view;
    void *base[2 * N_LAYERS];
    int32_t *blocks;
    unsigned char *chunks, *other; /* the GPU's memory */
    void *pinned;
    struct kvt__gpu_copy *copies, **list;

    pthread_mutex_t lock;
    pthread_cond_t ended;
    size_t n_left;
    int err;
};

static struct rig rig;

static void
must(int error, const char *what)
{
    if (!error)
        return;
    fprintf(stderr, "bench-gpu: %s: %s\n", what,
            error < 0 ? kvt__why() : kvt__driver_error(&rig.d, error));
    exit(3);
}

/* ------------------------------------------------------------------- the machine */

/* A process that uses the GPU has its driver loaded and a context made. */
static void
begin(enum kvt__gpu_kind kind, int ordinal)
{
    bool cuda = kind == KVT__GPU_CUDA;
    void *library = dlopen(cuda ? "libcuda.so.1" : "libamdhip64.so", RTLD_NOW);
    void *context;

    if (!library) {
        fprintf(stderr, "bench-gpu: %s\n", dlerror());
        exit(3);
    }
    int (*init)(unsigned) = (int (*)(unsigned))(uintptr_t)
        dlsym(library, cuda ? "cuInit" : "hipInit");
    if (init)
        must(init(0), "init");
    int (*retain)(void **, int) = (int (*)(void **, int))(uintptr_t)
        dlsym(library, cuda ? "cuDevicePrimaryCtxRetain" : "hipDevicePrimaryCtxRetain");
    must(retain(&context, ordinal), "context");
    if (!kvt__driver_find(kind, &rig.d)) {
        fprintf(stderr, "bench-gpu: the driver is too old\n");
        exit(3);
    }
    must(kvt__context_hold(&rig.d, ordinal, &rig.context), "context");
    must(kvt__context_enter(&rig.d, &rig.context), "context");
}

static void
set_layout(bool hnd)
{
    int64_t token = 2 * HEAD_BYTES;

    rig.view.token_stride = hnd ? token : N_HEADS * token;
    rig.view.head_stride = hnd ? BLOCK_TOKENS * token : token;
}

static void
make_blocks(void)
{
    uint64_t state = 1;

    rig.n_blocks = (uint32_t)(rig.n_chunks * CHUNK_BLOCKS) + 1;
    for (size_t layer = 0; layer < N_LAYERS; layer++) {
        must(rig.d.mem_alloc(&rig.base[layer], (size_t)rig.n_blocks * BLOCK_BYTES),
             "memory for blocks");
        rig.base[N_LAYERS + layer] = (unsigned char *)rig.base[layer] + HEAD_BYTES;
    }
    rig.view = (struct kvt__view){
        .base = rig.base, .n_kv = 2, .n_layers = N_LAYERS, .n_heads = N_HEADS,
        .head_bytes = HEAD_BYTES, .block_tokens = BLOCK_TOKENS,
        .n_blocks = rig.n_blocks, .block_stride = BLOCK_BYTES };
    rig.blocks = calloc(rig.n_blocks, sizeof *rig.blocks);
    for (uint32_t i = 1; i < rig.n_blocks; i++) { /* 1 ... n - 1, shuffled */
        state = state * UINT64_C(6364136223846793005) + 1;
        uint32_t j = (uint32_t)(state >> 33) % i;

        rig.blocks[i - 1] = rig.blocks[j];
        rig.blocks[j] = (int32_t)i;
    }
}

static void
make_rig(enum kvt__gpu_kind kind, int ordinal)
{
    struct kvt__gpu_params params = { .kind = kind, .ordinal = ordinal };

    begin(kind, ordinal);
    make_blocks();
    must(kvt__gpu_open(&params, &rig.gpu), "open");
    must(rig.d.stream_create(&rig.stream, KVT__STREAM_ALONE, 0), "stream");
    must(kvt__gpu_alloc(rig.gpu, rig.n_chunks * CHUNK_BYTES, &rig.chunks), "chunks");
    must(kvt__gpu_alloc(rig.gpu, rig.n_chunks * CHUNK_BYTES, &rig.other), "chunks");
    must(rig.d.host_alloc(&rig.pinned, rig.n_chunks * CHUNK_BYTES, KVT__HOST_PORTABLE),
         "pinned memory");
    rig.copies = calloc(rig.n_chunks, sizeof *rig.copies);
    rig.list = calloc(rig.n_chunks, sizeof *rig.list);
    pthread_mutex_init(&rig.lock, NULL);
    pthread_cond_init(&rig.ended, NULL);
    printf("%s\n", kvt__gpu_describe(rig.gpu));
}

/* ----------------------------------------------------------------------- measuring */

static void
done(struct kvt__gpu_copy *copy, int err, uint32_t crc)
{
    (void)copy;
    (void)crc;
    pthread_mutex_lock(&rig.lock);
    rig.err = err ? err : rig.err;
    if (!--rig.n_left)
        pthread_cond_signal(&rig.ended);
    pthread_mutex_unlock(&rig.lock);
}

/* All chunks; seconds. */
static double
ours(bool gather, bool on_device)
{
    unsigned char *chunks = on_device ? rig.chunks : rig.pinned;

    rig.n_left = rig.n_chunks;
    for (size_t i = 0; i < rig.n_chunks; i++) {
        rig.copies[i] = (struct kvt__gpu_copy){
            .view = &rig.view, .blocks = rig.blocks + i * CHUNK_BLOCKS,
            .n_tokens = CHUNK_TOKENS, .sums = gather || on_device, .on_device = on_device,
            .chunk = chunks + i * CHUNK_BYTES, .done = done };
        rig.list[i] = &rig.copies[i];
    }
    int64_t begun = kvt__now_ns();
    must(gather ? kvt__gpu_gather(rig.gpu, rig.stream, rig.list, rig.n_chunks)
                : kvt__gpu_scatter(rig.gpu, rig.list, rig.n_chunks), "copy");
    pthread_mutex_lock(&rig.lock);
    while (rig.n_left)
        pthread_cond_wait(&rig.ended, &rig.lock);
    pthread_mutex_unlock(&rig.lock);
    must(rig.err, "copy");
    return (double)(kvt__now_ns() - begun) / 1e9;
}

static double
theirs(bool gather, bool on_device)
{
    size_t bytes = rig.n_chunks * CHUNK_BYTES;
    void *to = on_device ? (void *)rig.other : gather ? rig.pinned : (void *)rig.chunks;
    void *from = on_device || gather ? (void *)rig.chunks : rig.pinned;
    int64_t begun = kvt__now_ns();

    must(kvt__driver_copy(&rig.d, to, from, bytes, rig.stream), "copy");
    must(rig.d.stream_sync(rig.stream), "copy");
    return (double)(kvt__now_ns() - begun) / 1e9;
}

static int
compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void
measure(const char *name, bool gather, bool on_device, double goal)
{
    double bytes = (double)(rig.n_chunks * CHUNK_BYTES), best[2] = { 1e9, 1e9 };
    double ratios[TURNS];

    for (size_t i = 0; i < TURNS; i++) {
        double mine = ours(gather, on_device), bare = theirs(gather, on_device);

        ratios[i] = bare / mine;
        best[0] = mine < best[0] ? mine : best[0];
        best[1] = bare < best[1] ? bare : best[1];
    }
    qsort(ratios, TURNS, sizeof *ratios, compare);
    printf("%-14s %8.1f GB/s  bare %8.1f GB/s  ratio %.2f (goal %.2f)\n", name,
           bytes / best[0] / 1e9, bytes / best[1] / 1e9, ratios[TURNS / 2], goal);
}

/* --------------------------------------------------------------- a stream that is busy */

static atomic_bool stop;

static void *
be_busy(void *arg)
{
    size_t bytes = 64u << 20;
    struct kvt__gpu_entered entered;
    void *stream, *a, *b;

    (void)arg;
    must(kvt__gpu_enter(rig.gpu, &entered), "context");
    must(rig.d.stream_create(&stream, KVT__STREAM_ALONE, 0), "stream");
    must(rig.d.mem_alloc(&a, bytes), "memory");
    must(rig.d.mem_alloc(&b, bytes), "memory");
    while (!atomic_load(&stop)) {
        for (int i = 0; i < 64; i++)
            must(kvt__driver_copy(&rig.d, a, b, bytes, stream), "copy");
        must(rig.d.stream_sync(stream), "copy");
    }
    kvt__gpu_leave(rig.gpu, &entered);
    return NULL;
}

int
main(int argc, char **argv)
{
    enum kvt__gpu_kind kind = argc > 1 && !strcmp(argv[1], "hip") ? KVT__GPU_HIP
                                                                  : KVT__GPU_CUDA;
    int ordinal = argc > 2 ? atoi(argv[2]) : 0;
    pthread_t busy;

    rig.n_chunks = argc > 3 ? strtoul(argv[3], NULL, 10) : 32;
    make_rig(kind, ordinal);
    for (int hnd = 0; hnd < 2; hnd++) {
        set_layout(hnd);
        measure(hnd ? "gather.hnd" : "gather.nhd", true, true, 0.85);
        measure(hnd ? "scatter.hnd" : "scatter.nhd", false, true, 0.85);
    }
    if (pthread_create(&busy, NULL, be_busy, NULL))
        return 3;
    for (int hnd = 0; hnd < 2; hnd++) {
        set_layout(hnd);
        measure(hnd ? "store.hnd" : "store.nhd", true, false, 0.9);
        measure(hnd ? "load.hnd" : "load.nhd", false, false, 0.9);
    }
    atomic_store(&stop, true);
    pthread_join(busy, NULL);
    return 0;
}
