/* SPDX-License-Identifier: Apache-2.0
 *
 * The checks of the tmpfs: the type of the file system, and the room for a new memory.  PyTorch
 * and NCCL use the tmpfs too, so a sixteenth of the tmpfs stays free. */
#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include "base/error.h"
#include "kvtier.h"
#include "tier/shared_cpu/shared_cpu.h"

#define MIB(bytes) ((uint64_t)(bytes) >> 20)

int
kvt__sc_check_dir(int dir, const char *path)
{
    struct statfs fs;

    if (fstatfs(dir, &fs))
        return kvt__fail(errno, "shared_cpu_path: read the status of %s", path);
    return fs.f_type == TMPFS_MAGIC ? 0
         : kvt__fail(ENOTSUP, "shared_cpu_path: %s is no tmpfs; name a directory in memory.",
                     path);
}

int
kvt__sc_check_room(int dir, const char *path, uint64_t bytes)
{
    struct statfs fs;

    if (fstatfs(dir, &fs))
        return kvt__fail(errno, "shared_cpu_path: read the status of %s", path);
    uint64_t size = (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
    uint64_t left = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
    uint64_t keep = size / 16;

    if (!size || (left >= keep && left - keep >= bytes)) /* 0: a tmpfs without a limit */
        return 0;
    return kvt__fail(ENOSPC, "max_shared_cpu_size: %" PRIu64 " MiB do not fit: %" PRIu64
                     " MiB of %s are free, and %" PRIu64 " MiB must stay free. Decrease "
                     "max_shared_cpu_size, or enlarge the tmpfs.", MIB(bytes), MIB(left), path,
                     MIB(keep));
}
