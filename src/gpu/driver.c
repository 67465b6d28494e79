/* SPDX-License-Identifier: Apache-2.0
 *
 * One table for two vendors.  Most functions differ in name alone; cuda.h renames many of
 * its own to newer versions, whose names stand here. */
#include "gpu/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"

enum part { PIN, COPY, KERN };

static const struct function {
    const char *cuda;
    const char *hip;
    enum part part;
    size_t at;
} functions[] = {
#define F(part, member, cuda, hip) { cuda, hip, part, offsetof(struct kvt__driver, member) }
    F(PIN, device_count, "cuDeviceGetCount", "hipGetDeviceCount"),
    F(PIN, device, "cuDeviceGet", "hipDeviceGet"),
    F(PIN, state, "cuDevicePrimaryCtxGetState", "hipDevicePrimaryCtxGetState"),
    F(PIN, retain, "cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain"),
    F(PIN, release, "cuDevicePrimaryCtxRelease_v2", "hipDevicePrimaryCtxRelease"),
    F(PIN, host_register, "cuMemHostRegister_v2", "hipHostRegister"),
    F(PIN, host_unregister, "cuMemHostUnregister", "hipHostUnregister"),
    F(COPY, device_name, "cuDeviceGetName", "hipDeviceGetName"),
    F(COPY, attribute, "cuDeviceGetAttribute", "hipDeviceGetAttribute"),
    F(COPY, mem_alloc, "cuMemAlloc_v2", "hipMalloc"),
    F(COPY, mem_free, "cuMemFree_v2", "hipFree"),
    F(COPY, host_alloc, "cuMemHostAlloc", "hipHostMalloc"),
    F(COPY, host_free, "cuMemFreeHost", "hipHostFree"),
    F(COPY, stream_priorities, "cuCtxGetStreamPriorityRange",
      "hipDeviceGetStreamPriorityRange"),
    F(COPY, stream_create, "cuStreamCreateWithPriority", "hipStreamCreateWithPriority"),
    F(COPY, stream_destroy, "cuStreamDestroy_v2", "hipStreamDestroy"),
    F(COPY, stream_sync, "cuStreamSynchronize", "hipStreamSynchronize"),
    F(COPY, stream_wait, "cuStreamWaitEvent", "hipStreamWaitEvent"),
    F(COPY, event_create, "cuEventCreate", "hipEventCreateWithFlags"),
    F(COPY, event_destroy, "cuEventDestroy_v2", "hipEventDestroy"),
    F(COPY, event_record, "cuEventRecord", "hipEventRecord"),
    F(COPY, event_sync, "cuEventSynchronize", "hipEventSynchronize"),
    F(KERN, module_load, "cuModuleLoadData", "hipModuleLoadData"),
    F(KERN, module_unload, "cuModuleUnload", "hipModuleUnload"),
    F(KERN, module_function, "cuModuleGetFunction", "hipModuleGetFunction"),
    F(KERN, launch, "cuLaunchKernel", "hipModuleLaunchKernel"),
#undef F
};

/* Of the table's member "vendor". */
enum cuda { CU_ERROR_NAME, CU_PUSH, CU_POP, CU_COPY, CU_COPY_2D, CU_BATCH_13, CU_BATCH_12,
            N_CU };
enum hip { HIP_ERROR_NAME, HIP_GET_DEVICE, HIP_SET_DEVICE, HIP_COPY, HIP_COPY_2D, N_HIP };

static const struct {
    const char *name;
    int part; /* -1: may be missing */
} cuda_own[N_CU] = {
    { "cuGetErrorName", PIN },      { "cuCtxPushCurrent_v2", PIN },
    { "cuCtxPopCurrent_v2", PIN },  { "cuMemcpyAsync", COPY },
    { "cuMemcpy2DAsync_v2", COPY }, { "cuMemcpyBatchAsync_v2", -1 },
    { "cuMemcpyBatchAsync", -1 },
}, hip_own[N_HIP] = {
    { "hipGetErrorName", PIN }, { "hipGetDevice", PIN },      { "hipSetDevice", PIN },
    { "hipMemcpyAsync", COPY }, { "hipMemcpy2DAsync", COPY },
};

typedef int cu_error_name(int error, const char **name);
typedef int cu_push(void *context);
typedef int cu_pop(void **context);
typedef int cu_copy(uint64_t to, uint64_t from, size_t n, void *stream);
typedef const char *hip_error_name(int error);
typedef int hip_get_device(int *device);
typedef int hip_set_device(int device);
typedef int hip_copy(void *to, const void *from, size_t n, int kind, void *stream);
typedef int hip_copy_2d(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                        size_t width, size_t height, int kind, void *stream);

#define HIP_ANY 4 /* hipMemcpyDefault: addresses say where */

/* CUDA_MEMCPY2D */
struct side {
    size_t x;
    size_t y;
    int type;
    const void *host;
    uint64_t device;
    void *array;
    size_t pitch;
};
typedef struct {
    struct side from;
    struct side to;
    size_t width;
    size_t height;
} cu_rect;
typedef int cu_copy_2d(const cu_rect *rect, void *stream);

#define CU_UNIFIED 4 /* CU_MEMORYTYPE_UNIFIED: addresses say where */

/* CUmemcpyAttributes; CUDA 13 dropped the place for the index that failed. */
typedef struct {
    int order;
    int from_hint[2];
    int to_hint[2];
    unsigned flags;
} cu_attributes;
typedef int cu_batch_13(uint64_t *to, uint64_t *from, size_t *sizes, size_t n,
                        cu_attributes *attributes, size_t *starts, size_t n_attributes,
                        void *stream);
typedef int cu_batch_12(uint64_t *to, uint64_t *from, size_t *sizes, size_t n,
                        cu_attributes *attributes, size_t *starts, size_t n_attributes,
                        size_t *failed, void *stream);

/* ------------------------------------------------------------------ finding */

static void *
loaded(enum kvt__gpu_kind kind)
{
    static const char *const names[][5] = {
        [KVT__GPU_CUDA] = { "libcuda.so.1" },
        [KVT__GPU_HIP] = { "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                           "libamdhip64.so" },
    };
    void *handle = NULL;

    for (size_t i = 0; !handle && names[kind][i]; i++)
        handle = dlopen(names[kind][i], RTLD_NOW | RTLD_NOLOAD);
    return handle;
}

/* Whether it is there; to is a pointer to a function. */
static bool
find(void *handle, const char *name, void *to)
{
    void *function = dlsym(handle, name);

    memcpy(to, &function, sizeof function);
    return function;
}

bool
kvt__driver_find(enum kvt__gpu_kind kind, struct kvt__driver *d)
{
    void *handle = loaded(kind);
    bool cuda = kind == KVT__GPU_CUDA;
    bool all[] = { [PIN] = true, [COPY] = true, [KERN] = true };

    *d = (struct kvt__driver){ .kind = kind };
    if (!handle)
        return false;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        const struct function *f = &functions[i];

        all[f->part] &= find(handle, cuda ? f->cuda : f->hip, (char *)d + f->at);
    }
    for (size_t i = 0; i < (cuda ? (size_t)N_CU : (size_t)N_HIP); i++) {
        int part = cuda ? cuda_own[i].part : hip_own[i].part;

        if (!find(handle, cuda ? cuda_own[i].name : hip_own[i].name, &d->vendor[i]) &&
            part >= 0)
            all[part] = false;
    }
    dlclose(handle); /* who loaded it has it still */
    d->copies = all[PIN] && all[COPY];
    d->kernels = d->copies && all[KERN];
    return all[PIN];
}

const char *
kvt__driver_error(const struct kvt__driver *d, int error)
{
    const char *name = NULL;

    if (d->kind == KVT__GPU_HIP)
        name = ((hip_error_name *)d->vendor[HIP_ERROR_NAME])(error);
    else if (((cu_error_name *)d->vendor[CU_ERROR_NAME])(error, &name))
        name = NULL;
    return name ? name : "unknown error";
}

/* ----------------------------------------------------------------- contexts */

int
kvt__context_hold(const struct kvt__driver *d, int ordinal, struct kvt__context *c)
{
    unsigned flags;
    int active = 0;

    if (d->device(&c->device, ordinal))
        return kvt__fail(ENODEV, "There is no GPU number %d.", ordinal);
    if (d->state(c->device, &flags, &active) || !active ||
        d->retain(&c->handle, c->device))
        return kvt__fail(ENODEV, "This process does not use GPU number %d.", ordinal);
    return 0;
}

void
kvt__context_release(const struct kvt__driver *d, const struct kvt__context *c)
{
    d->release(c->device);
}

int
kvt__context_enter(const struct kvt__driver *d, struct kvt__context *c)
{
    int error;

    if (d->kind == KVT__GPU_CUDA) {
        error = ((cu_push *)d->vendor[CU_PUSH])(c->handle);
    } else {
        error = ((hip_get_device *)d->vendor[HIP_GET_DEVICE])(&c->before);
        if (!error)
            error = ((hip_set_device *)d->vendor[HIP_SET_DEVICE])(c->device);
    }
    return error ? kvt__fail(EIO, "The GPU's context cannot be used (%s).",
                             kvt__driver_error(d, error)) : 0;
}

void
kvt__context_leave(const struct kvt__driver *d, const struct kvt__context *c)
{
    void *context;

    if (d->kind == KVT__GPU_CUDA)
        ((cu_pop *)d->vendor[CU_POP])(&context);
    else
        ((hip_set_device *)d->vendor[HIP_SET_DEVICE])(c->before);
}

/* ------------------------------------------------------------------- copies */

int
kvt__driver_copy(const struct kvt__driver *d, void *to, const void *from, size_t n,
                 void *stream)
{
    if (d->kind == KVT__GPU_HIP)
        return ((hip_copy *)d->vendor[HIP_COPY])(to, from, n, HIP_ANY, stream);
    return ((cu_copy *)d->vendor[CU_COPY])((uintptr_t)to, (uintptr_t)from, n, stream);
}

int
kvt__driver_copy_rect(const struct kvt__driver *d, const struct kvt__rect *r, void *stream)
{
    if (d->kind == KVT__GPU_HIP)
        return ((hip_copy_2d *)d->vendor[HIP_COPY_2D])(
            (void *)(uintptr_t)r->to, r->to_pitch, (void *)(uintptr_t)r->from,
            r->from_pitch, r->width, r->height, HIP_ANY, stream);

    const cu_rect rect = {
        .from = { .type = CU_UNIFIED, .device = r->from, .pitch = r->from_pitch },
        .to = { .type = CU_UNIFIED, .device = r->to, .pitch = r->to_pitch },
        .width = r->width,
        .height = r->height,
    };
    return ((cu_copy_2d *)d->vendor[CU_COPY_2D])(&rect, stream);
}

/* -1: the driver has no such call. */
static int
batch_at_once(const struct kvt__driver *d, uint64_t *to, uint64_t *from, size_t *sizes,
              size_t n, void *stream)
{
    cu_attributes attributes = { .order = 1, .flags = 1 }; /* in order */
    size_t start = 0, failed = 0;

    if (d->kind != KVT__GPU_CUDA || !stream)
        return -1;
    if (d->vendor[CU_BATCH_13])
        return ((cu_batch_13 *)d->vendor[CU_BATCH_13])(to, from, sizes, n, &attributes,
                                                       &start, 1, stream);
    if (d->vendor[CU_BATCH_12])
        return ((cu_batch_12 *)d->vendor[CU_BATCH_12])(to, from, sizes, n, &attributes,
                                                       &start, 1, &failed, stream);
    return -1;
}

int
kvt__driver_copy_batch(const struct kvt__driver *d, uint64_t *to, uint64_t *from,
                       size_t *sizes, size_t n, void *stream)
{
    int error = n ? batch_at_once(d, to, from, sizes, n, stream) : 0;

    if (error >= 0)
        return error;
    error = 0;
    for (size_t i = 0; !error && i < n; i++)
        error = kvt__driver_copy(d, (void *)(uintptr_t)to[i],
                                 (const void *)(uintptr_t)from[i], sizes[i], stream);
    return error;
}

/* ---------------------------------------------------------------- questions */

int
kvt__driver_capability(const struct kvt__driver *d, int device, int *major, int *minor,
                       int *n_processors)
{
    static const int numbers[][3] = { [KVT__GPU_CUDA] = { 75, 76, 16 },
                                      [KVT__GPU_HIP] = { 23, 61, 63 } };
    int *const to[3] = { major, minor, n_processors };
    int error = 0;

    for (size_t i = 0; !error && i < 3; i++)
        error = d->attribute(to[i], numbers[d->kind][i], device);
    return error;
}
