/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine behind the fake drivers.  Errors are CUDA's numbers, most of which are
 * HIP's as well. */
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
extern pthread_mutex_t core_lock; /* of it, and of all that is behind it */

#define MAX_DEVICES 16

/* What the environment variable GPU_FAKE says, else two. */
int core_n_devices(void);

void core_count(int *counter, int n);

/* What a function begins with: an error that it was told to answer, or that the calling
 * thread has no context (-1: it needs none). */
int core_enter(const char *function, int device);

/* The device that core_enter() of a function with a context wants.  A test may take the context
 * away at any time, so core.active is read once. */
static inline int
core_needed(void)
{
    int active = core.active;

    return active < 0 ? MAX_DEVICES : active;
}

/* -1: the thread has none. */
int core_device(void);
void core_set_device(int device);

/* The device's context is kept; where there is none this makes one, but of the device that
 * the environment variable GPU_LOST names. */
int core_retain(int device);

int core_alloc(void **at, size_t bytes, bool host);
int core_free(void *at, bool host);
int core_register(void *at, size_t bytes, unsigned flags);
int core_unregister(void *at);

/* Count what an asynchronous copy should not be given. */
void core_look(const void *at, size_t bytes);

/* Let who works for the device at its memory: at the allocation that the byte is in, NULL:
 * at all; and take that back. */
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
