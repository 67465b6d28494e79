/* SPDX-License-Identifier: Apache-2.0
 *
 * Registered files: a table from a descriptor to the inode for I/Os.  A duplicate of the
 * descriptor stays open, so the daemon keeps the inode.  Any thread; the lock is held for a few
 * instructions. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "usrbio/own.h"

#define N_CHAINS 256u

struct registered {
    struct kvt__own_file file;
    uint32_t dev_major, dev_minor;
    int fd, copy;
    struct registered *next_by_fd, *next_by_copy;
};

static struct {
    pthread_mutex_t lock;
    struct registered *by_fd[N_CHAINS], *by_copy[N_CHAINS];
} files = { .lock = PTHREAD_MUTEX_INITIALIZER };

bool
kvt__own_is_hf3fs(int fd)
{
    uint32_t magic = 0;

    return !ioctl(fd, KVT__HF3FS_GET_MAGIC, &magic) && magic == KVT__HF3FS_SUPER_MAGIC;
}

static struct registered *
find_by_fd(int fd)
{
    struct registered *r = files.by_fd[(unsigned)fd % N_CHAINS];

    while (r && r->fd != fd)
        r = r->next_by_fd;
    return r;
}

static struct registered *
find_by_copy(int copy)
{
    struct registered *r = files.by_copy[(unsigned)copy % N_CHAINS];

    while (r && r->copy != copy)
        r = r->next_by_copy;
    return r;
}

static void
remove_entry(struct registered *r)
{
    struct registered **at = &files.by_fd[(unsigned)r->fd % N_CHAINS];

    while (*at != r)
        at = &(*at)->next_by_fd;
    *at = r->next_by_fd;
    at = &files.by_copy[(unsigned)r->copy % N_CHAINS];
    while (*at != r)
        at = &(*at)->next_by_copy;
    *at = r->next_by_copy;
}

static void
insert_entry(struct registered *r)
{
    struct registered **fd = &files.by_fd[(unsigned)r->fd % N_CHAINS];
    struct registered **copy = &files.by_copy[(unsigned)r->copy % N_CHAINS];

    r->next_by_fd = *fd;
    *fd = r;
    r->next_by_copy = *copy;
    *copy = r;
}

/* Fill in the properties of an open file for I/Os and for is_same_file().  Return 0 or a positive
 * errno. */
static int
fill_entry(int fd, struct registered *r)
{
    struct statx stx;
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &stx))
        return errno;
    r->fd = fd;
    r->file = (struct kvt__own_file){ stx.stx_ino, flags & O_ACCMODE };
    r->dev_major = stx.stx_dev_major;
    r->dev_minor = stx.stx_dev_minor;
    return 0;
}

/* Return true if both entries are the same file with the same access. */
static bool
is_same_file(const struct registered *a, const struct registered *b)
{
    return a->file.inode == b->file.inode && a->file.access == b->file.access &&
           a->dev_major == b->dev_major && a->dev_minor == b->dev_minor;
}

/* Remove the entries whose descriptors now belong to r: such descriptors were closed without
 * deregistration.  Return the entries, linked by next_by_fd.  The caller holds files.lock. */
static struct registered *
remove_stale(const struct registered *r)
{
    struct registered *stale = NULL, *old;

    while ((old = find_by_fd(r->fd)) || (old = find_by_fd(r->copy)) ||
           (old = find_by_copy(r->copy)) || (old = find_by_copy(r->fd))) {
        remove_entry(old);
        if (old->copy == r->copy || old->copy == r->fd)
            old->copy = -1; /* the number belongs to another file now */
        old->next_by_fd = stale;
        stale = old;
    }
    return stale;
}

static void
free_entry(struct registered *r)
{
    if (r->copy >= 0)
        close(r->copy);
    free(r);
}

int
kvt__own_reg_fd(int fd, uint64_t flags)
{
    struct registered *r, *old, *stale = NULL;
    int err = 0;

    (void)flags;
    if (!kvt__own_is_hf3fs(fd))
        return EBADF;
    r = calloc(1, sizeof *r);
    if (!r)
        return ENOMEM;
    err = fill_entry(fd, r);
    r->copy = err ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3); /* the negative result must not be 0 */
    if (!err && r->copy < 0)
        err = errno;
    if (!err) {
        pthread_mutex_lock(&files.lock);
        old = find_by_fd(fd);
        if (old && is_same_file(old, r)) {
            err = EINVAL;
        } else {
            stale = remove_stale(r);
            insert_entry(r);
        }
        pthread_mutex_unlock(&files.lock);
    }
    while ((old = stale)) {
        stale = old->next_by_fd;
        free_entry(old);
    }
    if (!err)
        return -r->copy;
    free_entry(r);
    return err;
}

void
kvt__own_dereg_fd(int fd)
{
    pthread_mutex_lock(&files.lock);
    struct registered *r = find_by_fd(fd);
    if (r)
        remove_entry(r);
    pthread_mutex_unlock(&files.lock);
    if (r)
        free_entry(r);
}

bool
kvt__own_find_file(int fd, struct kvt__own_file *out)
{
    if (fd < 0 && fd != INT32_MIN)
        fd = -fd;
    pthread_mutex_lock(&files.lock);
    struct registered *r = find_by_fd(fd);
    if (!r)
        r = find_by_copy(fd);
    if (r)
        *out = r->file;
    pthread_mutex_unlock(&files.lock);
    return r != NULL;
}

void
kvt__own_files_lock(void)
{
    pthread_mutex_lock(&files.lock);
}

void
kvt__own_files_unlock(void)
{
    pthread_mutex_unlock(&files.lock);
}

/* The duplicates stay open until the child ends or executes another program: a close() sends a
 * request to the daemon, and a fork must not wait for the daemon. */
void
kvt__own_files_forget(void)
{
    for (size_t i = 0; i < N_CHAINS; i++) {
        struct registered *r = files.by_fd[i];

        while (r) {
            struct registered *next = r->next_by_fd;
            free(r);
            r = next;
        }
        files.by_fd[i] = files.by_copy[i] = NULL;
    }
}
