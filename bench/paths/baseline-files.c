/* SPDX-License-Identifier: Apache-2.0
 *
 * The baseline loop over files: write and read files without kvtier, with blocking calls or
 * with io_uring. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "cli.h"

#define MAX_THREADS 64

struct run {
    const struct bench_baseline *baseline;
    bool write;
    atomic_size_t next;
    atomic_int err;
};

struct worker {
    pthread_t thread;
    struct run *run;
    unsigned char *buffer;
    struct bench_uring *ring; /* NULL: blocking calls */
};

static int
fail(const char *what, int err)
{
    fprintf(stderr, "kvtier-bench: baseline loop: %s: %s\n", what, strerror(err));
    return CLI_ENVIRONMENT;
}

/* ------------------------------------------------------------------- one file */

static int
move(const struct bench_baseline *baseline, int fd, unsigned char *buffer, bool write)
{
    for (size_t at = 0; at < baseline->file_bytes;) {
        size_t left = baseline->file_bytes - at;
        size_t n = left < baseline->piece ? left : baseline->piece;
        ssize_t got = write ? pwrite(fd, buffer + at, n, (off_t)at)
                            : pread(fd, buffer + at, n, (off_t)at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got ? errno : EIO;
        at += (size_t)got;
    }
    return 0;
}

static int
run_file(const struct worker *w, size_t i, bool write)
{
    const struct bench_baseline *baseline = w->run->baseline;
    char name[32], temp[32];
    int flags = O_CLOEXEC | (baseline->direct ? O_DIRECT : 0) |
                (write ? O_WRONLY | O_CREAT | O_EXCL : O_RDONLY);

    snprintf(name, sizeof name, "file-%zu", i);
    snprintf(temp, sizeof temp, "temp-%zu", i);
    int fd = openat(baseline->dirfd, write ? temp : name, flags, 0600);
    if (fd < 0)
        return errno;
    int err = w->ring ? bench_uring_move(w->ring, baseline, fd, w->buffer, write)
                      : move(baseline, fd, w->buffer, write);
    if (close(fd) < 0 && !err)
        err = errno;
    if (!err && write && renameat(baseline->dirfd, temp, baseline->dirfd, name) < 0)
        err = errno;
    return err;
}

static void *
worker_main(void *arg)
{
    struct worker *w = arg;
    const struct bench_baseline *baseline = w->run->baseline;
    size_t i;

    w->ring = baseline->depth ? bench_uring_new(baseline->depth) : NULL;
    if (baseline->depth && !w->ring)
        atomic_store(&w->run->err, ENOSYS);
    while ((i = atomic_fetch_add(&w->run->next, 1)) < baseline->n_files) {
        int err = run_file(w, i, w->run->write);
        if (err)
            atomic_store(&w->run->err, err);
    }
    bench_uring_free(w->ring);
    return NULL;
}

static int
run_all(struct bench_baseline *baseline, bool write, struct bench_cost *out)
{
    struct worker workers[MAX_THREADS];
    struct run run = { .baseline = baseline, .write = write };
    unsigned started = 0;
    int err = 0;

    bench_start(out);
    for (; !err && started < baseline->n_threads; started += !err) {
        struct worker *w = &workers[started];

        w->run = &run;
        w->buffer = baseline->buffers + started * baseline->file_bytes;
        err = pthread_create(&w->thread, NULL, worker_main, w);
    }
    for (unsigned i = 0; i < started; i++)
        pthread_join(workers[i].thread, NULL);
    bench_stop(out);
    if (!err)
        err = atomic_load(&run.err);
    return err ? fail(write ? "write" : "read", err) : 0;
}

/* ------------------------------------------------------------------ all files */

static bool
direct_works(int dirfd)
{
    int fd = openat(dirfd, "probe", O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);

    unlinkat(dirfd, "probe", 0);
    return fd >= 0 && !close(fd);
}

int
bench_baseline_open(struct bench_baseline *baseline, const char *dir, unsigned n_threads,
                size_t n_files, size_t file_bytes)
{
    size_t bytes = n_threads * file_bytes;

    *baseline = (struct bench_baseline){ .dirfd = -1, .n_threads = n_threads,
                                 .n_files = n_files, .file_bytes = file_bytes,
                                 .piece = file_bytes };
    if (n_threads > MAX_THREADS)
        return fail("threads", EINVAL);
    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        return fail(dir, errno);
    baseline->dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (baseline->dirfd < 0)
        return fail(dir, errno);
    baseline->direct = direct_works(baseline->dirfd);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return fail("memory", errno);
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0x5a, bytes);
    baseline->buffers = memory;
    return 0;
}

void
bench_baseline_clear(struct bench_baseline *baseline)
{
    for (size_t i = 0; i < baseline->n_files; i++) {
        char name[32];

        snprintf(name, sizeof name, "file-%zu", i);
        unlinkat(baseline->dirfd, name, 0);
        snprintf(name, sizeof name, "temp-%zu", i);
        unlinkat(baseline->dirfd, name, 0);
    }
}

void
bench_baseline_close(struct bench_baseline *baseline)
{
    if (baseline->dirfd >= 0) {
        bench_baseline_clear(baseline);
        close(baseline->dirfd);
    }
    if (baseline->buffers)
        munmap(baseline->buffers, baseline->n_threads * baseline->file_bytes);
}

int
bench_baseline_write(struct bench_baseline *baseline, struct bench_cost *out)
{
    bench_baseline_clear(baseline);
    return run_all(baseline, true, out);
}

int
bench_baseline_read(struct bench_baseline *baseline, struct bench_cost *out)
{
    return run_all(baseline, false, out);
}

int
bench_baseline_tune(struct bench_baseline *baseline, bool write)
{
    static const struct {
        size_t piece;
        unsigned depth;
    } shapes[] = {
        { (size_t)1 << 20, 0 }, { (size_t)4 << 20, 0 }, { (size_t)32 << 20, 0 },
        { (size_t)1 << 20, 2 }, { (size_t)512 << 10, 8 },
    };
    enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_TRIES = 3 };
    struct bench_uring *ring = bench_uring_new(1);
    bool uring = ring;
    double least = 0;
    size_t best = 0;
    struct bench_cost cost;

    bench_uring_free(ring);
    for (size_t i = 0; i < N_SHAPES * N_TRIES; i++) {
        baseline->piece = shapes[i % N_SHAPES].piece;
        baseline->depth = shapes[i % N_SHAPES].depth;
        if (baseline->depth && !uring)
            continue;
        if (bench_interrupted())
            return CLI_ENVIRONMENT;
        int code = write ? bench_baseline_write(baseline, &cost)
                         : bench_baseline_read(baseline, &cost);
        if (code)
            return code;
        if (!i || cost.seconds < least) {
            least = cost.seconds;
            best = i % N_SHAPES;
        }
    }
    baseline->piece = shapes[best].piece;
    baseline->depth = shapes[best].depth;
    return 0;
}
