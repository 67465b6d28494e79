/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu family: copy chunks between paged KV and the pool in host memory.  The baseline is
 * memcpy() of the same number of bytes by the same number of threads.
 *
 * The calling thread copies the chunks of a store.  The pool is full, so each stored chunk evicts
 * an older chunk.  The executor's threads copy the chunks of a load.  The KV, the pool and the
 * destination of memcpy() are each larger than the CPU's caches. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "cli.h"

#define LOAD_THREADS 4 /* default of disk_io_threads */

struct rig {
    struct bench_chunks b;
    unsigned n_threads; /* threads of memcpy() */
    struct kvt_engine *engine;   /* an engine with only host memory */
    struct kvt_engine *checksum; /* an engine that also has a null:// tier, so that a store
                                  * computes checksums; NULL in cases of loads */
};

/* ----------------------------------------------------------------------- set-up */

/* Register KV in which the heads of a token are not adjacent:
 * [kv][layer][block][head][token][head_bytes]. */
static int
set_paged_view(struct rig *r, struct kvt_engine *engine)
{
    struct kvt_kv_view view = KVT_INIT(struct kvt_kv_view);
    size_t head = CLI_BLOCK_TOKENS * (size_t)r->b.shape.head_bytes;
    size_t plane = r->b.bytes / (2 * r->b.shape.n_layers);
    void *base[2 * CLI_MAX_LAYERS];

    for (size_t i = 0; i < 2 * (size_t)r->b.shape.n_layers; i++)
        base[i] = r->b.kv + i * plane;
    view.base = base;
    view.n_kv = 2;
    view.n_blocks = (uint32_t)(r->b.n * BENCH_CHUNK_BLOCKS);
    view.block_stride = (int64_t)(r->b.shape.n_heads * head);
    view.head_stride = (int64_t)head;
    view.token_stride = r->b.shape.head_bytes;
    view.null_block = -1;
    int err = kvt_engine_set_view(engine, 0, &view);
    return err ? cli_fail(err) : 0;
}

static int
open_engine(struct rig *r, const char *tier, bool paged, struct kvt_engine **out)
{
    char pool[64];
    const char *settings[] = { pool, tier, NULL };

    bench_chunks_pool_setting(&r->b, pool);
    int code = bench_engine_open(NULL, settings, KVT_ROLE_BOTH, &r->b.shape, out);
    if (code)
        return code;
    return paged ? set_paged_view(r, *out)
                 : bench_engine_view(*out, &r->b.shape, r->b.kv,
                                     (uint32_t)(r->b.n * BENCH_CHUNK_BLOCKS));
}

static int
rig_open(struct rig *r, const struct bench *bench, bool paged, unsigned n_threads)
{
    *r = (struct rig){ .n_threads = n_threads };
    int code = bench_chunks_open(&r->b, bench->quick, bench->quick ? 4 : 32);
    return code ? code : open_engine(r, NULL, paged, &r->engine);
}

static void
rig_close(struct rig *r)
{
    kvt_engine_close(r->engine);
    kvt_engine_close(r->checksum);
    bench_chunks_close(&r->b);
}

/* ------------------------------------------------------------------------ steps */

/* Store the chunks of a new prompt and write the number of chunks that the engine stored.  Flush
 * after each chunk: a chunk in flight cannot be evicted. */
static int
store_chunks(struct rig *r, struct kvt_engine *engine, struct bench_cost *out,
             uint64_t *n_stored)
{
    uint64_t before = cli_counter(engine, "store_chunks");
    int err = 0, code = bench_chunks_next_prompt(&r->b, engine);

    if (code)
        return code;
    bench_start(out);
    for (size_t c = 0; !err && c < r->b.n; c++) {
        struct kvt_group_io io = bench_chunks_io(&r->b, c, 1);

        err = kvt_engine_store(engine, &io, 1);
        if (!err)
            err = kvt_engine_flush(engine, -1);
    }
    bench_stop(out);
    *n_stored = cli_counter(engine, "store_chunks") - before;
    return err ? cli_fail(err) : 0;
}

static int
store_all(struct rig *r, struct kvt_engine *engine, struct bench_cost *out)
{
    uint64_t n_stored;
    int code = store_chunks(r, engine, out, &n_stored);

    if (!code && n_stored != r->b.n) {
        fprintf(stderr, "kvtier-bench: %llu of %zu chunks were stored\n",
                (unsigned long long)n_stored, r->b.n);
        code = CLI_ENVIRONMENT;
    }
    return code;
}

static int
step_store(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;

    return store_all(r, r->engine, out);
}

static int
step_store_checksum(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;

    return store_all(r, r->checksum, out);
}

static long
resident_pages(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    long size, resident = -1;

    if (f && fscanf(f, "%ld %ld", &size, &resident) != 2)
        resident = -1;
    if (f)
        fclose(f);
    return resident;
}

/* Return true if the pool holds a whole prompt and has begun to evict. */
static bool
is_full(const struct rig *r, const struct kvt_engine *engine)
{
    uint64_t n_evicted = cli_counter(engine, "evicted_chunks");

    return n_evicted && cli_counter(engine, "store_chunks") - n_evicted >= r->b.n;
}

/* Fill the pool.  The engine populates the pool's memory in the background: wait until the
 * resident memory of the process stops growing, then store prompts until the engine evicts. */
static int
fill_pool(struct rig *r, struct kvt_engine *engine)
{
    struct bench_cost cost;
    uint64_t n_stored;
    long before = -1, now = 0;
    int code = 0;

    for (; before != now && !bench_interrupted(); now = resident_pages()) {
        before = now;
        usleep(300000);
    }
    while (!code && !is_full(r, engine))
        code = bench_interrupted() ? CLI_ENVIRONMENT
                                   : store_chunks(r, engine, &cost, &n_stored);
    return code;
}

static int
step_load(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;

    return bench_chunks_load(&r->b, r->engine, 0, r->b.blocks, out);
}

/* ----------------------------------------------------------------------- memcpy */

struct part {
    pthread_t thread;
    unsigned char *to;
    const unsigned char *from;
    size_t n;
};

static void *
copy_part(void *arg)
{
    struct part *part = arg;

    memcpy(part->to, part->from, part->n);
    return NULL;
}

static int
step_memcpy(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;
    size_t each = r->b.bytes / r->n_threads;
    struct part parts[LOAD_THREADS];
    unsigned n = 0;

    bench_start(out);
    for (; n + 1 < r->n_threads; n++) {
        parts[n] = (struct part){ .to = r->b.copy + n * each, .from = r->b.kv + n * each,
                                  .n = each };
        if (pthread_create(&parts[n].thread, NULL, copy_part, &parts[n]))
            break;
    }
    memcpy(r->b.copy + n * each, r->b.kv + n * each, r->b.bytes - n * each);
    for (unsigned i = 0; i < n; i++)
        pthread_join(parts[i].thread, NULL);
    bench_stop(out);
    return 0;
}

/* ------------------------------------------------------------------------ cases */

/* Return the median ratio of CPU times.  Other work on the machine affects CPU time less than
 * wall-clock time. */
static double
cpu_ratio(const struct rig *r, const struct bench_cost *ours,
          const struct bench_cost *baseline)
{
    double ratio[BENCH_ROUNDS];

    for (size_t i = 0; i < r->b.n_rounds; i++)
        ratio[i] = ours[i].cpu > 0 ? baseline[i].cpu / ours[i].cpu : 0;
    return bench_median(ratio, r->b.n_rounds);
}

static void
fill_result(const struct rig *r, const struct bench_cost *ours, const struct bench_cost *baseline,
     struct bench_result *out)
{
    bench_chunks_fill_result(&r->b, ours, baseline, out);
    out->threads = r->n_threads;
    bench_add_figure(out, "cpu_ratio", cpu_ratio(r, ours, baseline));
    bench_add_figure(out, "bytes", (double)r->b.bytes);
}

static int
run_store(const struct bench *bench, const char *name, bool paged,
          struct bench_result *out)
{
    static const bench_step_fn steps[] = { step_store, step_memcpy,
                                           step_store_checksum };
    struct bench_cost costs[3 * BENCH_ROUNDS];
    struct bench_result checksum = { 0 };
    struct rig r;
    int code = rig_open(&r, bench, paged, 1);

    if (!code)
        code = open_engine(&r, "remote_url=null://", paged, &r.checksum);
    if (!code)
        code = fill_pool(&r, r.engine);
    if (!code)
        code = fill_pool(&r, r.checksum);
    if (!code)
        code = bench_alternate(name, r.b.n_rounds, steps, 3, &r, costs);
    if (!code) {
        const struct bench_cost *baseline = costs + r.b.n_rounds;

        fill_result(&r, costs, baseline, out);
        bench_chunks_fill_result(&r.b, baseline + r.b.n_rounds, baseline, &checksum);
        bench_add_figure(out, "checksum_gb_per_s", checksum.value);
        bench_add_figure(out, "checksum_ratio", checksum.ratio);
        bench_add_figure(out, "checksum_cpu_ratio",
                         cpu_ratio(&r, baseline + r.b.n_rounds, baseline));
        bench_result_free(&checksum);
    }
    rig_close(&r);
    return code;
}

static int
run_retrieve(const struct bench *bench, const char *name, bool paged,
             struct bench_result *out)
{
    static const bench_step_fn steps[] = { step_load, step_memcpy };
    struct bench_cost costs[2 * BENCH_ROUNDS];
    struct rig r;
    int code = rig_open(&r, bench, paged, LOAD_THREADS);

    if (!code)
        code = fill_pool(&r, r.engine);
    if (!code)
        code = bench_alternate(name, r.b.n_rounds, steps, 2, &r, costs);
    if (!code)
        fill_result(&r, costs, costs + r.b.n_rounds, out);
    rig_close(&r);
    return code;
}

int
bench_cpu_store(const struct bench *bench, struct bench_result *out)
{
    return run_store(bench, "cpu.store", false, out);
}

int
bench_cpu_retrieve(const struct bench *bench, struct bench_result *out)
{
    return run_retrieve(bench, "cpu.retrieve", false, out);
}

int
bench_cpu_store_paged(const struct bench *bench, struct bench_result *out)
{
    return run_store(bench, "cpu.store.paged", true, out);
}

int
bench_cpu_retrieve_paged(const struct bench *bench, struct bench_result *out)
{
    return run_retrieve(bench, "cpu.retrieve.paged", true, out);
}
