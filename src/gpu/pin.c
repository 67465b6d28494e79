/* SPDX-License-Identifier: Apache-2.0
 *
 * Pinning by CUDA's driver library.  It is never loaded for that and no context is made:
 * a process that uses a GPU has both already. */
#include "gpu/pin.h"

#include <dlfcn.h>
#include <string.h>

#include "base/log.h"

#define DRIVER "libcuda.so.1"
#define PORTABLE 1u /* for all contexts, not only the current one */

/* The types and names of cuda.h, which renames many of its functions. */
struct driver {
    int (*device_count)(int *n);
    int (*device)(int *device, int number);
    int (*state)(int device, unsigned *flags, int *active);
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*host_register)(void *at, size_t bytes, unsigned flags);
    int (*host_unregister)(void *at);
    int (*error_name)(int error, const char **name);
};

static bool
find_driver(struct driver *d)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {
        { "cuDeviceGetCount", &d->device_count },
        { "cuDeviceGet", &d->device },
        { "cuDevicePrimaryCtxGetState", &d->state },
        { "cuDevicePrimaryCtxRetain", &d->retain },
        { "cuDevicePrimaryCtxRelease_v2", &d->release },
        { "cuCtxPushCurrent_v2", &d->push },
        { "cuCtxPopCurrent_v2", &d->pop },
        { "cuMemHostRegister_v2", &d->host_register },
        { "cuMemHostUnregister", &d->host_unregister },
        { "cuGetErrorName", &d->error_name },
    };
    void *handle = dlopen(DRIVER, RTLD_NOW | RTLD_NOLOAD);

    for (size_t i = 0; handle && i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(handle, functions[i].name);

        if (!function) {
            dlclose(handle);
            return false;
        }
        memcpy(functions[i].to, &function, sizeof function);
    }
    if (handle)
        dlclose(handle); /* who loaded it has it still */
    return handle;
}

/* Make the context of a device current, if there is one. */
static bool
enter(const struct driver *d, int number, int *device)
{
    unsigned flags;
    void *context;
    int active = 0;

    if (d->device(device, number) || d->state(*device, &flags, &active) || !active ||
        d->retain(&context, *device))
        return false;
    if (!d->push(context))
        return true;
    d->release(*device);
    return false;
}

static void
leave(const struct driver *d, int device)
{
    void *context;

    d->pop(&context);
    d->release(device);
}

bool
kvt__pin(struct kvt__pin *pin, void *at, size_t bytes)
{
    const char *name = NULL;
    struct driver d;
    int n, device;

    *pin = (struct kvt__pin){ 0 };
    if (!find_driver(&d) || d.device_count(&n))
        return false;
    for (int i = 0; i < n; i++) {
        if (!enter(&d, i, &device))
            continue;
        int error = d.host_register(at, bytes, PORTABLE);
        leave(&d, device);
        if (!error) {
            *pin = (struct kvt__pin){ at, i };
            return true;
        }
        d.error_name(error, &name);
        kvt__log(KVT_LOG_WARN, "%zu MiB of memory could not be pinned for the GPU (%s); "
                 "copies are slower.", bytes >> 20, name ? name : "unknown error");
        break;
    }
    return false;
}

void
kvt__unpin(struct kvt__pin *pin)
{
    struct driver d;
    int device;

    /* Without its context the memory is not pinned any more. */
    if (pin->at && find_driver(&d) && enter(&d, pin->device, &device)) {
        d.host_unregister(pin->at);
        leave(&d, device);
    }
    pin->at = NULL;
}
