/* SPDX-License-Identifier: Apache-2.0
 *
 * Open a GPU: context, kernels, lanes, and the choice between kernels and batch copies. */
#include "gpu/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/private-dir.h"
#include "gpu/compile.h"
#include "gpu/private.h"
#include "gpu/plan.h"

#define STAGING ((size_t)64 << 20) /* default; more is not faster */
#define MIN_PART ((size_t)64 << 10)
#define ALLOC_ALIGN ((size_t)64 << 10)

/* One allocation of kvt__gpu_alloc(): `at` is `whole`, aligned. */
struct kvt__gpu_allocation {
    struct kvt__gpu_allocation *next;
    void *whole;
    unsigned char *at;
};

/* ------------------------------------------------------------------ kernels */

static int
load_module(struct kvt__gpu *gpu, const char *cache, bool recompile)
{
    const struct kvt__driver *d = &gpu->driver;
    struct kvt__image image;
    char name[32];

    int err = kvt__compile(d, gpu->context.device, cache, recompile, &image);
    if (err)
        return err;
    int error = d->module_load(&gpu->module, image.bytes);
    if (error)
        gpu->module = NULL;
    for (unsigned i = 0; !error && i < KVT__WIDTHS; i++) {
        snprintf(name, sizeof name, "kvt_copy_%u", 1u << i);
        error = d->module_function(&gpu->copy[i], gpu->module, name);
    }
    if (!error)
        error = d->module_function(&gpu->fetch, gpu->module, "kvt_fetch");
    free(image.bytes);
    if (!error)
        return 0;
    if (gpu->module)
        d->module_unload(gpu->module);
    gpu->module = NULL;
    return kvt__gpu_fail(gpu, error, "The GPU's driver cannot load the kernels");
}

/* Copy the constant tables for sums to the device. */
static int
copy_sums(struct kvt__gpu *gpu)
{
    const struct kvt__driver *d = &gpu->driver;
    struct kvt__sums *sums;
    void *pinned = NULL, *stream = NULL;
    int error = d->host_alloc(&pinned, sizeof *sums, KVT__HOST_PORTABLE);

    if (!error)
        error = d->mem_alloc(&gpu->sums, sizeof *sums);
    if (!error)
        error = d->stream_create(&stream, KVT__STREAM_ALONE, 0);
    if (!error) {
        kvt__plan_sums(pinned);
        error = kvt__driver_copy(d, gpu->sums, pinned, sizeof *sums, stream);
        int late = d->stream_sync(stream);
        error = error ? error : late;
    }
    if (stream)
        d->stream_destroy(stream);
    if (pinned)
        d->host_free(pinned);
    return error ? kvt__gpu_fail(gpu, error, "The kernels' tables cannot be copied to the GPU")
                 : 0;
}

static int
load_kernels(struct kvt__gpu *gpu, const char *cache)
{
    if (!gpu->driver.kernels)
        return kvt__fail(ENOENT, "The GPU's driver is too old for kernels.");
    int err = load_module(gpu, cache, false);
    if (err && err != -ENOENT)
        err = load_module(gpu, cache, true); /* an image of another driver may not load */
    if (!err)
        err = copy_sums(gpu);
    return err;
}

/* ----------------------------------------------------------- open and close */

static void
describe(struct kvt__gpu *gpu, const struct kvt__gpu_params *params, const char *why)
{
    char name[128] = "";

    gpu->driver.device_name(name, sizeof name - 1, gpu->context.device);
    snprintf(gpu->describe, sizeof gpu->describe, "%s device %d (%s), %s%s%.200s",
             params->kind == KVT__GPU_CUDA ? "CUDA" : "HIP", params->ordinal, name,
             gpu->by_kernels ? "kernels" : "batch copies", *why ? ": " : "", why);
}

static int
open_lanes(struct kvt__gpu *gpu, size_t staging_bytes)
{
    size_t part = (staging_bytes ? staging_bytes : STAGING) / 2 / KVT__N_STAGING_PARTS;

    part = part < MIN_PART ? MIN_PART : part;
    part = part > KVT__MAX_STEP_BYTES ? KVT__MAX_STEP_BYTES : part;
    int err = 0;

    for (int i = 0; !err && i < KVT__N_LANES; i++)
        err = kvt__lane_open(gpu, i == KVT__LANE_GATHER,
                             i == KVT__LANE_SUM ? 0 : part * KVT__N_STAGING_PARTS, &gpu->lanes[i]);
    return err;
}

/* Open everything that needs the entered context. */
static int
open_in_context(struct kvt__gpu *gpu, const struct kvt__gpu_params *params)
{
    const char *copies = params->copies ? params->copies : "";
    char why[256] = "";
    int major, minor;

    int error = kvt__driver_capability(&gpu->driver, gpu->context.device, &major, &minor,
                                       &gpu->n_processors);
    if (error)
        return kvt__gpu_fail(gpu, error, "The GPU's attributes cannot be read");
    if (strcmp(copies, "batch") != 0) {
        int err = load_kernels(gpu, params->cache ? params->cache : KVT__LOCAL_DIR);

        if (err && strcmp(copies, "kernel") == 0)
            return err;
        if (err)
            snprintf(why, sizeof why, "%s", kvt__why());
        gpu->by_kernels = !err;
    }
    int err = kvt__bounce_open(gpu, &gpu->bounce);
    if (!err)
        err = open_lanes(gpu, params->staging_bytes);
    if (!err && gpu->by_kernels && !*copies)
        err = kvt__measure(gpu);
    if (!err)
        describe(gpu, params, why);
    return err;
}

int
kvt__gpu_open(const struct kvt__gpu_params *params, struct kvt__gpu **out)
{
    const char *vendor = params->kind == KVT__GPU_CUDA ? "CUDA" : "HIP";
    struct kvt__gpu *gpu = calloc(1, sizeof *gpu);
    struct kvt__context context;

    if (!gpu)
        return kvt__fail(ENOMEM, "a GPU");
    pthread_mutex_init(&gpu->lock, NULL);
    gpu->ordinal = params->ordinal;
    if (!kvt__driver_find(params->kind, &gpu->driver) || !gpu->driver.copies) {
        free(gpu);
        return kvt__fail(ENODEV, "This process has not loaded the driver of %s, or the driver "
                         "is too old.", vendor);
    }
    int err = kvt__context_hold(&gpu->driver, params->ordinal, &gpu->context);
    if (err) {
        free(gpu);
        return err;
    }
    context = gpu->context;
    err = kvt__context_enter(&gpu->driver, &context);
    if (!err) {
        err = open_in_context(gpu, params);
        kvt__context_leave(&gpu->driver, &context);
    }
    if (err)
        kvt__gpu_close(gpu);
    else
        *out = gpu;
    return err;
}

void
kvt__gpu_close(struct kvt__gpu *gpu)
{
    struct kvt__context context = gpu->context;
    const struct kvt__driver *d = &gpu->driver;
    bool entered = kvt__context_enter(d, &context) == 0;
    struct kvt__gpu_allocation *next;

    for (size_t i = 0; i < KVT__N_LANES; i++)
        kvt__lane_close(gpu->lanes[i], entered);
    kvt__bounce_close(gpu, gpu->bounce, entered);
    for (struct kvt__gpu_allocation *a = gpu->allocations; a; a = next) {
        next = a->next;
        if (entered)
            d->mem_free(a->whole);
        free(a);
    }
    if (entered && gpu->sums)
        d->mem_free(gpu->sums);
    if (entered && gpu->module)
        d->module_unload(gpu->module);
    if (entered)
        kvt__context_leave(d, &context);
    kvt__context_release(d, &gpu->context);
    pthread_mutex_destroy(&gpu->lock);
    free(gpu);
}

const char *
kvt__gpu_describe(const struct kvt__gpu *gpu)
{
    return gpu->describe;
}

enum kvt__gpu_kind
kvt__gpu_kind(const struct kvt__gpu *gpu)
{
    return gpu->driver.kind;
}

int
kvt__gpu_ordinal(const struct kvt__gpu *gpu)
{
    return gpu->ordinal;
}

int
kvt__gpu_enter(const struct kvt__gpu *gpu, struct kvt__gpu_entered *entered)
{
    struct kvt__context context = gpu->context;
    int err = kvt__context_enter(&gpu->driver, &context);

    entered->before = context.before;
    return err;
}

void
kvt__gpu_leave(const struct kvt__gpu *gpu, const struct kvt__gpu_entered *entered)
{
    struct kvt__context context = gpu->context;

    context.before = entered->before;
    kvt__context_leave(&gpu->driver, &context);
}

/* --------------------------------------------------------------------- copies */

int
kvt__gpu_gather(struct kvt__gpu *gpu, void *stream, struct kvt__gpu_copy *const *copies,
                size_t n)
{
    struct kvt__context context = gpu->context;

    int err = kvt__context_enter(&gpu->driver, &context);
    if (err)
        return err;
    err = kvt__lane_gather(gpu->lanes[KVT__LANE_GATHER], stream, copies, n);
    kvt__context_leave(&gpu->driver, &context);
    return err;
}

int
kvt__gpu_scatter(struct kvt__gpu *gpu, struct kvt__gpu_copy *const *copies, size_t n)
{
    struct kvt__context context = gpu->context;

    int err = kvt__context_enter(&gpu->driver, &context);
    if (err)
        return err;
    err = kvt__lane_copy(gpu->lanes[KVT__LANE_SCATTER], copies, n);
    kvt__context_leave(&gpu->driver, &context);
    return err;
}

int
kvt__gpu_after(struct kvt__gpu *gpu, void *stream)
{
    struct kvt__context context = gpu->context;

    int err = kvt__context_enter(&gpu->driver, &context);
    if (err)
        return err;
    err = kvt__lane_after(gpu->lanes[KVT__LANE_SCATTER], stream);
    kvt__context_leave(&gpu->driver, &context);
    return err;
}

/* --------------------------------------------------------------------- memory */

int
kvt__gpu_alloc(struct kvt__gpu *gpu, size_t bytes, unsigned char **out)
{
    struct kvt__context context = gpu->context;
    struct kvt__gpu_allocation *a = malloc(sizeof *a);

    if (!a || bytes > SIZE_MAX - ALLOC_ALIGN) {
        free(a);
        return kvt__fail(ENOMEM, "memory of the GPU");
    }
    int err = kvt__context_enter(&gpu->driver, &context);
    if (!err) {
        int error = gpu->driver.mem_alloc(&a->whole, bytes + ALLOC_ALIGN);

        if (error)
            err = kvt__gpu_fail(gpu, error, "The GPU has too little free memory");
        kvt__context_leave(&gpu->driver, &context);
    }
    if (err) {
        free(a);
        return err;
    }
    a->at = (unsigned char *)(uintptr_t)
        kvt__round_up((uintptr_t)a->whole, ALLOC_ALIGN);
    pthread_mutex_lock(&gpu->lock);
    a->next = gpu->allocations;
    gpu->allocations = a;
    pthread_mutex_unlock(&gpu->lock);
    *out = a->at;
    return 0;
}

void
kvt__gpu_free(struct kvt__gpu *gpu, unsigned char *at)
{
    struct kvt__context context = gpu->context;
    struct kvt__gpu_allocation **link = &gpu->allocations, *a;

    pthread_mutex_lock(&gpu->lock);
    while (*link && (*link)->at != at)
        link = &(*link)->next;
    a = *link;
    if (a)
        *link = a->next;
    pthread_mutex_unlock(&gpu->lock);
    if (!a)
        return;
    if (kvt__context_enter(&gpu->driver, &context) == 0) {
        gpu->driver.mem_free(a->whole);
        kvt__context_leave(&gpu->driver, &context);
    }
    free(a);
}
