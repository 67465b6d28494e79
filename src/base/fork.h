/* SPDX-License-Identifier: Apache-2.0
 *
 * Forks.  A forked child shares the parent's open files: while the child has a descriptor open,
 * the locks of the open file outlive the parent.  Any thread. */
#ifndef KVT_BASE_FORK_H
#define KVT_BASE_FORK_H

#include <sys/types.h>

/* Number of forks between the process that first called kvt__fork_watch() and this process. */
extern unsigned kvt__fork_generation;

static inline unsigned
kvt__fork_generation_now(void)
{
    return __atomic_load_n(&kvt__fork_generation, __ATOMIC_RELAXED);
}

/* Count the forks of this process from now on; repeated calls have no further effect.  Return the
 * generation. */
unsigned kvt__fork_watch(void);

/* Open a file or directory for locks, with O_CLOEXEC and O_NOFOLLOW added to flags.  The flags must
 * not have O_EXCL, because the function opens the file again if the process forks during the open.
 * In a forked child, the descriptor is closed before fork() returns.  Return a descriptor, which
 * the caller closes with kvt__lock_file_close(), or -errno without a sentence. */
int kvt__lock_file_open(int dirfd, const char *name, int flags, mode_t mode);

/* Close the descriptor and release the locks.  In a forked child, where the descriptor is
 * closed already, or for a negative fd, do nothing. */
void kvt__lock_file_close(int fd);

#endif
