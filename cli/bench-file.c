/* SPDX-License-Identifier: Apache-2.0
 *
 * The file family: chunks of 32 MiB through the engine and the fs tier, beside a
 * bare loop of the same threads, file size and number of files.
 *
 * Writing includes the copy out of the paged KV, which the bare loop does not
 * make; it goes on while earlier chunks are being written.  Reading names no
 * blocks: chunks are read into the pool and verified, and copied nowhere. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "cli.h"

#define N_THREADS 4 /* what disk_io_threads is by default */

struct rig {
    struct bench_chunks b;
    struct kvt_engine *engine;
    struct kvt_store *store; /* removes what the engine wrote */
    struct bench_bare bare;
    uint64_t storage_bytes; /* what the last step wrote to files, or read from them */
};

static double
gigabytes(const struct rig *r)
{
    return (double)r->b.bytes * 1e-9;
}

/* ----------------------------------------------------------------------- set-up */

/* Chunks only pass through: what stayed in memory would be read from there. */
static int
open_engine(struct rig *r, const char *dir)
{
    char pool[64];
    const char *settings[] = { pool, "local_cpu=false", "blocking_timeout_secs=600",
                               NULL };

    bench_chunks_pool(&r->b, pool);
    int code = bench_engine_open(dir, settings, KVT_ROLE_BOTH, &r->b.shape, &r->engine);
    if (!code)
        code = bench_engine_view(r->engine, &r->b.shape, r->b.kv,
                                 (uint32_t)(r->b.n * BENCH_CHUNK_BLOCKS));
    return code ? code : bench_store_open(dir, &r->store);
}

static void
rig_close(struct rig *r)
{
    kvt_engine_close(r->engine);
    kvt_store_close(r->store);
    bench_bare_close(&r->bare);
    bench_chunks_close(&r->b);
}

static int
rig_open(struct rig *r, const struct bench *bench)
{
    char engine_dir[4096], bare_dir[4096];

    *r = (struct rig){ .bare.dirfd = -1 };
    snprintf(engine_dir, sizeof engine_dir, "%s/kv", bench->dir);
    snprintf(bare_dir, sizeof bare_dir, "%s/bare", bench->dir);
    int code = bench_chunks_open(&r->b, bench->quick, bench->quick ? 2 : 8);
    if (!code)
        code = bench_bare_open(&r->bare, bare_dir, N_THREADS, r->b.n, r->b.chunk_bytes);
    if (!code)
        code = open_engine(r, engine_dir);
    return code;
}

/* ------------------------------------------------------------------------ steps */

/* Store a new prompt's chunks, after removing the last one's; n_stored: how many
 * were not dropped. */
static int
store_chunks(struct rig *r, struct bench_cost *out, uint64_t *n_stored)
{
    struct kvt_group_io io = bench_chunks_io(&r->b, 0, r->b.n);
    uint64_t before = cli_counter(r->engine, "store_chunks");
    int code = bench_store_clear(r->store);

    if (!code)
        code = bench_chunks_prompt(&r->b, r->engine);
    if (code)
        return code;
    bench_start(out);
    int err = kvt_engine_store(r->engine, &io, 1);
    if (!err)
        err = kvt_engine_flush(r->engine, -1);
    bench_stop(out);
    *n_stored = cli_counter(r->engine, "store_chunks") - before;
    return err ? cli_fail(err) : 0;
}

static int
step_store(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;
    uint64_t n_stored;
    size_t n_files = 0;
    int code = store_chunks(r, out, &n_stored);

    if (!code)
        code = bench_store_bytes(r->store, &n_files, &r->storage_bytes);
    if (!code && (n_stored != r->b.n || n_files != r->b.n ||
                  r->storage_bytes < r->b.bytes)) {
        fprintf(stderr, "kvtier bench: of %zu chunks %" PRIu64 " were stored, in %zu "
                "files of %" PRIu64 " bytes\n", r->b.n, n_stored, n_files,
                r->storage_bytes);
        code = CLI_ENVIRONMENT;
    }
    return code;
}

/* The pool is populated in the background, and until then drops what finds no
 * room. */
static int
wait_for_pool(struct rig *r)
{
    struct bench_cost cost;
    uint64_t n_stored = 0;
    int code = 0;

    for (int i = 0; !code && n_stored < r->b.n && i < 100; i++) {
        if (i)
            usleep(50000);
        code = store_chunks(r, &cost, &n_stored);
    }
    return code;
}

static int
step_load(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;

    r->storage_bytes = r->b.bytes;
    return bench_chunks_load(&r->b, r->engine, r->b.bytes, r->b.no_blocks, out);
}

static int
step_bare_write(void *ctx, struct bench_cost *out)
{
    return bench_bare_write(&((struct rig *)ctx)->bare, out);
}

static int
step_bare_read(void *ctx, struct bench_cost *out)
{
    return bench_bare_read(&((struct rig *)ctx)->bare, out);
}

/* What a store copies, in the pieces in which it lies: all tokens of a block of a
 * layer's K or V. */
static int
step_copy(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;
    size_t piece = (size_t)CLI_BLOCK_TOKENS * r->b.shape.n_heads *
                   r->b.shape.head_bytes;
    size_t plane = piece * r->b.n * BENCH_CHUNK_BLOCKS;
    unsigned char *to = r->b.copy;

    bench_start(out);
    for (size_t c = 0; c < r->b.n; c++) {
        for (size_t p = 0; p < 2 * r->b.shape.n_layers; p++) {
            for (size_t b = 0; b < BENCH_CHUNK_BLOCKS; b++) {
                memcpy(to, r->b.kv + p * plane + (c * BENCH_CHUNK_BLOCKS + b) * piece,
                       piece);
                to += piece;
            }
        }
    }
    bench_stop(out);
    return 0;
}

/* ------------------------------------------------------------------------ cases */

static int
measure(struct rig *r, const char *what, bool write, const bench_step_fn *steps,
        size_t n_steps, struct bench_cost *costs)
{
    int code = bench_bare_tune(&r->bare, write);

    /* A round that does not count. */
    for (size_t i = 0; !code && i < n_steps; i++)
        code = steps[i](r, costs);
    return code ? code : bench_alternate(what, r->b.n_rounds, steps, n_steps, r, costs);
}

/* CPU seconds for each GB; copy may be NULL. */
static void
cpu_above(const struct rig *r, const struct bench_cost *ours,
          const struct bench_cost *bare, const struct bench_cost *copy,
          struct bench_result *out)
{
    double value[BENCH_ROUNDS], limit[BENCH_ROUNDS], total[BENCH_ROUNDS];

    for (size_t i = 0; i < r->b.n_rounds; i++) {
        total[i] = ours[i].cpu / gigabytes(r);
        limit[i] = (bare[i].cpu + (copy ? copy[i].cpu : 0)) / gigabytes(r);
        value[i] = total[i] - limit[i];
    }
    out->value = bench_median(value, r->b.n_rounds);
    out->limit = bench_median(limit, r->b.n_rounds);
    out->unit = "CPU s/GB";
    double all = bench_median(total, r->b.n_rounds);
    out->ratio = all > 0 ? out->limit / all : 0;
    bench_more(out, "cpu_s_per_gb", all);
}

static double
median_seconds(const struct rig *r, const struct bench_cost *costs)
{
    double seconds[BENCH_ROUNDS];

    for (size_t i = 0; i < r->b.n_rounds; i++)
        seconds[i] = costs[i].seconds;
    return bench_median(seconds, r->b.n_rounds);
}

/* Nothing can be written before the first chunk is copied: the ratio of what comes
 * after that. */
static double
ratio_after_first_copy(const struct rig *r, const struct bench_cost *ours,
                       const struct bench_cost *bare, const struct bench_cost *copy)
{
    double first = median_seconds(r, copy) / (double)r->b.n, ratio[BENCH_ROUNDS];

    for (size_t i = 0; i < r->b.n_rounds; i++)
        ratio[i] = bare[i].seconds / (ours[i].seconds - first);
    return bench_median(ratio, r->b.n_rounds);
}

static void
describe(const struct rig *r, struct bench_result *out)
{
    out->threads = N_THREADS;
    bench_more(out, "chunks", (double)r->b.n);
    bench_more(out, "chunk_bytes", (double)r->b.chunk_bytes);
    bench_more(out, "storage_bytes", (double)r->storage_bytes);
    bench_more(out, "bare_piece_bytes", (double)r->bare.piece);
    bench_more(out, "bare_depth", r->bare.depth);
    bench_more(out, "direct", r->bare.direct);
}

static int
run_write(const struct bench *bench, const char *name, bool cpu,
          struct bench_result *out)
{
    static const bench_step_fn steps[] = { step_store, step_bare_write, step_copy };
    struct bench_cost costs[3 * BENCH_ROUNDS];
    struct rig r;
    int code = rig_open(&r, bench);

    if (!code)
        code = wait_for_pool(&r);
    if (!code)
        code = measure(&r, name, true, steps, 3, costs);
    if (!code) {
        const struct bench_cost *bare = costs + r.b.n_rounds, *copy = bare + r.b.n_rounds;

        describe(&r, out);
        if (cpu)
            cpu_above(&r, costs, bare, copy, out);
        else
            bench_chunks_speeds(&r.b, costs, bare, out);
        if (!cpu)
            bench_more(out, "ratio_after_first_copy",
                       ratio_after_first_copy(&r, costs, bare, copy));
        bench_more(out, "copy_gb_per_s", gigabytes(&r) / median_seconds(&r, copy));
    }
    rig_close(&r);
    return code;
}

static int
run_read(const struct bench *bench, const char *name, bool cpu, struct bench_result *out)
{
    static const bench_step_fn steps[] = { step_load, step_bare_read };
    struct bench_cost costs[2 * BENCH_ROUNDS];
    struct rig r;
    int code = rig_open(&r, bench);

    if (!code)
        code = bench_bare_write(&r.bare, costs);
    if (!code)
        code = wait_for_pool(&r);
    if (!code)
        code = measure(&r, name, false, steps, 2, costs);
    if (!code) {
        describe(&r, out);
        if (cpu)
            cpu_above(&r, costs, costs + r.b.n_rounds, NULL, out);
        else
            bench_chunks_speeds(&r.b, costs, costs + r.b.n_rounds, out);
    }
    rig_close(&r);
    return code;
}

int
bench_file_write(const struct bench *bench, struct bench_result *out)
{
    return run_write(bench, "file.write", false, out);
}

int
bench_file_read(const struct bench *bench, struct bench_result *out)
{
    return run_read(bench, "file.read", false, out);
}

struct threads_only {
    const struct bench *bench;
    struct bench_result *out;
    int code;
};

static void *
threads_only_main(void *arg)
{
    struct threads_only *t = arg;
    int err = bench_forbid_uring();

    if (err)
        fprintf(stderr, "kvtier bench: forbid io_uring: %s\n", strerror(err));
    t->code = err ? CLI_ENVIRONMENT
                  : run_read(t->bench, "file.read.threads", false, t->out);
    return NULL;
}

/* On a thread of its own, which forbids io_uring to itself and to those it starts. */
int
bench_file_read_threads(const struct bench *bench, struct bench_result *out)
{
    struct threads_only t = { .bench = bench, .out = out };
    pthread_t thread;
    int err = pthread_create(&thread, NULL, threads_only_main, &t);

    if (err) {
        fprintf(stderr, "kvtier bench: start a thread: %s\n", strerror(err));
        return CLI_ENVIRONMENT;
    }
    pthread_join(thread, NULL);
    return t.code;
}

int
bench_file_cpu(const struct bench *bench, struct bench_result *out)
{
    return run_read(bench, "file.cpu", true, out);
}

int
bench_store_file(const struct bench *bench, struct bench_result *out)
{
    return run_write(bench, "engine.store_file", true, out);
}
