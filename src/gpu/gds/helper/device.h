/* SPDX-License-Identifier: Apache-2.0
 *
 * The probe's own piece of a device's memory, by CUDA's or HIP's driver library.  One
 * thread. */
#ifndef KVT_GPU_GDS_HELPER_DEVICE_H
#define KVT_GPU_GDS_HELPER_DEVICE_H

#include "gpu/gds/trouble.h"

/* Make device number ordinal the thread's, and take bytes of its memory.  0, or -errno with
 * a sentence and a trouble; so do the others. */
int device_open(enum kvt__gds_kind kind, int ordinal, size_t bytes, unsigned char **out);
int device_put(unsigned char *to, const void *from, size_t bytes);
int device_get(void *to, const unsigned char *from, size_t bytes);

#endif
