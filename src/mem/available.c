/* SPDX-License-Identifier: Apache-2.0
 *
 * Available memory, from /proc/meminfo and the control group (v2). */
#include "kvtier.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t
number_in(const char *path)
{
    uint64_t n = UINT64_MAX; /* also for "max" */
    FILE *f = fopen(path, "re");

    if (!f)
        return UINT64_MAX;
    if (fscanf(f, "%" SCNu64, &n) != 1)
        n = UINT64_MAX;
    fclose(f);
    return n;
}

static uint64_t
from_meminfo(void)
{
    char line[256];
    uint64_t kib = UINT64_MAX;
    FILE *f = fopen("/proc/meminfo", "re");

    if (!f)
        return UINT64_MAX;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
            break;
    fclose(f);
    return kib == UINT64_MAX ? kib : kib << 10;
}

/* The group's page cache: it counts as used there and gives way when needed. */
static uint64_t
cgroup_cache(void)
{
    char line[256];
    uint64_t sum = 0, n;
    FILE *f = fopen("/sys/fs/cgroup/memory.stat", "re");

    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "inactive_file %" SCNu64, &n) == 1 ||
            sscanf(line, "active_file %" SCNu64, &n) == 1)
            sum += n;
    fclose(f);
    return sum;
}

/* Inside a container the group is mounted as the root. */
static uint64_t
from_cgroup(void)
{
    uint64_t max = number_in("/sys/fs/cgroup/memory.max");
    uint64_t now = number_in("/sys/fs/cgroup/memory.current");

    if (max == UINT64_MAX || now == UINT64_MAX)
        return UINT64_MAX;
    uint64_t cache = cgroup_cache();
    now = now > cache ? now - cache : 0;
    return max > now ? max - now : 0;
}

uint64_t
kvt_memory_available(void)
{
    uint64_t machine = from_meminfo(), group = from_cgroup();

    return machine < group ? machine : group;
}
