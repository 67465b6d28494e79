/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that a program's engines keep their KV in: the host's, or, if $KVTIER_TEST_DRIVER
 * names its driver (tests/rig.h), that of a device.  Tests put bytes there and get them, so
 * that they run with either; what they get is what is there now, whether or not somebody
 * is still to write it. */
#ifndef KVT_TEST_DEVICE_H
#define KVT_TEST_DEVICE_H

#include <stdlib.h>
#include <string.h>

#include "kvt-test.h"
#include "kvtier.h"
#include "rig.h"

/* Whether KV is on one. */
static inline bool
on_device(void)
{
    const char *driver = getenv("KVTIER_TEST_DRIVER");

    if (driver && !rig.is_open)
        rig_open_or_skip(driver);
    return driver;
}

static inline uint32_t
device_memory(void)
{
    return !on_device() ? KVT_MEMORY_HOST
                        : rig.kind == KVT__GPU_CUDA ? KVT_MEMORY_CUDA : KVT_MEMORY_HIP;
}

/* The stream that KV is used on; NULL in host memory. */
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

/* Whether it is all of one value. */
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

/* Zeroed.  A test that takes some has not waited long for its GPU so far. */
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

/* What the stream was told is done. */
static inline void
device_settle(void)
{
    if (on_device())
        rig_wait(device_stream());
}

#endif
