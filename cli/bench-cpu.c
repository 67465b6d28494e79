/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu family: between paged KV and host memory, beside memcpy of as many bytes
 * by as many threads.
 *
 * A store copies on the calling thread into a pool that is full, so every chunk
 * evicts an older one.  A load is copied by the executor's threads.  The KV, the pool
 * and what memcpy writes to are each larger than any cache. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "cli.h"

#define LOAD_THREADS 4 /* what disk_io_threads is by default */
#define N_ROUNDS 15
#define QUICK_ROUNDS 2

struct rig {
    struct cli_shape shape;
    size_t n_chunks, n_rounds, bytes;
    unsigned n_threads; /* of memcpy */
    struct kvt_engine *engine;   /* host memory alone */
    struct kvt_engine *checksum; /* the same with a tier behind it that keeps nothing */
    unsigned char *kv, *copy;
    int32_t *tokens, *blocks;
    struct kvt_chunk *chunks;
    uint64_t prompt; /* number of the last one */
};

/* ----------------------------------------------------------------------- set-up */

static unsigned char *
map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static int
allocate(struct rig *r)
{
    size_t n_blocks = r->n_chunks * BENCH_CHUNK_BLOCKS;

    r->tokens = calloc(r->n_chunks * BENCH_CHUNK_TOKENS, sizeof *r->tokens);
    r->chunks = calloc(r->n_chunks, sizeof *r->chunks);
    r->blocks = calloc(n_blocks, sizeof *r->blocks);
    r->kv = map(r->bytes);
    r->copy = map(r->bytes);
    if (!r->kv || !r->copy || !r->tokens || !r->chunks || !r->blocks) {
        fprintf(stderr, "kvtier bench: twice %zu MiB do not fit into memory\n",
                r->bytes >> 20);
        return CLI_ENVIRONMENT;
    }
    bench_tokens((int32_t *)r->kv, r->bytes / sizeof(int32_t), 1);
    bench_tokens((int32_t *)r->copy, r->bytes / sizeof(int32_t), 2);
    for (size_t i = 0; i < n_blocks; i++)
        r->blocks[i] = (int32_t)i;
    return 0;
}

/* All heads of a token are apart: [kv][layer][block][head][token][head_bytes]. */
static int
set_paged_view(struct rig *r, struct kvt_engine *engine)
{
    struct kvt_kv_view view = KVT_INIT(struct kvt_kv_view);
    size_t head = CLI_BLOCK_TOKENS * (size_t)r->shape.head_bytes;
    size_t plane = r->bytes / (2 * r->shape.n_layers);
    void *base[2 * CLI_MAX_LAYERS];

    for (size_t i = 0; i < 2 * (size_t)r->shape.n_layers; i++)
        base[i] = r->kv + i * plane;
    view.base = base;
    view.n_kv = 2;
    view.n_blocks = (uint32_t)(r->n_chunks * BENCH_CHUNK_BLOCKS);
    view.block_stride = (int64_t)(r->shape.n_heads * head);
    view.head_stride = (int64_t)head;
    view.token_stride = r->shape.head_bytes;
    view.null_block = -1;
    int err = kvt_engine_set_view(engine, 0, &view);
    return err ? cli_fail(err) : 0;
}

/* Room for all chunks beside what is kept for loads. */
static int
open_engine(struct rig *r, const char *tier, bool paged, struct kvt_engine **out)
{
    char pool[64];
    const char *settings[] = { pool, tier, NULL };
    double bytes = 1.5 * (double)r->bytes + (double)(64 << 20);

    snprintf(pool, sizeof pool, "max_local_cpu_size=%.6f", bytes / (double)(1 << 30));
    int code = bench_engine_open(NULL, settings, KVT_ROLE_BOTH, &r->shape, out);
    if (code)
        return code;
    return paged ? set_paged_view(r, *out)
                 : bench_engine_view(*out, &r->shape, r->kv,
                                     (uint32_t)(r->n_chunks * BENCH_CHUNK_BLOCKS));
}

static int
rig_open(struct rig *r, const struct bench *bench, bool paged, unsigned n_threads)
{
    bool quick = bench->quick;

    *r = (struct rig){ .shape = { quick ? 1 : 32, 8, 256 }, .n_chunks = quick ? 4 : 32,
                       .n_rounds = quick ? QUICK_ROUNDS : N_ROUNDS,
                       .n_threads = n_threads };
    r->bytes = r->n_chunks * bench_chunk_bytes(&r->shape);
    int code = allocate(r);
    return code ? code : open_engine(r, NULL, paged, &r->engine);
}

static void
rig_close(struct rig *r)
{
    kvt_engine_close(r->engine);
    kvt_engine_close(r->checksum);
    if (r->kv)
        munmap(r->kv, r->bytes);
    if (r->copy)
        munmap(r->copy, r->bytes);
    free(r->tokens);
    free(r->blocks);
    free(r->chunks);
}

/* ------------------------------------------------------------------------ steps */

static struct kvt_group_io
some_chunks(const struct rig *r, size_t first, size_t n)
{
    return (struct kvt_group_io){ .n_chunks = (uint32_t)n, .chunks = r->chunks + first,
                                  .blocks = r->blocks + first * BENCH_CHUNK_BLOCKS,
                                  .n_blocks = n * BENCH_CHUNK_BLOCKS };
}

/* Chunks of a prompt that was never stored. */
static int
new_prompt(struct rig *r, struct kvt_engine *engine)
{
    size_t n = r->n_chunks * BENCH_CHUNK_TOKENS;
    struct kvt_seq *seq;

    bench_tokens(r->tokens, n, ++r->prompt);
    int err = kvt_seq_new(engine, r->tokens, n, NULL, &seq);
    if (err)
        return cli_fail(err);
    err = kvt_seq_chunks(seq, 0, r->n_chunks, r->chunks);
    kvt_seq_free(seq);
    return err ? cli_fail(err) : 0;
}

/* One by one: what is still under way cannot be evicted. */
static int
store_chunks(struct rig *r, struct kvt_engine *engine, struct bench_cost *out,
             uint64_t *n_stored)
{
    uint64_t before = cli_counter(engine, "store_chunks");
    int err = 0, code = new_prompt(r, engine);

    if (code)
        return code;
    bench_start(out);
    for (size_t c = 0; !err && c < r->n_chunks; c++) {
        struct kvt_group_io io = some_chunks(r, c, 1);

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

    if (!code && n_stored != r->n_chunks) {
        fprintf(stderr, "kvtier bench: %llu of %zu chunks were stored\n",
                (unsigned long long)n_stored, r->n_chunks);
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

static bool
turns_over(const struct rig *r, const struct kvt_engine *engine)
{
    uint64_t gone = cli_counter(engine, "evicted_chunks");

    return gone && cli_counter(engine, "store_chunks") - gone >= r->n_chunks;
}

/* The pool is populated in the background: wait until we grow no more, then store until
 * all chunks have room and older ones are evicted. */
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
    while (!code && !turns_over(r, engine))
        code = bench_interrupted() ? CLI_ENVIRONMENT
                                   : store_chunks(r, engine, &cost, &n_stored);
    return code;
}

static int
step_load(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;
    struct pollfd fd = { .fd = kvt_engine_eventfd(r->engine), .events = POLLIN };
    struct kvt_group_io io = some_chunks(r, 0, r->n_chunks);
    uint64_t before = cli_counter(r->engine, "memory_hits");
    struct kvt_load *load, *done;

    bench_start(out);
    int err = kvt_engine_load(r->engine, &io, 1, 0, &load);
    if (err)
        return cli_fail(err);
    while (!kvt_engine_poll(r->engine, &done, 1))
        poll(&fd, 1, 1000);
    bench_stop(out);
    kvt_load_free(done);
    if (cli_counter(r->engine, "memory_hits") - before == r->n_chunks)
        return 0;
    fprintf(stderr, "kvtier bench: %llu of %zu chunks were in host memory\n",
            (unsigned long long)(cli_counter(r->engine, "memory_hits") - before),
            r->n_chunks);
    return CLI_ENVIRONMENT;
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
    size_t each = r->bytes / r->n_threads;
    struct part parts[LOAD_THREADS];
    unsigned n = 0;

    bench_start(out);
    for (; n + 1 < r->n_threads; n++) {
        parts[n] = (struct part){ .to = r->copy + n * each, .from = r->kv + n * each,
                                  .n = each };
        if (pthread_create(&parts[n].thread, NULL, copy_part, &parts[n]))
            break;
    }
    memcpy(r->copy + n * each, r->kv + n * each, r->bytes - n * each);
    for (unsigned i = 0; i < n; i++)
        pthread_join(parts[i].thread, NULL);
    bench_stop(out);
    return 0;
}

/* ------------------------------------------------------------------------ cases */

static void
speeds(const struct rig *r, const struct bench_cost *ours, const struct bench_cost *bare,
       double value[static N_ROUNDS], double ratio[static N_ROUNDS])
{
    for (size_t i = 0; i < r->n_rounds; i++) {
        value[i] = (double)r->bytes * 1e-9 / ours[i].seconds;
        ratio[i] = bare[i].seconds / ours[i].seconds;
    }
}

/* Of CPU time: other work on the machine counts for less. */
static double
cpu_ratio(const struct rig *r, const struct bench_cost *ours,
          const struct bench_cost *bare)
{
    double ratio[N_ROUNDS];

    for (size_t i = 0; i < r->n_rounds; i++)
        ratio[i] = ours[i].cpu > 0 ? bare[i].cpu / ours[i].cpu : 0;
    return bench_median(ratio, r->n_rounds);
}

static void
tell(const struct rig *r, const struct bench_cost *ours, const struct bench_cost *bare,
     struct bench_result *out)
{
    double value[N_ROUNDS], ratio[N_ROUNDS], limit[N_ROUNDS];

    speeds(r, ours, bare, value, ratio);
    for (size_t i = 0; i < r->n_rounds; i++)
        limit[i] = (double)r->bytes * 1e-9 / bare[i].seconds;
    out->value = bench_median(value, r->n_rounds);
    out->limit = bench_median(limit, r->n_rounds);
    out->ratio = bench_median(ratio, r->n_rounds);
    out->unit = "GB/s";
    out->threads = r->n_threads;
    bench_more(out, "ratio_least", ratio[0]);
    bench_more(out, "ratio_most", ratio[r->n_rounds - 1]);
    bench_more(out, "cpu_ratio", cpu_ratio(r, ours, bare));
    bench_more(out, "bytes", (double)r->bytes);
}

static int
run_store(const struct bench *bench, const char *name, bool paged,
          struct bench_result *out)
{
    static const bench_step_fn steps[] = { step_store, step_memcpy,
                                           step_store_checksum };
    struct bench_cost costs[3 * N_ROUNDS];
    double value[N_ROUNDS], ratio[N_ROUNDS];
    struct rig r;
    int code = rig_open(&r, bench, paged, 1);

    if (!code)
        code = open_engine(&r, "remote_url=null://", paged, &r.checksum);
    if (!code)
        code = fill_pool(&r, r.engine);
    if (!code)
        code = fill_pool(&r, r.checksum);
    if (!code)
        code = bench_alternate(name, r.n_rounds, steps, 3, &r, costs);
    if (!code) {
        const struct bench_cost *bare = costs + r.n_rounds;

        tell(&r, costs, bare, out);
        speeds(&r, bare + r.n_rounds, bare, value, ratio);
        bench_more(out, "checksum_gb_per_s", bench_median(value, r.n_rounds));
        bench_more(out, "checksum_ratio", bench_median(ratio, r.n_rounds));
        bench_more(out, "checksum_cpu_ratio", cpu_ratio(&r, bare + r.n_rounds, bare));
    }
    rig_close(&r);
    return code;
}

static int
run_retrieve(const struct bench *bench, const char *name, bool paged,
             struct bench_result *out)
{
    static const bench_step_fn steps[] = { step_load, step_memcpy };
    struct bench_cost costs[2 * N_ROUNDS];
    struct rig r;
    int code = rig_open(&r, bench, paged, LOAD_THREADS);

    if (!code)
        code = fill_pool(&r, r.engine);
    if (!code)
        code = bench_alternate(name, r.n_rounds, steps, 2, &r, costs);
    if (!code)
        tell(&r, costs, costs + r.n_rounds, out);
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
