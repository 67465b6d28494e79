/* SPDX-License-Identifier: Apache-2.0
 *
 * Check the requirements of a 3FS tier on this machine one by one, and continue after a failed
 * requirement; opening the tier reports only the first failure.  The check blocks while a daemon
 * hangs, and the site's library may end the process. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "conf/conf.h"
#include "mem/numa.h"
#include "tier/hf3fs/hf3fs.h"
#include "usrbio/own.h"
#include "usrbio/usrbio.h"

#define GIB ((double)(UINT64_C(1) << 30))
#define SHARES "a worker shares %.2f GiB of /dev/shm with the daemon"

struct checks {
    const struct kvt__tier_params *params;
    const struct kvt__reporter *to;
};

/* Report the cause of a hang in advance: the next call blocks while the daemon of this path
 * hangs. */
static void
report_hang(const struct checks *checks, const char *path)
{
    kvt__report(checks->to, "3fs daemon", 1, "%s: the daemon of this mount hangs; start the "
                "daemon again", path);
}

static void
check_daemon(const struct checks *checks, const char *mount_point)
{
    report_hang(checks, mount_point);
    int err = kvt__usrbio_daemon(mount_point);
    if (err)
        kvt__report(checks->to, "3fs daemon", err, "%s", kvt__why());
    else
        kvt__report(checks->to, "3fs daemon", 0, "the daemon of %s responds, serves rings, and "
                    "lets this user open its semaphore", mount_point);
}

static void
check_directories(const struct checks *checks)
{
    const char *name = checks->params->name, *list = checks->params->rest;
    char mount_point[KVT__HF3FS_MAX_MOUNT], dir[PATH_MAX];
    const char *path;
    size_t n;

    report_hang(checks, list);
    int err = kvt__hf3fs_mount(checks->params->config, name, list, mount_point);

    if (err) {
        kvt__report(checks->to, "3fs mount", err, "%s", kvt__why());
        return;
    }
    while (kvt__next_path(&list, &path, &n)) {
        snprintf(dir, sizeof dir, "%.*s", (int)n, path);
        report_hang(checks, dir);
        err = kvt__hf3fs_check_in_mount(mount_point, name, dir);
        if (err)
            kvt__report(checks->to, "3fs mount", err, "%s", kvt__why());
        else
            kvt__report(checks->to, "3fs mount", 0, "%s: %s lies in the 3FS at %s (%s)", name, dir,
                        mount_point, kvt__usrbio_any_type()
                            ? "of any type: HF3FS_USRBIO_DONT_CHECKFS_FOR_MP" : "fuse.hf3fs");
    }
    check_daemon(checks, mount_point);
}

static void
check_library(const struct checks *checks)
{
    const char *wanted = kvt__variable(checks->params->config->environment, "HF3FS_CLIENT");
    const struct kvt__usrbio_api *api;
    int err = kvt__usrbio_choose(wanted, &api);

    if (err)
        kvt__report(checks->to, "3fs library", err, "%s", kvt__why());
    else if (api != &kvt__usrbio_own)
        kvt__report(checks->to, "3fs library", 0, "the site's libhf3fs_api_shared.so is used");
    else if (wanted && *wanted)
        kvt__report(checks->to, "3fs library", 0, "kvtier's own client is used (HF3FS_CLIENT is "
                    "%s)", wanted);
    else
        kvt__report(checks->to, "3fs library", 0, "kvtier's own client is used; %s", kvt__why());
}

static void
check_node(const struct checks *checks)
{
    int node = (int)checks->params->config->hf3fs_numa_id;
    int err = node < 0 ? 0 : kvt__numa_check(node, "hf3fs_numa_id");

    if (err)
        kvt__report(checks->to, "3fs numa", err, "%s", kvt__why());
    else if (node >= 0)
        kvt__report(checks->to, "3fs numa", 0, "shared memory comes from node %d (hf3fs_numa_id)",
                    node);
    else
        kvt__report(checks->to, "3fs numa", 0, "shared memory comes from the node of the CPU on "
                    "which an engine opens it, here %d (hf3fs_numa_id is -1)",
                    kvt__numa_current_node());
}

/* The bytes are the region, and pairs of rings.  With groups, the number of rings doubles.  The
 * tiers of one mount share both; a second mount is not counted. */
uint64_t
kvt__hf3fs_shm_bytes(const struct kvt_config *config)
{
    uint64_t rings = 2 * (uint64_t)config->hf3fs_io_thread_num *
                     (config->hf3fs_io_depth > 0 ? 2 : 1);

    return (uint64_t)config->hf3fs_iov_size +
           rings * kvt__own_ior_size((int)config->hf3fs_ior_entries);
}

static void
check_memory(const struct checks *checks)
{
    double need = (double)kvt__hf3fs_shm_bytes(checks->params->config);
    struct statvfs shm;

    if (statvfs("/dev/shm", &shm)) {
        kvt__report(checks->to, "3fs memory", -ENOENT, SHARES ", but there is no /dev/shm: mount "
                    "/dev/shm; in a container, the daemon's", need / GIB);
        return;
    }
    double room = (double)shm.f_bavail * (double)shm.f_frsize;
    if (!shm.f_blocks)
        kvt__report(checks->to, "3fs memory", 0, SHARES ", which has no limit", need / GIB);
    else if (need > room)
        kvt__report(checks->to, "3fs memory", -ENOSPC, SHARES ", and %.2f GiB are free there: give "
                    "it more (docker: --shm-size), or lower hf3fs_iov_size", need / GIB,
                    room / GIB);
    else
        kvt__report(checks->to, "3fs memory", 0, SHARES ", and %.2f GiB are free there ('kvtier "
                    "config check --tp N': for N workers)", need / GIB, room / GIB);
}

static void
check_memlock(const struct checks *checks)
{
    struct rlimit limit;
    char size[32] = "none";

    if (getrlimit(RLIMIT_MEMLOCK, &limit))
        return;
    if (limit.rlim_cur != RLIM_INFINITY)
        snprintf(size, sizeof size, "%.2f GiB", (double)limit.rlim_cur / GIB);
    kvt__report(checks->to, "3fs memlock", 0, "limit: %s; it matters only where shared memory is "
                "pinned for a GPU", size);
}

void
kvt__hf3fs_check(const struct kvt__tier_params *params, const struct kvt__reporter *to)
{
    struct checks checks = { params, to };

    check_directories(&checks);
    kvt__report(to, "3fs library", 1, "with the site's library in use, try HF3FS_CLIENT=own");
    check_library(&checks);
    check_memory(&checks);
    check_memlock(&checks);
    check_node(&checks);
}
