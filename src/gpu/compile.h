/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled kernels for one device, from the run-time compiler of the vendor (NVRTC or hipRTC, which
 * come with PyTorch) or from a cache of earlier images.  Any thread. */
#ifndef KVT_GPU_COMPILE_H
#define KVT_GPU_COMPILE_H

#include <stdbool.h>
#include <stddef.h>

#include "gpu/driver.h"

extern const char kvt__kernel_source[]; /* text of kernels.h and kernels.c */

struct kvt__image {
    void *bytes; /* owned by the caller of kvt__compile(), who calls free() */
    size_t n;
};

/* Read the image for the device from the cache, or compile the image and add the image to the
 * cache.  recompile: compile even if the cache has an image.  cache: the parent of the user's
 * private directory (base/private-dir.h).  Blocks, for seconds if the image is compiled.  Errors,
 * with a sentence: -ENOENT no compiler; -EIO the compiler or the device failed; -ENOMEM. */
int kvt__compile(const struct kvt__driver *d, int device, const char *cache, bool recompile,
                 struct kvt__image *out);

#endif
