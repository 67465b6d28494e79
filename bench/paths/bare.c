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
    const struct bench_bare *bare;
    bool write;
    atomic_size_t next;
    atomic_int err;
};

struct worker {
    pthread_t thread;
    struct run *run;
    unsigned char *buffer;
    struct bench_ring *ring; /* NULL: blocking calls */
};

static int
fail(const char *what, int err)
{
    fprintf(stderr, "kvtier-bench: bare loop: %s: %s\n", what, strerror(err));
    return CLI_ENVIRONMENT;
}

/* ------------------------------------------------------------------- one file */

static int
move(const struct bench_bare *bare, int fd, unsigned char *buffer, bool write)
{
    for (size_t at = 0; at < bare->file_bytes;) {
        size_t left = bare->file_bytes - at;
        size_t n = left < bare->piece ? left : bare->piece;
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
    const struct bench_bare *bare = w->run->bare;
    char name[32], temp[32];
    int flags = O_CLOEXEC | (bare->direct ? O_DIRECT : 0) |
                (write ? O_WRONLY | O_CREAT | O_EXCL : O_RDONLY);

    snprintf(name, sizeof name, "file-%zu", i);
    snprintf(temp, sizeof temp, "temp-%zu", i);
    int fd = openat(bare->dirfd, write ? temp : name, flags, 0600);
    if (fd < 0)
        return errno;
    int err = w->ring ? bench_ring_move(w->ring, bare, fd, w->buffer, write)
                      : move(bare, fd, w->buffer, write);
    if (close(fd) < 0 && !err)
        err = errno;
    if (!err && write && renameat(bare->dirfd, temp, bare->dirfd, name) < 0)
        err = errno;
    return err;
}

static void *
worker_main(void *arg)
{
    struct worker *w = arg;
    const struct bench_bare *bare = w->run->bare;
    size_t i;

    w->ring = bare->depth ? bench_ring_new(bare->depth) : NULL;
    if (bare->depth && !w->ring)
        atomic_store(&w->run->err, ENOSYS);
    while ((i = atomic_fetch_add(&w->run->next, 1)) < bare->n_files) {
        int err = run_file(w, i, w->run->write);
        if (err)
            atomic_store(&w->run->err, err);
    }
    bench_ring_free(w->ring);
    return NULL;
}

static int
run_all(struct bench_bare *bare, bool write, struct bench_cost *out)
{
    struct worker workers[MAX_THREADS];
    struct run run = { .bare = bare, .write = write };
    unsigned started = 0;
    int err = 0;

    bench_start(out);
    for (; !err && started < bare->n_threads; started += !err) {
        struct worker *w = &workers[started];

        w->run = &run;
        w->buffer = bare->buffers + started * bare->file_bytes;
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
bench_bare_open(struct bench_bare *bare, const char *dir, unsigned n_threads,
                size_t n_files, size_t file_bytes)
{
    size_t bytes = n_threads * file_bytes;

    *bare = (struct bench_bare){ .dirfd = -1, .n_threads = n_threads,
                                 .n_files = n_files, .file_bytes = file_bytes,
                                 .piece = file_bytes };
    if (n_threads > MAX_THREADS)
        return fail("threads", EINVAL);
    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        return fail(dir, errno);
    bare->dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (bare->dirfd < 0)
        return fail(dir, errno);
    bare->direct = direct_works(bare->dirfd);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return fail("memory", errno);
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0x5a, bytes);
    bare->buffers = memory;
    return 0;
}

void
bench_bare_clear(struct bench_bare *bare)
{
    for (size_t i = 0; i < bare->n_files; i++) {
        char name[32];

        snprintf(name, sizeof name, "file-%zu", i);
        unlinkat(bare->dirfd, name, 0);
        snprintf(name, sizeof name, "temp-%zu", i);
        unlinkat(bare->dirfd, name, 0);
    }
}

void
bench_bare_close(struct bench_bare *bare)
{
    if (bare->dirfd >= 0) {
        bench_bare_clear(bare);
        close(bare->dirfd);
    }
    if (bare->buffers)
        munmap(bare->buffers, bare->n_threads * bare->file_bytes);
}

int
bench_bare_write(struct bench_bare *bare, struct bench_cost *out)
{
    bench_bare_clear(bare);
    return run_all(bare, true, out);
}

int
bench_bare_read(struct bench_bare *bare, struct bench_cost *out)
{
    return run_all(bare, false, out);
}

int
bench_bare_tune(struct bench_bare *bare, bool write)
{
    static const struct {
        size_t piece;
        unsigned depth;
    } shapes[] = {
        { (size_t)1 << 20, 0 }, { (size_t)4 << 20, 0 }, { (size_t)32 << 20, 0 },
        { (size_t)1 << 20, 2 }, { (size_t)512 << 10, 8 },
    };
    enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_TRIES = 3 };
    struct bench_ring *ring = bench_ring_new(1);
    bool uring = ring;
    double least = 0;
    size_t best = 0;
    struct bench_cost cost;

    bench_ring_free(ring);
    for (size_t i = 0; i < N_SHAPES * N_TRIES; i++) {
        bare->piece = shapes[i % N_SHAPES].piece;
        bare->depth = shapes[i % N_SHAPES].depth;
        if (bare->depth && !uring)
            continue;
        if (bench_interrupted())
            return CLI_ENVIRONMENT;
        int code = write ? bench_bare_write(bare, &cost) : bench_bare_read(bare, &cost);
        if (code)
            return code;
        if (!i || cost.seconds < least) {
            least = cost.seconds;
            best = i % N_SHAPES;
        }
    }
    bare->piece = shapes[best].piece;
    bare->depth = shapes[best].depth;
    return 0;
}
