/* SPDX-License-Identifier: Apache-2.0
 *
 * A /dev/shm in which no other program creates or removes files. */
#ifndef KVT_OWN_SHM_H
#define KVT_OWN_SHM_H

#include <sched.h>
#include <stdbool.h>
#include <sys/mount.h>

/* Mount an empty /dev/shm for this thread and its new threads and processes.  options: options of
 * tmpfs, or NULL.  Return false without the privilege to mount. */
static inline bool
own_shm(const char *options)
{
    return !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
           !mount("kvtier-test", "/dev/shm", "tmpfs", 0, options);
}

#endif
