/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of descriptors with locks.  The list's mutex is held over a fork.  A file is
 * opened and closed without the mutex, because a file system may hang and a fork must not:
 * after a fork during the open, the file is not listed but opened again; before the close,
 * the locks are released.  The child then shares only an open file without locks. */
#include "base/fork.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

struct lock_file {
    int fd;
    struct lock_file *next;
};

unsigned kvt__fork_generation;

static struct {
    pthread_once_t once;
    pthread_mutex_t mutex;
    struct lock_file *first;
    unsigned n_forks; /* forks begun by this process */
} files = { PTHREAD_ONCE_INIT, PTHREAD_MUTEX_INITIALIZER, NULL, 0 };

static void
before_fork(void)
{
    pthread_mutex_lock(&files.mutex);
    files.n_forks++;
}

static void
after_fork(void)
{
    pthread_mutex_unlock(&files.mutex);
}

/* Another thread of the parent may have been inside malloc: the entries are not freed. */
static void
after_fork_in_child(void)
{
    for (const struct lock_file *file = files.first; file; file = file->next)
        close(file->fd);
    files.first = NULL;
    __atomic_fetch_add(&kvt__fork_generation, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&files.mutex);
}

static void
watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

unsigned
kvt__fork_watch(void)
{
    pthread_once(&files.once, watch_forks);
    return kvt__fork_generation_now();
}

static unsigned
count_forks(void)
{
    pthread_mutex_lock(&files.mutex);
    unsigned n = files.n_forks;
    pthread_mutex_unlock(&files.mutex);
    return n;
}

/* Enter a file in the list.  Return false if the process has forked after n_forks forks. */
static bool
list_file(struct lock_file *file, unsigned n_forks)
{
    pthread_mutex_lock(&files.mutex);
    bool same = files.n_forks == n_forks;
    if (same) {
        file->next = files.first;
        files.first = file;
    }
    pthread_mutex_unlock(&files.mutex);
    return same;
}

int
kvt__lock_file_open(int dirfd, const char *name, int flags, mode_t mode)
{
    struct lock_file *file = malloc(sizeof *file);

    if (!file)
        return -ENOMEM;
    kvt__fork_watch();
    for (;;) {
        unsigned n_forks = count_forks();
        int fd = openat(dirfd, name, flags | O_CLOEXEC | O_NOFOLLOW, mode);
        if (fd < 0) {
            int err = -errno;

            free(file);
            return err;
        }
        file->fd = fd;
        if (list_file(file, n_forks))
            return fd;
        close(fd);
    }
}

/* Return the place of a descriptor in the list; the mutex is held. */
static struct lock_file **
find_locked(int fd)
{
    struct lock_file **at = &files.first;

    while (*at && (*at)->fd != fd)
        at = &(*at)->next;
    return at;
}

static void
release_locks(int fd)
{
    struct flock all = { .l_type = F_UNLCK, .l_whence = SEEK_SET };

    (void)fcntl(fd, F_OFD_SETLK, &all);
    (void)flock(fd, LOCK_UN);
}

void
kvt__lock_file_close(int fd)
{
    struct lock_file **at, *file;

    if (fd < 0)
        return;
    pthread_mutex_lock(&files.mutex);
    bool listed = *find_locked(fd);
    pthread_mutex_unlock(&files.mutex);
    if (!listed)
        return;
    release_locks(fd); /* a child forked before the close shares the open file */
    pthread_mutex_lock(&files.mutex);
    at = find_locked(fd);
    file = *at;
    *at = file->next;
    pthread_mutex_unlock(&files.mutex);
    close(fd);
    free(file);
}
