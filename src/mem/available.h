/* SPDX-License-Identifier: Apache-2.0
 *
 * Huge pages of the default size, from /proc/meminfo.  kvt_memory_available() is public.
 * Any thread. */
#ifndef KVT_MEM_AVAILABLE_H
#define KVT_MEM_AVAILABLE_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of one huge page; 2 MiB if the kernel does not tell. */
size_t kvt__huge_page_bytes(void);

/* Bytes of huge pages that are free and that no process has reserved. */
uint64_t kvt__huge_free_bytes(void);

#endif
