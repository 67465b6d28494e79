/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU with a fake driver.  Arguments of the program: cuda or hip, the driver, the compiler. */
#ifndef KVT_TEST_FAKE_H
#define KVT_TEST_FAKE_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fakes/gpu/gpu.h"
#include "kvt-test.h"
#include "unit/gpu/pending-copy.h"
#include "unit/gpu/paged.h"

#include "base/error.h"
#include "gpu/device.h"

static enum kvt__gpu_kind fake_kind;
static struct fake_gpu *fake;
static struct fake_compiler *compiler;
static char cache[] = "/tmp/kvt-gpu-XXXXXX";

/* Load a library and return the address of a function. */
static inline void *
fake_find(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);

    if (!handle)
        fail_msg("%s", dlerror());
    void *found = dlsym(handle, name);
    assert_non_null(found);
    return found;
}

static inline void
fake_load(char **argv)
{
    fake_kind = strcmp(argv[1], "hip") == 0 ? KVT__GPU_HIP : KVT__GPU_CUDA;
    fake = ((fake_gpu_fn *)(uintptr_t)fake_find(argv[2], "fake_gpu"))();
    if (argv[3])
        compiler = ((fake_compiler_fn *)(uintptr_t)fake_find(argv[3], "fake_compiler"))();
}

static inline int
fake_make_cache(void)
{
    return mkdtemp(cache) ? 0 : -1;
}

static inline void
fake_drop_cache(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", cache);
    if (system(command))
        print_message("%s is left\n", cache);
}

static inline int
fake_try(const char *copies, size_t staging_bytes, struct kvt__gpu **gpu)
{
    const struct kvt__gpu_params params = { .kind = fake_kind, .ordinal = 1,
                                            .staging_bytes = staging_bytes,
                                            .copies = copies, .cache = cache };

    return kvt__gpu_open(&params, gpu);
}

static inline struct kvt__gpu *
fake_open(const char *copies, size_t staging_bytes)
{
    struct kvt__gpu *gpu = NULL;

    fake->active = 1;
    if (fake_try(copies, staging_bytes, &gpu))
        fail_msg("%s", kvt__why());
    return gpu;
}

#endif
