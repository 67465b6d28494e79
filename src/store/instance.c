/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories for the indexes of host memory: kvtier-<uid>/<engine>-<rank> in /dev/shm, a
 * directory for each worker.  A user of a directory holds a shared flock of the directory.  A
 * directory without a flock belongs to a killed engine, and the next worker that starts removes
 * the directory. */
#include "store/instance.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/private-dir.h"
#include "base/sha256.h"

#define MEMORY_DIR "/dev/shm"
#define TRIES 16

/* Open a directory: return a descriptor whose flock does not survive in a forked child, or
 * -errno. */
static int
open_dir(int dirfd, const char *name)
{
    return kvt__lock_file_open(dirfd, name, O_RDONLY | O_DIRECTORY, 0);
}

static void
name_of(const char *instance, uint32_t rank, char *out, size_t size)
{
    snprintf(out, size, "%016llx-%u", (unsigned long long)kvt__sha256_word(instance), rank);
}

/* Remove a directory and its files.  dirfd: the parent directory; fd: the directory. */
static void
remove_dir(int dirfd, const char *name, int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *e;

    while (d && (e = readdir(d)))
        unlinkat(fd, e->d_name, 0); /* fails for "." and ".." */
    if (d)
        closedir(d);
    unlinkat(dirfd, name, AT_REMOVEDIR);
}

/* Return true if the name has the form of name_of().  Other programs own the other directories. */
static bool
is_instance(const char *name)
{
    return strspn(name, "0123456789abcdef") == 16 && name[16] == '-';
}

/* Remove directories of ended engines: directories without a flock. */
static void
remove_stale(int base)
{
    int copy = fcntl(base, F_DUPFD_CLOEXEC, 0);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *e;

    if (!d)
        return;
    rewinddir(d);
    while ((e = readdir(d))) {
        int fd = is_instance(e->d_name) ? open_dir(base, e->d_name) : -1;

        if (fd < 0)
            continue;
        if (!flock(fd, LOCK_EX | LOCK_NB))
            remove_dir(base, e->d_name, fd);
        kvt__lock_file_close(fd);
    }
    closedir(d);
}

/* Open a directory and take a shared flock.  Create the directory if the directory does not exist
 * or another process removes the directory meanwhile.  Return the descriptor, or -errno. */
static int
open_locked(int base, const char *name)
{
    struct stat st;

    for (int i = 0; i < TRIES; i++) {
        if (mkdirat(base, name, 0700) < 0 && errno != EEXIST)
            return -errno;
        int fd = open_dir(base, name);
        if (fd < 0 && fd != -ENOENT)
            return fd;
        if (fd < 0)
            continue;
        if (!flock(fd, LOCK_SH) && !fstat(fd, &st) && st.st_nlink)
            return fd;
        kvt__lock_file_close(fd);
    }
    return -EAGAIN;
}

int
kvt__instance_open(const char *instance, uint32_t rank, bool worker,
                   struct kvt__instance *out)
{
    int base = kvt__private_dir_open(MEMORY_DIR);

    *out = (struct kvt__instance){ .dirfd = -1, .worker_fd = -1 };
    if (base < 0)
        return base;
    if (worker)
        remove_stale(base);
    name_of(instance, rank, out->name, sizeof out->name);
    out->dirfd = open_locked(base, out->name);
    close(base);
    if (out->dirfd < 0)
        return kvt__fail(-out->dirfd, "open %s in " MEMORY_DIR, out->name);
    if (!worker)
        return 0;
    out->worker_fd = kvt__lock_file_open(out->dirfd, "worker", O_RDWR | O_CREAT, 0600);
    if (out->worker_fd >= 0 && !flock(out->worker_fd, LOCK_EX | LOCK_NB))
        return 0;
    int err = out->worker_fd < 0
        ? kvt__fail(-out->worker_fd, "create the file worker in " MEMORY_DIR "/.../%s", out->name)
        : kvt__fail(EBUSY, "another process is worker %u of engine '%s'", rank, instance);
    kvt__instance_close(out);
    return err;
}

void
kvt__instance_close(struct kvt__instance *instance)
{
    int base;

    if (!instance->name[0])
        return;
    assert(instance->dirfd >= 0 || instance->worker_fd < 0);
    kvt__lock_file_close(instance->worker_fd);
    if (instance->dirfd >= 0) {
        base = flock(instance->dirfd, LOCK_EX | LOCK_NB)
            ? -1 : kvt__private_dir_open(MEMORY_DIR);
        if (base >= 0) {
            remove_dir(base, instance->name, instance->dirfd);
            close(base);
        }
        kvt__lock_file_close(instance->dirfd);
    }
    *instance = (struct kvt__instance){ .dirfd = -1, .worker_fd = -1 };
}
