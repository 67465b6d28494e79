/* SPDX-License-Identifier: Apache-2.0
 *
 * Temporary files.  The name contains the host, the process and a number.  The writer holds a
 * flock of the file: if a file of this host has no flock, the writer is dead. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "tier/files/files.h"

#define FOREIGN_AGE_S 3600

/* Return a number that differs between the hosts that share a directory. */
static uint32_t
host_tag(void)
{
    char text[256] = "";
    int fd = open("/etc/machine-id", O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        if (read(fd, text, sizeof text - 1) < 0)
            text[0] = '\0';
        close(fd);
    }
    if (!text[0])
        gethostname(text, sizeof text - 1);
    return kvt__crc32c(0, text, strlen(text));
}

int
kvt__temp_init(struct kvt__files *t)
{
    uint64_t random;

    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return kvt__fail(errno, "random number for temporary names");
    snprintf(t->temp_prefix, sizeof t->temp_prefix, "%08" PRIx32 "-%ld-%016" PRIx64,
             host_tag(), (long)getpid(), random);
    return 0;
}

/* Lock a new file.  Return false if another process locked or deleted the file meanwhile. */
static bool
hold(int fd)
{
    struct stat st;

    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno != EWOULDBLOCK; /* without flock, is_left_over() uses the age of the file */
    return fstat(fd, &st) < 0 || st.st_nlink;
}

int
kvt__temp_create(struct kvt__files *t, const struct kvt__dir *dir, bool direct,
                 char *name, size_t size)
{
    assert(*t->temp_prefix && dir->temp_fd >= 0);
    for (int i = 0; i < 8; i++) {
        uint64_t n = atomic_fetch_add(&t->temp_count, 1);

        snprintf(name, size, "%s-%" PRIu64, t->temp_prefix, n);
        int fd = openat(dir->temp_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC |
                        (direct ? O_DIRECT : 0), 0600);
        if (fd < 0)
            return -errno;
        if (dir->mode != 0700 && fchmod(fd, dir->mode & 0666) < 0) {
            int err = -errno;

            unlinkat(dir->temp_fd, name, 0);
            close(fd);
            return err;
        }
        if (hold(fd))
            return fd;
        close(fd);
    }
    return -EAGAIN;
}

/* Return true if no process writes the file any more.  For a file of this host the flock decides.
 * If flock is not supported, and for a file of another host, the age decides. */
static bool
is_left_over(int fd, const char *name)
{
    uint32_t host;
    struct stat st;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return false;
    if (sscanf(name, "%8" SCNx32 "-", &host) == 1 && host == host_tag()) {
        if (!flock(fd, LOCK_EX | LOCK_NB))
            return true;
        if (errno == EWOULDBLOCK)
            return false;
    }
    return time(NULL) - st.st_mtime > FOREIGN_AGE_S;
}

/* Delete a file if no process writes the file.  This function holds the flock until the deletion,
 * so kvt__temp_create() of another process notices the deletion. */
static void
remove_left_over(int dirfd, const char *name)
{
    /* On NFS an exclusive flock needs a writable descriptor. */
    int fd = openat(dirfd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0)
        return;
    if (is_left_over(fd, name))
        unlinkat(dirfd, name, 0);
    close(fd);
}

void
kvt__temp_clean(const struct kvt__dir *dir)
{
    int fd = openat(dir->temp_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;

    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((e = readdir(d)))
        if (e->d_name[0] != '.')
            remove_left_over(dir->temp_fd, e->d_name);
    closedir(d);
}
