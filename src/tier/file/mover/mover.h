/* SPDX-License-Identifier: Apache-2.0
 *
 * Moving one extent between memory and a file, whole. */
#ifndef KVT_TIER_FILE_MOVER_H
#define KVT_TIER_FILE_MOVER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define KVT__DIRECT_ALIGN ((size_t)4096)

/* Write n bytes to an offset.  Blocks.  0 or -errno, no sentence. */
int kvt__posix_write(int fd, const void *at, size_t n, off_t to);

/* Read need bytes from an offset, asking for up to room (direct I/O reads whole
 * units).  0; -EIO when the file is shorter; -errno; no sentence. */
int kvt__posix_read(int fd, void *at, size_t need, size_t room, off_t from);

/* Whether files in this directory take O_DIRECT with 4096-byte alignment: tried
 * with one write and read. */
bool kvt__posix_direct_works(int dirfd);

#endif
