/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of transfers between GPU and files: an engine with gds_path in the case's directory, which
 * keeps no chunks in host memory.  Each turn of the baseline measures one copy of the driver over
 * the bus, and a minimal loop over an equal number of files; the slower of the two counts.  If the
 * GPU does not reach the directory directly, bytes pass through host memory; the result contains
 * the data path. */
#include <stdio.h>

#include "through.h"
#include "gpu.h"

#define N_THREADS 4 /* the default of disk_io_threads */

struct rig {
    const struct machine *m;
    struct kv kv;
    struct bench_through t;
    struct bench_bare bare;
    struct device_log log;
    unsigned char *pinned; /* host memory for all chunks */
    size_t n_turns;
    double bus[BENCH_ROUNDS], files[BENCH_ROUNDS]; /* GB/s of the last turns */
};

/* ----------------------------------------------------------------------- the baseline */

static int
tune(void *ctx, bool write)
{
    struct rig *r = ctx;

    return bench_bare_tune(&r->bare, write);
}

static int
turn(struct rig *r, bool write, struct bench_cost *out)
{
    unsigned char *device = r->kv.memory;
    struct bench_cost bus, files;
    int code = machine_copy(r->m, write ? r->pinned : device, write ? device : r->pinned,
                            r->t.b.bytes, &bus);

    if (!code)
        code = write ? bench_bare_write(&r->bare, &files)
                     : bench_bare_read(&r->bare, &files);
    if (code)
        return code;
    size_t i = r->n_turns++ % r->t.b.n_rounds;
    r->bus[i] = (double)r->t.b.bytes * 1e-9 / bus.seconds;
    r->files[i] = (double)r->t.b.bytes * 1e-9 / files.seconds;
    *out = bus.seconds > files.seconds ? bus : files;
    return 0;
}

static int
bare_write(void *ctx, struct bench_cost *out)
{
    return turn(ctx, true, out);
}

static int
bare_read(void *ctx, struct bench_cost *out)
{
    return turn(ctx, false, out);
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
    char path[4096 + 32], bare_dir[4096 + 8];
    const char *const settings[] = { path, NULL };

    snprintf(path, sizeof path, "gds_path=%s/kv", bench->dir);
    snprintf(bare_dir, sizeof bare_dir, "%s/bare", bench->dir);
    device_log_listen(&r->log);
    r->t.view = kv_set_view;
    r->t.view_ctx = &r->kv;
    r->t.bare = (struct bench_loop){ r, tune, bare_write, bare_read };
    int code = bench_through_open(&r->t, NULL, settings, bench->quick, n);
    if (code)
        return code;
    kv_shuffle(r->t.b.blocks, n * BENCH_CHUNK_BLOCKS);
    return bench_bare_open(&r->bare, bare_dir, N_THREADS, n, r->t.b.chunk_bytes);
}

static int
rig_open(struct rig *r, const struct gpu_case *c, const struct bench *bench,
         const struct machine *m)
{
    struct cli_shape shape = bench_chunks_shape(bench->quick);
    size_t each = bench_chunk_bytes(&shape);
    size_t n = machine_fit(m, WANTED_CHUNKS(bench->quick), each, rest_bytes(each));

    *r = (struct rig){ .m = m, .bare.dirfd = -1 };
    if (!n)
        return BENCH_LEFT_OUT;
    int code = kv_open(&r->kv, m, bench->quick, c->hnd, n);
    if (!code)
        code = machine_pinned(m, n * each, &r->pinned);
    return code ? code : open_engine(r, bench, n);
}

static void
rig_close(struct rig *r)
{
    bench_bare_close(&r->bare);
    bench_through_close(&r->t);
    kvt_set_log(NULL, NULL, KVT_LOG_WARN);
    machine_unpin(r->m, r->pinned);
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
        code = bench_through_wait(&r->t);
    if (!code)
        code = kv_fill(&r->kv, blocks, 2);
    if (!code)
        code = bench_through_load(&r->t, &cost);
    return code ? code : kv_check(&r->kv, blocks, 1);
}

static void
describe(struct rig *r, struct bench_result *out)
{
    out->threads = N_THREADS;
    bench_more(out, "bus_gb_per_s", bench_median(r->bus, r->t.b.n_rounds));
    bench_more(out, "bare_gb_per_s", bench_median(r->files, r->t.b.n_rounds));
    bench_more(out, "bare_piece_bytes", (double)r->bare.piece);
    bench_more(out, "bare_depth", r->bare.depth);
    bench_more(out, "direct", r->bare.direct);
    bench_more_text(out, "device", r->log.device);
    bench_more_text(out, "way", r->log.data_path);
}

int
case_files(const struct gpu_case *c, const struct bench *bench, const struct machine *m,
           struct bench_result *out)
{
    struct rig r;
    int code = rig_open(&r, c, bench, m);

    if (!code)
        code = bench_through_prepare(&r.t, c->from_kv);
    if (!code)
        code = bench_through_measure(&r.t, c->name, c->from_kv, false, out);
    if (!code)
        code = check(&r);
    if (!code)
        describe(&r, out);
    rig_close(&r);
    return code;
}
