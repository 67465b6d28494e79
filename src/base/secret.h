/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory for secrets: excluded from core dumps, overwritten before the free.  Each allocation
 * uses whole pages, so allocate few and long-lived secrets.  Any thread. */
#ifndef KVT_BASE_SECRET_H
#define KVT_BASE_SECRET_H

#include <stddef.h>

/* Allocate zeroed memory, aligned for any type.  The caller frees the memory with
 * kvt__secret_free().  NULL: no memory, without a sentence. */
void *kvt__secret_alloc(size_t bytes);
void kvt__secret_free(void *memory); /* NULL is allowed */

#endif
