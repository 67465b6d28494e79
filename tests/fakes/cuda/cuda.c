/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake libcuda.so.1 with the functions that kvtier uses.  Built three times: as CUDA 13;
 * WITH_12: with CUDA 12's signature of the batch copy; WITH_OLD: without batch copy and without
 * kernels. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core.h"
#include "gpu/driver.h"

#define DEPTH 8

/* First statement of every function. */
#define ENTER(device)                                                                      \
    do {                                                                                   \
        int error_ = core_enter(__func__, device);                                         \
        if (error_)                                                                        \
            return error_;                                                                 \
    } while (0)
#define NEEDS_CONTEXT() ENTER(core_needed())

static char contexts[MAX_DEVICES];
static _Thread_local int stack[DEPTH];
static _Thread_local int depth;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Declare the functions with the types that kvtier uses. */
#define BOTH(part, member, cuda, hip) __typeof__(*((struct kvt__driver *)0)->member) cuda;
#define CUDA(part, which, name, type) type name;
#include "gpu/functions.def"
/* Further functions, which engines call, and tests in place of an engine. */
int cuMemsetD8Async(uint64_t at, unsigned char value, size_t n, void *stream);
int cuLaunchHostFunc(void *stream, void (*function)(void *), void *arg);

int
cuInit(unsigned flags)
{
    ENTER(-1);
    (void)flags;
    return core_n_devices() ? 0 : NO_DEVICE;
}

int
cuDeviceGetCount(int *n)
{
    ENTER(-1);
    *n = core_n_devices();
    return 0;
}

int
cuDeviceGet(int *device, int number)
{
    ENTER(-1);
    *device = number;
    return number >= 0 && number < core_n_devices() ? 0 : INVALID_DEVICE;
}

int
cuDeviceGetName(char *name, int n, int device)
{
    ENTER(-1);
    snprintf(name, (size_t)n, "fake %d", device);
    return 0;
}

int
cuDeviceGetAttribute(int *value, int which, int device)
{
    ENTER(-1);
    (void)device;
    *value = which == KVT__CU_MAJOR ? 9 : which == KVT__CU_MINOR ? 0
           : which == KVT__CU_PROCESSORS ? 4 : -1;
    return *value < 0 ? INVALID_VALUE : 0;
}

int
cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    ENTER(-1);
    *flags = 0;
    *active = device == core.active;
    return 0;
}

int
cuDevicePrimaryCtxRetain(void **context, int device)
{
    ENTER(-1);
    *context = &contexts[device];
    return core_retain(device);
}

int
cuDevicePrimaryCtxRelease_v2(int device)
{
    ENTER(-1);
    pthread_mutex_lock(&lock);
    int error = device != core.active || !core.n_retained ? INVALID_CONTEXT : 0;
    if (!error)
        core.n_retained--;
    pthread_mutex_unlock(&lock);
    return error;
}

int
cuCtxPushCurrent_v2(void *context)
{
    ENTER(-1);
    int active = core.active; /* read once: a test may destroy the context at any time */
    if (active < 0 || context != &contexts[active] || depth == DEPTH)
        return INVALID_CONTEXT;
    stack[depth++] = core_device();
    core_set_device(active);
    pthread_mutex_lock(&lock);
    core.n_current++;
    pthread_mutex_unlock(&lock);
    return 0;
}

int
cuCtxPopCurrent_v2(void **context)
{
    ENTER(-1);
    if (!depth)
        return INVALID_CONTEXT;
    *context = &contexts[core_device()];
    core_set_device(stack[--depth]);
    pthread_mutex_lock(&lock);
    core.n_current--;
    pthread_mutex_unlock(&lock);
    return 0;
}

int
cuGetErrorName(int error, const char **name)
{
    *name = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
          : error == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_UNKNOWN";
    return 0;
}

int
cuMemAlloc_v2(void **at, size_t bytes)
{
    NEEDS_CONTEXT();
    return core_alloc(at, bytes, false);
}

int
cuMemFree_v2(void *at)
{
    NEEDS_CONTEXT();
    return core_free(at, false);
}

int
cuMemHostAlloc(void **at, size_t bytes, unsigned flags)
{
    NEEDS_CONTEXT();
    (void)flags;
    return core_alloc(at, bytes, true);
}

int
cuMemFreeHost(void *at)
{
    NEEDS_CONTEXT();
    return core_free(at, true);
}

int
cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    NEEDS_CONTEXT();
    return core_register(at, bytes, flags);
}

int
cuMemHostUnregister(void *at)
{
    NEEDS_CONTEXT();
    return core_unregister(at);
}

int
cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    NEEDS_CONTEXT();
    *least = 0;
    *greatest = -5;
    return 0;
}

int
cuStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    NEEDS_CONTEXT();
    if (flags != 1 || priority > 0 || priority < -5)
        return INVALID_VALUE;
    return core_stream_create(stream);
}

int
cuStreamDestroy_v2(void *stream)
{
    NEEDS_CONTEXT();
    return core_stream_destroy(stream);
}

int
cuStreamSynchronize(void *stream)
{
    int error = core_enter(__func__, core.active);
    int late = core_stream_sync(stream); /* an error if the device is broken */

    return error ? error : late;
}

int
cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    NEEDS_CONTEXT();
    (void)flags;
    return core_stream_wait(stream, event);
}

int
cuEventCreate(void **event, unsigned flags)
{
    NEEDS_CONTEXT();
    (void)flags;
    return core_event_create(event);
}

int
cuEventDestroy_v2(void *event)
{
    NEEDS_CONTEXT();
    return core_event_destroy(event);
}

int
cuEventRecord(void *event, void *stream)
{
    NEEDS_CONTEXT();
    return core_event_record(event, stream);
}

int
cuEventSynchronize(void *event)
{
    NEEDS_CONTEXT();
    return core_event_sync(event);
}

int
cuMemcpyAsync(uint64_t to, uint64_t from, size_t n, void *stream)
{
    NEEDS_CONTEXT();
    return core_copy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, n, n, n, 1,
                     stream);
}

int
cuMemcpy2DAsync_v2(const struct kvt__cu_rect *r, void *stream)
{
    NEEDS_CONTEXT();
    if (r->from.type != KVT__CU_UNIFIED || r->to.type != KVT__CU_UNIFIED || r->from.x ||
        r->from.y || r->to.x || r->to.y)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    core.n_rects++;
    pthread_mutex_unlock(&lock);
    return core_copy((void *)(uintptr_t)r->to.device, (void *)(uintptr_t)r->from.device,
                     r->to.pitch, r->from.pitch, r->width, r->height, stream);
}

int
cuMemsetD8Async(uint64_t at, unsigned char value, size_t n, void *stream)
{
    NEEDS_CONTEXT();
    return core_fill((void *)(uintptr_t)at, value, n, stream);
}

int
cuLaunchHostFunc(void *stream, void (*function)(void *), void *arg)
{
    NEEDS_CONTEXT();
    return core_call(stream, function, arg);
}

#if !defined(WITH_OLD)

static int
copy_many(const uint64_t *to, const uint64_t *from, const size_t *sizes, size_t n,
          const struct kvt__cu_attributes *attributes, const size_t *starts,
          size_t n_attributes, void *stream)
{
    if (!stream || !n || n_attributes != 1 || starts[0] != 0 ||
        attributes->order != KVT__CU_STREAM_ORDER)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    core.n_batches++;
    pthread_mutex_unlock(&lock);
    for (size_t i = n; i--;) /* last copy first: callers must not rely on an order */
        core_copy((void *)(uintptr_t)to[i], (const void *)(uintptr_t)from[i], sizes[i],
                  sizes[i], sizes[i], 1, stream);
    return 0;
}

#if defined(WITH_12)
int
cuMemcpyBatchAsync(uint64_t *to, uint64_t *from, size_t *sizes, size_t n,
                   struct kvt__cu_attributes *attributes, size_t *starts,
                   size_t n_attributes, size_t *failed, void *stream)
{
    NEEDS_CONTEXT();
    *failed = SIZE_MAX;
    return copy_many(to, from, sizes, n, attributes, starts, n_attributes, stream);
}
#else
int
cuMemcpyBatchAsync_v2(uint64_t *to, uint64_t *from, size_t *sizes, size_t n,
                      struct kvt__cu_attributes *attributes, size_t *starts,
                      size_t n_attributes, void *stream)
{
    NEEDS_CONTEXT();
    return copy_many(to, from, sizes, n, attributes, starts, n_attributes, stream);
}
#endif

int
cuModuleLoadData(void **module, const void *image)
{
    NEEDS_CONTEXT();
    return core_module_load(module, image);
}

int
cuModuleUnload(void *module)
{
    NEEDS_CONTEXT();
    return core_module_unload(module);
}

int
cuModuleGetFunction(void **function, void *module, const char *name)
{
    NEEDS_CONTEXT();
    return core_module_function(function, module, name);
}

int
cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
               unsigned by, unsigned bz, unsigned shared, void *stream, void **params,
               void **extra)
{
    NEEDS_CONTEXT();
    if (shared || extra)
        return INVALID_VALUE;
    return core_launch(function, (unsigned[]){ gx, gy, gz }, (unsigned[]){ bx, by, bz },
                       stream, params);
}

#endif
