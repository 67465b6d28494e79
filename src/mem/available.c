/* SPDX-License-Identifier: Apache-2.0
 *
 * Available memory, from /proc/meminfo and the control group (v2). */
#include "mem/available.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kvtier.h"

/* Return the number in a file; UINT64_MAX if the file has no number. */
static uint64_t
number_from_file(const char *path)
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

/* Return the number in a line of /proc/meminfo; UINT64_MAX if there is no line `name`. */
static uint64_t
meminfo_value(const char *name)
{
    char line[256];
    uint64_t n = UINT64_MAX;
    size_t len = strlen(name);
    FILE *f = fopen("/proc/meminfo", "re");

    if (!f)
        return UINT64_MAX;
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, name, len) && line[len] == ':') {
            if (sscanf(line + len + 1, "%" SCNu64, &n) != 1)
                n = UINT64_MAX;
            break;
        }
    fclose(f);
    return n;
}

size_t
kvt__huge_page_bytes(void)
{
    uint64_t kib = meminfo_value("Hugepagesize");

    return kib == UINT64_MAX || !kib ? (size_t)2 << 20 : (size_t)kib << 10;
}

uint64_t
kvt__huge_free_bytes(void)
{
    uint64_t n_free = meminfo_value("HugePages_Free");
    uint64_t n_reserved = meminfo_value("HugePages_Rsvd");

    if (n_free == UINT64_MAX || n_reserved == UINT64_MAX || n_reserved > n_free)
        return 0;
    return (n_free - n_reserved) * kvt__huge_page_bytes();
}

/* Return the bytes of the control group's page cache: the group counts the cache as used, but the
 * kernel frees the cache when memory is needed. */
static uint64_t
cgroup_cache_bytes(void)
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

/* Return the free bytes of the control group; UINT64_MAX: no limit.  In a container, the
 * container's group is mounted as the root of /sys/fs/cgroup. */
static uint64_t
cgroup_available_bytes(void)
{
    uint64_t max = number_from_file("/sys/fs/cgroup/memory.max");
    uint64_t now = number_from_file("/sys/fs/cgroup/memory.current");

    if (max == UINT64_MAX || now == UINT64_MAX)
        return UINT64_MAX;
    uint64_t cache = cgroup_cache_bytes();
    now = now > cache ? now - cache : 0;
    return max > now ? max - now : 0;
}

uint64_t
kvt_memory_available(void)
{
    uint64_t kib = meminfo_value("MemAvailable"), group = cgroup_available_bytes();
    uint64_t machine = kib == UINT64_MAX ? kib : kib << 10;

    return machine < group ? machine : group;
}
