/* SPDX-License-Identifier: Apache-2.0
 *
 * Mounts in use, each of one thread.  A mount without references is kept until its thread has
 * ended or another run of the daemon has taken over.  Reason: the kernel reports a closed
 * directory to the daemon some time after close(), and the daemon then forgets all memory that
 * the same thread has announced, new memory included. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "usrbio/own.h"
#include "usrbio/usrbio.h"

#define IOVS "/3fs-virt/iovs"
#define SEM_FILES "/dev/shm/sem."

static struct {
    pthread_mutex_t lock;
    struct kvt__own_mount *first;
} mounts = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool
has_ended(pid_t thread)
{
    return syscall(SYS_tgkill, getpid(), thread, 0) && errno == ESRCH;
}

/* Remove the mounts without further use.  Return the mounts, linked by next.  The caller holds
 * mounts.lock. */
static struct kvt__own_mount *
remove_unused_locked(void)
{
    struct kvt__own_mount *unused = NULL, **at = &mounts.first, *m;

    while ((m = *at)) {
        if (m->refs || !(m->stale || has_ended(m->thread))) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        m->next = unused;
        unused = m;
    }
    return unused;
}

/* Close the directory and the semaphore. */
static void
close_handles(struct kvt__own_mount *m)
{
    if (m->submit)
        sem_close(m->submit);
    if (m->dir >= 0)
        close(m->dir);
}

static void
free_mount(struct kvt__own_mount *m)
{
    close_handles(m);
    free(m);
}

static void
free_mounts(struct kvt__own_mount *m)
{
    while (m) {
        struct kvt__own_mount *next = m->next;
        free_mount(m);
        m = next;
    }
}

/* Fill in the identity of the mount's current daemon: the device, and the name of the semaphore. */
static int
identify_daemon(const char *path, struct kvt__own_mount *m)
{
    char link[sizeof m->path + sizeof IOVS "/submit-ios"];
    struct stat st;

    snprintf(m->path, sizeof m->path, "%s", path);
    snprintf(link, sizeof link, "%s" IOVS, path);
    if (stat(link, &st))
        return kvt__fail(errno, "%s: is this a 3FS whose daemon serves USRBIO?", link);
    m->dev = st.st_dev;
    snprintf(link, sizeof link, "%s" IOVS "/submit-ios", path);
    ssize_t n = readlink(link, m->target, sizeof m->target);
    if (n < 0)
        return kvt__fail(errno, "%s: is this a 3FS whose daemon serves USRBIO?", link);
    if ((size_t)n >= sizeof m->target)
        return kvt__fail(EIO, "%s: the target of the link has 256 bytes or more.", link);
    m->target[n] = '\0';
    if (strncmp(m->target, SEM_FILES, strlen(SEM_FILES)) ||
        strchr(m->target + strlen(SEM_FILES), '/'))
        return kvt__fail(EIO, "%s: the target of the link is %s, not a semaphore in "
                         "/dev/shm.", link, m->target);
    return 0;
}

/* Open the directory and the semaphore of a mount after identify_daemon(). */
static int
open_mount(struct kvt__own_mount *m)
{
    char path[sizeof m->path + sizeof IOVS];
    char name[sizeof m->target];

    snprintf(path, sizeof path, "%s" IOVS, m->path);
    m->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (m->dir < 0)
        return kvt__fail(errno, "open %s", path);
    snprintf(name, sizeof name, "/%s", m->target + strlen(SEM_FILES));
    m->submit = sem_open(name, 0);
    if (m->submit == SEM_FAILED) {
        int err = errno;

        m->submit = NULL;
        return kvt__fail(err, "open the semaphore %s of the daemon of %s; does this "
                         "process share /dev/shm with the daemon?", m->target, m->path);
    }
    return 0;
}

int
kvt__usrbio_daemon(const char *mount)
{
    struct kvt__own_mount m = { .dir = -1 };
    int err = identify_daemon(mount, &m);

    if (!err)
        err = open_mount(&m);
    close_handles(&m);
    return err;
}

/* Return the calling thread's mount for this path, with a new reference, or NULL.  Mark the
 * path's mounts of an earlier run of the daemon as stale.  The caller holds mounts.lock. */
static struct kvt__own_mount *
find_locked(const struct kvt__own_mount *like)
{
    struct kvt__own_mount *found = NULL;

    for (struct kvt__own_mount *m = mounts.first; m; m = m->next) {
        if (strcmp(m->path, like->path))
            continue;
        if (m->dev != like->dev || strcmp(m->target, like->target))
            m->stale = true;
        else if (m->thread == like->thread && !m->stale)
            found = m;
    }
    if (found)
        found->refs++;
    return found;
}

int
kvt__own_mount_acquire(const char *path, struct kvt__own_mount **out)
{
    struct kvt__own_mount *m = calloc(1, sizeof *m);

    if (!m)
        return kvt__fail(ENOMEM, "mount %s", path);
    *m = (struct kvt__own_mount){ .refs = 1, .dir = -1, .thread = gettid() };
    int err = identify_daemon(path, m);
    if (!err) {
        pthread_mutex_lock(&mounts.lock);
        *out = find_locked(m);
        struct kvt__own_mount *unused = remove_unused_locked();
        pthread_mutex_unlock(&mounts.lock);
        free_mounts(unused);
        if (*out) {
            free(m);
            return 0;
        }
        err = open_mount(m);
    }
    if (err) {
        free_mount(m);
        return err;
    }
    pthread_mutex_lock(&mounts.lock); /* no other thread adds a mount of this thread */
    m->next = mounts.first;
    mounts.first = *out = m;
    pthread_mutex_unlock(&mounts.lock);
    return 0;
}

void
kvt__own_mount_release(struct kvt__own_mount *mount)
{
    pthread_mutex_lock(&mounts.lock);
    mount->refs--;
    struct kvt__own_mount *unused = remove_unused_locked();
    pthread_mutex_unlock(&mounts.lock);
    free_mounts(unused);
}

void
kvt__own_mounts_lock(void)
{
    pthread_mutex_lock(&mounts.lock);
}

void
kvt__own_mounts_unlock(void)
{
    pthread_mutex_unlock(&mounts.lock);
}

/* The structs of the parent remain, because the child may still end the handles that refer to the
 * structs.  The descriptors are closed: an open descriptor would hide the parent's end from the
 * daemon. */
void
kvt__own_mounts_forget(void)
{
    for (struct kvt__own_mount *m = mounts.first; m; m = m->next) {
        close(m->dir);
        m->dir = -1;
        m->stale = true;
    }
}
