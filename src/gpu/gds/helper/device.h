/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory for the probe, by CUDA's or HIP's driver library.  Single-threaded. */
#ifndef KVT_GPU_GDS_HELPER_DEVICE_H
#define KVT_GPU_GDS_HELPER_DEVICE_H

#include "gpu/gds/failure.h"

/* Make the context of GPU number `ordinal` current in the calling thread, and allocate device
 * memory, aligned to 64 KiB.  The memory is freed when the process ends.  0, or -errno with a
 * sentence, and a layer and a code (kvt__gds_failure()). */
int device_open(enum kvt__gds_kind kind, int ordinal, size_t bytes, unsigned char **out);

/* Return the number of GPUs that the driver counts; 0: device_open() failed before the count. */
int device_count(void);

/* Copy bytes to or from device memory, and wait for the copy.  Errors as device_open(). */
int device_copy(void *to, const void *from, size_t bytes);

#endif
