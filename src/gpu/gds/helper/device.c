/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver library can be loaded on a machine without a GPU, and cuFile's driver can be opened
 * without a GPU.  So the probe tests the GPU first, and separately.  In this process no engine has
 * loaded the driver library or created a context, so this file does both. */
#include "gpu/gds/helper/device.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

#include "base/error.h"
#include "gpu/driver.h"

#define ALIGN ((uintptr_t)64 << 10) /* alignment of registered memory */

static struct kvt__driver d;
static const char *library;
static int n_devices;

static int
fail(const char *call, int code)
{
    return kvt__gds_fail(KVT__GDS_GPU, code, ENODEV, "%s: %s returns %d (%s): check that a GPU is "
                         "present, that this user and this container may use the GPU, and that "
                         "its driver is loaded.", library, call, code,
                         kvt__driver_error(&d, code));
}

static int
load(enum kvt__gpu_kind kind)
{
    const char *const *names = kvt__driver_libraries(kind);
    void *handle = NULL;
    char why[200] = "";

    library = names[0];
    for (size_t i = 0; names[i] && !handle; i++) {
        handle = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
        if (!handle && !i)
            snprintf(why, sizeof why, "%s", dlerror());
    }
    if (!handle)
        return kvt__gds_fail(KVT__GDS_GPU, ENODEV, ENODEV, "no GPU driver: %s cannot be loaded "
                             "(%s).", library, why);
    if (!kvt__driver_find(kind, &d) || !d.copies)
        return kvt__gds_fail(KVT__GDS_GPU, ENOSYS, ENOSYS, "%s has no function %s: it is another "
                             "version than kvtier knows.", library, d.missing);
    return 0;
}

/* Create the primary context of a device, and make the context current in this thread. */
static int
enter(int ordinal)
{
    struct kvt__context context;

    int code = d.device(&context.device, ordinal);
    if (!code)
        code = d.retain(&context.handle, context.device);
    if (code)
        return fail("the creation of a context", code);
    int err = kvt__context_enter(&d, &context);
    return err ? kvt__gds_add_layer(KVT__GDS_GPU, EIO, err) : 0;
}

int
device_open(enum kvt__gds_kind kind, int ordinal, size_t bytes, unsigned char **out)
{
    bool cuda = kind == KVT__GDS_CUFILE;
    void *memory;
    int code;

    int err = load(cuda ? KVT__GPU_CUDA : KVT__GPU_HIP);
    if (err)
        return err;
    if ((code = d.init(0)))
        return fail(cuda ? "cuInit" : "hipInit", code);
    if ((code = d.device_count(&n_devices)))
        return fail("the count of devices", code);
    if (ordinal >= n_devices)
        return kvt__gds_fail(KVT__GDS_GPU, ENODEV, ENODEV, "there is no GPU %d: the driver counts "
                             "%d.", ordinal, n_devices);
    if ((err = enter(ordinal)))
        return err;
    if ((code = d.mem_alloc(&memory, bytes + ALIGN)))
        return fail("the allocation of device memory", code);
    *out = (unsigned char *)(((uintptr_t)memory + ALIGN - 1) & ~(ALIGN - 1));
    return 0;
}

int
device_count(void)
{
    return n_devices;
}

int
device_copy(void *to, const void *from, size_t bytes)
{
    int code = kvt__driver_copy(&d, to, from, bytes, NULL);

    if (!code)
        code = d.stream_sync(NULL);
    return code ? fail("a copy to or from the device", code) : 0;
}
