/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels: copy elements of chunks between an engine's blocks and contiguous memory, and sum
 * the copied elements.  NVRTC, hipRTC and, for tests, C compilers compile this source; in C one
 * loop runs the threads of a block one after another.  The library contains this file as text.
 *
 * The sum of a unit is the unit's polynomial times x^32, modulo the polynomial of CRC32C,
 * bit-reflected.  The host computes the CRC from the sums.  Consecutive threads take consecutive
 * elements, so that a warp accesses contiguous memory.  For each element a thread multiplies its
 * sum by a constant, by means of tables in shared memory.  Each of the 32 banks holds a copy of
 * the tables, so that threads have no bank conflicts.  A thread loads AT_ONCE elements before it
 * stores the first, so that memory has enough loads in flight.  A unit is treated as if zeros were
 * in front that fill the first round of AT_ONCE * KVT__THREADS elements: leading zeros do not
 * change the sum. */
#include "gpu/kernels.h"

#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)
#if defined(__CUDACC_RTC__)
#define KERNEL extern "C" __global__ void __launch_bounds__(512, 2)
#else
#define KERNEL extern "C" __global__ void __launch_bounds__(512)
#endif
#define INLINE static __device__ __forceinline__
#define SHARED __shared__
#define GRID
#define BLOCK blockIdx.x
#define N_BLOCKS gridDim.x
#define EACH_THREAD(t) for (kvt__u32 t = threadIdx.x, once = 1; once; once = 0)
#define BARRIER() __syncthreads()
#define UNROLL _Pragma("unroll")
#else
#include <assert.h>
#include <string.h>
#define KERNEL void
#define INLINE static inline __attribute__((always_inline))
#define SHARED static _Thread_local
#define GRID kvt__u32 grid_block, kvt__u32 grid_n,
#define BLOCK grid_block
#define N_BLOCKS grid_n
#define EACH_THREAD(t) for (kvt__u32 t = 0; t < KVT__THREADS; t++)
#define BARRIER() ((void)0)
#define UNROLL
#endif

#define POLY 0x82f63b78u
#define BANKS 32u
#define AT_ONCE 4u

/* An element of 1 << log bytes as words.  An element of less than 4 bytes is in the last bytes of
 * word[0]. */
struct element {
    kvt__u32 word[4];
};

INLINE kvt__u32
words_of(kvt__u32 log)
{
    return log > 2 ? 1u << (log - 2) : 1;
}

/* ------------------------------------------------------------------- memory */

#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)

/* Access device memory.  On AMD GPUs an access with the address space of global memory is
 * faster. */
#if defined(__HIPCC_RTC__)
typedef kvt__u32 two_words __attribute__((ext_vector_type(2)));
typedef kvt__u32 four_words __attribute__((ext_vector_type(4)));
#define AT(type, at) (*(__attribute__((address_space(1))) type *)(at))
#else
typedef uint2 two_words;
typedef uint4 four_words;
#define AT(type, at) (*(type *)(at))
#endif

INLINE struct element
load(kvt__u32 log, kvt__u64 at)
{
    struct element e = { { 0, 0, 0, 0 } };

    if (log == 4) {
        four_words v = AT(four_words, at);
        e.word[0] = v.x;
        e.word[1] = v.y;
        e.word[2] = v.z;
        e.word[3] = v.w;
    } else if (log == 3) {
        two_words v = AT(two_words, at);
        e.word[0] = v.x;
        e.word[1] = v.y;
    } else if (log == 2) {
        e.word[0] = AT(kvt__u32, at);
    } else if (log == 1) {
        e.word[0] = (kvt__u32)AT(unsigned short, at) << 16;
    } else {
        e.word[0] = (kvt__u32)AT(unsigned char, at) << 24;
    }
    return e;
}

INLINE void
store(kvt__u32 log, kvt__u64 at, struct element e)
{
    if (log == 4) {
        four_words v;
        v.x = e.word[0];
        v.y = e.word[1];
        v.z = e.word[2];
        v.w = e.word[3];
        AT(four_words, at) = v;
    } else if (log == 3) {
        two_words v;
        v.x = e.word[0];
        v.y = e.word[1];
        AT(two_words, at) = v;
    } else if (log == 2) {
        AT(kvt__u32, at) = e.word[0];
    } else if (log == 1) {
        AT(unsigned short, at) = (unsigned short)(e.word[0] >> 16);
    } else {
        AT(unsigned char, at) = (unsigned char)(e.word[0] >> 24);
    }
}

#else

INLINE struct element
load(kvt__u32 log, kvt__u64 at)
{
    struct element e = { { 0, 0, 0, 0 } };
    kvt__u32 n = 1u << log;

    assert(at % n == 0); /* devices require this alignment */
    memcpy((char *)e.word + (n < 4 ? 4 - n : 0), (const void *)(uintptr_t)at, n);
    return e;
}

INLINE void
store(kvt__u32 log, kvt__u64 at, struct element e)
{
    kvt__u32 n = 1u << log;

    assert(at % n == 0);
    memcpy((void *)(uintptr_t)at, (char *)e.word + (n < 4 ? 4 - n : 0), n);
}

#endif

/* --------------------------------------------------------------- arithmetic */

INLINE kvt__u32
divided(kvt__u32 n, struct kvt__divisor by)
{
    return (kvt__u32)((kvt__u64)(2 * n) * by.times >> 32) >> by.shift;
}

/* Return a * x^n, in time proportional to n.  Bit 31 is x^0. */
INLINE kvt__u32
times_x(kvt__u32 a, kvt__u32 n)
{
    for (kvt__u32 i = 0; i < n; i++)
        a = (a >> 1) ^ (POLY & (0u - (a & 1u)));
    return a;
}

INLINE kvt__u32
times(kvt__u32 a, kvt__u32 b)
{
    kvt__u32 r = 0;

    for (kvt__u32 i = 0; i < 32; i++) {
        r ^= b & (0u - (a >> 31));
        a <<= 1;
        b = times_x(b, 1);
    }
    return r;
}

/* Look up the n bits of a from number `bit` on.  entry: the first entry of this group of bits in
 * the table; lane: 4 * the thread's bank. */
INLINE kvt__u32
part(const kvt__u32 *table, kvt__u32 a, kvt__u32 lane, kvt__u32 entry, kvt__u32 bit,
     kvt__u32 n)
{
    kvt__u32 offset = bit < 7 ? a << (7 - bit) : a >> (bit - 7);

    offset = (offset & (((1u << n) - 1) << 7)) | lane;
    return *(const kvt__u32 *)((const char *)(table + entry * BANKS) + offset);
}

/* Return a times the constant of the table. */
INLINE kvt__u32
moved(const kvt__u32 *table, kvt__u32 a, kvt__u32 lane)
{
    return part(table, a, lane, 0, 0, 6) ^ part(table, a, lane, 64, 6, 6) ^
           part(table, a, lane, 128, 12, 5) ^ part(table, a, lane, 160, 17, 5) ^
           part(table, a, lane, 192, 22, 5) ^ part(table, a, lane, 224, 27, 5);
}

/* ------------------------------------------------------------------- copies */

/* Return 0 if KVT__NOT_REAL is set in the address: no memory belongs to the element. */
INLINE int
is_real(kvt__u64 address)
{
    return !(address & KVT__NOT_REAL);
}

/* Return the address of element i in the blocks, with KVT__NOT_REAL if the block is not real. */
INLINE kvt__u64
located(const struct kvt__copy_job *job, kvt__u32 log, kvt__u32 i)
{
    kvt__u32 first = divided(i, job->by[0]);
    kvt__u32 rest = i - first * job->by[0].d;
    kvt__u32 second = divided(rest, job->by[1]);
    rest -= second * job->by[1].d;
    kvt__u32 token = divided(rest, job->by[2]);
    rest -= token * job->by[2].d;
    kvt__u32 head = divided(rest, job->by[3]);
    rest -= head * job->by[3].d;

    return ((const kvt__u64 *)job->table[0])[first] + ((const kvt__u64 *)job->table[1])[second] +
           (kvt__u64)(token * job->token_stride + head * job->head_stride) +
           ((kvt__u64)rest << log);
}

/* Load element first + at of the job, and set *to to the element's destination.  If at < 0, return
 * zeros, and set *to to an address that is not real. */
INLINE struct element
fetched(const struct kvt__copy_job *job, kvt__u32 kind, kvt__u32 log, kvt__u32 first, kvt__i32 at,
        kvt__u64 *to)
{
    kvt__u32 i = first + (kvt__u32)(at < 0 ? 0 : at);
    kvt__u64 flat = job->flat + ((kvt__u64)i << log);
    kvt__u64 place = kind == KVT__JOB_SUM ? KVT__NOT_REAL : located(job, log, i);
    kvt__u64 from = kind == KVT__JOB_GATHER ? place : flat;
    kvt__u64 none = at < 0 ? KVT__NOT_REAL : 0;
    struct element e = { { 0, 0, 0, 0 } };

    *to = (kind == KVT__JOB_GATHER ? flat : place) | none;
    if (is_real(from | none))
        e = load(log, from);
    return e;
}

/* Copy the elements of thread t of a unit, and return the sum of these elements.  kind: job->kind,
 * as a constant for the compiler. */
INLINE kvt__u32
copied(const struct kvt__copy_job *job, kvt__u32 kind, struct kvt__unit unit, kvt__u32 log,
       const kvt__u32 *table, kvt__u32 t)
{
    kvt__u32 sum[4] = { 0, 0, 0, 0 }, lane = t % BANKS * 4, n_words = words_of(log);
    kvt__i32 at = (kvt__i32)(t - (0u - unit.n) % (AT_ONCE * KVT__THREADS));

    for (; at < (kvt__i32)unit.n; at += AT_ONCE * KVT__THREADS) {
        struct element e[AT_ONCE];
        kvt__u64 to[AT_ONCE];

        UNROLL
        for (kvt__u32 k = 0; k < AT_ONCE; k++)
            e[k] = fetched(job, kind, log, unit.first, at + (kvt__i32)(k * KVT__THREADS), &to[k]);
        UNROLL
        for (kvt__u32 k = 0; k < AT_ONCE; k++)
            if (is_real(to[k]))
                store(log, to[k], e[k]);
        if (!job->sums)
            continue;
        UNROLL
        for (kvt__u32 k = 0; k < AT_ONCE; k++) {
            UNROLL
            for (kvt__u32 w = 0; w < n_words; w++)
                sum[w] = moved(table, sum[w], lane) ^ e[k].word[w];
        }
    }
    UNROLL
    for (kvt__u32 w = 1; w < n_words; w++)
        sum[w] ^= times_x(sum[w - 1], 32);
    return sum[n_words - 1];
}

INLINE void
run(GRID const struct kvt__copy_job *jobs, const struct kvt__unit *units,
    const struct kvt__sums *sums, kvt__u32 *results, kvt__u32 n_units, kvt__u32 log)
{
    SHARED kvt__u32 table[KVT__TABLE_WORDS * BANKS];
    SHARED kvt__u32 partial[KVT__THREADS];

    EACH_THREAD(t)
        for (kvt__u32 i = t; i < KVT__TABLE_WORDS * BANKS; i += KVT__THREADS)
            table[i] = sums->table[log][i / BANKS];
    BARRIER();
    for (kvt__u32 u = BLOCK; u < n_units; u += N_BLOCKS) {
        const struct kvt__unit unit = units[u];
        const struct kvt__copy_job job = jobs[unit.job]; /* in registers: no aliases */

        EACH_THREAD(t) {
            kvt__u32 sum = job.kind == KVT__JOB_GATHER
                         ? copied(&job, KVT__JOB_GATHER, unit, log, table, t)
                         : job.kind == KVT__JOB_SCATTER
                         ? copied(&job, KVT__JOB_SCATTER, unit, log, table, t)
                         : copied(&job, KVT__JOB_SUM, unit, log, table, t);

            partial[t] = job.sums ? times(sum, sums->weight[log][t]) : 0;
        }
        if (!job.sums)
            continue;
        BARRIER();
        for (kvt__u32 half = KVT__THREADS / 2; half; half /= 2) {
            EACH_THREAD(t)
                if (t < half)
                    partial[t] ^= partial[t + half];
            BARRIER();
        }
        EACH_THREAD(t)
            if (t == 0)
                results[u] = partial[0];
    }
}

/* ------------------------------------------------------------------ kernels */

#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)
#define PASS
#else
#define PASS BLOCK, N_BLOCKS,
#endif

#define COPY(width, log)                                                                   \
    KERNEL kvt_copy_##width(GRID const struct kvt__copy_job *jobs,                              \
                            const struct kvt__unit *units,                                 \
                            const struct kvt__sums *sums, kvt__u32 *results,               \
                            kvt__u32 n_units)                                              \
    {                                                                                      \
        run(PASS jobs, units, sums, results, n_units, log);                                \
    }

COPY(1, 0)
COPY(2, 1)
COPY(4, 2)
COPY(8, 3)
COPY(16, 4)

/* Copy n words from mapped host memory to device memory. */
KERNEL
kvt_fetch(GRID kvt__u64 *to, const kvt__u64 *from, kvt__u32 n)
{
    EACH_THREAD(t)
        for (kvt__u32 i = BLOCK * KVT__THREADS + t; i < n; i += N_BLOCKS * KVT__THREADS)
            to[i] = from[i];
}
