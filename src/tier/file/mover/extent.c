/* SPDX-License-Identifier: Apache-2.0
 *
 * Which mover moves an extent, and what all movers do alike.
 *
 * io_uring reads what bypasses the page cache: pieces are under way while others'
 * checksums are made.  Reads through the page cache would be handed to threads of the
 * kernel, one more than are here already.  The same goes for writes, which make a file
 * grow: there one large call keeps the storage as busy, at less cost. */
#include "tier/file/mover/mover.h"

#include <fcntl.h>

#include "base/crc32c.h"
#include "usrbio/client.h"

static void
came(void *sum, const unsigned char *piece, size_t n)
{
    kvt__sum_add(sum, piece, n);
}

static int
move_by_rings(const struct kvt__file_extent *e, bool reads, struct kvt__sum *sum)
{
    return kvt__usrbio_move(e->rings, &(struct kvt__usrbio_extent){
        .fd = e->fd, .reads = reads, .at = e->at, .bytes = e->bytes,
        .counters = e->counters, .came = came, .ctx = sum });
}

/* Whole units go without the page cache and the rest through it: to write a padded
 * unit and cut it off would wait until the file system has read that unit back. */
int
kvt__extent_write(const struct kvt__file_extent *e)
{
    if (e->rings)
        return move_by_rings(e, false, NULL);
    size_t rest = e->direct ? e->bytes % KVT__DIRECT_ALIGN : 0;
    size_t whole = e->bytes - rest;
    int err = kvt__posix_write(e->fd, e->at, whole, 0);

    if (!err && rest && fcntl(e->fd, F_SETFL, 0) < 0)
        err = -errno;
    return err ? err : kvt__posix_write(e->fd, e->at + whole, rest, (off_t)whole);
}

int
kvt__extent_read(const struct kvt__file_extent *e, struct kvt__sum *sum)
{
    if (sum)
        sum->crc = 0;
    if (e->rings)
        return move_by_rings(e, true, sum);
    int err = e->direct ? kvt__uring_read_extent(e, sum) : -ENOSYS;

    if (err != -ENOSYS)
        return err;
    if (sum)
        sum->crc = 0;
    return kvt__posix_read_extent(e, sum);
}

void
kvt__sum_add(struct kvt__sum *sum, const unsigned char *piece, size_t n)
{
    if (!sum)
        return;
    const unsigned char *from = piece < sum->payload ? sum->payload : piece;
    const unsigned char *end = piece + n < sum->end ? piece + n : sum->end;

    if (from < end)
        sum->crc = kvt__crc32c_cold(sum->crc, from, (size_t)(end - from));
}

size_t
kvt__piece(size_t left, size_t usual)
{
    return left < usual + usual / 2 ? left : usual;
}
