/* SPDX-License-Identifier: Apache-2.0
 *
 * Non-temporal copies, which bypass the CPU's caches: for bytes that this CPU core will not read
 * again soon.  The CPU also does not read the destination's lines first.  Any thread. */
#ifndef KVT_GPU_NT_COPY_H
#define KVT_GPU_NT_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Copy n bytes between addresses of any alignment. */
void kvt__nt_copy(unsigned char *to, const unsigned char *from, size_t n);

/* Copy n bytes, and return the CRC32C of a || b, where crc is the CRC32C of a, and b is the copied
 * bytes. */
uint32_t kvt__nt_copy_sum(unsigned char *to, const unsigned char *from, size_t n,
                          uint32_t crc);

/* Order the calling thread's non-temporal stores before the thread's later stores.  Call this
 * function before another thread or device gets the copied bytes. */
void kvt__nt_fence(void);

/* A set of copy functions for one instruction set. */
struct kvt__nt_code {
    const char *name;
    bool (*usable)(void); /* this CPU has the instructions */
    /* Copy n lines of 64 bytes; `to` is a multiple of 64. */
    void (*lines)(unsigned char *to, const unsigned char *from, size_t n);
    /* Copy n lines as lines(), n a multiple of KVT__NT_SUM_LINES, and return the CRC32C as
     * kvt__nt_copy_sum().  NULL: the instruction set has no carry-less multiplication. */
    uint32_t (*lines_sum)(unsigned char *to, const unsigned char *from, size_t n,
                          uint32_t crc);
};

#define KVT__NT_SUM_LINES 4

/* Return set number i, the fastest first.  NULL: there are at most i sets. */
const struct kvt__nt_code *kvt__nt_code_at(size_t i);

/* Use this set for all later copies of the process; NULL: the fastest usable set.  For tests. */
void kvt__nt_code_use(const struct kvt__nt_code *code);

#endif
