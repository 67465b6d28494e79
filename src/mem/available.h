/* SPDX-License-Identifier: Apache-2.0
 *
 * Huge pages of the default size, from /proc/meminfo.  available.c also implements
 * kvt_memory_available() of kvtier.h.  Any thread. */
#ifndef KVT_MEM_AVAILABLE_H
#define KVT_MEM_AVAILABLE_H

#include <stddef.h>
#include <stdint.h>

/* Return the bytes of a huge page; 2 MiB if /proc/meminfo lacks the value. */
size_t kvt__huge_page_bytes(void);

/* Return the bytes of free and unreserved huge pages; 0 if unknown. */
uint64_t kvt__huge_free_bytes(void);

#endif
