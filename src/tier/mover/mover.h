/* SPDX-License-Identifier: Apache-2.0
 *
 * Transfer of an extent between memory and the first bytes of a file.  Functions block; any
 * thread.  After the return, the extent is no longer in use.  Errors are -errno without a
 * sentence, since only the caller knows the name of the file. */
#ifndef KVT_TIER_MOVER_H
#define KVT_TIER_MOVER_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define KVT__DIRECT_ALIGN ((size_t)4096)

struct kvt__file_extent {
    int fd;
    unsigned char *at;
    size_t bytes;
    bool direct; /* fd has O_DIRECT; at is aligned, and the memory has room for whole units */
};

/* The checksum of the bytes from payload to end.  The mover adds each piece when the piece
 * arrives: the bytes are still in the processor's cache. */
struct kvt__sum {
    const unsigned char *payload, *end;
    uint32_t crc;
};

/* ---------------------------------------------------------------- extent.c */

/* Write an extent.  The last, partial unit of a direct extent goes through the page cache: fd
 * loses O_DIRECT. */
int kvt__extent_write(const struct kvt__file_extent *e);

/* Read an extent and compute the checksum.  sum: NULL for no checksum; the same for all functions
 * below.  -EIO: the file is shorter. */
int kvt__extent_read(const struct kvt__file_extent *e, struct kvt__sum *sum);

/* ------------------------------------------------------------------- sum.c */

/* Add a piece to the checksum.  Pieces must be in order and without gaps.  sum may be NULL. */
void kvt__sum_add(struct kvt__sum *sum, const unsigned char *piece, size_t n);

/* Return the length of the next piece: `usual`, or all of `left` if the rest would be less than
 * half of `usual`. */
size_t kvt__piece_bytes(size_t left, size_t usual);

/* ----------------------------------------------------------------- posix.c */

/* Write n bytes at an offset. */
int kvt__posix_write(int fd, const void *at, size_t n, off_t to);

/* Read `need` bytes at an offset; ask for up to `room` bytes, since direct I/O reads whole units.
 * -EIO: the file is shorter. */
int kvt__posix_read(int fd, void *at, size_t need, size_t room, off_t from);

/* kvt__extent_read() with blocking calls. */
int kvt__posix_read_extent(const struct kvt__file_extent *e, struct kvt__sum *sum);

/* Test with a write and a read whether files in this directory support O_DIRECT with 4096-byte
 * alignment. */
bool kvt__posix_direct_works(int dirfd);

/* ----------------------------------------------------------------- uring.c */

/* kvt__extent_read() with io_uring.  -ENOSYS: use another mover; the checksum in sum is then
 * invalid. */
#ifdef KVT_HAVE_LIBURING
int kvt__uring_read_extent(const struct kvt__file_extent *e, struct kvt__sum *sum);
#else
static inline int
kvt__uring_read_extent(const struct kvt__file_extent *e, struct kvt__sum *sum)
{
    (void)e;
    (void)sum;
    return -ENOSYS;
}
#endif

#endif
