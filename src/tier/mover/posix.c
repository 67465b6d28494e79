/* SPDX-License-Identifier: Apache-2.0
 *
 * The mover for every file system: pread() and pwrite() in loops, because the kernel moves less
 * than 2 GiB at a time and may move fewer bytes than requested. */
#include "tier/mover/mover.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/bytes.h"

#define MAX_CALL_BYTES ((size_t)1 << 30)

/* Bytes of a read: the thread computes the checksum of a piece while other threads' pieces are in
 * flight. */
#define PIECE ((size_t)1 << 20)

int
kvt__posix_write(int fd, const void *at, size_t n, off_t to)
{
    const char *p = at;

    while (n) {
        ssize_t got = pwrite(fd, p, n < MAX_CALL_BYTES ? n : MAX_CALL_BYTES, to);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (!got)
            return -EIO;
        p += got;
        to += got;
        n -= (size_t)got;
    }
    return 0;
}

int
kvt__posix_read(int fd, void *at, size_t need, size_t room, off_t from)
{
    char *p = at;
    size_t done = 0;

    assert(need <= room);
    while (done < need) {
        size_t ask = room - done < MAX_CALL_BYTES ? room - done : MAX_CALL_BYTES;
        ssize_t got = pread(fd, p + done, ask, from + (off_t)done);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (!got)
            return -EIO;
        done += (size_t)got;
    }
    return 0;
}

int
kvt__posix_read_extent(const struct kvt__file_extent *e, struct kvt__sum *sum)
{
    for (size_t at = 0; at < e->bytes;) {
        size_t n = kvt__piece_bytes(e->bytes - at, PIECE);
        size_t room = e->direct ? kvt__round_up(n, KVT__DIRECT_ALIGN) : n;
        int err = kvt__posix_read(e->fd, e->at + at, n, room, (off_t)at);

        if (err)
            return err;
        kvt__sum_add(sum, e->at + at, n);
        at += n;
    }
    return 0;
}

/* Open an unnamed file with O_DIRECT; -1: the file system does not support O_DIRECT.  On a file
 * system without O_TMPFILE the file has a random name, so the name does not collide with names of
 * other hosts' processes that start at the same time, nor with a file that a crash left. */
static int
open_probe(int dirfd)
{
    char name[40];
    uint64_t random;

    int fd = openat(dirfd, ".", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd >= 0 || getrandom(&random, sizeof random, 0) != sizeof random)
        return fd;
    snprintf(name, sizeof name, "direct-probe-%016" PRIx64, random);
    fd = openat(dirfd, name, O_CREAT | O_EXCL | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd >= 0 || errno == EINVAL) /* some file systems refuse the flag after creating */
        unlinkat(dirfd, name, 0);
    return fd;
}

bool
kvt__posix_direct_works(int dirfd)
{
    void *page = NULL;
    bool works = false;
    int fd = open_probe(dirfd);

    if (fd < 0)
        return false;
    if (!posix_memalign(&page, KVT__DIRECT_ALIGN, KVT__DIRECT_ALIGN)) {
        memset(page, 0, KVT__DIRECT_ALIGN);
        works = !kvt__posix_write(fd, page, KVT__DIRECT_ALIGN, 0) &&
                !kvt__posix_read(fd, page, KVT__DIRECT_ALIGN, KVT__DIRECT_ALIGN, 0);
        free(page);
    }
    close(fd);
    return works;
}
