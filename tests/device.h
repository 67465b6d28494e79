/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory for the KV of a test's engines: host memory, or, if $KVTIER_TEST_DRIVER names a driver
 * (tests/rig.h), device memory.  Tests access the KV only by these functions, so that a test runs
 * with both kinds of memory.  A read returns the present bytes, and does not wait for queued
 * writes. */
#ifndef KVT_TEST_DEVICE_H
#define KVT_TEST_DEVICE_H

#include <stdlib.h>
#include <string.h>

#include "kvt-test.h"
#include "kvtier.h"
#include "rig.h"

/* Return true if the KV is in device memory.  Open the device at the first call. */
static inline bool
on_device(void)
{
    const char *driver = getenv("KVTIER_TEST_DRIVER");

    if (driver && !rig.is_open)
        rig_open_or_skip(driver);
    return driver;
}

/* Return the KVT_MEMORY_ constant of the KV's memory. */
static inline uint32_t
device_memory(void)
{
    return !on_device() ? KVT_MEMORY_HOST
                        : rig.kind == KVT__GPU_CUDA ? KVT_MEMORY_CUDA : KVT_MEMORY_HIP;
}

/* Return the stream of the KV; NULL if the KV is in host memory. */
static inline void *
device_stream(void)
{
    static void *stream;

    if (!stream && on_device())
        stream = rig_stream();
    return stream;
}

static inline void
device_put(void *to, const void *from, size_t n)
{
    if (on_device())
        rig_put(to, from, n);
    else
        memcpy(to, from, n);
}

static inline void
device_get(void *to, const void *from, size_t n)
{
    if (on_device())
        rig_get(to, from, n);
    else
        memcpy(to, from, n);
}

static inline void
device_set(void *at, int value, size_t n)
{
    if (on_device())
        rig_set(at, value, n);
    else
        memset(at, value, n);
}

/* Return true if all n bytes have this value. */
static inline bool
device_is(const unsigned char *at, int value, size_t n)
{
    unsigned char *got = malloc(n);
    bool is = true;

    assert_non_null(got);
    device_get(got, at, n);
    for (size_t i = 0; is && i < n; i++)
        is = got[i] == value;
    free(got);
    return is;
}

/* Allocate zeroed memory, and restart the test's time limit (rig_watch()). */
static inline void *
device_alloc(size_t bytes)
{
    if (!on_device())
        return calloc(1, bytes);
    rig_watch();
    void *at = rig_alloc(bytes);
    rig_set(at, 0, bytes);
    return at;
}

static inline void
device_free(void *at)
{
    if (on_device())
        rig_free(at);
    else
        free(at);
}

/* Wait until the work on the KV's stream has ended. */
static inline void
device_settle(void)
{
    if (on_device())
        rig_wait(device_stream());
}

#endif
