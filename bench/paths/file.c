/* SPDX-License-Identifier: Apache-2.0
 *
 * The file family: the engine stores and loads chunks of 32 MiB with the fs tier, or with the
 * tier of gds_path and host memory.  The baseline loop has the same number of threads, the same
 * file size and the same number of files.
 *
 * A write includes the copy from the paged KV; the baseline loop does not copy.  The copy of a
 * chunk overlaps with the writes of earlier chunks.  A read names no blocks: the engine reads
 * chunks into the pool and verifies the chunks, but does not copy the chunks into blocks.  Only
 * file.retrieve names blocks. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "storage.h"
#include "cli.h"

#define N_THREADS 4 /* default of disk_io_threads */

struct rig {
    struct bench_storage t;
    struct bench_baseline baseline;
};

static int
tune(void *baseline, bool write)
{
    return bench_baseline_tune(baseline, write);
}

static int
baseline_write(void *baseline, struct bench_cost *out)
{
    return bench_baseline_write(baseline, out);
}

static int
baseline_read(void *baseline, struct bench_cost *out)
{
    return bench_baseline_read(baseline, out);
}

static void
rig_close(struct rig *r)
{
    bench_baseline_close(&r->baseline);
    bench_storage_close(&r->t);
}

static int
rig_open(struct rig *r, const struct bench *bench, bool gds)
{
    char storage[4096 + 32], baseline_dir[4096];
    const char *const settings[] = { storage, NULL };

    *r = (struct rig){ .baseline.dirfd = -1 };
    snprintf(storage, sizeof storage, "%s%s/kv", gds ? "gds_path=" : "remote_url=fs://",
             bench->dir);
    snprintf(baseline_dir, sizeof baseline_dir, "%s/baseline", bench->dir);
    int code = bench_storage_open(&r->t, NULL, settings, bench->quick,
                                  bench->quick ? 2 : 8);
    return code ? code : bench_baseline_open(&r->baseline, baseline_dir, N_THREADS, r->t.b.n,
                                         r->t.b.chunk_bytes);
}

/* ------------------------------------------------------------------------ cases */

static int
run(const struct bench *bench, const char *name, bool write, bool cpu,
    struct bench_result *out)
{
    struct rig r;
    int code = rig_open(&r, bench, !strncmp(name, "gds.", 4));

    r.t.scatters = !strcmp(name, "file.retrieve");
    r.t.baseline = (struct bench_loop){ &r.baseline, tune, baseline_write, baseline_read };
    if (!code)
        code = bench_storage_prepare(&r.t, write);
    if (!code)
        code = bench_storage_measure(&r.t, name, write, cpu, out);
    if (!code) {
        out->threads = N_THREADS;
        bench_add_figure(out, "baseline_piece_bytes", (double)r.baseline.piece);
        bench_add_figure(out, "baseline_depth", r.baseline.depth);
        bench_add_figure(out, "direct", r.baseline.direct);
    }
    rig_close(&r);
    return code;
}

int
bench_file_write(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "file.write", true, false, out);
}

int
bench_file_read(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "file.read", false, false, out);
}

int
bench_gds_write(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "gds.write", true, false, out);
}

int
bench_gds_read(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "gds.read", false, false, out);
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
        fprintf(stderr, "kvtier-bench: forbid io_uring: %s\n", strerror(err));
    t->code = err ? CLI_ENVIRONMENT
                  : run(t->bench, "file.read.threads", false, false, t->out);
    return NULL;
}

/* Run the case in a new thread that forbids io_uring for itself and for the threads that the
 * thread starts. */
int
bench_file_read_threads(const struct bench *bench, struct bench_result *out)
{
    struct threads_only t = { .bench = bench, .out = out };
    pthread_t thread;
    int err = pthread_create(&thread, NULL, threads_only_main, &t);

    if (err) {
        fprintf(stderr, "kvtier-bench: start a thread: %s\n", strerror(err));
        return CLI_ENVIRONMENT;
    }
    pthread_join(thread, NULL);
    return t.code;
}

int
bench_file_cpu(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "file.cpu", false, true, out);
}

int
bench_file_retrieve(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "file.retrieve", false, true, out);
}

int
bench_store_file(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "engine.store_file", true, true, out);
}
