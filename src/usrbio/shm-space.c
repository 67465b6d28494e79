/* SPDX-License-Identifier: Apache-2.0
 *
 * Check of the free space of /dev/shm. */
#include <errno.h>
#include <sys/statvfs.h>

#include "base/error.h"
#include "usrbio/usrbio.h"

int
kvt__usrbio_fail_no_space(size_t bytes)
{
    return kvt__fail(ENOSPC, "/dev/shm has no room for %zu MiB of shared memory for 3FS; "
                     "enlarge /dev/shm (docker run --shm-size) or reduce hf3fs_iov_size.",
                     (bytes + (1 << 20) - 1) >> 20);
}

int
kvt__usrbio_check_space(size_t bytes)
{
    struct statvfs fs;
    uint64_t room;

    if (statvfs("/dev/shm", &fs))
        return kvt__fail(errno, "/dev/shm");
    if (!fs.f_blocks || /* no limit */
        __builtin_mul_overflow((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, &room) ||
        bytes <= room)
        return 0;
    return kvt__usrbio_fail_no_space(bytes);
}
