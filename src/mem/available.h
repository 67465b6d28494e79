/* SPDX-License-Identifier: Apache-2.0
 *
 * How much memory this process could still have.  Any thread; reads /proc. */
#ifndef KVT_MEM_AVAILABLE_H
#define KVT_MEM_AVAILABLE_H

#include <stdint.h>

/* Bytes: MemAvailable, or what the memory control group leaves if that is less;
 * UINT64_MAX when neither can be read. */
uint64_t kvt__memory_available(void);

#endif
