/* SPDX-License-Identifier: Apache-2.0
 *
 * The baseline loop over 3FS's rings: write and read files in 3FS without kvtier. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf3fs.h"
#include "cli.h"

#define ENTRIES 1024
#define MAX_CQES 64

struct bench_rings_file {
    int fd;
    size_t left; /* bytes that are not complete */
};

struct run {
    struct bench_rings *r;
    bool write;
    size_t n_done; /* files that are complete */
};

static int
fail(const char *what, int err)
{
    fprintf(stderr, "kvtier-bench: baseline loop over rings: %s: %s\n", what, strerror(err));
    return CLI_ENVIRONMENT;
}

static void
name_of(char out[32], size_t i, bool temporary)
{
    snprintf(out, 32, "%s-%zu", temporary ? "temp" : "file", i);
}

/* ------------------------------------------------------------------- one run */

/* The functions of this part return 0 or a negative errno. */

static int
finish_file(struct run *run, struct bench_rings_file *f)
{
    struct bench_rings *r = run->r;
    size_t i = (size_t)(f - r->files);
    char name[32], temp[32];
    int fd = f->fd;

    name_of(name, i, false);
    name_of(temp, i, true);
    r->mount->api->dereg_fd(fd);
    f->fd = -1;
    if (close(fd) < 0)
        return -errno;
    if (run->write && renameat(r->dirfd, temp, r->dirfd, name) < 0)
        return -errno;
    run->n_done++;
    return 0;
}

static int
process_completions(struct run *run)
{
    struct kvt__hf3fs_cqe cqes[MAX_CQES];
    struct bench_rings *r = run->r;
    int n = bench_hf3fs_wait(r->mount->api, &r->ring, cqes, MAX_CQES);
    int err = n < 0 ? n : 0;

    for (int i = 0; !err && i < n; i++) {
        size_t number = (size_t)(uintptr_t)cqes[i].userdata;
        struct bench_rings_file *f = &r->files[number % r->n_files];
        size_t at = number / r->n_files * r->piece;
        size_t bytes = r->file_bytes - at < r->piece ? r->file_bytes - at : r->piece;

        if (cqes[i].result != (int64_t)bytes)
            return cqes[i].result < 0 ? (int)cqes[i].result : -EIO;
        f->left -= bytes;
        if (!f->left)
            err = finish_file(run, f);
    }
    return err;
}

/* Queue the I/Os of a whole file and submit them with one call.  If the ring is full, submit and
 * process completions. */
static int
submit_file(struct run *run, size_t i)
{
    struct bench_rings *r = run->r;
    const struct kvt__usrbio_api *api = r->mount->api;
    int err = 0;

    for (size_t at = 0, k = 0; !err && at < r->file_bytes; at += r->piece, k++) {
        size_t left = r->file_bytes - at;
        const void *userdata = (const void *)(uintptr_t)(k * r->n_files + i);
        int slot;

        while ((slot = api->prep_io(&r->ring, &r->iov, !run->write,
                                    r->iov.base + i * r->file_bytes + at,
                                    r->files[i].fd, at, left < r->piece ? left : r->piece,
                                    userdata)) == -EAGAIN && !err) {
            api->submit_ios(&r->ring);
            err = process_completions(run);
        }
        if (!err && slot < 0)
            err = slot;
    }
    return err ? err : api->submit_ios(&r->ring);
}

static int
start_file(struct run *run, size_t i)
{
    struct bench_rings *r = run->r;
    char name[32];

    name_of(name, i, run->write);
    int fd = openat(r->dirfd, name, run->write ? O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC
                                               : O_RDONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    r->files[i] = (struct bench_rings_file){ .fd = fd, .left = r->file_bytes };
    int err = r->mount->api->reg_fd(fd, 0);
    return err > 0 ? -err : submit_file(run, i);
}

static int
open_ring(struct bench_rings *r, bool write)
{
    if (r->ring.iov.base && r->ring.io_depth == r->depth && r->ring.for_read == !write)
        return 0;
    if (r->ring.iov.base)
        r->mount->api->iordestroy(&r->ring);
    r->ring = (struct kvt__hf3fs_ior){ 0 };
    return r->mount->api->iorcreate4(&r->ring, r->mount->point, ENTRIES, !write, r->depth,
                                     0, -1, 0);
}

static int
run_all(struct bench_rings *r, bool write, struct bench_cost *out)
{
    struct run run = { .r = r, .write = write };
    int err = open_ring(r, write);

    if (err)
        return fail("make a ring", -err);
    bench_start(out);
    for (size_t i = 0; !err && i < r->n_files; i++)
        err = start_file(&run, i);
    while (!err && run.n_done < r->n_files)
        err = process_completions(&run);
    bench_stop(out);
    return err ? fail(write ? "write" : "read", -err) : 0;
}

/* ------------------------------------------------------------------ all files */

int
bench_rings_open(struct bench_rings *r, const struct bench_hf3fs_mount *mount, size_t n_files,
                 size_t file_bytes)
{
    char dir[4200];

    *r = (struct bench_rings){ .mount = mount, .dirfd = -1, .n_files = n_files,
                               .file_bytes = file_bytes, .piece = (size_t)1 << 20,
                               .depth = -1, .files = calloc(n_files, sizeof *r->files) };
    for (size_t i = 0; r->files && i < n_files; i++)
        r->files[i].fd = -1;
    snprintf(dir, sizeof dir, "%s/baseline", mount->dir);
    if (!r->files || (mkdir(dir, 0700) < 0 && errno != EEXIST))
        return fail(dir, r->files ? errno : ENOMEM);
    r->dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->dirfd < 0)
        return fail(dir, errno);
    return bench_hf3fs_memory(mount, n_files * file_bytes, &r->iov);
}

static void
clear(struct bench_rings *r)
{
    for (size_t i = 0; i < r->n_files; i++) {
        char name[32];

        name_of(name, i, false);
        unlinkat(r->dirfd, name, 0);
        name_of(name, i, true);
        unlinkat(r->dirfd, name, 0);
    }
}

/* After an error some files may still be open. */
void
bench_rings_close(struct bench_rings *r)
{
    for (size_t i = 0; r->files && i < r->n_files; i++) {
        if (r->files[i].fd < 0)
            continue;
        r->mount->api->dereg_fd(r->files[i].fd);
        close(r->files[i].fd);
    }
    if (r->ring.iov.base)
        r->mount->api->iordestroy(&r->ring);
    if (r->iov.base)
        r->mount->api->iovdestroy(&r->iov);
    if (r->dirfd >= 0) {
        clear(r);
        close(r->dirfd);
    }
    free(r->files);
}

int
bench_rings_write(struct bench_rings *r, struct bench_cost *out)
{
    clear(r);
    return run_all(r, true, out);
}

int
bench_rings_read(struct bench_rings *r, struct bench_cost *out)
{
    return run_all(r, false, out);
}

int
bench_rings_tune(struct bench_rings *r, bool write)
{
    static const struct {
        size_t piece;
        int depth;
    } shapes[] = {
        { (size_t)1 << 20, -1 }, { (size_t)4 << 20, -1 }, { (size_t)8 << 20, -1 },
        { (size_t)512 << 10, -8 }, { (size_t)1 << 20, -8 }, { (size_t)32 << 20, -1 },
    };
    enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_TRIES = 3 };
    struct bench_cost cost;
    double least = 0;
    size_t best = 0;

    for (size_t i = 0; i < N_SHAPES * N_TRIES; i++) {
        if (bench_interrupted())
            return CLI_ENVIRONMENT;
        r->piece = shapes[i % N_SHAPES].piece;
        r->depth = shapes[i % N_SHAPES].depth;
        int code = write ? bench_rings_write(r, &cost) : bench_rings_read(r, &cost);
        if (code)
            return code;
        if (!i || cost.seconds < least) {
            least = cost.seconds;
            best = i % N_SHAPES;
        }
    }
    r->piece = shapes[best].piece;
    r->depth = shapes[best].depth;
    return 0;
}
