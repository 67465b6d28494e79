/* SPDX-License-Identifier: Apache-2.0
 *
 * Which mover moves an extent.
 *
 * io_uring reads what bypasses the page cache: pieces are under way while others'
 * checksums are made.  Reads through the page cache would be handed to threads of the
 * kernel, one more than are here already.  The same goes for writes, which make a file
 * grow: there one large call keeps the storage as busy, at less cost. */
#include "tier/mover/mover.h"

#include <assert.h>
#include <fcntl.h>

/* Whole units go without the page cache and the rest through it: to write a padded
 * unit and cut it off would wait until the file system has read that unit back. */
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
