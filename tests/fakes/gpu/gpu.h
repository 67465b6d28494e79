/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests tell a fake driver, and ask it.  Of a machine with two GPUs (or so many as the
 * environment variable GPU_FAKE says) whose memory is the host's, and whose streams are
 * threads: what is not made to wait does not. */
#ifndef KVT_FAKE_GPU_H
#define KVT_FAKE_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_gpu {
    volatile int active; /* the device that has a context; -1: none has.  _Atomic is not C++,
                          * in which headers.py compiles this file. */
    int fails;         /* what registering memory answers; 0: it works */
    int n_retained;    /* contexts, more often than released */
    int n_current;     /* contexts, pushed more often than popped */
    int n_registered;
    void *at;          /* what was registered last */
    size_t bytes;
    unsigned flags;

    /* The function with this name (NULL: none) answers that, after so many good calls. */
    const char *failing;
    int error;
    int after;
    bool once;         /* and not again */
    void (*fail_on)(const char *failing, int after, int error, bool once); /* set them */

    int broken;        /* an error of the device: all that runs, and waits, ends with it */
    void (*lose)(int error); /* make it that, also while it is in use */
    int n_alive;       /* streams, events, modules and allocations that were not ended */
    int n_launched;    /* kernels */
    int n_batches;     /* calls for many copies */
    int n_rects;       /* copies of rows */
    int n_pageable;    /* asynchronous copies with the host's memory that is not pinned */
    int n_misused;     /* calls that a driver would answer with a crash or nonsense */

    void *(*alloc)(size_t bytes); /* the device's memory */
    void (*free)(void *at);
    void *(*pinned)(size_t bytes);
    void (*unpin)(void *at);

    /* Streams as a caller has them. */
    void *(*stream)(void);
    void (*end_stream)(void *stream);
    void (*call)(void *stream, void (*function)(void *), void *arg);
    void (*wait)(void *stream);
};

/* The function "fake_gpu" of the library. */
typedef struct fake_gpu *fake_gpu_fn(void);

/* Of a fake compiler: the function "fake_compiler". */
struct fake_compiler {
    int n_compiled;
    int error; /* what compiling answers; 0: it works */
};

typedef struct fake_compiler *fake_compiler_fn(void);

/* What it makes begins so. */
#define FAKE_IMAGE "kvtier fake kernels "

#endif
