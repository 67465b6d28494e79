/* SPDX-License-Identifier: Apache-2.0
 *
 * Input of the kernels in kernels.c.  C compilers read this file for the host, NVRTC and hipRTC
 * for the device, where no other header can be included. */
#ifndef KVT_GPU_KERNELS_H
#define KVT_GPU_KERNELS_H

#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)
typedef unsigned int kvt__u32;
typedef unsigned long long kvt__u64;
typedef int kvt__i32;
typedef long long kvt__i64;
#else
#include <stdint.h>
typedef uint32_t kvt__u32;
typedef uint64_t kvt__u64;
typedef int32_t kvt__i32;
typedef int64_t kvt__i64;
#endif

#define KVT__THREADS 512u /* threads of a thread block */
#define KVT__WIDTHS 5     /* element widths: 1 << 0 to 1 << 4 bytes */

/* Constants for the division of n < 2^31 by d: n / d is (high word of 2n * times) >> shift. */
struct kvt__divisor {
    kvt__u32 d;
    kvt__u32 times;
    kvt__u32 shift;
};

enum kvt__copy_job_kind { KVT__JOB_GATHER, KVT__JOB_SCATTER, KVT__JOB_SUM };

/* The offset of a block that is not real (kvt__block_real() in copy.h).  The sum of this value, an
 * address and an offset in a block is negative as kvt__i64, so the kernel skips the element. */
#define KVT__NOT_REAL ((kvt__u64)1 << 63)

/* One chunk, cut into elements of equal width, each aligned to this width.  The four divisors in
 * turn split the index of an element into plane, block (opaque: block, layer), token, head, and
 * the index of the element in the head.  The address of an element in the blocks is the sum of an
 * entry of each table and the offset in the block. */
struct kvt__copy_job {
    kvt__u64 flat;     /* address of element 0 of the chunk; not accessed if the job has no unit
                        * with this element */
    kvt__u64 table[2]; /* addresses of two tables of kvt__u64, for the first and the second index:
                        * the addresses of the planes; the offset of each block in a plane, or
                        * KVT__NOT_REAL */
    kvt__i64 token_stride; /* bytes */
    kvt__i64 head_stride;  /* bytes */
    struct kvt__divisor by[4];
    kvt__u32 kind;     /* enum kvt__copy_job_kind */
    kvt__u32 sums;     /* 1: compute the sum of each unit */
};

/* The work of one thread block at a time: n elements of one job from element `first` on. */
struct kvt__unit {
    kvt__u32 job;
    kvt__u32 first;
    kvt__u32 n;
    kvt__u32 reserved;
};

#define KVT__TABLE_WORDS 256u

/* Constant tables for sums.  table[width] multiplies a word by the constant of the width, modulo
 * the polynomial of CRC32C.  The word is split into bits 0-5, 6-11, 12-16, 17-21, 22-26 and
 * 27-31; the table has an entry for each value of each group of bits. */
struct kvt__sums {
    kvt__u32 table[KVT__WIDTHS][KVT__TABLE_WORDS];
    kvt__u32 weight[KVT__WIDTHS][KVT__THREADS]; /* factor for the sum of each thread */
};

#endif
