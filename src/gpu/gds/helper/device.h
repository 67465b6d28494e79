/* SPDX-License-Identifier: Apache-2.0
 *
 * The probe's own piece of a device's memory, by CUDA's or HIP's driver library.  One
 * thread. */
#ifndef KVT_GPU_GDS_HELPER_DEVICE_H
#define KVT_GPU_GDS_HELPER_DEVICE_H

#include "gpu/gds/trouble.h"

/* Make device number ordinal the thread's, and take bytes of its memory, at a multiple of
 * 64 KiB.  0, or -errno with a sentence and a trouble; so does the other. */
int device_open(enum kvt__gds_kind kind, int ordinal, size_t bytes, unsigned char **out);

/* How many the driver counts; 0: it was not asked, or does not tell. */
int device_count(void);

/* To the device, or from there. */
int device_copy(void *to, const void *from, size_t bytes);

#endif
