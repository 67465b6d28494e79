/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated GPU of the fake drivers.  Functions return CUDA's error numbers; most of these
 * numbers are HIP's, too. */
#ifndef KVT_FAKE_CORE_H
#define KVT_FAKE_CORE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu.h"

#define UNAVAILABLE 46 /* CUDA_ERROR_DEVICE_UNAVAILABLE */
#define INVALID_VALUE 1
#define OUT_OF_MEMORY 2
#define NO_DEVICE 100
#define INVALID_DEVICE 101
#define INVALID_IMAGE 200
#define INVALID_CONTEXT 201
#define INVALID_HANDLE 400
#define NOT_FOUND 500
#define ILLEGAL_ADDRESS 700
#define ALREADY_REGISTERED 712
#define NOT_REGISTERED 713

extern struct fake_gpu core;
extern pthread_mutex_t core_lock; /* guards core and all state of the simulated GPU */

#define MAX_DEVICES 16

/* Return the number of devices: the environment variable GPU_FAKE, default 2. */
int core_n_devices(void);

/* Add n to a counter, under core_lock. */
void core_count(int *counter, int n);

/* Return the error with which a driver function has to fail now: the error that a test has set for
 * this function, or an error if the calling thread has no context of `device` (-1: the function
 * needs no context), or the error of a broken device.  0: the function goes on. */
int core_enter(const char *function, int device);

/* Return the argument `device` of core_enter() for a function that needs a context.  A test may
 * destroy the context at any time, so core.active is read once. */
static inline int
core_needed(void)
{
    int active = core.active;

    return active < 0 ? MAX_DEVICES : active;
}

/* Return or set the calling thread's current device; -1: none. */
int core_device(void);
void core_set_device(int device);

/* Take a reference to a device's primary context, and create the context if no device has one.
 * Fails for the device that the environment variable GPU_LOST names. */
int core_retain(int device);

int core_alloc(void **at, size_t bytes, bool host);
int core_free(void *at, bool host);
int core_register(void *at, size_t bytes, unsigned flags);
int core_unregister(void *at);

/* Check an address of an asynchronous copy, and count pageable memory and overruns. */
void core_look(const void *at, size_t bytes);

/* Allow accesses to device memory while the simulated device works, and forbid them again: to the
 * allocation that contains `at`, or with NULL to all allocations. */
void core_show(const void *at);
void core_hide(const void *at);

void *core_test_alloc(size_t bytes);
void *core_test_pinned(size_t bytes);
void core_test_free(void *at);
void core_test_unpin(void *at);

int core_stream_create(void **stream);
int core_stream_destroy(void *stream);
int core_stream_sync(void *stream);
int core_stream_wait(void *stream, void *event);
int core_call(void *stream, void (*function)(void *), void *arg);

int core_event_create(void **event);
int core_event_destroy(void *event);
int core_event_record(void *event, void *stream);
int core_event_sync(void *event);

int core_fill(void *at, int value, size_t n, void *stream);
int core_copy(void *to, const void *from, size_t to_pitch, size_t from_pitch, size_t width,
              size_t height, void *stream);

int core_module_load(void **module, const void *image);
int core_module_unload(void *module);
int core_module_function(void **function, void *module, const char *name);
int core_launch(void *function, const unsigned grid[3], const unsigned block[3],
                void *stream, void **params);

#endif
