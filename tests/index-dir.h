/* SPDX-License-Identifier: Apache-2.0
 *
 * The index of multi-host storage is in a directory of this host, outside the storage.  The
 * directory outlives the test, so a test removes the directory that the test made. */
#ifndef KVT_INDEX_DIR_H
#define KVT_INDEX_DIR_H

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

/* Remove the directory that is open as fd. */
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
