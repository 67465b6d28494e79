/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of the machine's memory nodes memory comes from.  Any thread. */
#ifndef KVT_MEM_NUMA_H
#define KVT_MEM_NUMA_H

#include <stddef.h>

#define KVT__MAX_NODES 1024

/* The node of the CPU that the calling thread runs on; -1: not known. */
int kvt__numa_here(void);

/* 0, or -EINVAL with a sentence that begins with key: the machine has no such node
 * with memory. */
int kvt__numa_check(int node, const char *key);

/* Let pages of a mapping that are not there yet come from a node (below KVT__MAX_NODES),
 * and from others where it has none left.  What hinders that is logged, after key. */
void kvt__numa_prefer(void *at, size_t bytes, int node, const char *key);

#endif
