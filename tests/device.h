/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that a program's engines keep their KV in: the host's, or that of a device, which
 * is a fake one, if $KVTIER_TEST_DRIVER names its library.  There the host sees the
 * device's memory, but not before the device has done what it was told. */
#ifndef KVT_TEST_DEVICE_H
#define KVT_TEST_DEVICE_H

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "fakes/gpu/gpu.h"
#include "kvt-test.h"
#include "kvtier.h"

/* NULL: KV is in host memory. */
static inline struct fake_gpu *
device(void)
{
    static struct fake_gpu *gpu;
    const char *path = getenv("KVTIER_TEST_DRIVER");

    if (gpu || !path)
        return gpu;
    void *library = dlopen(path, RTLD_NOW);
    if (!library)
        fail_msg("%s", dlerror());
    void *function = dlsym(library, "fake_gpu");
    assert_non_null(function);
    gpu = ((fake_gpu_fn *)(uintptr_t)function)();
    gpu->active = 0;
    return gpu;
}

static inline uint32_t
device_memory(void)
{
    const char *path = getenv("KVTIER_TEST_DRIVER");

    return !path ? KVT_MEMORY_HOST
                 : strstr(path, "libcuda") ? KVT_MEMORY_CUDA : KVT_MEMORY_HIP;
}

/* The stream that KV is used on; NULL in host memory. */
static inline void *
device_stream(void)
{
    static void *stream;

    if (!stream && device())
        stream = device()->stream();
    return stream;
}

/* Zeroed. */
static inline void *
device_alloc(size_t bytes)
{
    if (!device())
        return calloc(1, bytes);
    void *at = device()->alloc(bytes);
    assert_non_null(at);
    return memset(at, 0, bytes);
}

static inline void
device_free(void *at)
{
    if (device())
        device()->free(at);
    else
        free(at);
}

/* What the stream was told is done. */
static inline void
device_settle(void)
{
    if (device())
        device()->wait(device_stream());
}

#endif
