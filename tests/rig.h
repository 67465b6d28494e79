/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU for tests: a fake GPU, named by the path of the fake driver, or the machine's GPU, named
 * "cuda" or "hip".  Tests use both by the driver's functions, so that a test runs on both.  The
 * CPU never accesses device memory directly: rig_put() and rig_get() copy bytes, and wait for no
 * other stream.  An error of the driver ends the program.  Any thread, after rig_open(). */
#ifndef KVT_TEST_RIG_H
#define KVT_TEST_RIG_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fakes/gpu/gpu.h"

#include "base/error.h"
#include "gpu/driver.h"

#define RIG_ROOM ((size_t)1 << 20)
#define RIG_SECONDS 300 /* time limit of a test on a real GPU */
#define RIG_FRESH 0xc3  /* value of the bytes of new memory */

struct rig {
    enum kvt__gpu_kind kind;
    int ordinal;
    struct fake_gpu *fake; /* NULL: a real GPU */
    bool is_open;
    bool seen;             /* the CPU can access the device memory: a fake GPU without guard */
    int n_alive;           /* fake->n_alive after rig_open(): the rig's own objects */
    struct kvt__driver driver;
    struct kvt__context context;
    int (*call)(void *stream, void (*function)(void *), void *arg);
    int (*fill)(void *at, unsigned char value, size_t n, void *stream);
    /* For copies, only if the CPU cannot access device memory.  Otherwise no stream is made: a
     * fake GPU's stream is a thread, and a test that forks must not have threads yet. */
    pthread_mutex_t lock; /* guards stream and room */
    void *stream;
    void *room; /* pinned host memory of RIG_ROOM bytes */
};

static struct rig rig = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* End the program with a message if error is not 0.  error > 0: the driver's; < 0: kvtier's. */
static inline void
rig_must(int error, const char *what)
{
    if (!error)
        return;
    fflush(NULL);
    fprintf(stderr, "%s: %s\n", what,
            error < 0 ? kvt__why() : kvt__driver_error(&rig.driver, error));
    _exit(1);
}

/* Make the device's context current in the calling thread, as the driver's functions require. */
static inline struct kvt__context
rig_enter(void)
{
    struct kvt__context context = rig.context;

    rig_must(kvt__context_enter(&rig.driver, &context), "context");
    return context;
}

static inline void
rig_leave(struct kvt__context context)
{
    kvt__context_leave(&rig.driver, &context);
}

/* ---------------------------------------------------------------------- opening */

static inline void *
rig_load(const char *library)
{
    const char *one[] = { library, NULL };
    const char *const *names = one;
    void *handle = NULL;

    if (!strcmp(library, "cuda"))
        names = kvt__driver_libraries(KVT__GPU_CUDA);
    else if (!strcmp(library, "hip"))
        names = kvt__driver_libraries(KVT__GPU_HIP);
    for (; !handle && *names; names++)
        handle = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
    return handle;
}

static inline int
rig_find(void *handle, const char *cuda, const char *hip, void *to)
{
    void *function = dlsym(handle, rig.kind == KVT__GPU_CUDA ? cuda : hip);

    memcpy(to, &function, sizeof function);
    return function ? 0 : -1;
}

/* Initialize the driver and create the primary context, as an engine does.  Return NULL, or the
 * reason of the failure. */
static inline const char *
rig_start(void *handle)
{
    static char why[128];
    int (*init)(unsigned flags);
    int error, n = 0;

    if (rig_find(handle, "cuInit", "hipInit", &init) ||
        rig_find(handle, "cuLaunchHostFunc", "hipLaunchHostFunc", &rig.call) ||
        rig_find(handle, "cuMemsetD8Async", "hipMemsetD8Async", &rig.fill) ||
        !kvt__driver_find(rig.kind, &rig.driver) || !rig.driver.copies)
        return "its driver is too old";
    error = init(0);
    if (!error)
        error = rig.driver.device_count(&n);
    if (!error && n <= rig.ordinal)
        return "there is no such device";
    if (!error)
        error = rig.driver.device(&rig.context.device, rig.ordinal);
    if (!error)
        error = rig.driver.retain(&rig.context.handle, rig.context.device);
    snprintf(why, sizeof why, "its driver says %s", kvt__driver_error(&rig.driver, error));
    return error ? why : NULL;
}

/* Open a GPU.  Return NULL, or the reason why the GPU cannot be used. */
static inline const char *
rig_open(const char *library, int ordinal)
{
    void *handle, *found;

    /* Give each stream a hardware queue: a blocked stream must not block other streams. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if (!(handle = rig_load(library)))
        return dlerror();
    rig.kind = strstr(library, "hip") ? KVT__GPU_HIP : KVT__GPU_CUDA;
    rig.ordinal = ordinal;
    if ((found = dlsym(handle, "fake_gpu")) != NULL)
        rig.fake = ((fake_gpu_fn *)(uintptr_t)found)();
    rig.seen = rig.fake && !getenv("FAKE_GPU_GUARD");
    const char *why = rig_start(handle);
    if (why)
        return why;
    if (!rig.seen) {
        struct kvt__context context = rig_enter();

        rig_must(rig.driver.stream_create(&rig.stream, KVT__STREAM_ALONE, 0), "stream");
        rig_must(rig.driver.host_alloc(&rig.room, RIG_ROOM, KVT__HOST_PORTABLE), "room");
        rig_leave(context);
    }
    rig.is_open = true;
    rig.n_alive = rig.fake ? rig.fake->n_alive : 0;
    return NULL;
}

/* Open GPU 0, or end the program: as skipped if the machine has no GPU, as failed if a fake GPU
 * cannot be opened. */
static inline void
rig_open_or_skip(const char *library)
{
    const char *why = rig_open(library, 0);

    if (!why)
        return;
    printf("skipped: no GPU to test with: %s\n", why);
    exit(strchr(library, '/') ? 1 : 77);
}

/* On a real GPU start a time limit of RIG_SECONDS; SIGALRM then ends the program. */
static inline void
rig_watch(void)
{
    alarm(rig.fake ? 0 : RIG_SECONDS);
}

/* Return true if the test has left no objects or references on a fake GPU; true on a real GPU. */
static inline bool
rig_is_at_rest(void)
{
    const struct fake_gpu *fake = rig.fake;

    return !fake || (fake->n_misused == 0 && fake->n_alive == rig.n_alive &&
                     fake->n_retained == 1 && fake->n_current == 0);
}

/* ----------------------------------------------------------------------- memory */

static inline void
rig_copy(void *to, const void *from, size_t n)
{
    rig_must(kvt__driver_copy(&rig.driver, to, from, n, rig.stream), "copy");
    rig_must(rig.driver.stream_sync(rig.stream), "copy");
}

/* Copy n bytes between host memory and device memory, through the pinned room. */
static inline void
rig_move(void *to, const void *from, size_t n, bool to_device)
{
    if (rig.seen) {
        memcpy(to, from, n);
        return;
    }
    struct kvt__context context = rig_enter();

    pthread_mutex_lock(&rig.lock);
    for (size_t at = 0, step; at < n; at += step) {
        char *there = (char *)to + at;
        const char *here = (const char *)from + at;

        step = n - at < RIG_ROOM ? n - at : RIG_ROOM;
        if (to_device)
            memcpy(rig.room, here, step);
        rig_copy(to_device ? there : rig.room, to_device ? rig.room : here, step);
        if (!to_device)
            memcpy(there, rig.room, step);
    }
    pthread_mutex_unlock(&rig.lock);
    rig_leave(context);
}

/* Copy from host memory to device memory. */
static inline void
rig_put(void *to, const void *from, size_t n)
{
    rig_move(to, from, n, true);
}

/* Copy from device memory to host memory. */
static inline void
rig_get(void *to, const void *from, size_t n)
{
    rig_move(to, from, n, false);
}

static inline void
rig_set(void *at, int value, size_t n)
{
    if (rig.seen) {
        memset(at, value, n);
        return;
    }
    struct kvt__context context = rig_enter();

    pthread_mutex_lock(&rig.lock);
    rig_must(rig.fill(at, (unsigned char)value, n, rig.stream), "fill");
    rig_must(rig.driver.stream_sync(rig.stream), "fill");
    pthread_mutex_unlock(&rig.lock);
    rig_leave(context);
}

static inline void *
rig_alloc(size_t bytes)
{
    struct kvt__context context = rig_enter();
    void *at;

    rig_must(rig.driver.mem_alloc(&at, bytes), "memory of the device");
    rig_leave(context);
    rig_set(at, RIG_FRESH, bytes);
    return at;
}

static inline void
rig_free(void *at)
{
    struct kvt__context context = rig_enter();

    rig_must(rig.driver.mem_free(at), "memory of the device");
    rig_leave(context);
}

/* Allocate pinned host memory. */
static inline void *
rig_pinned(size_t bytes)
{
    struct kvt__context context = rig_enter();
    void *at;

    rig_must(rig.driver.host_alloc(&at, bytes, KVT__HOST_PORTABLE), "pinned memory");
    rig_leave(context);
    memset(at, RIG_FRESH, bytes);
    return at;
}

static inline void
rig_unpin(void *at)
{
    struct kvt__context context = rig_enter();

    rig_must(rig.driver.host_free(at), "pinned memory");
    rig_leave(context);
}

/* ---------------------------------------------------------------------- streams */

/* Create a stream, as an engine does. */
static inline void *
rig_stream(void)
{
    struct kvt__context context = rig_enter();
    void *stream;

    rig_must(rig.driver.stream_create(&stream, KVT__STREAM_ALONE, 0), "stream");
    rig_leave(context);
    return stream;
}

static inline void
rig_wait(void *stream)
{
    struct kvt__context context = rig_enter();

    rig_must(rig.driver.stream_sync(stream), "stream");
    rig_leave(context);
}

static inline void
rig_end_stream(void *stream)
{
    struct kvt__context context = rig_enter();

    rig_must(rig.driver.stream_sync(stream), "stream");
    rig_must(rig.driver.stream_destroy(stream), "stream");
    rig_leave(context);
}

/* Queue a fill of n bytes on a stream. */
static inline void
rig_fill(void *stream, void *at, int value, size_t n)
{
    struct kvt__context context = rig_enter();

    rig_must(rig.fill(at, (unsigned char)value, n, stream), "fill");
    rig_leave(context);
}

/* Queue a call of function(arg) on a stream. */
static inline void
rig_call(void *stream, void (*function)(void *), void *arg)
{
    struct kvt__context context = rig_enter();

    rig_must(rig.call(stream, function, arg), "call");
    rig_leave(context);
}

#endif
