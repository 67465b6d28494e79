/* SPDX-License-Identifier: Apache-2.0
 *
 * Moving one extent, whole, between memory and a file's first bytes.  Blocks, on any
 * thread.  When a call returns, nothing moves any more.  Errors are -errno without a
 * sentence: who names the file makes it. */
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
    bool direct; /* fd has O_DIRECT; at is aligned, and has room for whole units */
};

/* The checksum of what lies from payload to end, which is made of each piece as it
 * comes: later the bytes would have to be fetched from memory once more. */
struct kvt__sum {
    const unsigned char *payload, *end;
    uint32_t crc;
};

/* ---------------------------------------------------------------- extent.c */

/* A direct extent's last unit goes through the page cache: fd loses O_DIRECT. */
int kvt__extent_write(const struct kvt__file_extent *e);

/* sum: NULL if no checksum is wanted, here and below.  -EIO when the file is shorter. */
int kvt__extent_read(const struct kvt__file_extent *e, struct kvt__sum *sum);

/* ------------------------------------------------------------------- sum.c */

/* Pieces come in order and without a gap. */
void kvt__sum_add(struct kvt__sum *sum, const unsigned char *piece, size_t n);

/* The next piece of what is left: of the usual size, or all rather than a small rest. */
size_t kvt__piece(size_t left, size_t usual);

/* ----------------------------------------------------------------- posix.c */

/* Write n bytes to an offset. */
int kvt__posix_write(int fd, const void *at, size_t n, off_t to);

/* Read need bytes from an offset, asking for up to room (direct I/O reads whole
 * units).  -EIO when the file is shorter. */
int kvt__posix_read(int fd, void *at, size_t need, size_t room, off_t from);

/* kvt__extent_read() of this mover. */
int kvt__posix_read_extent(const struct kvt__file_extent *e, struct kvt__sum *sum);

/* Whether files in this directory take O_DIRECT with 4096-byte alignment: tried
 * with one write and read. */
bool kvt__posix_direct_works(int dirfd);

/* ----------------------------------------------------------------- uring.c */

/* kvt__extent_read() of this mover.  -ENOSYS: not by this mover, and nothing was
 * moved that counts. */
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
