/* SPDX-License-Identifier: Apache-2.0
 *
 * An allocator whose memory is freed all at once: a list of blocks from malloc. */
#include "conf/arena.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kvt__allocation {
    struct kvt__allocation *next;
    size_t n_bytes;
    max_align_t bytes[];
};

void *
kvt__arena_alloc(struct kvt__arena *arena, size_t n_bytes)
{
    struct kvt__allocation *allocation = NULL;

    if (n_bytes <= SIZE_MAX - sizeof *allocation)
        allocation = calloc(1, sizeof *allocation + n_bytes);
    if (!allocation) {
        arena->failed = true;
        return NULL;
    }
    allocation->n_bytes = n_bytes;
    allocation->next = arena->allocations;
    arena->allocations = allocation;
    return allocation->bytes;
}

const char *
kvt__arena_text(struct kvt__arena *arena, const char *s, size_t n_bytes)
{
    char *text = kvt__arena_alloc(arena, n_bytes + 1);

    if (!text)
        return "";
    memcpy(text, s, n_bytes);
    return text;
}

const char *
kvt__arena_vprintf(struct kvt__arena *arena, const char *fmt, va_list ap)
{
    va_list again;

    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *text = kvt__arena_alloc(arena, n < 0 ? 1 : (size_t)n + 1);
    if (text && n >= 0)
        vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text ? text : "";
}

const char *
kvt__arena_printf(struct kvt__arena *arena, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    const char *text = kvt__arena_vprintf(arena, fmt, ap);
    va_end(ap);
    return text;
}

void
kvt__arena_free(struct kvt__arena *arena)
{
    struct kvt__allocation *allocation = arena->allocations;

    while (allocation) {
        struct kvt__allocation *next = allocation->next;

        explicit_bzero(allocation->bytes, allocation->n_bytes); /* keys, passwords */
        free(allocation);
        allocation = next;
    }
    arena->allocations = NULL;
}
