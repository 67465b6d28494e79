/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory for secrets: left out of core dumps, wiped before it is given back.  Each piece
 * takes whole pages, so it is meant for a few long-lived ones.  Any thread. */
#ifndef KVT_BASE_SECRET_H
#define KVT_BASE_SECRET_H

#include <stddef.h>

/* Zeroed memory, aligned for any type; NULL: there is none. */
void *kvt__secret_alloc(size_t bytes);
void kvt__secret_free(void *memory); /* NULL is allowed */

#endif
