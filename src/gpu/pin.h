/* SPDX-License-Identifier: Apache-2.0
 *
 * Pinning host memory, so that a GPU copies to and from it at the full speed of its bus
 * and beside its other work.  Any thread. */
#ifndef KVT_GPU_PIN_H
#define KVT_GPU_PIN_H

#include <stdbool.h>
#include <stddef.h>

#include "gpu/device.h"

struct kvt__pin {
    void *at; /* NULL: nothing is pinned */
    enum kvt__gpu_kind kind;
    int ordinal;
};

/* Pin memory for the GPUs that this process uses, by CUDA or HIP.  If it uses none now
 * there is nothing to do; if it cannot be, a line of the log says why.  Whether it is
 * pinned.  Blocks. */
bool kvt__pin(struct kvt__pin *pin, void *at, size_t bytes);

/* Before the memory is unmapped. */
void kvt__unpin(struct kvt__pin *pin);

#endif
