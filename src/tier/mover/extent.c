/* SPDX-License-Identifier: Apache-2.0
 *
 * Selection of the mover for an extent.
 *
 * io_uring reads files with O_DIRECT: several pieces are in flight while the thread computes the
 * checksum of another piece.  For reads through the page cache, the kernel would use an
 * additional kernel thread, and the executor has enough threads.  The same is true of writes that
 * extend a file; for such writes, a single large call keeps the storage as busy at a lower cost. */
#include "tier/mover/mover.h"

#include <assert.h>
#include <fcntl.h>

/* Write whole units with O_DIRECT and the remaining bytes through the page cache.  A padded unit
 * and a truncation would be slower: the file system would read the unit back before the
 * truncation returns. */
int
kvt__extent_write(const struct kvt__file_extent *e)
{
    size_t rest = e->direct ? e->bytes % KVT__DIRECT_ALIGN : 0;
    size_t whole = e->bytes - rest;
    assert(!e->direct || (uintptr_t)e->at % KVT__DIRECT_ALIGN == 0);
    int err = kvt__posix_write(e->fd, e->at, whole, 0);

    if (!err && rest && fcntl(e->fd, F_SETFL, 0) < 0)
        err = -errno;
    return err ? err : kvt__posix_write(e->fd, e->at + whole, rest, (off_t)whole);
}

int
kvt__extent_read(const struct kvt__file_extent *e, struct kvt__sum *sum)
{
    assert(!e->direct || (uintptr_t)e->at % KVT__DIRECT_ALIGN == 0);
    if (sum)
        sum->crc = 0;
    int err = e->direct ? kvt__uring_read_extent(e, sum) : -ENOSYS;

    if (err != -ENOSYS)
        return err;
    if (sum)
        sum->crc = 0;
    return kvt__posix_read_extent(e, sum);
}
