/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks of pseudo-random prompts, and paged KV in host memory: shared by the cases that store
 * and load chunks. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "bench.h"
#include "cli.h"

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

struct cli_shape
bench_chunks_shape(bool quick)
{
    return (struct cli_shape){ quick ? 1 : 32, 8, 256 };
}

int
bench_chunks_open_no_kv(struct bench_chunks *b, bool quick, size_t n_chunks)
{
    size_t n_blocks = n_chunks * BENCH_CHUNK_BLOCKS;

    *b = (struct bench_chunks){ .shape = bench_chunks_shape(quick), .n = n_chunks,
                                .n_rounds = quick ? 2 : BENCH_ROUNDS };
    b->chunk_bytes = bench_chunk_bytes(&b->shape);
    b->bytes = n_chunks * b->chunk_bytes;
    b->tokens = calloc(n_chunks * BENCH_CHUNK_TOKENS, sizeof *b->tokens);
    b->chunks = calloc(n_chunks, sizeof *b->chunks);
    b->blocks = calloc(n_blocks, sizeof *b->blocks);
    b->no_blocks = calloc(n_blocks, sizeof *b->no_blocks);
    if (!b->tokens || !b->chunks || !b->blocks || !b->no_blocks) {
        fprintf(stderr, "kvtier-bench: not enough memory\n");
        return CLI_ENVIRONMENT;
    }
    for (size_t i = 0; i < n_blocks; i++) {
        b->blocks[i] = (int32_t)i;
        b->no_blocks[i] = -1;
    }
    return 0;
}

int
bench_chunks_open(struct bench_chunks *b, bool quick, size_t n_chunks)
{
    int code = bench_chunks_open_no_kv(b, quick, n_chunks);

    if (code)
        return code;
    b->kv = map(b->bytes);
    b->copy = map(b->bytes);
    if (!b->kv || !b->copy) {
        fprintf(stderr, "kvtier-bench: twice %zu MiB do not fit into memory\n",
                b->bytes >> 20);
        return CLI_ENVIRONMENT;
    }
    bench_tokens((int32_t *)b->kv, b->bytes / sizeof(int32_t), 1);
    bench_tokens((int32_t *)b->copy, b->bytes / sizeof(int32_t), 2);
    return 0;
}

void
bench_chunks_close(struct bench_chunks *b)
{
    if (b->kv)
        munmap(b->kv, b->bytes);
    if (b->copy)
        munmap(b->copy, b->bytes);
    free(b->tokens);
    free(b->chunks);
    free(b->blocks);
    free(b->no_blocks);
}

void
bench_chunks_pool_setting(const struct bench_chunks *b, char out[64])
{
    double bytes = 1.5 * (double)b->bytes + (double)(64 << 20);

    snprintf(out, 64, "max_local_cpu_size=%.6f", bytes / (double)(1 << 30));
}

int
bench_chunks_next_prompt(struct bench_chunks *b, struct kvt_engine *engine)
{
    size_t n = b->n * BENCH_CHUNK_TOKENS;
    struct kvt_seq *seq;

    bench_tokens(b->tokens, n, ++b->prompt);
    int err = kvt_seq_new(engine, b->tokens, n, NULL, &seq);
    if (err)
        return cli_fail(err);
    err = kvt_seq_chunks(seq, 0, b->n, b->chunks);
    kvt_seq_free(seq);
    return err ? cli_fail(err) : 0;
}

struct kvt_group_io
bench_chunks_io(const struct bench_chunks *b, size_t first, size_t n)
{
    return (struct kvt_group_io){ .n_chunks = (uint32_t)n, .chunks = b->chunks + first,
                                  .blocks = b->blocks + first * BENCH_CHUNK_BLOCKS,
                                  .n_blocks = n * BENCH_CHUNK_BLOCKS };
}

int
bench_chunks_load(const struct bench_chunks *b, struct kvt_engine *engine,
                  uint64_t storage_bytes, const int32_t *blocks, struct bench_cost *out)
{
    struct pollfd fd = { .fd = kvt_engine_eventfd(engine), .events = POLLIN };
    struct kvt_group_io io = bench_chunks_io(b, 0, b->n);
    struct kvt_load *load, *done;
    bool good = true;

    io.blocks = blocks;
    bench_start(out);
    int err = kvt_engine_load(engine, &io, 1, 0, &load);
    if (err)
        return cli_fail(err);
    while (!kvt_engine_poll(engine, &done, 1))
        poll(&fd, 1, 1000);
    bench_stop(out);
    for (size_t c = 0; c < b->n; c++)
        good = good && !kvt_load_status(done, 0, c);
    uint64_t read = kvt_load_bytes(done);
    kvt_load_free(done);
    if (!good)
        fprintf(stderr, "kvtier-bench: chunks could not be loaded\n");
    else if (read != storage_bytes)
        fprintf(stderr, "kvtier-bench: %" PRIu64 " bytes were read from storage, not %"
                PRIu64 "\n", read, storage_bytes);
    else
        return 0;
    return CLI_ENVIRONMENT;
}

void
bench_chunks_fill_result(const struct bench_chunks *b, const struct bench_cost *ours,
                    const struct bench_cost *baseline, struct bench_result *out)
{
    double value[BENCH_ROUNDS], limit[BENCH_ROUNDS], ratio[BENCH_ROUNDS];

    for (size_t i = 0; i < b->n_rounds; i++) {
        value[i] = (double)b->bytes * 1e-9 / ours[i].seconds;
        limit[i] = (double)b->bytes * 1e-9 / baseline[i].seconds;
        ratio[i] = baseline[i].seconds / ours[i].seconds;
    }
    out->value = bench_median(value, b->n_rounds);
    out->limit = bench_median(limit, b->n_rounds);
    out->ratio = bench_median(ratio, b->n_rounds);
    out->unit = "GB/s";
    bench_add_figure(out, "ratio_least", ratio[0]);
    bench_add_figure(out, "ratio_most", ratio[b->n_rounds - 1]);
}
