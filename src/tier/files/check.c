/* SPDX-License-Identifier: Apache-2.0
 *
 * The checks of kvtier doctor for directories: free space, O_DIRECT, io_uring, locks and renames,
 * and the speed of a write and a read.  The calls block while a file system does not respond. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "tier/files/files.h"

#define TEST_BYTES ((size_t)64 << 20)
#define MIN_FREE_BYTES ((uint64_t)1 << 30) /* with less free space, no large file is written */
#define SMALL_BYTES ((size_t)1 << 20)
#define GIB ((double)(UINT64_C(1) << 30))

struct check {
    struct kvt__files *files;
    const struct kvt__dir *dir;
    struct kvt__reporter to;
    unsigned char *memory; /* TEST_BYTES, aligned */
    size_t bytes;          /* size of the test file */
    char name[96];         /* of the test file in .kvtier/tmp */
};

static void
check_space(struct check *c, double limit_gib)
{
    struct statvfs fs;
    char inodes[64] = "";

    if (fstatvfs(c->dir->fd, &fs)) {
        kvt__report(&c->to, "space", -errno, "%s", strerror(errno));
        return;
    }
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    uint64_t all_bytes = (uint64_t)fs.f_blocks * fs.f_frsize;

    c->bytes = free_bytes < MIN_FREE_BYTES ? SMALL_BYTES : TEST_BYTES;
    if (fs.f_files)
        snprintf(inodes, sizeof inodes, ", %llu inodes free", (unsigned long long)fs.f_favail);
    if (fs.f_files && !fs.f_favail)
        kvt__report(&c->to, "space", -ENOSPC, "the file system has no free inode, and each chunk "
                    "is a file");
    else if (limit_gib > (double)all_bytes / GIB)
        kvt__report(&c->to, "space", -ENOSPC, "the limit of %.1f GiB is larger than the file "
                    "system, which has %.1f GiB; lower the limit", limit_gib,
                    (double)all_bytes / GIB);
    else
        kvt__report(&c->to, "space", 0, "%.1f of %.1f GiB free%s", (double)free_bytes / GIB,
                    (double)all_bytes / GIB, inodes);
}

/* Write the test file.  Return its descriptor, which has the lock, or -errno; the name is "" if
 * no file exists. */
static int
write_file(struct check *c, double *seconds)
{
    int fd = kvt__temp_create(c->files, c->dir, c->dir->direct, c->name, sizeof c->name);

    if (fd < 0) {
        c->name[0] = '\0';
        return fd;
    }
    int64_t begin = kvt__now_ns();
    int err = kvt__posix_write(fd, c->memory, c->bytes, 0);

    *seconds = (double)(kvt__now_ns() - begin) / 1e9;
    if (err)
        close(fd);
    return err ? err : fd;
}

static void
check_lock(const struct check *c, int reader)
{
    bool excludes = flock(reader, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;

    kvt__report(&c->to, "locks", 0, excludes ? "flock() works" : "flock() does not exclude other "
                "processes; kvtier deletes the temporary files of killed processes after an hour");
}

/* Read the test file.  0 or -errno. */
static int
read_file(struct check *c, int reader, double *seconds, bool *has_uring)
{
    struct kvt__file_extent e = { .fd = reader, .at = c->memory, .bytes = c->bytes,
                                  .direct = c->dir->direct };
    int64_t begin = kvt__now_ns();
    int err = kvt__uring_read_extent(&e, NULL);

    *has_uring = !err;
    if (err == -ENOSYS) {
        begin = kvt__now_ns();
        err = kvt__posix_read_extent(&e, NULL);
    }
    *seconds = (double)(kvt__now_ns() - begin) / 1e9;
    return err;
}

static void
check_rename(struct check *c)
{
    char name[128];

    snprintf(name, sizeof name, "doctor-%s", c->name);
    if (renameat(c->dir->temp_fd, c->name, c->dir->private_fd, name)) {
        kvt__report(&c->to, "rename", -errno, "a file cannot be renamed into another directory: %s",
                    strerror(errno));
        return;
    }
    c->name[0] = '\0';
    unlinkat(c->dir->private_fd, name, 0);
}

static void
check_transfers(struct check *c)
{
    double written_s = 0, read_s = 0;
    bool has_uring = false;

    kvt__report(&c->to, "files", 1, "the file system does not respond");
    int fd = write_file(c, &written_s);
    int err = fd < 0 ? fd : 0;
    int reader = err ? -1 : openat(c->dir->temp_fd, c->name, O_RDWR | O_CLOEXEC |
                                   (c->dir->direct ? O_DIRECT : 0));
    if (!err && reader < 0)
        err = -errno;
    if (!err) {
        check_lock(c, reader);
        err = read_file(c, reader, &read_s, &has_uring);
    }
    if (err)
        kvt__report(&c->to, "files", err, "a file of %zu MiB was not written and read: %s",
                    c->bytes >> 20, strerror(-err));
    else
        kvt__report(&c->to, "files", 0, "%s, %s; one write %.2f GB/s, one read %.2f GB/s",
                    c->dir->direct ? "O_DIRECT works"
                                   : "no O_DIRECT, so that the page cache holds the chunks too",
                    has_uring ? "io_uring works" : "no io_uring, so that reads use blocking calls",
                    (double)c->bytes / 1e9 / written_s, (double)c->bytes / 1e9 / read_s);
    if (reader >= 0)
        close(reader);
    if (!err)
        check_rename(c);
    if (c->name[0])
        unlinkat(c->dir->temp_fd, c->name, 0);
    if (fd >= 0)
        close(fd);
}

void
kvt__files_check(const struct kvt__tier_ops *ops, const struct kvt__tier_params *params,
                 double limit_gib, const struct kvt__reporter *to)
{
    struct check c = { .to = *to };
    struct kvt__tier *tier;

    c.to.kind = ops->name;
    kvt__report(&c.to, "directory", 1, "the file system of the directories does not respond");
    int err = ops->open(params, &tier);
    if (err) {
        kvt__report(&c.to, "directory", err, "%s", kvt__why());
        return;
    }
    c.files = (struct kvt__files *)tier;
    c.memory = aligned_alloc(KVT__DIRECT_ALIGN, TEST_BYTES);
    if (c.memory)
        memset(c.memory, 0x5a, TEST_BYTES);
    for (size_t i = 0; c.memory && i < c.files->n_dirs; i++) {
        c.dir = &c.files->dirs[i];
        c.to.path = c.dir->path;
        check_space(&c, limit_gib);
        check_transfers(&c);
    }
    free(c.memory);
    ops->close(tier);
}
