/* SPDX-License-Identifier: Apache-2.0
 *
 * NUMA: the memory nodes of the machine, and the node of a mapping.  Any thread. */
#ifndef KVT_MEM_NUMA_H
#define KVT_MEM_NUMA_H

#include <stddef.h>

#define KVT__MAX_NODES 1024

/* Return the node of the CPU on which the calling thread runs; -1: unknown. */
int kvt__numa_current_node(void);

/* Check that the machine has the node, with memory.  If the nodes are unknown, accept any node.
 * Return 0, or -EINVAL with a sentence that begins with key. */
int kvt__numa_check(int node, const char *key);

/* Let the kernel allocate the future pages of a mapping on a node below KVT__MAX_NODES, or on other
 * nodes if the node has no free memory.  Log a failure or a lack of memory of the node, in a line
 * that begins with key. */
void kvt__numa_prefer(void *at, size_t bytes, int node, const char *key);

#endif
