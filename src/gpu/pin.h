/* SPDX-License-Identifier: Apache-2.0
 *
 * Pin host memory, so that a GPU copies to and from this memory at the full speed of the bus, and
 * at the same time as other work.  Any thread. */
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

/* Pin memory for all GPUs that this process uses, by CUDA or HIP.  Return true if the memory is
 * pinned; the caller then calls kvt__unpin().  False: this process uses no GPU, or the driver
 * refused the request, and the function logged the refusal.  Blocks. */
bool kvt__pin(struct kvt__pin *pin, void *at, size_t bytes);

/* Unpin the memory, if the memory is pinned.  Call this before the memory is unmapped. */
void kvt__unpin(struct kvt__pin *pin);

#endif
