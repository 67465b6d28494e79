/* SPDX-License-Identifier: Apache-2.0
 *
 * The case hf3fs.rate: read from a 3FS that limits each I/O to 100 MiB/s, independent of other
 * I/Os in flight.
 *
 * The baseline is the pattern of LMCache's connector, which submits no batches: each of four
 * threads has shared memory and a ring, keeps one I/O of a whole file in flight, and copies the
 * chunk out of the shared memory.  Both sides read the same files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf3fs.h"
#include "storage.h"
#include "cli.h"

#define RATE 104857600u
#define IOV_BYTES 209715200u /* default of hf3fs_iov_size */
#define N_THREADS 4          /* LMCache's default */
#define ENTRIES 256
#define MAX_OVERHEAD 8192 /* maximum bytes of a file beyond the chunk's bytes */

struct rig;

struct worker {
    struct rig *rig;
    pthread_t thread;
    struct kvt__hf3fs_iov iov;
    struct kvt__hf3fs_ior ring;
};

struct rig {
    struct bench_hf3fs_mount mount;
    struct bench_storage t;
    int dirfd;
    char (*files)[256]; /* names of the files that kvtier stored */
    struct bench_index_dir index;
    struct worker workers[N_THREADS];
    atomic_size_t next;
    atomic_int err;
    size_t n_counted;
    double in_flight[BENCH_ROUNDS + 1], bytes_in_flight[BENCH_ROUNDS + 1];
};

/* --------------------------------------------------------------- LMCache's pattern */

/* Read a whole file with one I/O and copy the chunk to `to`.  Return 0 or an errno. */
static int
read_file(struct worker *w, int fd, unsigned char *to)
{
    const struct kvt__usrbio_api *api = w->rig->mount.api;
    struct kvt__hf3fs_cqe cqe;
    struct stat st;

    if (fstat(fd, &st))
        return errno;
    size_t bytes = (size_t)st.st_size;
    if (bytes > w->iov.size)
        return EFBIG;
    int n = api->prep_io(&w->ring, &w->iov, true, w->iov.base, fd, 0, bytes, NULL);

    if (n >= 0)
        n = api->submit_ios(&w->ring);
    if (n >= 0)
        n = bench_hf3fs_wait(api, &w->ring, &cqe, 1);
    if (n < 0)
        return -n;
    if (cqe.result != (int64_t)bytes)
        return cqe.result < 0 ? (int)-cqe.result : EIO;
    memcpy(to, w->iov.base, w->rig->t.b.chunk_bytes);
    return 0;
}

/* Open and read file i.  Return 0 or an errno. */
static int
load_file(struct worker *w, size_t i)
{
    struct rig *r = w->rig;
    int fd = openat(r->dirfd, r->files[i], O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return errno;
    int err = r->mount.api->reg_fd(fd, 0);
    if (err <= 0) {
        err = read_file(w, fd, r->t.b.copy + i * r->t.b.chunk_bytes);
        r->mount.api->dereg_fd(fd);
    }
    close(fd);
    return err;
}

static void *
worker_main(void *arg)
{
    struct worker *w = arg;
    size_t i;

    while ((i = atomic_fetch_add(&w->rig->next, 1)) < w->rig->t.b.n) {
        int err = load_file(w, i);
        if (err)
            atomic_store(&w->rig->err, err);
    }
    return NULL;
}

static int
step_pattern(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;
    unsigned started = 0;
    int err = 0;

    atomic_store(&r->next, 0);
    bench_start(out);
    for (; !err && started < N_THREADS; started += !err)
        err = pthread_create(&r->workers[started].thread, NULL, worker_main,
                             &r->workers[started]);
    for (unsigned i = 0; i < started; i++)
        pthread_join(r->workers[i].thread, NULL);
    bench_stop(out);
    if (!err)
        err = atomic_load(&r->err);
    if (!err)
        return 0;
    fprintf(stderr, "kvtier-bench: LMCache's pattern: %s\n", strerror(err));
    return CLI_ENVIRONMENT;
}

/* Create the shared memory and the rings of all workers in the main thread: the daemon releases
 * the resources of a thread when the thread ends. */
static int
open_workers(struct rig *r)
{
    int code = 0;

    for (size_t i = 0; !code && i < N_THREADS; i++) {
        struct worker *w = &r->workers[i];

        w->rig = r;
        code = bench_hf3fs_memory(&r->mount, r->t.b.chunk_bytes + MAX_OVERHEAD, &w->iov);
        if (!code && r->mount.api->iorcreate4(&w->ring, r->mount.point, ENTRIES, true, 0, 0,
                                              -1, 0)) {
            fprintf(stderr, "kvtier-bench: LMCache's pattern: make a ring\n");
            code = CLI_ENVIRONMENT;
        }
    }
    return code;
}

/* ------------------------------------------------------------------------- kvtier */

static int
step_load(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;
    int code = bench_hf3fs_reset_stats(&r->mount);
    size_t i = r->n_counted++ % (BENCH_ROUNDS + 1);

    if (!code)
        code = bench_storage_load(&r->t, out);
    return code ? code : bench_hf3fs_read_stats(&r->mount, &r->in_flight[i],
                                            &r->bytes_in_flight[i]);
}

/* ----------------------------------------------------------------------- the case */

static int
find_files(struct rig *r)
{
    DIR *dir = opendir(r->mount.dir);
    struct dirent *entry;
    size_t n = 0;

    r->dirfd = open(r->mount.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    r->files = calloc(r->t.b.n, sizeof *r->files);
    while (dir && r->files && (entry = readdir(dir))) {
        const char *dot = strrchr(entry->d_name, '.');

        if (dot && !strcmp(dot, ".data") && n < r->t.b.n)
            snprintf(r->files[n++], sizeof *r->files, "%s", entry->d_name);
    }
    if (dir)
        closedir(dir);
    if (r->dirfd >= 0 && n == r->t.b.n)
        return 0;
    fprintf(stderr, "kvtier-bench: %s has %zu of %zu files\n", r->mount.dir, n, r->t.b.n);
    return CLI_ENVIRONMENT;
}

static int
rig_open(struct rig *r, const struct bench *bench)
{
    size_t n = bench->quick ? 2 : 32, chunk_bytes = (size_t)(bench->quick ? 1 : 32) << 20;
    const struct bench_hf3fs_mount_params params = {
        .rate = RATE, .shm_bytes = IOV_BYTES + N_THREADS * (chunk_bytes + MAX_OVERHEAD) };
    struct bench_hf3fs_settings settings;

    *r = (struct rig){ .dirfd = -1 };
    int code = bench_hf3fs_mount_open(bench, &params, &r->mount);
    if (code)
        return code;
    bench_hf3fs_settings(&r->mount, IOV_BYTES, &settings);
    code = bench_storage_open(&r->t, NULL, settings.list, bench->quick, n);
    bench_index_dir_find(&r->index);
    if (!code)
        code = open_workers(r);
    if (!code)
        code = bench_storage_fill(&r->t);
    return code ? code : find_files(r);
}

static void
rig_close(struct rig *r)
{
    for (size_t i = 0; i < N_THREADS; i++) {
        if (r->workers[i].ring.iov.base)
            r->mount.api->iordestroy(&r->workers[i].ring);
        if (r->workers[i].iov.base)
            r->mount.api->iovdestroy(&r->workers[i].iov);
    }
    if (r->dirfd >= 0)
        close(r->dirfd);
    free(r->files);
    bench_storage_close(&r->t);
    bench_hf3fs_mount_close(&r->mount);
    bench_index_dir_remove(&r->index);
}

static void
figures(struct rig *r, const struct bench_cost *costs, struct bench_result *out)
{
    size_t n = r->t.b.n_rounds;
    double used[BENCH_ROUNDS], cpu[BENCH_ROUNDS];

    bench_chunks_fill_result(&r->t.b, costs, costs + n, out);
    for (size_t i = 0; i < n; i++) {
        used[i] = r->bytes_in_flight[i + 1] / IOV_BYTES; /* the first load is a warm-up */
        cpu[i] = costs[i].cpu / ((double)r->t.b.bytes * 1e-9);
    }
    out->threads = N_THREADS;
    bench_add_figure(out, "chunks", (double)r->t.b.n);
    bench_add_figure(out, "rate", RATE);
    bench_add_figure(out, "iov_bytes", IOV_BYTES);
    bench_add_figure(out, "mean_in_flight", bench_median(r->in_flight + 1, n));
    bench_add_figure(out, "iov_used", bench_median(used, n));
    bench_add_figure(out, "cpu_s_per_gb", bench_median(cpu, n));
}

int
bench_hf3fs_rate(const struct bench *bench, struct bench_result *out)
{
    static const bench_step_fn steps[] = { step_load, step_pattern };
    struct bench_cost costs[2 * BENCH_ROUNDS];
    struct rig r;
    int code = rig_open(&r, bench);

    for (size_t i = 0; !code && i < 2; i++)
        code = steps[i](&r, costs);
    if (!code)
        code = bench_alternate("hf3fs.rate", r.t.b.n_rounds, steps, 2, &r, costs);
    if (!code)
        figures(&r, costs, out);
    rig_close(&r);
    return code;
}
