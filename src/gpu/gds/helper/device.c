/* SPDX-License-Identifier: Apache-2.0
 *
 * A driver library without a GPU can be loaded, and cuFile's driver can be opened without
 * either: so the GPU is asked for first, and by itself. */
#include "gpu/gds/helper/device.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

static const char *const names[][4] = {
    [KVT__GDS_CUFILE] = { "libcuda.so.1" },
    [KVT__GDS_HIPFILE] = { "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so" },
};

/* The same of both; addresses of CUDA are numbers of a pointer's size. */
static struct {
    enum kvt__gds_kind kind;
    void *handle;
    int (*init)(unsigned flags);
    int (*count)(int *n);
    int (*alloc)(void **at, size_t bytes);
    int (*cuda_put)(void *to, const void *from, size_t bytes);
    int (*cuda_get)(void *to, const void *from, size_t bytes);
    int (*cuda_device)(int *device, int ordinal);
    int (*cuda_retain)(void **context, int device);
    int (*cuda_set)(void *context);
    int (*hip_set)(int ordinal);
    int (*hip_copy)(void *to, const void *from, size_t bytes, int kind);
} d;
_Static_assert(sizeof(void *) == sizeof(uint64_t), "CUdeviceptr");

static int
fail(const char *call, int code)
{
    return kvt__gds_keep(KVT__GDS_GPU, code,
                         kvt__fail(ENODEV, "%s: %s answers %d: is there a GPU, may this "
                                   "user and this container use it, and is its driver "
                                   "loaded?", names[d.kind][0], call, code));
}

static int
find(const char *name, void *to)
{
    void *function = dlsym(d.handle, name);

    if (!function)
        return kvt__gds_keep(KVT__GDS_GPU, ENOSYS,
                             kvt__fail(ENOSYS, "%s has no function %s: it is another "
                                       "version than kvtier knows.", names[d.kind][0],
                                       name));
    memcpy(to, &function, sizeof function);
    return 0;
}

static int
find_cuda(void)
{
    return find("cuInit", &d.init) || find("cuDeviceGetCount", &d.count) ||
           find("cuDeviceGet", &d.cuda_device) ||
           find("cuDevicePrimaryCtxRetain", &d.cuda_retain) ||
           find("cuCtxSetCurrent", &d.cuda_set) || find("cuMemAlloc_v2", &d.alloc) ||
           find("cuMemcpyHtoD_v2", &d.cuda_put) || find("cuMemcpyDtoH_v2", &d.cuda_get);
}

static int
find_hip(void)
{
    return find("hipInit", &d.init) || find("hipGetDeviceCount", &d.count) ||
           find("hipSetDevice", &d.hip_set) || find("hipMalloc", &d.alloc) ||
           find("hipMemcpy", &d.hip_copy);
}

static int
load(void)
{
    char why[200] = "";

    for (int i = 0; names[d.kind][i] && !d.handle; i++) {
        d.handle = dlopen(names[d.kind][i], RTLD_NOW | RTLD_GLOBAL);
        if (!d.handle && !i)
            snprintf(why, sizeof why, "%s", dlerror());
    }
    if (!d.handle)
        return kvt__gds_keep(KVT__GDS_GPU, ENODEV,
                             kvt__fail(ENODEV, "no GPU driver: %s cannot be loaded (%s).",
                                       names[d.kind][0], why));
    if (d.kind == KVT__GDS_CUFILE ? find_cuda() : find_hip())
        return -ENOSYS;
    return 0;
}

/* Make it current. */
static int
enter(int ordinal)
{
    void *context;
    int device, code;

    if (d.kind == KVT__GDS_HIPFILE)
        return (code = d.hip_set(ordinal)) ? fail("hipSetDevice", code) : 0;
    if ((code = d.cuda_device(&device, ordinal)))
        return fail("cuDeviceGet", code);
    if ((code = d.cuda_retain(&context, device)))
        return fail("cuDevicePrimaryCtxRetain", code);
    return (code = d.cuda_set(context)) ? fail("cuCtxSetCurrent", code) : 0;
}

int
device_open(enum kvt__gds_kind kind, int ordinal, size_t bytes, unsigned char **out)
{
    void *memory;
    int n = 0, code;

    d.kind = kind;
    int err = load();
    if (err)
        return err;
    if ((code = d.init(0)))
        return fail(kind == KVT__GDS_CUFILE ? "cuInit" : "hipInit", code);
    if ((code = d.count(&n)))
        return fail("counting devices", code);
    if (ordinal >= n)
        return kvt__gds_keep(KVT__GDS_GPU, ENODEV,
                             kvt__fail(ENODEV, "there is no GPU %d: %d are there.", ordinal,
                                       n));
    if ((err = enter(ordinal)))
        return err;
    if ((code = d.alloc(&memory, bytes)))
        return fail("taking memory of the device", code);
    *out = memory;
    return 0;
}

int
device_put(unsigned char *to, const void *from, size_t bytes)
{
    int code = d.kind == KVT__GDS_CUFILE ? d.cuda_put(to, from, bytes)
                                         : d.hip_copy(to, from, bytes, 1);

    return code ? fail("copying to the device", code) : 0;
}

int
device_get(void *to, const unsigned char *from, size_t bytes)
{
    int code = d.kind == KVT__GDS_CUFILE ? d.cuda_get(to, from, bytes)
                                         : d.hip_copy(to, from, bytes, 2);

    return code ? fail("copying from the device", code) : 0;
}
