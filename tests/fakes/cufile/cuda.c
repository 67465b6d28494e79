/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda.so.1 as far as a program needs it that has one context and copies.  The device's
 * memory is the host's. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NO_DEVICE 100
#define INVALID_DEVICE 101
#define INVALID_CONTEXT 201

static int n_current;

#pragma GCC visibility push(default)
int cuInit(unsigned flags);
int cuDeviceGetCount(int *n);
int cuDeviceGet(int *device, int number);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *at, size_t bytes);
int cuMemFree_v2(uint64_t at);
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes);
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
#pragma GCC visibility pop

static int
n_devices(void)
{
    const char *n = getenv("GPU_FAKE");

    return n ? atoi(n) : 1;
}

int
cuInit(unsigned flags)
{
    (void)flags;
    return n_devices() ? 0 : NO_DEVICE;
}

int
cuDeviceGetCount(int *n)
{
    *n = n_devices();
    return *n ? 0 : 3;
}

int
cuDeviceGet(int *device, int number)
{
    *device = number;
    return number < n_devices() ? 0 : INVALID_DEVICE;
}

int
cuDevicePrimaryCtxRetain(void **context, int device)
{
    (void)device;
    *context = &n_current;
    return 0;
}

int
cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    return 0;
}

int
cuCtxSetCurrent(void *context)
{
    n_current = context != NULL;
    return 0;
}

int
cuMemAlloc_v2(uint64_t *at, size_t bytes)
{
    size_t whole = (bytes + 65535) & ~(size_t)65535;
    void *memory = n_current ? aligned_alloc(65536, whole) : NULL;

    *at = (uintptr_t)memory;
    return memory ? 0 : INVALID_CONTEXT;
}

int
cuMemFree_v2(uint64_t at)
{
    free((void *)(uintptr_t)at);
    return 0;
}

int
cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

int
cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return 0;
}
