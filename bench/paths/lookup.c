/* SPDX-License-Identifier: Apache-2.0
 *
 * The lookup family: a scheduler hashes a long prompt and looks up the chunks.  The baseline is
 * hashing alone.
 *
 * Two child processes: the worker stores all chunks of the prompt and lives until the end; the
 * scheduler measures. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "cli.h"
#include "common.h"

#define N_ROUNDS 100
#define QUICK_ROUNDS 5
#define N_TOKENS 1000000u
#define QUICK_TOKENS 20000u
#define STEP_CHUNKS 512u /* chunks of one store; fit into the small pool */

/* The smallest chunk: 4 KiB. */
static const struct cli_shape shape = { 1, 1, 8 };

struct prompt {
    char dir[4096];
    char hash[64]; /* "pre_caching_hash_algorithm=..." */
    size_t n_tokens, n_chunks, n_rounds;
    int32_t *tokens;
};

/* Result of a child process, sent over a pipe. */
struct lookup_result {
    int code; /* exit code; the other fields are the scheduler's */
    uint64_t hit_tokens;
    double first;   /* seconds of the first lookup */
    double median;  /* median seconds of a lookup, with hashing */
    double hashing; /* median seconds of hashing */
    double cpu;     /* median CPU seconds of a lookup */
};

static int
out_of_memory(void)
{
    fprintf(stderr, "kvtier-bench: not enough memory\n");
    return CLI_ENVIRONMENT;
}

/* ---------------------------------------------------------------- the worker */

/* Store all chunks of the prompt.  All chunks use the same blocks: the contents have no effect on
 * lookups. */
static int
store_chunks(struct kvt_engine *engine, const struct prompt *p)
{
    struct kvt_chunk *chunks = calloc(p->n_chunks, sizeof *chunks);
    int32_t *blocks = calloc(STEP_CHUNKS * BENCH_CHUNK_BLOCKS, sizeof *blocks);
    struct kvt_seq *seq = NULL;
    int err = chunks && blocks ? 0 : -ENOMEM;

    for (size_t i = 0; !err && i < STEP_CHUNKS * BENCH_CHUNK_BLOCKS; i++)
        blocks[i] = (int32_t)(i % BENCH_CHUNK_BLOCKS);
    if (!err)
        err = kvt_seq_new(engine, p->tokens, p->n_tokens, NULL, &seq);
    if (!err)
        err = kvt_seq_chunks(seq, 0, p->n_chunks, chunks);
    for (size_t at = 0; !err && !bench_interrupted() && at < p->n_chunks; at += STEP_CHUNKS) {
        size_t left = p->n_chunks - at, n = left < STEP_CHUNKS ? left : STEP_CHUNKS;
        struct kvt_group_io io = { .n_chunks = (uint32_t)n, .chunks = chunks + at,
                                   .blocks = blocks,
                                   .n_blocks = n * BENCH_CHUNK_BLOCKS };

        cli_progress("lookup: chunks stored", at, p->n_chunks);
        err = kvt_engine_store(engine, &io, 1);
        if (!err)
            err = kvt_engine_flush(engine, -1);
    }
    cli_progress_end();
    kvt_seq_free(seq);
    free(chunks);
    free(blocks);
    return err ? cli_fail(err) : 0;
}

static int
run_worker(const struct prompt *p)
{
    const char *settings[] = { p->hash, "max_local_cpu_size=0.0625", NULL };
    struct kvt_engine *engine;
    size_t bytes = bench_chunk_bytes(&shape);
    unsigned char *memory = calloc(1, bytes);
    int code = memory ? bench_engine_open(p->dir, settings, KVT_ROLE_WORKER, &shape,
                                          &engine)
                      : out_of_memory();

    if (!code)
        code = bench_engine_view(engine, &shape, memory, BENCH_CHUNK_BLOCKS);
    return code ? code : store_chunks(engine, p);
}

/* ------------------------------------------------------------- the scheduler */

/* Hash and look up the prompt once.  Write the cost of both to *all, and the seconds of hashing
 * to *hashing. */
static int
look_up(struct kvt_engine *engine, const struct prompt *p, struct bench_cost *all,
        double *hashing, uint64_t *hit)
{
    struct kvt_seq *seq;

    bench_start(all);
    double start = bench_now();
    int err = kvt_seq_new(engine, p->tokens, p->n_tokens, NULL, &seq);
    if (err)
        return cli_fail(err);
    *hashing = bench_now() - start;
    while ((err = kvt_engine_lookup(engine, seq, 0, p->n_tokens, hit)) == -EAGAIN)
        usleep(50);
    bench_stop(all);
    kvt_engine_release(engine, seq);
    kvt_seq_free(seq);
    return err ? cli_fail(err) : 0;
}

static void
run_scheduler(const struct prompt *p, struct lookup_result *result)
{
    const char *settings[] = { p->hash, NULL };
    double all[N_ROUNDS], cpu[N_ROUNDS], hashing[N_ROUNDS];
    struct bench_cost cost;
    struct kvt_engine *engine;

    result->code = bench_engine_open(p->dir, settings, KVT_ROLE_SCHEDULER, &shape,
                                    &engine);
    if (result->code)
        return;
    result->code = look_up(engine, p, &cost, &hashing[0], &result->hit_tokens);
    result->first = cost.seconds;
    for (size_t i = 0; !result->code && !bench_interrupted() && i < p->n_rounds; i++) {
        result->code = look_up(engine, p, &cost, &hashing[i], &result->hit_tokens);
        all[i] = cost.seconds;
        cpu[i] = cost.cpu;
    }
    kvt_engine_close(engine);
    if (!result->code && bench_interrupted())
        result->code = CLI_ENVIRONMENT;
    if (result->code)
        return;
    result->median = bench_median(all, p->n_rounds);
    result->hashing = bench_median(hashing, p->n_rounds);
    result->cpu = bench_median(cpu, p->n_rounds);
}

/* ------------------------------------------------------------- two processes */

struct child {
    pid_t pid;
    int result_fd; /* pipe from which the parent reads the child's struct lookup_result */
    int exit_fd; /* pipe whose end of file makes the child exit */
};

/* Fork.  In the child, child->pid is 0, and *result_fd and *exit_fd are the child's ends of the
 * pipes.  Return 0 or a negative errno. */
static int
start_child(struct child *child, int *result_fd, int *exit_fd)
{
    int results[2], exits[2];

    if (pipe(results) < 0)
        return -errno;
    if (pipe(exits) < 0) {
        close(results[0]);
        close(results[1]);
        return -errno;
    }
    fflush(NULL);
    child->pid = fork();
    if (!child->pid) {
        close(results[0]);
        close(exits[1]);
        *result_fd = results[1];
        *exit_fd = exits[0];
        return 0;
    }
    close(results[1]);
    close(exits[0]);
    child->result_fd = results[0];
    child->exit_fd = exits[1];
    return child->pid < 0 ? -errno : 0;
}

static void
end_child(struct child *child)
{
    close(child->exit_fd);
    close(child->result_fd);
    if (bench_interrupted())
        kill(child->pid, SIGTERM); /* the child may still store or look up */
    while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
}

/* Run the worker or the scheduler in a child process and wait for the result.  The child lives
 * until end_child().  Return 0 or an exit code. */
static int
run_child(const struct prompt *p, bool worker, struct child *child, struct lookup_result *result)
{
    int result_fd = -1, exit_fd = -1;
    int err = start_child(child, &result_fd, &exit_fd);
    char byte;

    if (!err && !child->pid) {
        struct lookup_result mine = { 0 };

        if (worker)
            mine.code = run_worker(p);
        else
            run_scheduler(p, &mine);
        if (write(result_fd, &mine, sizeof mine) == sizeof mine)
            (void)!read(exit_fd, &byte, 1);
        _exit(0); /* without kvt_engine_close(): all chunks are flushed */
    }
    if (!err && read(child->result_fd, result, sizeof *result) != sizeof *result)
        err = -ECHILD;
    if (!err)
        return result->code;
    if (!bench_interrupted())
        fprintf(stderr, "kvtier-bench: run a child process: %s\n", strerror(-err));
    return CLI_ENVIRONMENT;
}

static int
measure(const struct prompt *p, struct lookup_result *result)
{
    struct child worker = { 0 }, scheduler = { 0 };
    int code = run_child(p, true, &worker, result);

    if (!code) {
        code = run_child(p, false, &scheduler, result);
        if (scheduler.pid > 0)
            end_child(&scheduler);
    }
    if (worker.pid > 0)
        end_child(&worker);
    if (!code && bench_interrupted())
        code = CLI_ENVIRONMENT;
    if (!code && result->hit_tokens != p->n_chunks * BENCH_CHUNK_TOKENS) {
        fprintf(stderr, "kvtier-bench: %llu of %zu tokens were found\n",
                (unsigned long long)result->hit_tokens, p->n_tokens);
        code = CLI_ENVIRONMENT;
    }
    return code;
}

static int
run(const struct bench *bench, const char *hash, struct bench_result *out)
{
    struct prompt p = { .n_tokens = bench->quick ? QUICK_TOKENS : N_TOKENS,
                        .n_rounds = bench->quick ? QUICK_ROUNDS : N_ROUNDS };
    struct lookup_result result = { 0 };

    p.n_chunks = p.n_tokens / BENCH_CHUNK_TOKENS;
    snprintf(p.dir, sizeof p.dir, "%s/%s", bench->dir, hash);
    snprintf(p.hash, sizeof p.hash, "pre_caching_hash_algorithm=%s", hash);
    p.tokens = calloc(p.n_tokens, sizeof *p.tokens);
    if (!p.tokens)
        return out_of_memory();
    bench_tokens(p.tokens, p.n_tokens, 1);
    int code = measure(&p, &result);
    free(p.tokens);
    if (code)
        return code;
    out->value = result.median * 1e3;
    out->limit = result.hashing * 1e3;
    out->ratio = result.hashing / result.median;
    out->unit = "ms";
    out->threads = 1;
    bench_add_figure(out, "first_ms", result.first * 1e3);
    bench_add_figure(out, "cpu_ms", result.cpu * 1e3);
    bench_add_figure(out, "tokens", (double)p.n_tokens);
    bench_add_figure(out, "chunks", (double)p.n_chunks);
    return 0;
}

int
bench_lookup_builtin(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "builtin", out);
}

int
bench_lookup_sha256(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "sha256_cbor", out);
}
