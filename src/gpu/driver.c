/* SPDX-License-Identifier: Apache-2.0
 *
 * Fill one table of functions for two vendors.  Most functions differ only in their names. */
#include "gpu/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"

/* MAY: optional functions. */
enum part { PIN, COPY, KERN, MAY };

static const struct function {
    const char *cuda;
    const char *hip;
    enum part part;
    size_t at;
} functions[] = {
#define BOTH(part, member, cuda, hip)                                                      \
    { #cuda, #hip, part, offsetof(struct kvt__driver, member) },
#include "gpu/functions.def"
};

/* Indexes in kvt__driver.vendor. */
enum {
#define CUDA(part, which, name, type) CU_##which,
#include "gpu/functions.def"
    N_CU
};
enum {
#define HIP(part, which, name, type) HIP_##which,
#include "gpu/functions.def"
    N_HIP
};

static const struct vendor_function {
    const char *name;
    enum part part;
} cuda_functions[N_CU] = {
#define CUDA(part, which, name, type) { #name, part },
#include "gpu/functions.def"
}, hip_functions[N_HIP] = {
#define HIP(part, which, name, type) { #name, part },
#include "gpu/functions.def"
};

/* ------------------------------------------------------------------ finding */

const char *const *
kvt__driver_libraries(enum kvt__gpu_kind kind)
{
    static const char *const names[][5] = {
        [KVT__GPU_CUDA] = { "libcuda.so.1" },
        [KVT__GPU_HIP] = { "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                           "libamdhip64.so" },
    };

    return names[kind];
}

static void *
find_loaded(enum kvt__gpu_kind kind)
{
    void *handle = NULL;

    for (const char *const *name = kvt__driver_libraries(kind); !handle && *name; name++)
        handle = dlopen(*name, RTLD_NOW | RTLD_NOLOAD);
    return handle;
}

/* Look up a function and store the function's address in *to, a pointer to a function.  Set
 * *missing to the name if the library has no such function. */
static void
find_function(void *handle, const char *name, void *to, const char **missing)
{
    void *function = dlsym(handle, name);

    memcpy(to, &function, sizeof function);
    if (!function)
        *missing = name;
}

bool
kvt__driver_find(enum kvt__gpu_kind kind, struct kvt__driver *d)
{
    const char *missing[MAY + 1] = { NULL };
    void *handle = find_loaded(kind);
    bool cuda = kind == KVT__GPU_CUDA;

    *d = (struct kvt__driver){ .kind = kind };
    if (!handle)
        return false;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        const struct function *f = &functions[i];

        find_function(handle, cuda ? f->cuda : f->hip, (char *)d + f->at,
                      &missing[f->part]);
    }
    for (size_t i = 0; i < (cuda ? (size_t)N_CU : (size_t)N_HIP); i++) {
        const struct vendor_function *f = cuda ? &cuda_functions[i] : &hip_functions[i];

        find_function(handle, f->name, &d->vendor[i], &missing[f->part]);
    }
    dlclose(handle); /* the process's own reference keeps the library loaded */
    d->missing = missing[PIN] ? missing[PIN] : missing[COPY];
    d->copies = !d->missing;
    d->kernels = d->copies && !missing[KERN];
    return !missing[PIN];
}

const char *
kvt__driver_error(const struct kvt__driver *d, int error)
{
    const char *name = NULL;

    if (d->kind == KVT__GPU_HIP)
        name = ((kvt__hip_error_name *)d->vendor[HIP_ERROR_NAME])(error);
    else if (((kvt__cu_error_name *)d->vendor[CU_ERROR_NAME])(error, &name))
        name = NULL;
    return name ? name : "unknown error";
}

/* ----------------------------------------------------------------- contexts */

/* HIP has no contexts: a process may use every device from the start.  The state that HIP reports
 * for a device only says whether the device is the calling thread's current device. */
static bool
has_context(const struct kvt__driver *d, int device)
{
    unsigned flags;
    int active = 0;

    return d->kind == KVT__GPU_HIP ||
           (!((kvt__cu_state *)d->vendor[CU_STATE])(device, &flags, &active) && active);
}

int
kvt__context_hold(const struct kvt__driver *d, int ordinal, struct kvt__context *c)
{
    if (d->device(&c->device, ordinal))
        return kvt__fail(ENODEV, "There is no GPU number %d.", ordinal);
    if (!has_context(d, c->device) || d->retain(&c->handle, c->device))
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
        error = ((kvt__cu_push *)d->vendor[CU_PUSH])(c->handle);
    } else {
        error = ((kvt__hip_get_device *)d->vendor[HIP_GET_DEVICE])(&c->before);
        if (!error)
            error = ((kvt__hip_set_device *)d->vendor[HIP_SET_DEVICE])(c->device);
    }
    return error ? kvt__fail(EIO, "The GPU's context cannot be used (%s).",
                             kvt__driver_error(d, error)) : 0;
}

void
kvt__context_leave(const struct kvt__driver *d, const struct kvt__context *c)
{
    void *context;

    if (d->kind == KVT__GPU_CUDA)
        ((kvt__cu_pop *)d->vendor[CU_POP])(&context);
    else
        ((kvt__hip_set_device *)d->vendor[HIP_SET_DEVICE])(c->before);
}

/* ------------------------------------------------------------------- copies */

int
kvt__driver_copy(const struct kvt__driver *d, void *to, const void *from, size_t n,
                 void *stream)
{
    if (d->kind == KVT__GPU_HIP)
        return ((kvt__hip_copy *)d->vendor[HIP_COPY])(to, from, n, KVT__HIP_ANY, stream);
    return ((kvt__cu_copy *)d->vendor[CU_COPY])((uintptr_t)to, (uintptr_t)from, n, stream);
}

int
kvt__driver_copy_rect(const struct kvt__driver *d, const struct kvt__rect *r, void *stream)
{
    if (d->kind == KVT__GPU_HIP)
        return ((kvt__hip_copy_2d *)d->vendor[HIP_COPY_2D])(
            (void *)(uintptr_t)r->to, r->to_pitch, (void *)(uintptr_t)r->from,
            r->from_pitch, r->width, r->height, KVT__HIP_ANY, stream);

    const struct kvt__cu_rect rect = {
        .from = { .type = KVT__CU_UNIFIED, .device = r->from, .pitch = r->from_pitch },
        .to = { .type = KVT__CU_UNIFIED, .device = r->to, .pitch = r->to_pitch },
        .width = r->width,
        .height = r->height,
    };
    return ((kvt__cu_copy_2d *)d->vendor[CU_COPY_2D])(&rect, stream);
}

/* Queue the copies by one call.  0, the driver's error, or -1: the driver has no batch copy. */
static int
batch_at_once(const struct kvt__driver *d, uint64_t *to, uint64_t *from, size_t *sizes,
              size_t n, void *stream)
{
    struct kvt__cu_attributes attributes = { .order = KVT__CU_STREAM_ORDER,
                                             .flags = KVT__CU_OVERLAP };
    size_t start = 0, failed = 0;

    if (d->kind != KVT__GPU_CUDA || !stream)
        return -1;
    if (d->vendor[CU_BATCH_13])
        return ((kvt__cu_batch_13 *)d->vendor[CU_BATCH_13])(to, from, sizes, n, &attributes,
                                                       &start, 1, stream);
    if (d->vendor[CU_BATCH_12])
        return ((kvt__cu_batch_12 *)d->vendor[CU_BATCH_12])(to, from, sizes, n, &attributes,
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
    static const int numbers[][3] = {
        [KVT__GPU_CUDA] = { KVT__CU_MAJOR, KVT__CU_MINOR, KVT__CU_PROCESSORS },
        [KVT__GPU_HIP] = { KVT__HIP_MAJOR, KVT__HIP_MINOR, KVT__HIP_PROCESSORS },
    };
    int *const to[3] = { major, minor, n_processors };
    int error = 0;

    for (size_t i = 0; !error && i < 3; i++)
        error = d->attribute(to[i], numbers[d->kind][i], device);
    return error;
}
