/* SPDX-License-Identifier: Apache-2.0
 *
 * 3FS's rings in shared memory (USRBIO): which implementation speaks them, which mount a
 * directory lies in, and memory for them.  What can be done with a table of functions is
 * in abi.h.  Any thread. */
#ifndef KVT_USRBIO_USRBIO_H
#define KVT_USRBIO_USRBIO_H

#include <stdbool.h>
#include <sys/types.h>

#include "usrbio/abi.h"

/* Our own implementation of the protocol.  In a forked child its rings and memory answer
 * -ESTALE. */
extern const struct kvt__usrbio_api kvt__usrbio_own;

/* HF3FS_CLIENT: "library", "own", or NULL and "": the library where it can be loaded, else
 * our own; kvt__why() then says what hindered the library.  0, or a negative errno with a
 * sentence.  A library that was loaded stays. */
int kvt__usrbio_choose(const char *wanted, const struct kvt__usrbio_api **out);

/* HF3FS_USRBIO_DONT_CHECKFS_FOR_MP, as the library obeys it: mounts of other types than
 * fuse.hf3fs count too. */
bool kvt__usrbio_any_type(void);

/* The 3FS mount that a directory lies in.  Without one:
 *   -ENOENT, -EACCES ... the directory cannot be reached
 *   -ENODEV     it lies on another kind of file system
 *   -ENOTCONN   the mount is there and its daemon is gone
 *   -ENOTSUP    the daemon of this mount serves no rings
 * each with a sentence that begins with the path. */
int kvt__usrbio_mount_of(const char *path, char mount[KVT__HF3FS_MAX_MOUNT]);

/* Whether the daemon of a mount serves rings to this process: 0, or a negative errno with
 * a sentence.  The calling thread has announced no memory there. */
int kvt__usrbio_daemon(const char *mount);

/* Whether /dev/shm has room for so many bytes more: 0, or -ENOSPC with a sentence. */
int kvt__usrbio_room(size_t bytes);

/* Return -ENOSPC with a sentence: /dev/shm has no room for so many bytes. */
int kvt__usrbio_no_room(size_t bytes);

/* Memory by api->iovcreate() that is safe to touch: there is room for it, its pages are
 * there, no forked child gets them and its name is gone from /dev/shm already.  0, or a
 * negative errno with a sentence.  api->iovdestroy() ends it.  Blocks while pages are
 * zeroed. */
int kvt__usrbio_memory(const struct kvt__usrbio_api *api, struct kvt__hf3fs_iov *iov,
                       const char *mount, size_t bytes, size_t block_bytes, int numa);

#endif
