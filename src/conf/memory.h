/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that is freed all at once: what one reading of the configuration
 * makes.  A failure is remembered, so that only the end has to look for it.
 * One thread at a time. */
#ifndef KVT_CONF_MEMORY_H
#define KVT_CONF_MEMORY_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct kvt__memory {
    struct kvt__piece *pieces;
    bool failed; /* some allocation did */
};

/* Zeroed; NULL when there is no memory. */
void *kvt__memory_alloc(struct kvt__memory *memory, size_t n_bytes);

/* A copy of n_bytes of s with a NUL behind; "" when there is no memory. */
const char *kvt__memory_text(struct kvt__memory *memory, const char *s, size_t n_bytes);

const char *kvt__memory_printf(struct kvt__memory *memory, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
const char *kvt__memory_vprintf(struct kvt__memory *memory, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));

void kvt__memory_free(struct kvt__memory *memory);

#endif
