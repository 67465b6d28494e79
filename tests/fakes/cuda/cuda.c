/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda.so.1 as far as kvtier uses it, of a machine with two GPUs.  Registering memory
 * needs a current context, as with the real one.  One thread at a time. */
#include "cuda.h"

#define INVALID_VALUE 1
#define INVALID_DEVICE 101
#define INVALID_CONTEXT 201
#define ALREADY_REGISTERED 712
#define NOT_REGISTERED 713

static struct fake_cuda fake = { .active = -1 };
static char contexts[2];

struct fake_cuda *fake_cuda(void);
int cuDeviceGetCount(int *n);
int cuDeviceGet(int *device, int number);
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags);
int cuMemHostUnregister(void *at);
int cuGetErrorName(int error, const char **name);

struct fake_cuda *
fake_cuda(void)
{
    return &fake;
}

int
cuDeviceGetCount(int *n)
{
    *n = 2;
    return 0;
}

int
cuDeviceGet(int *device, int number)
{
    *device = number;
    return number < 2 ? 0 : INVALID_DEVICE;
}

int
cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = device == fake.active;
    return 0;
}

int
cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &contexts[device];
    fake.n_retained++;
    return 0;
}

int
cuDevicePrimaryCtxRelease_v2(int device)
{
    if (device != fake.active || !fake.n_retained)
        return INVALID_CONTEXT;
    fake.n_retained--;
    return 0;
}

int
cuCtxPushCurrent_v2(void *context)
{
    if (fake.active < 0 || context != &contexts[fake.active])
        return INVALID_CONTEXT;
    fake.n_current++;
    return 0;
}

int
cuCtxPopCurrent_v2(void **context)
{
    *context = &contexts[fake.active];
    fake.n_current--;
    return 0;
}

int
cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    if (!fake.n_current)
        return INVALID_CONTEXT;
    if (!at || !bytes)
        return INVALID_VALUE;
    if (fake.n_registered)
        return ALREADY_REGISTERED;
    if (fake.fails)
        return fake.fails;
    fake.n_registered++;
    fake.at = at;
    fake.bytes = bytes;
    fake.flags = flags;
    return 0;
}

int
cuMemHostUnregister(void *at)
{
    if (!fake.n_current)
        return INVALID_CONTEXT;
    if (!fake.n_registered || at != fake.at)
        return NOT_REGISTERED;
    fake.n_registered--;
    return 0;
}

int
cuGetErrorName(int error, const char **name)
{
    *name = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
    return 0;
}
