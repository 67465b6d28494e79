/* SPDX-License-Identifier: Apache-2.0
 *
 * Clocks, as int64_t nanoseconds.  Any thread; no system call where the kernel has a vDSO. */
#ifndef KVT_BASE_CLOCK_H
#define KVT_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define KVT__NS_PER_MS INT64_C(1000000)
#define KVT__NS_PER_S INT64_C(1000000000)

static inline int64_t
kvt__clock_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * KVT__NS_PER_S + t.tv_nsec;
}

/* Return the monotonic time, for deadlines and leases.  All processes of a boot share this
 * clock. */
static inline int64_t
kvt__now_ns(void)
{
    return kvt__clock_ns(CLOCK_MONOTONIC);
}

/* Return the time of day, for the recency of chunks.  Times are comparable after a reboot, and
 * accurate to a few ms. */
static inline int64_t
kvt__wall_ns(void)
{
    return kvt__clock_ns(CLOCK_REALTIME_COARSE);
}

/* Convert ns, at least 0, for system calls. */
static inline struct timespec
kvt__timespec(int64_t ns)
{
    return (struct timespec){ ns / KVT__NS_PER_S, ns % KVT__NS_PER_S };
}

#endif
