/* SPDX-License-Identifier: Apache-2.0
 *
 * An allocator of ranges of units: first fit; adjacent free ranges are merged.  Not
 * thread-safe: the pool holds its lock around every call. */
#ifndef KVT_MEM_EXTENTS_H
#define KVT_MEM_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>

/* A free range, in units. */
struct kvt__extent {
    size_t at;
    size_t n;
};

struct kvt__extents {
    struct kvt__extent *free; /* free ranges, sorted by at; no two ranges are adjacent */
    size_t n_free;
    size_t max_free;
};

/* Initialize for n_units units, none of them free, and allocate the memory for the worst
 * fragmentation.  Return 0, or -ENOMEM with a sentence. */
int kvt__extents_init(struct kvt__extents *e, size_t n_units);
void kvt__extents_fini(struct kvt__extents *e);

/* Allocate the first range of n units.  Return false if no free range has n units. */
bool kvt__extents_alloc(struct kvt__extents *e, size_t n, size_t *at);

/* Free a range of units, none of which is free. */
void kvt__extents_free(struct kvt__extents *e, size_t at, size_t n);

#endif
