/* SPDX-License-Identifier: Apache-2.0
 *
 * The user's own directory below one that all users share: others must not be able to
 * put anything there. */
#include "base/private-dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

int
kvt__private_dir_open(const char *parent)
{
    char path[128];
    struct stat st;

    snprintf(path, sizeof path, "%s/kvtier-%lu", parent, (unsigned long)geteuid());
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return kvt__fail(errno, "make %s", path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return kvt__fail(errno, "open %s", path);
    if (fstat(fd, &st) < 0 || st.st_uid != geteuid() || st.st_mode & 077) {
        close(fd);
        return kvt__fail(EACCES, "%s is not a directory of this user alone; remove it.",
                         path);
    }
    return fd;
}
