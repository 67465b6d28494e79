/* SPDX-License-Identifier: Apache-2.0
 *
 * Pin host memory by CUDA's or HIP's driver. */
#include "gpu/pin.h"

#include "base/log.h"
#include "gpu/driver.h"

/* Enter the context of a device.  False: this process has no context of the device. */
static bool
enter(const struct kvt__driver *d, int ordinal, struct kvt__context *c)
{
    if (kvt__context_hold(d, ordinal, c) < 0)
        return false;
    if (kvt__context_enter(d, c) == 0)
        return true;
    kvt__context_release(d, c);
    return false;
}

static void
leave(const struct kvt__driver *d, const struct kvt__context *c)
{
    kvt__context_leave(d, c);
    kvt__context_release(d, c);
}

static bool
pin_by(enum kvt__gpu_kind kind, struct kvt__pin *pin, void *at, size_t bytes)
{
    struct kvt__context c;
    struct kvt__driver d;
    int n;

    if (!kvt__driver_find(kind, &d) || d.device_count(&n))
        return false;
    for (int i = 0; i < n; i++) {
        if (!enter(&d, i, &c))
            continue;
        int error = d.host_register(at, bytes, KVT__HOST_PORTABLE);
        leave(&d, &c);
        if (!error) {
            *pin = (struct kvt__pin){ at, kind, i };
            return true;
        }
        kvt__log(KVT_LOG_WARN, "%zu MiB of memory could not be pinned for the GPU (%s); "
                 "copies are slower.", bytes >> 20, kvt__driver_error(&d, error));
        break;
    }
    return false;
}

bool
kvt__pin(struct kvt__pin *pin, void *at, size_t bytes)
{
    *pin = (struct kvt__pin){ 0 };
    return pin_by(KVT__GPU_CUDA, pin, at, bytes) || pin_by(KVT__GPU_HIP, pin, at, bytes);
}

void
kvt__unpin(struct kvt__pin *pin)
{
    struct kvt__context c;
    struct kvt__driver d;

    /* If the context no longer exists, the driver has unpinned the memory. */
    if (pin->at && kvt__driver_find(pin->kind, &d) && enter(&d, pin->ordinal, &c)) {
        d.host_unregister(pin->at);
        leave(&d, &c);
    }
    pin->at = NULL;
}
