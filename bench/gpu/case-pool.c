/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases store and load: an engine copies between blocks on the GPU and the engine's pool of pinned
 * host memory, while another stream computes.  The baseline is one copy of the driver over the bus,
 * of an equal number of bytes, with the other stream also busy.
 *
 * A store computes CRC32C, because the engine has a tier (null, which keeps nothing).  A load from
 * the pool computes no CRC32C, because chunks were verified before they entered the pool. */
#include <inttypes.h>
#include <stdio.h>

#include "gpu.h"

#define REST ((size_t)256 << 20) /* device memory of the engine and of the busy stream */

struct rig {
    const struct machine *m;
    struct kv kv;
    struct bench_chunks b;
    struct kvt_engine *engine;
    struct busy *busy;
    struct device_log log;
    unsigned char *pinned; /* host memory for all chunks */
    bool store;
};

/* --------------------------------------------------------------------- open and close */

static int
open_engine(struct rig *r)
{
    char pool[64];
    const char *settings[] = { pool, "remote_url=null://", NULL };

    bench_chunks_pool_setting(&r->b, pool);
    device_log_start(&r->log);
    int code = bench_engine_open(NULL, settings, KVT_ROLE_BOTH, &r->b.shape, &r->engine);
    return code ? code : kv_set_view(&r->kv, r->engine);
}

static int
rig_open(struct rig *r, const struct gpu_case *c, const struct bench *bench,
         const struct machine *m)
{
    struct cli_shape shape = bench_chunks_shape(bench->quick);
    size_t n = machine_fit(m, WANTED_CHUNKS(bench->quick), bench_chunk_bytes(&shape), REST);

    *r = (struct rig){ .m = m, .store = c->from_kv };
    if (!n)
        return BENCH_SKIPPED;
    int code = bench_chunks_open_no_kv(&r->b, bench->quick, n);
    if (!code)
        code = kv_open(&r->kv, m, bench->quick, c->hnd, n);
    if (code)
        return code;
    kv_shuffle(r->b.blocks, n * BENCH_CHUNK_BLOCKS);
    code = open_engine(r);
    if (!code)
        code = machine_alloc_pinned(m, r->b.bytes, &r->pinned);
    return code ? code : busy_begin(m, bench->quick, &r->busy);
}

/* Close everything.  Return an exit code if the busy stream has failed. */
static int
rig_close(struct rig *r)
{
    int code = busy_end(r->busy);

    kvt_engine_close(r->engine);
    kvt_set_log(NULL, NULL, KVT_LOG_WARN);
    machine_free_pinned(r->m, r->pinned);
    kv_close(&r->kv);
    bench_chunks_close(&r->b);
    return code;
}

/* ------------------------------------------------------------------------------- steps */

/* Store a new prompt, and wait until all chunks are in the pool. */
static int
step_store(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;
    struct kvt_group_io io = bench_chunks_io(&r->b, 0, r->b.n);
    uint64_t before = cli_counter(r->engine, "store_chunks");
    int code = bench_chunks_next_prompt(&r->b, r->engine);

    if (code)
        return code;
    bench_start(out);
    int err = kvt_engine_store(r->engine, &io, 1);
    if (!err)
        err = kvt_engine_flush(r->engine, -1);
    bench_stop(out);
    if (err)
        return cli_fail(err);
    uint64_t n = cli_counter(r->engine, "store_chunks") - before;
    if (n == r->b.n)
        return 0;
    fprintf(stderr, "kvtier-bench: %" PRIu64 " of %zu chunks were stored\n", n, r->b.n);
    return CLI_ENVIRONMENT;
}

static int
step_load(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;

    return bench_chunks_load(&r->b, r->engine, 0, r->b.blocks, out);
}

static int
step_copy_to_host(void *ctx, struct bench_cost *out)
{
    const struct rig *r = ctx;

    return machine_copy(r->m, r->pinned, r->kv.memory, r->b.bytes, out);
}

static int
step_copy_to_device(void *ctx, struct bench_cost *out)
{
    const struct rig *r = ctx;

    return machine_copy(r->m, r->kv.memory, r->pinned, r->b.bytes, out);
}

/* Store a chunk in the pool, overwrite its blocks, load the chunk, and compare. */
static int
check(struct rig *r)
{
    const int32_t *blocks = r->b.blocks + (r->b.n - 1) * BENCH_CHUNK_BLOCKS;
    struct bench_cost cost;
    int code = kv_fill(&r->kv, blocks, 1);

    if (!code)
        code = step_store(r, &cost);
    if (!code)
        code = kv_fill(&r->kv, blocks, 2);
    if (!code)
        code = step_load(r, &cost);
    return code ? code : kv_check(&r->kv, blocks, 1);
}

static int
measure(struct rig *r, const char *name, struct bench_cost *costs)
{
    const bench_step_fn steps[] = { r->store ? step_store : step_load,
                                    r->store ? step_copy_to_host : step_copy_to_device };
    int code = 0;

    /* Store twice the pool's size before the measurement, so that the measured stores evict. */
    for (int i = 0; !code && i < (r->store ? 3 : 1); i++)
        code = step_store(r, costs);
    for (size_t i = 0; !code && i < 2; i++)
        code = steps[i](r, costs);
    if (!code)
        code = bench_alternate(name, r->b.n_rounds, steps, 2, r, costs);
    return code ? code : check(r);
}

int
case_pool(const struct gpu_case *c, const struct bench *bench, const struct machine *m,
          struct bench_result *out)
{
    struct bench_cost costs[2 * BENCH_ROUNDS];
    struct rig r;
    int code = rig_open(&r, c, bench, m);

    if (!code)
        code = measure(&r, c->name, costs);
    if (!code) {
        bench_chunks_fill_result(&r.b, costs, costs + r.b.n_rounds, out);
        out->threads = 1;
        bench_add_figure(out, "chunks", (double)r.b.n);
        bench_add_figure(out, "chunk_bytes", (double)r.b.chunk_bytes);
        bench_add_text(out, "device", r.log.device);
        bench_add_text(out, "concurrent_work", busy_kind(r.busy));
    }
    int late = rig_close(&r);
    return code ? code : late;
}
