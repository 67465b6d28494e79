/* SPDX-License-Identifier: Apache-2.0
 *
 * The directories of this host in which indexes of what other hosts have too lie for
 * good: a test removes those that it made. */
#ifndef KVT_INDEX_DIR_H
#define KVT_INDEX_DIR_H

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

/* fd: the directory, open. */
static inline void
index_dir_remove(int fd)
{
    char link[64], path[PATH_MAX] = "";

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) < 0)
        return;
    unlinkat(fd, "lock", 0);
    unlinkat(fd, "snapshot", 0);
    rmdir(path);
}

#endif
