/* SPDX-License-Identifier: Apache-2.0
 *
 * Interface for tests to control and inspect a fake driver.  The driver simulates two GPUs (or as
 * many as the environment variable GPU_FAKE says).  Device memory is host memory.  A stream is a
 * thread, so that streams run in parallel unless events order the streams. */
#ifndef KVT_FAKE_GPU_H
#define KVT_FAKE_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_gpu {
    volatile int active; /* the device that has a context; -1: none has.  volatile, not _Atomic:
                          * headers.py compiles this file as C++. */
    int fails;         /* error of the registration of host memory; 0: none */
    int n_retained;    /* references to contexts: retained minus released */
    int n_current;     /* current contexts: pushed minus popped */
    int n_registered;  /* registered areas of host memory */
    void *at;          /* the last registration: address, size, flags */
    size_t bytes;
    unsigned flags;

    /* The function named `failing` (NULL: none) returns `error`, after `after` successes. */
    const char *failing;
    int error;
    int after;
    bool once;         /* only one call fails */
    void (*fail_on)(const char *failing, int after, int error, bool once); /* set these four */

    int broken;        /* error of the whole device: work and waits end with this error */
    void (*lose)(int error); /* set `broken`, also while the device works; 0: repair */
    int n_alive;       /* existing streams, events, modules and allocations */
    int n_launched;    /* launches of kernels */
    int n_batches;     /* calls of the batch copy */
    int n_rects;       /* 2D copies */
    int n_pageable;    /* asynchronous copies of host memory that is not pinned */
    int n_misused;     /* wrong calls: with a real driver a crash or undefined behaviour */

    void *(*alloc)(size_t bytes); /* device memory */
    void (*free)(void *at);
    void *(*pinned)(size_t bytes); /* pinned host memory */
    void (*unpin)(void *at);

    /* Streams of the test, as an engine's. */
    void *(*stream)(void);
    void (*end_stream)(void *stream);
    void (*call)(void *stream, void (*function)(void *), void *arg);
    void (*wait)(void *stream);
};

/* The function "fake_gpu" of the library. */
typedef struct fake_gpu *fake_gpu_fn(void);

/* A fake compiler; the library's function "fake_compiler" returns this struct. */
struct fake_compiler {
    int n_compiled;
    int error; /* result of a compilation; 0: success */
};

typedef struct fake_compiler *fake_compiler_fn(void);

/* First bytes of a compiled image. */
#define FAKE_IMAGE "kvtier fake kernels "

#endif
