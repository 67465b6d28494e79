/* SPDX-License-Identifier: Apache-2.0
 *
 * libamdhip64.so.7 as far as a program needs it that copies.  The device's memory is the
 * host's. */
#include <stdlib.h>
#include <string.h>

#define NO_DEVICE 100
#define INVALID_DEVICE 101

#pragma GCC visibility push(default)
int hipInit(unsigned flags);
int hipGetDeviceCount(int *n);
int hipSetDevice(int number);
int hipMalloc(void **at, size_t bytes);
int hipFree(void *at);
int hipMemcpy(void *to, const void *from, size_t bytes, int kind);
#pragma GCC visibility pop

static int
n_devices(void)
{
    const char *n = getenv("GPU_FAKE");

    return n ? atoi(n) : 1;
}

int
hipInit(unsigned flags)
{
    (void)flags;
    return n_devices() ? 0 : INVALID_DEVICE; /* as 5.2.3 does without a GPU */
}

int
hipGetDeviceCount(int *n)
{
    *n = n_devices();
    return *n ? 0 : NO_DEVICE;
}

int
hipSetDevice(int number)
{
    return number < n_devices() ? 0 : INVALID_DEVICE;
}

int
hipMalloc(void **at, size_t bytes)
{
    *at = aligned_alloc(65536, (bytes + 65535) & ~(size_t)65535);
    return *at ? 0 : 2;
}

int
hipFree(void *at)
{
    free(at);
    return 0;
}

int
hipMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    (void)kind;
    memcpy(to, from, bytes);
    return 0;
}
