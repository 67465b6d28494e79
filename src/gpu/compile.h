/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels for one device, by the compiler that comes with PyTorch (NVRTC or hipRTC) or
 * from the cache of what it made before.  Any thread; blocks, for seconds when it
 * compiles. */
#ifndef KVT_GPU_COMPILE_H
#define KVT_GPU_COMPILE_H

#include <stdbool.h>
#include <stddef.h>

#include "gpu/driver.h"

extern const char kvt__kernel_source[]; /* kernels.h and kernels.c */

struct kvt__image {
    void *bytes; /* free() */
    size_t n;
};

/* anew: what the cache has did not load.  cache: the parent of the user's private
 * directory (base/private-dir.h).  -ENOENT: there is no compiler; -EIO: it failed; with a
 * sentence. */
int kvt__compile(const struct kvt__driver *d, int device, const char *cache, bool anew,
                 struct kvt__image *out);

#endif
