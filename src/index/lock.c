/* SPDX-License-Identifier: Apache-2.0
 *
 * The file `lock`: who lives, and who may make, replace or recount.  Locks are
 * of open file descriptions: they end with the process, and two handles of one
 * process are two owners. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fork.h"
#include "index/table.h"

#define MAIN_BYTE 4096
#define ID_AT 8192

int
kvt__ix_lock_open(int dirfd)
{
    int fd = kvt__lock_file_open(dirfd, "lock", O_RDWR | O_CREAT, 0600);

    return fd < 0 ? kvt__fail(-fd, "index: open its lock file") : fd;
}

int
kvt__ix_lock_get_id(int lock_fd, uint64_t id[2])
{
    ssize_t n = pread(lock_fd, id, 2 * sizeof *id, ID_AT);

    if (n < 0)
        return -errno;
    return n == 2 * sizeof *id ? 0 : -ENODATA;
}

int
kvt__ix_lock_set_id(int lock_fd, const uint64_t id[2])
{
    ssize_t n = pwrite(lock_fd, id, 2 * sizeof *id, ID_AT);

    return n == 2 * sizeof *id ? 0
         : kvt__fail(n < 0 ? errno : EIO, "index: write to its lock file");
}

bool
kvt__index_is_current(struct kvt__index *ix)
{
    struct ix_header *h = &ix->map->header;
    uint64_t id[2];
    struct stat st;

    if (!ix_usable(ix))
        return false;
    if (ix->lock_fd < 0)
        return true;
    if (!fstat(ix->lock_fd, &st) && st.st_nlink &&
        !kvt__ix_lock_get_id(ix->lock_fd, id) && id[0] == h->file_id[0] &&
        id[1] == h->file_id[1])
        return true;
    IX_STORE(&h->state, IX_REPLACED); /* for all that have this file mapped */
    return false;
}

static int
set_byte(int fd, short type, off_t byte)
{
    struct flock fl = { .l_type = type, .l_whence = SEEK_SET,
                        .l_start = byte, .l_len = 1 };

    return fcntl(fd, F_OFD_SETLK, &fl) ? -errno : 0;
}

int
kvt__ix_lock(struct kvt__index *ix, int64_t wait_ns)
{
    static const struct timespec pause = { 0, 2 * KVT__NS_PER_MS };
    int64_t end = kvt__now_ns() + wait_ns;
    int rc;

    pthread_mutex_lock(&ix->mutex);
    if (ix->lock_fd < 0)
        return 0;
    while ((rc = set_byte(ix->lock_fd, F_WRLCK, MAIN_BYTE))
           && (rc == -EAGAIN || rc == -EACCES || rc == -EINTR)
           && kvt__now_ns() < end)
        nanosleep(&pause, NULL);
    if (!rc)
        return 0;
    pthread_mutex_unlock(&ix->mutex);
    if (rc == -EAGAIN || rc == -EACCES || rc == -EINTR)
        return kvt__fail(ETIMEDOUT,
                         "index: another process holds its lock for long");
    return kvt__fail(-rc, "index: lock");
}

void
kvt__ix_unlock(struct kvt__index *ix)
{
    if (ix->lock_fd >= 0)
        set_byte(ix->lock_fd, F_UNLCK, MAIN_BYTE);
    pthread_mutex_unlock(&ix->mutex);
}

bool
kvt__ix_lock_owner(struct kvt__index *ix, unsigned owner)
{
    return !set_byte(ix->lock_fd, F_WRLCK, owner);
}

void
kvt__ix_unlock_owner(struct kvt__index *ix, unsigned owner)
{
    set_byte(ix->lock_fd, F_UNLCK, owner);
}

bool
kvt__ix_owner_lives(const struct kvt__index *ix, unsigned owner)
{
    struct flock fl = { .l_type = F_WRLCK, .l_whence = SEEK_SET,
                        .l_start = owner, .l_len = 1 };

    if (owner >= IX_N_OWNERS)
        return false;
    if ((int)owner == ix->owner)
        return true;
    if (ix->lock_fd < 0 || !IX_LOAD(&ix->map->owners[owner].incarnation))
        return false;
    /* In doubt it lives: what it left then stays a little longer. */
    return fcntl(ix->lock_fd, F_OFD_GETLK, &fl) || fl.l_type != F_UNLCK;
}

uint64_t
kvt__ix_live_owners(const struct kvt__index *ix)
{
    uint64_t live = 0;

    for (unsigned i = 0; i < IX_N_OWNERS; i++)
        if (kvt__ix_owner_lives(ix, i))
            live |= UINT64_C(1) << i;
    return live;
}
