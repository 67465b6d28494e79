/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases gds.gpu.write and gds.gpu.read: an engine with gds_path in the case's directory, without
 * chunks in host memory.  Each round of the baseline measures one copy of the driver over the bus
 * and a minimal loop over an equal number of files; the slower of the two counts.  If the GPU does
 * not reach the directory directly, bytes pass through host memory; the result names the data
 * path. */
#include <stdio.h>

#include "storage.h"
#include "gpu.h"

#define N_THREADS 4 /* the default of disk_io_threads */

struct rig {
    const struct machine *m;
    struct kv kv;
    struct bench_storage t;
    struct bench_baseline baseline;
    struct device_log log;
    unsigned char *pinned; /* host memory for all chunks */
    size_t n_runs;
    double bus[BENCH_ROUNDS], files[BENCH_ROUNDS]; /* GB/s of the last turns */
};

/* ----------------------------------------------------------------------- the baseline */

static int
tune(void *ctx, bool write)
{
    struct rig *r = ctx;

    return bench_baseline_tune(&r->baseline, write);
}

static int
run_baseline(struct rig *r, bool write, struct bench_cost *out)
{
    unsigned char *device = r->kv.memory;
    struct bench_cost bus, files;
    int code = machine_copy(r->m, write ? r->pinned : device, write ? device : r->pinned,
                            r->t.b.bytes, &bus);

    if (!code)
        code = write ? bench_baseline_write(&r->baseline, &files)
                     : bench_baseline_read(&r->baseline, &files);
    if (code)
        return code;
    size_t i = r->n_runs++ % r->t.b.n_rounds;
    r->bus[i] = (double)r->t.b.bytes * 1e-9 / bus.seconds;
    r->files[i] = (double)r->t.b.bytes * 1e-9 / files.seconds;
    *out = bus.seconds > files.seconds ? bus : files;
    return 0;
}

static int
baseline_write(void *ctx, struct bench_cost *out)
{
    return run_baseline(ctx, true, out);
}

static int
baseline_read(void *ctx, struct bench_cost *out)
{
    return run_baseline(ctx, false, out);
}

/* --------------------------------------------------------------------- open and close */

/* Return the device memory for everything but the KV: eight chunks in flight, and
 * kvt__gpu_open(). */
static size_t
rest_bytes(size_t chunk_bytes)
{
    return 8 * chunk_bytes + ((size_t)96 << 20);
}

static int
open_engine(struct rig *r, const struct bench *bench, size_t n)
{
    char path[4096 + 32], baseline_dir[4096 + 8];
    const char *const settings[] = { path, NULL };

    snprintf(path, sizeof path, "gds_path=%s/kv", bench->dir);
    snprintf(baseline_dir, sizeof baseline_dir, "%s/baseline", bench->dir);
    device_log_start(&r->log);
    r->t.view = kv_set_view;
    r->t.view_ctx = &r->kv;
    r->t.baseline = (struct bench_loop){ r, tune, baseline_write, baseline_read };
    int code = bench_storage_open(&r->t, NULL, settings, bench->quick, n);
    if (code)
        return code;
    kv_shuffle(r->t.b.blocks, n * BENCH_CHUNK_BLOCKS);
    return bench_baseline_open(&r->baseline, baseline_dir, N_THREADS, n, r->t.b.chunk_bytes);
}

static int
rig_open(struct rig *r, const struct gpu_case *c, const struct bench *bench,
         const struct machine *m)
{
    struct cli_shape shape = bench_chunks_shape(bench->quick);
    size_t each = bench_chunk_bytes(&shape);
    size_t n = machine_fit(m, WANTED_CHUNKS(bench->quick), each, rest_bytes(each));

    *r = (struct rig){ .m = m, .baseline.dirfd = -1 };
    if (!n)
        return BENCH_SKIPPED;
    int code = kv_open(&r->kv, m, bench->quick, c->hnd, n);
    if (!code)
        code = machine_alloc_pinned(m, n * each, &r->pinned);
    return code ? code : open_engine(r, bench, n);
}

static void
rig_close(struct rig *r)
{
    bench_baseline_close(&r->baseline);
    bench_storage_close(&r->t);
    kvt_set_log(NULL, NULL, KVT_LOG_WARN);
    machine_free_pinned(r->m, r->pinned);
    kv_close(&r->kv);
}

/* -------------------------------------------------------------------------- measuring */

/* Store a chunk in a file, overwrite its blocks, load the chunk, and compare. */
static int
check(struct rig *r)
{
    const int32_t *blocks = r->t.b.blocks + (r->t.b.n - 1) * BENCH_CHUNK_BLOCKS;
    struct bench_cost cost;
    int code = kv_fill(&r->kv, blocks, 1);

    if (!code)
        code = bench_storage_fill(&r->t);
    if (!code)
        code = kv_fill(&r->kv, blocks, 2);
    if (!code)
        code = bench_storage_load(&r->t, &cost);
    return code ? code : kv_check(&r->kv, blocks, 1);
}

static void
describe(struct rig *r, struct bench_result *out)
{
    out->threads = N_THREADS;
    bench_add_figure(out, "bus_gb_per_s", bench_median(r->bus, r->t.b.n_rounds));
    bench_add_figure(out, "baseline_gb_per_s", bench_median(r->files, r->t.b.n_rounds));
    bench_add_figure(out, "baseline_piece_bytes", (double)r->baseline.piece);
    bench_add_figure(out, "baseline_depth", r->baseline.depth);
    bench_add_figure(out, "direct", r->baseline.direct);
    bench_add_text(out, "device", r->log.device);
    bench_add_text(out, "data_path", r->log.data_path);
}

int
case_files(const struct gpu_case *c, const struct bench *bench, const struct machine *m,
           struct bench_result *out)
{
    struct rig r;
    int code = rig_open(&r, c, bench, m);

    if (!code)
        code = bench_storage_prepare(&r.t, c->from_kv);
    if (!code)
        code = bench_storage_measure(&r.t, c->name, c->from_kv, false, out);
    if (!code)
        code = check(&r);
    if (!code)
        describe(&r, out);
    rig_close(&r);
    return code;
}
