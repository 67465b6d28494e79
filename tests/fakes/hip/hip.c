/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake libamdhip64.so.6 or .7 with the functions that kvtier uses.  Each thread has a current
 * device, at first device 0; HIP has no stack of contexts. */
#include <pthread.h>
#include <stdio.h>

#include "core.h"
#include "gpu/driver.h"


#define ENTER()                                                                            \
    do {                                                                                   \
        int error_ = core_enter(__func__, -1);                                             \
        if (error_)                                                                        \
            return error_;                                                                 \
    } while (0)
/* First statement of a function that needs the active device to be current. */
#define ON_DEVICE()                                                                        \
    do {                                                                                   \
        if (core_device() < 0)                                                             \
            core_set_device(0);                                                            \
        int error_ = core_enter(__func__, core_needed());                                  \
        if (error_)                                                                        \
            return error_;                                                                 \
    } while (0)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Declare the functions with the types that kvtier uses. */
#define BOTH(part, member, cuda, hip) __typeof__(*((struct kvt__driver *)0)->member) hip;
#define HIP(part, which, name, type) type name;
#include "gpu/functions.def"
/* Further functions, which engines call, and tests in place of an engine. */
int hipMemsetD8Async(void *at, unsigned char value, size_t n, void *stream);
int hipLaunchHostFunc(void *stream, void (*function)(void *), void *arg);

int
hipInit(unsigned flags)
{
    ENTER();
    (void)flags;
    return core_n_devices() ? 0 : INVALID_DEVICE; /* as 5.2.3 does without a GPU */
}

int
hipGetDeviceCount(int *n)
{
    ENTER();
    *n = core_n_devices();
    return *n ? 0 : NO_DEVICE;
}

int
hipDeviceGet(int *device, int number)
{
    ENTER();
    *device = number;
    return number >= 0 && number < core_n_devices() ? 0 : INVALID_DEVICE;
}

int
hipDeviceGetName(char *name, int n, int device)
{
    ENTER();
    snprintf(name, (size_t)n, "fake %d", device);
    return 0;
}

int
hipDeviceGetAttribute(int *value, int which, int device)
{
    ENTER();
    (void)device;
    *value = which == KVT__HIP_MAJOR ? 9 : which == KVT__HIP_MINOR ? 4
           : which == KVT__HIP_PROCESSORS ? 304 : -1;
    return *value < 0 ? INVALID_VALUE : 0;
}

int
hipDevicePrimaryCtxRetain(void **context, int device)
{
    ENTER();
    *context = &core;
    return core_retain(device);
}

int
hipDevicePrimaryCtxRelease(int device)
{
    ENTER();
    (void)device;
    pthread_mutex_lock(&lock);
    core.n_retained--;
    pthread_mutex_unlock(&lock);
    return 0;
}

int
hipGetDevice(int *device)
{
    ENTER();
    *device = core_device() < 0 ? 0 : core_device();
    return 0;
}

int
hipSetDevice(int device)
{
    ENTER();
    if (device < 0 || device >= core_n_devices())
        return INVALID_DEVICE;
    core_set_device(device);
    return 0;
}

const char *
hipGetErrorName(int error)
{
    return error == OUT_OF_MEMORY ? "hipErrorOutOfMemory"
         : error == INVALID_DEVICE ? "hipErrorInvalidDevice"
         : error == ILLEGAL_ADDRESS ? "hipErrorIllegalAddress" : "hipErrorUnknown";
}

int
hipMalloc(void **at, size_t bytes)
{
    ON_DEVICE();
    return core_alloc(at, bytes, false);
}

int
hipFree(void *at)
{
    ON_DEVICE();
    return core_free(at, false);
}

int
hipHostMalloc(void **at, size_t bytes, unsigned flags)
{
    ON_DEVICE();
    (void)flags;
    return core_alloc(at, bytes, true);
}

int
hipHostFree(void *at)
{
    ON_DEVICE();
    return core_free(at, true);
}

int
hipHostRegister(void *at, size_t bytes, unsigned flags)
{
    ON_DEVICE();
    return core_register(at, bytes, flags);
}

int
hipHostUnregister(void *at)
{
    ON_DEVICE();
    return core_unregister(at);
}

int
hipDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    ON_DEVICE();
    *least = 1;
    *greatest = -1;
    return 0;
}

int
hipStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    ON_DEVICE();
    if (flags != 1 || priority > 1 || priority < -1)
        return INVALID_VALUE;
    return core_stream_create(stream);
}

int
hipStreamDestroy(void *stream)
{
    ON_DEVICE();
    return core_stream_destroy(stream);
}

int
hipStreamSynchronize(void *stream)
{
    int error = core_enter(__func__, -1);
    int late = core_stream_sync(stream);

    return error ? error : late;
}

int
hipStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    ON_DEVICE();
    (void)flags;
    return core_stream_wait(stream, event);
}

int
hipEventCreateWithFlags(void **event, unsigned flags)
{
    ON_DEVICE();
    (void)flags;
    return core_event_create(event);
}

int
hipEventDestroy(void *event)
{
    ON_DEVICE();
    return core_event_destroy(event);
}

int
hipEventRecord(void *event, void *stream)
{
    ON_DEVICE();
    return core_event_record(event, stream);
}

int
hipEventSynchronize(void *event)
{
    ON_DEVICE();
    return core_event_sync(event);
}

int
hipMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream)
{
    ON_DEVICE();
    if (kind != KVT__HIP_ANY)
        return INVALID_VALUE;
    return core_copy(to, from, n, n, n, 1, stream);
}

int
hipMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                 size_t width, size_t height, int kind, void *stream)
{
    ON_DEVICE();
    if (kind != KVT__HIP_ANY)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    core.n_rects++;
    pthread_mutex_unlock(&lock);
    return core_copy(to, from, to_pitch, from_pitch, width, height, stream);
}

int
hipMemsetD8Async(void *at, unsigned char value, size_t n, void *stream)
{
    ON_DEVICE();
    return core_fill(at, value, n, stream);
}

int
hipLaunchHostFunc(void *stream, void (*function)(void *), void *arg)
{
    ON_DEVICE();
    return core_call(stream, function, arg);
}

int
hipModuleLoadData(void **module, const void *image)
{
    ON_DEVICE();
    return core_module_load(module, image);
}

int
hipModuleUnload(void *module)
{
    ON_DEVICE();
    return core_module_unload(module);
}

int
hipModuleGetFunction(void **function, void *module, const char *name)
{
    ON_DEVICE();
    return core_module_function(function, module, name);
}

int
hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                      unsigned by, unsigned bz, unsigned shared, void *stream,
                      void **params, void **extra)
{
    ON_DEVICE();
    if (shared || extra)
        return INVALID_VALUE;
    return core_launch(function, (unsigned[]){ gx, gy, gz }, (unsigned[]){ bx, by, bz },
                       stream, params);
}
