/* SPDX-License-Identifier: Apache-2.0
 *
 * Load the GPU's driver and create the primary context, as an engine does before the engine opens
 * kvtier.  The kvtier library does neither. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "gpu.h"

/* ------------------------------------------------------------------- open and close */

static bool
load(enum kvt__gpu_kind kind)
{
    void *handle = NULL;

    for (const char *const *name = kvt__driver_libraries(kind); !handle && *name; name++)
        handle = dlopen(*name, RTLD_NOW);
    return handle;
}

/* Load the driver and create the context of the first device.  False: why is the reason.  The
 * driver is never unloaded. */
static bool
begin(enum kvt__gpu_kind kind, struct machine *m, char *why, size_t size)
{
    const char *library = kvt__driver_libraries(kind)[0];
    int n = 0, device, error;
    void *context;

    if (!load(kind))
        return snprintf(why, size, "%s cannot be loaded", library), false;
    if (!kvt__driver_find(kind, &m->d) || !m->d.copies)
        return snprintf(why, size, "%s is too old", library), false;
    if ((error = m->d.init(0)))
        return snprintf(why, size, "%s does not start: %d (%s)", library, error,
                        kvt__driver_error(&m->d, error)), false;
    if (m->d.device_count(&n) || !n || m->d.device(&device, 0))
        return snprintf(why, size, "%s shows no device", library), false;
    if ((error = m->d.retain(&context, device)))
        return snprintf(why, size, "%s makes no context (%s)", library,
                        kvt__driver_error(&m->d, error)), false;
    return true;
}

int
machine_fail(const struct machine *m, int error, const char *what)
{
    fprintf(stderr, "kvtier-bench: %s: %s\n", what,
            error < 0 ? kvt__why() : kvt__driver_error(&m->d, error));
    return CLI_ENVIRONMENT;
}

int
machine_open(struct machine *m)
{
    char why[2][160] = { "", "" };

    *m = (struct machine){ .stream = NULL };
    if (!begin(KVT__GPU_CUDA, m, why[0], sizeof why[0]) &&
        !begin(KVT__GPU_HIP, m, why[1], sizeof why[1])) {
        fprintf(stderr, "kvtier-bench: the gpu cases need a GPU, and there is none (%s; "
                "%s): skipped.\n", why[0], why[1]);
        return BENCH_SKIPPED;
    }
    int error = kvt__context_hold(&m->d, 0, &m->context);
    if (error)
        return machine_fail(m, error, "open the GPU's context");
    error = kvt__context_enter(&m->d, &m->context);
    if (!error)
        error = m->d.stream_create(&m->stream, KVT__STREAM_ALONE, 0);
    return error ? machine_fail(m, error, "open the GPU's context") : 0;
}

void
machine_close(struct machine *m)
{
    m->d.stream_destroy(m->stream);
    kvt__context_leave(&m->d, &m->context);
    kvt__context_release(&m->d, &m->context);
    m->d.release(m->context.device); /* the reference of begin() */
}

/* ------------------------------------------------------------------------ memory */

int
machine_alloc(const struct machine *m, size_t bytes, unsigned char **out)
{
    void *at = NULL;
    int error = m->d.mem_alloc(&at, bytes);

    *out = error ? NULL : at;
    return error ? machine_fail(m, error, "allocate GPU memory") : 0;
}

int
machine_alloc_pinned(const struct machine *m, size_t bytes, unsigned char **out)
{
    void *at = NULL;
    int error = m->d.host_alloc(&at, bytes, KVT__HOST_PORTABLE);

    *out = error ? NULL : at;
    if (error)
        return machine_fail(m, error, "allocate pinned host memory");
    memset(at, 0x5a, bytes);
    return 0;
}

void
machine_free(const struct machine *m, unsigned char *at)
{
    if (at)
        m->d.mem_free(at);
}

void
machine_free_pinned(const struct machine *m, unsigned char *at)
{
    if (at)
        m->d.host_free(at);
}

/* Try an allocation and free the memory again: a query of free memory is not more reliable. */
size_t
machine_fit(const struct machine *m, size_t wanted, size_t each, size_t rest)
{
    void *at;

    for (size_t n = wanted; n; n /= 2) {
        if (m->d.mem_alloc(&at, n * each + rest))
            continue;
        m->d.mem_free(at);
        return n;
    }
    fprintf(stderr, "kvtier-bench: the GPU has no %zu MiB of memory free: skipped.\n",
            (each + rest) >> 20);
    return 0;
}

int
machine_copy(const struct machine *m, void *to, const void *from, size_t bytes,
             struct bench_cost *out)
{
    bench_start(out);
    int error = kvt__driver_copy(&m->d, to, from, bytes, m->stream);
    int late = m->d.stream_sync(m->stream);
    bench_stop(out);
    error = error ? error : late;
    return error ? machine_fail(m, error, "copy memory") : 0;
}
