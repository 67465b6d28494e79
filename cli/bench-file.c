/* SPDX-License-Identifier: Apache-2.0
 *
 * The file family: chunks of 32 MiB through the engine and the fs tier, beside a
 * bare loop of the same threads, file size and number of files.
 *
 * Writing includes the copy out of the paged KV, which the bare loop does not
 * make; it goes on while earlier chunks are being written.  Reading names no
 * blocks: chunks are read into the pool and verified, and copied nowhere. */
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "cli.h"

#define N_THREADS 4 /* what disk_io_threads is by default */

struct rig {
    struct cli_shape shape;
    size_t n_chunks, n_rounds;
    size_t chunk_bytes;
    struct kvt_engine *engine;
    struct kvt_store *store; /* removes what the engine wrote */
    struct bench_bare bare;
    unsigned char *memory; /* paged KV of n_chunks, then as much for the copy */
    int32_t *tokens, *blocks, *no_blocks;
    struct kvt_chunk *chunks;
    uint64_t prompt; /* number of the last one */
    uint64_t storage_bytes; /* what the last step wrote to files, or read from them */
};

static size_t
total_bytes(const struct rig *r)
{
    return r->n_chunks * r->chunk_bytes;
}

static double
gigabytes(const struct rig *r)
{
    return (double)total_bytes(r) * 1e-9;
}

/* ----------------------------------------------------------------------- set-up */

static int
allocate(struct rig *r)
{
    size_t n_tokens = r->n_chunks * BENCH_CHUNK_TOKENS;
    size_t n_blocks = r->n_chunks * BENCH_CHUNK_BLOCKS;
    size_t bytes = 2 * total_bytes(r);

    r->tokens = calloc(n_tokens, sizeof *r->tokens);
    r->chunks = calloc(r->n_chunks, sizeof *r->chunks);
    r->blocks = calloc(n_blocks, sizeof *r->blocks);
    r->no_blocks = calloc(n_blocks, sizeof *r->no_blocks);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    r->memory = memory == MAP_FAILED ? NULL : memory;
    if (!r->memory || !r->tokens || !r->chunks || !r->blocks || !r->no_blocks) {
        fprintf(stderr, "kvtier bench: %zu MiB do not fit into memory\n", bytes >> 20);
        return CLI_ENVIRONMENT;
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    bench_tokens(memory, bytes / sizeof(int32_t), 1);
    for (size_t i = 0; i < n_blocks; i++) {
        r->blocks[i] = (int32_t)i;
        r->no_blocks[i] = -1;
    }
    return 0;
}

/* Room for all chunks, for what stores leave to loads, and for the rest.  Chunks only
 * pass through: what stayed in memory would be read from there. */
static int
open_engine(struct rig *r, const char *dir)
{
    char pool[64];
    const char *settings[] = { pool, "local_cpu=false", "blocking_timeout_secs=600",
                               NULL };
    double bytes = 1.5 * (double)total_bytes(r) + (double)(64 << 20);

    snprintf(pool, sizeof pool, "max_local_cpu_size=%.6f", bytes / (double)(1 << 30));
    int code = bench_engine_open(dir, settings, KVT_ROLE_BOTH, &r->shape, &r->engine);
    if (!code)
        code = bench_engine_view(r->engine, &r->shape, r->memory,
                                 (uint32_t)(r->n_chunks * BENCH_CHUNK_BLOCKS));
    return code ? code : bench_store_open(dir, &r->store);
}

static void
rig_close(struct rig *r)
{
    kvt_engine_close(r->engine);
    kvt_store_close(r->store);
    bench_bare_close(&r->bare);
    if (r->memory)
        munmap(r->memory, 2 * total_bytes(r));
    free(r->tokens);
    free(r->chunks);
    free(r->blocks);
    free(r->no_blocks);
}

static int
rig_open(struct rig *r, const struct bench *bench)
{
    char engine_dir[4096], bare_dir[4096];
    bool quick = bench->quick;

    *r = (struct rig){ .shape = { quick ? 1 : 32, 8, 256 }, .n_chunks = quick ? 2 : 8,
                       .n_rounds = quick ? 2 : 15, .bare.dirfd = -1 };
    r->chunk_bytes = bench_chunk_bytes(&r->shape);
    snprintf(engine_dir, sizeof engine_dir, "%s/kv", bench->dir);
    snprintf(bare_dir, sizeof bare_dir, "%s/bare", bench->dir);
    int code = allocate(r);
    if (!code)
        code = bench_bare_open(&r->bare, bare_dir, N_THREADS, r->n_chunks,
                               r->chunk_bytes);
    if (!code)
        code = open_engine(r, engine_dir);
    return code;
}

/* ------------------------------------------------------------------------ steps */

/* Chunks of a prompt that was never stored. */
static int
new_prompt(struct rig *r)
{
    size_t n = r->n_chunks * BENCH_CHUNK_TOKENS;
    struct kvt_seq *seq;

    bench_tokens(r->tokens, n, ++r->prompt);
    int err = kvt_seq_new(r->engine, r->tokens, n, NULL, &seq);
    if (err)
        return cli_fail(err);
    err = kvt_seq_chunks(seq, 0, r->n_chunks, r->chunks);
    kvt_seq_free(seq);
    return err ? cli_fail(err) : 0;
}

static struct kvt_group_io
all_chunks(const struct rig *r, const int32_t *blocks)
{
    return (struct kvt_group_io){ .n_chunks = (uint32_t)r->n_chunks,
                                  .chunks = r->chunks, .blocks = blocks,
                                  .n_blocks = r->n_chunks * BENCH_CHUNK_BLOCKS };
}

/* Store a new prompt's chunks, after removing the last one's; n_stored: how many
 * were not dropped. */
static int
store_chunks(struct rig *r, struct bench_cost *out, uint64_t *n_stored)
{
    struct kvt_group_io io = all_chunks(r, r->blocks);
    uint64_t before = cli_counter(r->engine, "store_chunks");
    int code = bench_store_clear(r->store);

    if (!code)
        code = new_prompt(r);
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
    if (!code && (n_stored != r->n_chunks || n_files != r->n_chunks ||
                  r->storage_bytes < total_bytes(r))) {
        fprintf(stderr, "kvtier bench: of %zu chunks %" PRIu64 " were stored, in %zu "
                "files of %" PRIu64 " bytes\n", r->n_chunks, n_stored, n_files,
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

    for (int i = 0; !code && n_stored < r->n_chunks && i < 100; i++) {
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
    struct pollfd fd = { .fd = kvt_engine_eventfd(r->engine), .events = POLLIN };
    struct kvt_group_io io = all_chunks(r, r->no_blocks);
    struct kvt_load *load, *done;
    bool good = true;

    bench_start(out);
    int err = kvt_engine_load(r->engine, &io, 1, 0, &load);
    if (err)
        return cli_fail(err);
    while (!kvt_engine_poll(r->engine, &done, 1))
        poll(&fd, 1, 1000);
    bench_stop(out);
    for (size_t c = 0; c < r->n_chunks; c++)
        good = good && !kvt_load_status(done, 0, c);
    r->storage_bytes = kvt_load_bytes(done);
    kvt_load_free(done);
    if (!good)
        fprintf(stderr, "kvtier bench: chunks could not be read back\n");
    else if (r->storage_bytes != total_bytes(r))
        fprintf(stderr, "kvtier bench: %" PRIu64 " of %zu bytes were read from files: "
                "the rest was elsewhere\n", r->storage_bytes, total_bytes(r));
    else
        return 0;
    return CLI_ENVIRONMENT;
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
    size_t piece = (size_t)CLI_BLOCK_TOKENS * r->shape.n_heads * r->shape.head_bytes;
    size_t plane = piece * r->n_chunks * BENCH_CHUNK_BLOCKS;
    unsigned char *to = r->memory + total_bytes(r);

    bench_start(out);
    for (size_t c = 0; c < r->n_chunks; c++) {
        for (size_t p = 0; p < 2 * r->shape.n_layers; p++) {
            for (size_t b = 0; b < BENCH_CHUNK_BLOCKS; b++) {
                memcpy(to, r->memory + p * plane + (c * BENCH_CHUNK_BLOCKS + b) * piece,
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
    return code ? code : bench_alternate(what, r->n_rounds, steps, n_steps, r, costs);
}

#define MAX_ROUNDS 64

static void
speeds(const struct rig *r, const struct bench_cost *ours, const struct bench_cost *bare,
       struct bench_result *out)
{
    double value[MAX_ROUNDS], limit[MAX_ROUNDS], ratio[MAX_ROUNDS];

    for (size_t i = 0; i < r->n_rounds; i++) {
        value[i] = gigabytes(r) / ours[i].seconds;
        limit[i] = gigabytes(r) / bare[i].seconds;
        ratio[i] = bare[i].seconds / ours[i].seconds;
    }
    out->value = bench_median(value, r->n_rounds);
    out->limit = bench_median(limit, r->n_rounds);
    out->ratio = bench_median(ratio, r->n_rounds);
    out->unit = "GB/s";
    bench_more(out, "ratio_least", ratio[0]);
    bench_more(out, "ratio_most", ratio[r->n_rounds - 1]);
}

/* CPU seconds for each GB; copy may be NULL. */
static void
cpu_above(const struct rig *r, const struct bench_cost *ours,
          const struct bench_cost *bare, const struct bench_cost *copy,
          struct bench_result *out)
{
    double value[MAX_ROUNDS], limit[MAX_ROUNDS], total[MAX_ROUNDS];

    for (size_t i = 0; i < r->n_rounds; i++) {
        total[i] = ours[i].cpu / gigabytes(r);
        limit[i] = (bare[i].cpu + (copy ? copy[i].cpu : 0)) / gigabytes(r);
        value[i] = total[i] - limit[i];
    }
    out->value = bench_median(value, r->n_rounds);
    out->limit = bench_median(limit, r->n_rounds);
    out->unit = "CPU s/GB";
    double all = bench_median(total, r->n_rounds);
    out->ratio = all > 0 ? out->limit / all : 0;
    bench_more(out, "cpu_s_per_gb", all);
}

static double
median_seconds(const struct rig *r, const struct bench_cost *costs)
{
    double seconds[MAX_ROUNDS];

    for (size_t i = 0; i < r->n_rounds; i++)
        seconds[i] = costs[i].seconds;
    return bench_median(seconds, r->n_rounds);
}

/* Nothing can be written before the first chunk is copied: the ratio of what comes
 * after that. */
static double
ratio_after_first_copy(const struct rig *r, const struct bench_cost *ours,
                       const struct bench_cost *bare, const struct bench_cost *copy)
{
    double first = median_seconds(r, copy) / (double)r->n_chunks, ratio[MAX_ROUNDS];

    for (size_t i = 0; i < r->n_rounds; i++)
        ratio[i] = bare[i].seconds / (ours[i].seconds - first);
    return bench_median(ratio, r->n_rounds);
}

static void
describe(const struct rig *r, struct bench_result *out)
{
    out->threads = N_THREADS;
    bench_more(out, "chunks", (double)r->n_chunks);
    bench_more(out, "chunk_bytes", (double)r->chunk_bytes);
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
    struct bench_cost costs[3 * MAX_ROUNDS];
    struct rig r;
    int code = rig_open(&r, bench);

    if (!code)
        code = wait_for_pool(&r);
    if (!code)
        code = measure(&r, name, true, steps, 3, costs);
    if (!code) {
        const struct bench_cost *bare = costs + r.n_rounds, *copy = bare + r.n_rounds;

        describe(&r, out);
        if (cpu)
            cpu_above(&r, costs, bare, copy, out);
        else
            speeds(&r, costs, bare, out);
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
    struct bench_cost costs[2 * MAX_ROUNDS];
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
            cpu_above(&r, costs, costs + r.n_rounds, NULL, out);
        else
            speeds(&r, costs, costs + r.n_rounds, out);
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
