/* SPDX-License-Identifier: Apache-2.0
 *
 * Access to the rings of 3FS in shared memory (USRBIO): choose an implementation, find the mount
 * of a directory, and allocate shared memory.  abi.h describes the functions of an
 * implementation.  Calls are allowed on any thread. */
#ifndef KVT_USRBIO_USRBIO_H
#define KVT_USRBIO_USRBIO_H

#include <stdbool.h>
#include <sys/types.h>

#include "usrbio/abi.h"

/* kvtier's own implementation of the ring protocol.  In a forked child, calls with rings and
 * memory of the parent return -ESTALE. */
extern const struct kvt__usrbio_api kvt__usrbio_own;

/* Choose the implementation by the value of HF3FS_CLIENT.
 *
 * "library" requires the site's library, "own" is kvtier's own implementation.  For NULL and ""
 * the function takes the library if the library can be loaded, else kvtier's own implementation;
 * in the second case kvt__why() reports why the library was not loaded.  A loaded library is
 * never unloaded.
 *
 * Returns 0, or a negative errno with a sentence: -EINVAL for another value, -ELIBACC if the
 * library cannot be loaded, -ENOSYS if the library lacks a function, -EMFILE if the hard limit of
 * open files is too high for the library. */
int kvt__usrbio_choose(const char *wanted, const struct kvt__usrbio_api **out);

/* Return true if HF3FS_USRBIO_DONT_CHECKFS_FOR_MP is "yes", as the site's library reads this
 * variable.  Then mounts of types other than fuse.hf3fs count as mounts of 3FS. */
bool kvt__usrbio_any_type(void);

/* Write the mount point of the 3FS that contains the directory `path`.  The path must exist;
 * symbolic links are resolved.  Returns 0, or an error with a sentence that begins with the path:
 *   -ENOENT, -EACCES ... the directory is missing or not accessible
 *   -ENODEV       the directory is on a file system of another type
 *   -ENOTCONN     the mount exists, but the daemon has ended
 *   -ENOTSUP      the daemon of this mount serves no rings
 *   -ENAMETOOLONG the path of the mount point is too long */
int kvt__usrbio_mount_of(const char *path, char mount[KVT__HF3FS_MAX_MOUNT]);

/* Check that the daemon of a mount serves rings to this process.  Returns 0, or a negative errno
 * with a sentence.  The calling thread must have no announced memory in this mount: the call
 * closes a directory, and the daemon then forgets the memory that the thread has announced. */
int kvt__usrbio_daemon(const char *mount);

/* Check that /dev/shm has room for `bytes` more.  Returns 0, -ENOSPC with a sentence, or the
 * error of statvfs() with a sentence. */
int kvt__usrbio_check_space(size_t bytes);

/* Return -ENOSPC with a sentence: /dev/shm has no room for `bytes`. */
int kvt__usrbio_fail_no_space(size_t bytes);

/* Allocate shared memory with api->iovcreate(), so that access to the memory never raises a
 * signal: the function checks the free space and populates the pages (before Linux 5.14 the
 * kernel populates pages on first access).  A forked child does not inherit the memory, and the
 * name in /dev/shm is already unlinked.  numa: the preferred node, -1: any.
 *
 * Returns 0, or a negative errno with a sentence.  The caller frees the memory with
 * api->iovdestroy().  Blocks while the kernel zeroes the pages. */
int kvt__usrbio_alloc_memory(const struct kvt__usrbio_api *api, struct kvt__hf3fs_iov *iov,
                             const char *mount, size_t bytes, size_t block_bytes, int numa);

#endif
