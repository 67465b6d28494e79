/* SPDX-License-Identifier: Apache-2.0
 *
 * A monotonic clock that stands still until the test moves the clock (the linker's
 * --wrap=clock_gettime).  A program includes the file in one source. */
#ifndef KVT_STILL_CLOCK_H
#define KVT_STILL_CLOCK_H

#include <time.h>

#include "base/clock.h"

static int64_t now_ns = 1000 * KVT__NS_PER_S;
static int64_t tick_ns; /* duration of a read of the clock */

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int
__wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    if (clock != CLOCK_MONOTONIC)
        return __real_clock_gettime(clock, out);
    now_ns += tick_ns;
    *out = kvt__timespec(now_ns);
    return 0;
}

#endif
