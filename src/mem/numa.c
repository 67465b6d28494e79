/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory policy by system calls without libnuma, and the nodes in /sys.  If the kernel lacks the
 * system calls, or a container forbids them, memory comes from any node. */
#include "mem/numa.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

#define NODES "/sys/devices/system/node"
#define WORD_BITS (8 * sizeof(unsigned long))

#ifndef MPOL_PREFERRED
#define MPOL_PREFERRED 1
#endif

int
kvt__numa_current_node(void)
{
    unsigned cpu, node;

    return syscall(SYS_getcpu, &cpu, &node, NULL) ? -1 : (int)node;
}

/* Read the list of nodes with memory, in the kernel's form: "0-1,4".  Return false if the list is
 * unavailable. */
static bool
list_nodes(char *out, size_t size)
{
    FILE *f = fopen(NODES "/has_memory", "re");
    bool found;

    if (!f)
        return false;
    found = fgets(out, (int)size, f) != NULL;
    fclose(f);
    out[found ? strcspn(out, "\n") : 0] = '\0';
    return found && *out;
}

static bool
is_listed(int node, const char *list)
{
    int first, last, used;

    for (; sscanf(list, "%d%n", &first, &used) == 1; list += strspn(list, ",")) {
        list += used;
        last = first;
        if (*list == '-' && sscanf(list, "-%d%n", &last, &used) == 1)
            list += used;
        if (node >= first && node <= last)
            return true;
    }
    return false;
}

int
kvt__numa_check(int node, const char *key)
{
    char list[256];

    if (!list_nodes(list, sizeof list) || is_listed(node, list))
        return 0;
    return kvt__fail(EINVAL, "%s: this machine has no memory node %d; it has %s.", key,
                     node, list);
}

/* Return the bytes that a node can provide now: free memory and page cache; UINT64_MAX:
 * unknown. */
static uint64_t
available_on(int node)
{
    uint64_t kib, sum = 0;
    char path[64], line[128];
    bool found = false;

    snprintf(path, sizeof path, NODES "/node%d/meminfo", node);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "Node %*d MemFree: %" SCNu64, &kib) != 1 &&
            sscanf(line, "Node %*d FilePages: %" SCNu64, &kib) != 1)
            continue;
        found = true;
        sum += kib << 10;
    }
    if (f)
        fclose(f);
    return found ? sum : UINT64_MAX;
}

static long
set_preferred(void *at, size_t bytes, int node)
{
    unsigned long nodes[KVT__MAX_NODES / WORD_BITS] = { 0 };

    nodes[(size_t)node / WORD_BITS] = 1UL << (size_t)node % WORD_BITS;
    return syscall(SYS_mbind, at, bytes, MPOL_PREFERRED, nodes,
                   (unsigned long)KVT__MAX_NODES + 1, 0UL);
}

void
kvt__numa_prefer(void *at, size_t bytes, int node, const char *key)
{
    uint64_t available = available_on(node);

    if (set_preferred(at, bytes, node)) {
        bool common = errno == ENOSYS || errno == EPERM;

        kvt__log(common ? KVT_LOG_INFO : KVT_LOG_WARN, "%s: memory cannot be bound to node "
                 "%d (%s); the kernel chooses the nodes", key, node, strerror(errno));
    } else if (available < bytes) {
        kvt__log(KVT_LOG_WARN, "%s: node %d has %" PRIu64 " MiB free of the %zu that "
                 "are needed; the rest comes from other nodes", key, node,
                 available >> 20, bytes >> 20);
    }
}
