/* SPDX-License-Identifier: Apache-2.0
 *
 * Measure stores to storage and loads from storage by an engine, and compute the figures.
 *
 * The engine has no host-memory tier (local_cpu=false), so that each load reads from storage.  If
 * KV is in host memory and t->scatters is false, loads name no blocks: the engine reads chunks
 * into the pool and verifies the chunks, but does not copy the chunks into blocks. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "storage.h"
#include "cli.h"

/* ----------------------------------------------------------------------- set-up */

static int
open_both(struct bench_storage *t, const char *dir, const char *const *settings)
{
    const char *all[12] = { "local_cpu=false", "blocking_timeout_secs=600" };
    char pool[64];
    size_t n = 2;

    bench_chunks_pool_setting(&t->b, pool);
    all[n++] = pool;
    while (*settings && n + 1 < sizeof all / sizeof *all)
        all[n++] = *settings++;
    int code = bench_engine_open(dir, all, KVT_ROLE_BOTH, &t->b.shape, &t->engine);
    if (!code)
        code = t->view ? t->view(t->view_ctx, t->engine)
                       : bench_engine_view(t->engine, &t->b.shape, t->b.kv,
                                           (uint32_t)(t->b.n * BENCH_CHUNK_BLOCKS));
    if (code)
        return code;
    return dir ? bench_store_open(dir, &t->store)
               : bench_store_open_settings(all, &t->store);
}

int
bench_storage_open(struct bench_storage *t, const char *dir, const char *const *settings,
                   bool quick, size_t n_chunks)
{
    int code = t->view ? bench_chunks_open_no_kv(&t->b, quick, n_chunks)
                       : bench_chunks_open(&t->b, quick, n_chunks);

    return code ? code : open_both(t, dir, settings);
}

void
bench_storage_close(struct bench_storage *t)
{
    kvt_engine_close(t->engine);
    kvt_store_close(t->store);
    bench_chunks_close(&t->b);
}

/* ------------------------------------------------------------------------ steps */

/* Delete the chunks of the last prompt, then store the chunks of a new prompt.  Write the number
 * of chunks that the engine did not drop. */
static int
store_chunks(struct bench_storage *t, struct bench_cost *out, uint64_t *n_stored)
{
    struct kvt_group_io io = bench_chunks_io(&t->b, 0, t->b.n);
    uint64_t before = cli_counter(t->engine, "store_chunks");
    int code = bench_store_clear(t->store);

    if (!code)
        code = bench_chunks_next_prompt(&t->b, t->engine);
    if (code)
        return code;
    bench_start(out);
    int err = kvt_engine_store(t->engine, &io, 1);
    if (!err)
        err = kvt_engine_flush(t->engine, -1);
    bench_stop(out);
    *n_stored = cli_counter(t->engine, "store_chunks") - before;
    return err ? cli_fail(err) : 0;
}

int
bench_storage_fill(struct bench_storage *t)
{
    struct bench_cost cost;
    uint64_t n_stored = 0;
    int code = 0;

    for (int i = 0; !code && n_stored < t->b.n && i < 100; i++) {
        if (i)
            usleep(50000);
        code = store_chunks(t, &cost, &n_stored);
    }
    return code;
}

static int
step_store(void *ctx, struct bench_cost *out)
{
    struct bench_storage *t = ctx;
    uint64_t n_stored;
    size_t n_files = 0;
    int code = store_chunks(t, out, &n_stored);

    if (!code)
        code = bench_store_count(t->store, &n_files, &t->storage_bytes);
    if (!code && (n_stored != t->b.n || n_files != t->b.n ||
                  t->storage_bytes < t->b.bytes)) {
        fprintf(stderr, "kvtier-bench: of %zu chunks %" PRIu64 " were stored, in %zu "
                "files of %" PRIu64 " bytes\n", t->b.n, n_stored, n_files,
                t->storage_bytes);
        code = CLI_ENVIRONMENT;
    }
    return code;
}

int
bench_storage_load(struct bench_storage *t, struct bench_cost *out)
{
    t->storage_bytes = t->b.bytes;
    return bench_chunks_load(&t->b, t->engine, t->b.bytes,
                             t->view || t->scatters ? t->b.blocks : t->b.no_blocks, out);
}

static int
step_load(void *ctx, struct bench_cost *out)
{
    return bench_storage_load(ctx, out);
}

static int
step_baseline_write(void *ctx, struct bench_cost *out)
{
    const struct bench_loop *baseline = &((struct bench_storage *)ctx)->baseline;

    return baseline->write(baseline->ctx, out);
}

static int
step_baseline_read(void *ctx, struct bench_cost *out)
{
    const struct bench_loop *baseline = &((struct bench_storage *)ctx)->baseline;

    return baseline->read(baseline->ctx, out);
}

/* Copy all chunks between t->b.copy and the blocks.  A piece is the tokens of one block of one
 * layer's K or V.  scatter: from chunks to blocks; otherwise from blocks to chunks. */
static void
copy_pieces(struct bench_storage *t, bool scatter)
{
    size_t piece = (size_t)CLI_BLOCK_TOKENS * t->b.shape.n_heads *
                   t->b.shape.head_bytes;
    size_t plane = piece * t->b.n * BENCH_CHUNK_BLOCKS;
    unsigned char *flat = t->b.copy;

    for (size_t c = 0; c < t->b.n; c++) {
        for (size_t p = 0; p < 2 * t->b.shape.n_layers; p++) {
            for (size_t b = 0; b < BENCH_CHUNK_BLOCKS; b++) {
                unsigned char *at = t->b.kv + p * plane +
                                    (c * BENCH_CHUNK_BLOCKS + b) * piece;

                memcpy(scatter ? at : flat, scatter ? flat : at, piece);
                flat += piece;
            }
        }
    }
}

static int
step_gather(void *ctx, struct bench_cost *out)
{
    bench_start(out);
    copy_pieces(ctx, false);
    bench_stop(out);
    return 0;
}

static int
step_scatter(void *ctx, struct bench_cost *out)
{
    bench_start(out);
    copy_pieces(ctx, true);
    bench_stop(out);
    return 0;
}

/* ---------------------------------------------------------------------- figures */

static double
gigabytes(const struct bench_storage *t)
{
    return (double)t->b.bytes * 1e-9;
}

/* Fill in the CPU seconds a GB beyond the baseline's.  copy: costs of the baseline copy; NULL: no
 * copy. */
static void
cpu_above(const struct bench_storage *t, const struct bench_cost *ours,
          const struct bench_cost *baseline, const struct bench_cost *copy,
          struct bench_result *out)
{
    double value[BENCH_ROUNDS], limit[BENCH_ROUNDS], total[BENCH_ROUNDS];
    double of_copy[BENCH_ROUNDS];
    size_t n = t->b.n_rounds;

    for (size_t i = 0; i < n; i++) {
        of_copy[i] = copy ? copy[i].cpu / gigabytes(t) : 0;
        total[i] = ours[i].cpu / gigabytes(t);
        limit[i] = baseline[i].cpu / gigabytes(t) + of_copy[i];
        value[i] = total[i] - limit[i];
    }
    out->value = bench_median(value, n);
    out->limit = bench_median(limit, n);
    out->unit = "CPU s/GB";
    double all = bench_median(total, n);
    out->ratio = all > 0 ? out->limit / all : 0;
    bench_add_figure(out, "cpu_s_per_gb", all);
    if (copy)
        bench_add_figure(out, "copy_cpu_s_per_gb", bench_median(of_copy, n));
}

static double
median_seconds(const struct bench_storage *t, const struct bench_cost *costs)
{
    double seconds[BENCH_ROUNDS];

    for (size_t i = 0; i < t->b.n_rounds; i++)
        seconds[i] = costs[i].seconds;
    return bench_median(seconds, t->b.n_rounds);
}

/* Return the median ratio without the time of the first copy: no write can start before the first
 * chunk is copied. */
static double
ratio_after_first_copy(const struct bench_storage *t, const struct bench_cost *ours,
                       const struct bench_cost *baseline, const struct bench_cost *copy)
{
    double first = median_seconds(t, copy) / (double)t->b.n, ratio[BENCH_ROUNDS];

    for (size_t i = 0; i < t->b.n_rounds; i++)
        ratio[i] = baseline[i].seconds / (ours[i].seconds - first);
    return bench_median(ratio, t->b.n_rounds);
}

/* Return true if the baseline includes a copy: KV is in host memory, and the step is a write or a
 * read that scatters. */
static bool
has_copy(const struct bench_storage *t, bool write)
{
    return (write || t->scatters) && !t->view;
}

/* Fill in the result.  ours: costs of the stores or loads, then of the baseline loop, and, if
 * has_copy(), of the baseline copy. */
static void
figures(const struct bench_storage *t, bool write, bool cpu, const struct bench_cost *ours,
        struct bench_result *out)
{
    const struct bench_cost *baseline = ours + t->b.n_rounds;
    const struct bench_cost *copy = has_copy(t, write) ? baseline + t->b.n_rounds : NULL;

    bench_add_figure(out, "chunks", (double)t->b.n);
    bench_add_figure(out, "chunk_bytes", (double)t->b.chunk_bytes);
    bench_add_figure(out, "storage_bytes", (double)t->storage_bytes);
    if (cpu)
        cpu_above(t, ours, baseline, copy, out);
    else
        bench_chunks_fill_result(&t->b, ours, baseline, out);
    if (copy && write && !cpu)
        bench_add_figure(out, "ratio_after_first_copy",
                   ratio_after_first_copy(t, ours, baseline, copy));
    if (copy)
        bench_add_figure(out, "copy_gb_per_s", gigabytes(t) / median_seconds(t, copy));
}

/* -------------------------------------------------------------------- measuring */

static const bench_step_fn write_steps[] = { step_store, step_baseline_write, step_gather };
static const bench_step_fn read_steps[] = { step_load, step_baseline_read, step_scatter };

static size_t
n_steps(const struct bench_storage *t, bool write)
{
    return has_copy(t, write) ? 3 : 2;
}

int
bench_storage_prepare(struct bench_storage *t, bool write)
{
    const bench_step_fn *steps = write ? write_steps : read_steps;
    struct bench_cost cost;
    int code = write ? 0 : step_baseline_write(t, &cost);

    if (!code)
        code = bench_storage_fill(t);
    if (!code)
        code = t->baseline.tune(t->baseline.ctx, write);
    for (size_t i = 0; !code && i < n_steps(t, write); i++)
        code = steps[i](t, &cost);
    return code;
}

int
bench_storage_measure(struct bench_storage *t, const char *name, bool write, bool cpu,
                      struct bench_result *out)
{
    struct bench_cost costs[3 * BENCH_ROUNDS];
    int code = bench_alternate(name, t->b.n_rounds, write ? write_steps : read_steps,
                               n_steps(t, write), t, costs);

    if (!code)
        figures(t, write, cpu, costs, out);
    return code;
}
