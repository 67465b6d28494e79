/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages for errors of the driver. */
#include "gpu/private.h"

#include <errno.h>

#include "base/error.h"

int
kvt__gpu_fail(const struct kvt__gpu *gpu, int error, const char *what)
{
    return kvt__fail(error == KVT__OUT_OF_MEMORY ? ENOMEM : EIO, "%s (%s).", what,
                     kvt__driver_error(&gpu->driver, error));
}
