/* SPDX-License-Identifier: Apache-2.0
 *
 * Free ranges of an address space in units: first fit, neighbours merged.  Not
 * thread-safe: the pool holds its lock around every call. */
#ifndef KVT_MEM_EXTENTS_H
#define KVT_MEM_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>

struct kvt__extent {
    size_t at;
    size_t n;
};

struct kvt__extents {
    struct kvt__extent *free; /* sorted by at, none touching another */
    size_t n_free;
    size_t max_free;
};

/* Room for every state that n_units can be in.  0 or -ENOMEM. */
int kvt__extents_init(struct kvt__extents *e, size_t n_units);
void kvt__extents_fini(struct kvt__extents *e);

/* Take the first n units that lie together. */
bool kvt__extents_take(struct kvt__extents *e, size_t n, size_t *at);

/* Give back units that are not free. */
void kvt__extents_give(struct kvt__extents *e, size_t at, size_t n);

#endif
