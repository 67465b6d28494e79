/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels' source compiled as C, and functions that call a kernel with a launch's
 * parameters. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* kernels have no prototypes */
#include "gpu/kernels.c"

#include "kernels-c.h"

#define P(type, i) ((type)(uintptr_t)params[i])
#define RUN(width)                                                                         \
    static void run_##width(uint32_t block, uint32_t n_blocks, const uint64_t *params)     \
    {                                                                                      \
        kvt_copy_##width(block, n_blocks, P(const struct kvt__copy_job *, 0),              \
                         P(const struct kvt__unit *, 1), P(const struct kvt__sums *, 2),   \
                         P(kvt__u32 *, 3), (kvt__u32)params[4]);                           \
    }

RUN(1)
RUN(2)
RUN(4)
RUN(8)
RUN(16)

static void
run_fetch(uint32_t block, uint32_t n_blocks, const uint64_t *params)
{
    kvt_fetch(block, n_blocks, P(kvt__u64 *, 0), P(const kvt__u64 *, 1),
              (kvt__u32)params[2]);
}

const struct kernel_c kernels_c[] = {
    { "kvt_copy_1", run_1, 5, KVT__THREADS },   { "kvt_copy_2", run_2, 5, KVT__THREADS },
    { "kvt_copy_4", run_4, 5, KVT__THREADS },   { "kvt_copy_8", run_8, 5, KVT__THREADS },
    { "kvt_copy_16", run_16, 5, KVT__THREADS }, { "kvt_fetch", run_fetch, 3, KVT__THREADS },
    { NULL, NULL, 0, 0 },
};
