/* SPDX-License-Identifier: Apache-2.0
 *
 * An allocator that frees all memory at once, for the nodes and texts of a reading (conf/read.h) or
 * of a configuration.  Memory is valid until kvt__arena_free().  A failed allocation sets `failed`,
 * so callers check for failures once, at the end.  One thread at a time. */
#ifndef KVT_CONF_ARENA_H
#define KVT_CONF_ARENA_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct kvt__arena {
    struct kvt__allocation *allocations;
    bool failed; /* an allocation has failed */
};

/* Allocate zeroed memory, aligned for pointers and 64-bit numbers; NULL: no memory. */
void *kvt__arena_alloc(struct kvt__arena *arena, size_t n_bytes);

/* Return a copy of n_bytes of s with a NUL; "": no memory. */
const char *kvt__arena_text(struct kvt__arena *arena, const char *s, size_t n_bytes);

/* Return the formatted text; "": no memory. */
const char *kvt__arena_printf(struct kvt__arena *arena, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
const char *kvt__arena_vprintf(struct kvt__arena *arena, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));

/* Overwrite and free all memory.  Repeated calls are harmless. */
void kvt__arena_free(struct kvt__arena *arena);

#endif
