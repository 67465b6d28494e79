/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases gather and scatter: copies between blocks and chunks, both in GPU memory, with CRC32C.  The
 * baseline is one copy of the driver in GPU memory, of an equal number of bytes.  Throughput
 * counts each byte once, not for read and write. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "gpu.h"
#include "gpu/device.h"

#define REST ((size_t)96 << 20) /* device memory of kvt__gpu_open() and of the driver */

struct rig;

struct copy_job {
    struct kvt__gpu_copy copy; /* first */
    struct rig *rig;
    uint32_t crc;
};

struct rig {
    const struct machine *m;
    struct kv kv;
    struct kvt__view view;
    struct bench_chunks b;
    struct kvt__gpu *gpu;
    unsigned char *chunks, *other; /* device memory for all chunks; other: of the baseline */
    unsigned char *chunk;          /* one chunk, in pinned host memory */
    struct copy_job *jobs;
    struct kvt__gpu_copy **list;
    bool gather;

    pthread_mutex_t lock;
    pthread_cond_t ended;
    size_t n_left;
    int err;
};

/* --------------------------------------------------------------------- open and close */

static int
open_gpu(struct rig *r)
{
    const struct kvt__gpu_params params = { .kind = r->m->d.kind, .ordinal = 0 };
    int err = kvt__gpu_open(&params, &r->gpu);

    if (!err)
        err = kvt__gpu_alloc(r->gpu, r->b.bytes, &r->chunks);
    if (!err)
        err = kvt__gpu_alloc(r->gpu, r->b.bytes, &r->other);
    return err ? machine_fail(r->m, err, "open the GPU") : 0;
}

static int
rig_open(struct rig *r, const struct gpu_case *c, const struct bench *bench,
         const struct machine *m)
{
    struct cli_shape shape = bench_chunks_shape(bench->quick);
    /* 4 GiB: a fast GPU copies 1 GiB before a waiting thread has woken up. */
    size_t wanted = bench->quick ? WANTED_CHUNKS(true) : 4 * WANTED_CHUNKS(false);
    size_t n = machine_fit(m, wanted, 3 * bench_chunk_bytes(&shape), REST);

    *r = (struct rig){ .m = m, .gather = c->from_kv };
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->ended, NULL);
    if (!n)
        return BENCH_SKIPPED;
    int code = bench_chunks_open_no_kv(&r->b, bench->quick, n);
    if (!code)
        code = kv_open(&r->kv, m, bench->quick, c->hnd, n);
    if (!code)
        code = open_gpu(r);
    if (!code)
        code = machine_alloc_pinned(m, r->b.chunk_bytes, &r->chunk);
    if (code)
        return code;
    kv_shuffle(r->b.blocks, n * BENCH_CHUNK_BLOCKS);
    r->view = kv_view(&r->kv);
    r->jobs = calloc(n, sizeof *r->jobs);
    r->list = calloc(n, sizeof *r->list);
    if (r->jobs && r->list)
        return 0;
    fprintf(stderr, "kvtier-bench: not enough memory\n");
    return CLI_ENVIRONMENT;
}

static void
rig_close(struct rig *r)
{
    if (r->gpu)
        kvt__gpu_close(r->gpu); /* also frees `chunks` and `other` */
    machine_free_pinned(r->m, r->chunk);
    kv_close(&r->kv);
    bench_chunks_close(&r->b);
    free(r->jobs);
    free(r->list);
    pthread_cond_destroy(&r->ended);
    pthread_mutex_destroy(&r->lock);
}

/* ------------------------------------------------------------------------------- steps */

static void
on_copy_done(struct kvt__gpu_copy *copy, int err, uint32_t crc)
{
    struct copy_job *job = (struct copy_job *)copy;
    struct rig *r = job->rig;

    job->crc = crc;
    pthread_mutex_lock(&r->lock);
    r->err = err ? err : r->err;
    if (!--r->n_left)
        pthread_cond_signal(&r->ended);
    pthread_mutex_unlock(&r->lock);
}

/* Copy all chunks, and measure from the call until the last chunk is complete. */
static int
copy_all(struct rig *r, bool gather, struct bench_cost *out)
{
    r->n_left = r->b.n;
    for (size_t i = 0; i < r->b.n; i++) {
        r->jobs[i] = (struct copy_job){ .rig = r, .copy = {
            .view = &r->view, .blocks = r->b.blocks + i * BENCH_CHUNK_BLOCKS,
            .n_tokens = BENCH_CHUNK_TOKENS, .sums = true, .on_device = true,
            .chunk = r->chunks + i * r->b.chunk_bytes, .on_done = on_copy_done } };
        r->list[i] = &r->jobs[i].copy;
    }
    bench_start(out);
    int err = gather ? kvt__gpu_gather(r->gpu, r->m->stream, r->list, r->b.n)
                     : kvt__gpu_scatter(r->gpu, r->list, r->b.n);
    if (err)
        return machine_fail(r->m, err, "start the copies");
    pthread_mutex_lock(&r->lock);
    while (r->n_left)
        pthread_cond_wait(&r->ended, &r->lock);
    err = r->err;
    pthread_mutex_unlock(&r->lock);
    bench_stop(out);
    if (!err)
        return 0;
    fprintf(stderr, "kvtier-bench: copies failed on the GPU\n");
    return CLI_ENVIRONMENT;
}

static int
step_ours(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;

    return copy_all(r, r->gather, out);
}

static int
step_plain(void *ctx, struct bench_cost *out)
{
    const struct rig *r = ctx;

    return machine_copy(r->m, r->other, r->chunks, r->b.bytes, out);
}

/* ----------------------------------------------------------------------------- check */

/* Compare gathered chunk i in device memory, and the CRC32C of the gather, with the expected chunk
 * of `number`. */
static int
check_chunk(struct rig *r, size_t i, uint64_t number)
{
    struct bench_cost cost;
    int code = machine_copy(r->m, r->chunk, r->chunks + i * r->b.chunk_bytes,
                            r->b.chunk_bytes, &cost);

    if (code)
        return code;
    uint32_t actual = kvt__crc32c(0, r->chunk, r->b.chunk_bytes);
    kv_chunk(&r->kv, number, r->chunk);
    uint32_t wanted = kvt__crc32c(0, r->chunk, r->b.chunk_bytes);
    if (actual == wanted && r->jobs[i].crc == wanted)
        return 0;
    fprintf(stderr, "kvtier-bench: WRONG BYTES: a gathered chunk has CRC32C %08x, the GPU "
            "reports %08x, expected is %08x. No figure of this run counts.\n", actual,
            r->jobs[i].crc, wanted);
    return CLI_NEGATIVE;
}

/* Gather a chunk, overwrite its blocks, scatter the chunk, and compare. */
static int
check(struct rig *r)
{
    size_t last = r->b.n - 1;
    const int32_t *blocks = r->b.blocks + last * BENCH_CHUNK_BLOCKS;
    struct bench_cost cost;
    int code = kv_fill(&r->kv, blocks, 1);

    if (!code)
        code = copy_all(r, true, &cost);
    if (!code)
        code = check_chunk(r, last, 1);
    if (!code)
        code = kv_fill(&r->kv, blocks, 2);
    if (!code)
        code = copy_all(r, false, &cost);
    if (!code)
        code = kv_check(&r->kv, blocks, 1);
    return code;
}

int
case_copies(const struct gpu_case *c, const struct bench *bench, const struct machine *m,
            struct bench_result *out)
{
    static const bench_step_fn steps[] = { step_ours, step_plain };
    struct bench_cost costs[2 * BENCH_ROUNDS];
    struct rig r;
    int code = rig_open(&r, c, bench, m);

    for (size_t i = 0; !code && i < 2; i++)
        code = steps[i](&r, costs);
    if (!code)
        code = bench_alternate(c->name, r.b.n_rounds, steps, 2, &r, costs);
    if (!code)
        code = check(&r);
    if (!code) {
        bench_chunks_fill_result(&r.b, costs, costs + r.b.n_rounds, out);
        out->threads = 1;
        bench_add_figure(out, "chunks", (double)r.b.n);
        bench_add_figure(out, "chunk_bytes", (double)r.b.chunk_bytes);
        bench_add_text(out, "device", kvt__gpu_describe(r.gpu));
    }
    rig_close(&r);
    return code;
}
