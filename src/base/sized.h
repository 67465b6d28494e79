/* SPDX-License-Identifier: Apache-2.0
 *
 * Structs of the public interface that begin with their size: what a caller's
 * older header does not have counts as zero. */
#ifndef KVT_BASE_SIZED_H
#define KVT_BASE_SIZED_H

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"

/* Copy a caller's struct into ours of size bytes.  0, or -EINVAL when it is NULL
 * or tells no size.  what: for the message. */
static inline int
kvt__take_sized(void *ours, size_t size, const void *theirs, const char *what)
{
    size_t n = 0;

    if (theirs)
        memcpy(&n, theirs, sizeof n);
    if (n < sizeof n)
        return kvt__fail(EINVAL, "%s: NULL, or struct_size is not set.", what);
    memset(ours, 0, size);
    memcpy(ours, theirs, n < size ? n : size);
    return 0;
}

#endif
