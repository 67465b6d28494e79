/* SPDX-License-Identifier: Apache-2.0
 *
 * What the host tells the kernels of kernels.c.  Read by C compilers on the host and by
 * NVRTC and hipRTC for the device, so it includes nothing there. */
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

#define KVT__THREADS 512u /* of a thread block */
#define KVT__WIDTHS 5     /* bytes of an element: 1 << 0 to 1 << 4 */

/* Division by d of what is below 2^31: the high word of 2n * times, shifted. */
struct kvt__divisor {
    kvt__u32 d;
    kvt__u32 times;
    kvt__u32 shift;
};

enum kvt__job_what { KVT__JOB_GATHER, KVT__JOB_SCATTER, KVT__JOB_SUM };

/* One chunk, cut into elements that are all aligned to their width.  Element i is split by
 * the four divisors in turn: into plane and block (opaque: block and layer), token, head,
 * and the element in it. */
struct kvt__job {
    kvt__u64 flat;   /* where element 0 of the chunk would lie */
    kvt__u64 bases;  /* of the planes: addresses of addresses */
    kvt__u64 blocks; /* the address of the block ids */
    kvt__i64 block_stride;
    kvt__i64 token_stride;
    kvt__i64 head_stride;
    struct kvt__divisor by[4];
    kvt__i32 null_block;
    kvt__u32 what;
    kvt__u32 opaque;
    kvt__u32 sums;
};

/* What one thread block does at a time: elements of one job. */
struct kvt__unit {
    kvt__u32 job;
    kvt__u32 first;
    kvt__u32 n;
    kvt__u32 reserved;
};

/* Multiplication by the constant that a width needs, modulo the polynomial of CRC32C: a
 * word is taken apart into bits 0-5, 6-11, 12-16, 17-21, 22-26 and 27-31. */
#define KVT__TABLE_WORDS 256u

struct kvt__sums {
    kvt__u32 table[KVT__WIDTHS][KVT__TABLE_WORDS];
    kvt__u32 weight[KVT__WIDTHS][KVT__THREADS]; /* of what each thread has summed */
};

#endif
