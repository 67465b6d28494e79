/* SPDX-License-Identifier: Apache-2.0
 *
 * Structs of kvtier.h that begin with their size.  Fields that the caller's older header lacks
 * are zero. */
#ifndef KVT_BASE_SIZED_H
#define KVT_BASE_SIZED_H

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"

/* Copy the struct of kvtier's caller, theirs, to ours, which has size bytes.  what: the name of the
 * struct for the message.  Return 0, or -EINVAL with a sentence: theirs is NULL, or struct_size is
 * not set. */
static inline int
kvt__copy_sized(void *ours, size_t size, const void *theirs, const char *what)
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
