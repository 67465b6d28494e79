/* SPDX-License-Identifier: Apache-2.0
 *
 * An allocator whose memory is freed all at once: a list of blocks from malloc. */
#include "conf/memory.h"

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
kvt__memory_alloc(struct kvt__memory *memory, size_t n_bytes)
{
    struct kvt__allocation *allocation = NULL;

    if (n_bytes <= SIZE_MAX - sizeof *allocation)
        allocation = calloc(1, sizeof *allocation + n_bytes);
    if (!allocation) {
        memory->failed = true;
        return NULL;
    }
    allocation->n_bytes = n_bytes;
    allocation->next = memory->allocations;
    memory->allocations = allocation;
    return allocation->bytes;
}

const char *
kvt__memory_text(struct kvt__memory *memory, const char *s, size_t n_bytes)
{
    char *text = kvt__memory_alloc(memory, n_bytes + 1);

    if (!text)
        return "";
    memcpy(text, s, n_bytes);
    return text;
}

const char *
kvt__memory_vprintf(struct kvt__memory *memory, const char *fmt, va_list ap)
{
    va_list again;

    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *text = kvt__memory_alloc(memory, n < 0 ? 1 : (size_t)n + 1);
    if (text && n >= 0)
        vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text ? text : "";
}

const char *
kvt__memory_printf(struct kvt__memory *memory, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    const char *text = kvt__memory_vprintf(memory, fmt, ap);
    va_end(ap);
    return text;
}

void
kvt__memory_free(struct kvt__memory *memory)
{
    struct kvt__allocation *allocation = memory->allocations;

    while (allocation) {
        struct kvt__allocation *next = allocation->next;

        explicit_bzero(allocation->bytes, allocation->n_bytes); /* keys, passwords */
        free(allocation);
        allocation = next;
    }
    memory->allocations = NULL;
}
