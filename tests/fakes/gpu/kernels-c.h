/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier's kernels as plain C, by name. */
#ifndef KVT_FAKE_KERNELS_C_H
#define KVT_FAKE_KERNELS_C_H

#include <stddef.h>
#include <stdint.h>

typedef void kernel_c(uint32_t block, uint32_t n_blocks, const uint64_t *params);

struct kernel_c {
    const char *name; /* NULL: end of the table */
    kernel_c *run;
    size_t n_params;
    unsigned n_threads;
};

extern const struct kernel_c kernels_c[];

#endif
