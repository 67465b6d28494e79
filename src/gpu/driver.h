/* SPDX-License-Identifier: Apache-2.0
 *
 * What is used of CUDA's driver library or of HIP's runtime, under one set of names.  A
 * library is never loaded for that and no context is made: a process that uses a GPU has
 * both already, and the helper program of gds/ sees to both by itself.  Any thread. */
#ifndef KVT_GPU_DRIVER_H
#define KVT_GPU_DRIVER_H

#include <stdbool.h>

#include "gpu/abi.h"
#include "gpu/device.h"

/* Answers are 0 or the vendor's error.  Addresses of the device are as wide as pointers.
 * Each line says what must be there: pin - for pinning; copy - for copies too; kern - for
 * kernels too. */
struct kvt__driver {
    enum kvt__gpu_kind kind;
    bool copies;  /* all of "copy" is there */
    bool kernels; /* all of "kern" as well */
    const char *missing; /* a function that "pin" or "copy" names; NULL: none is */

    /* pin */
    int (*init)(unsigned flags);
    int (*device_count)(int *n);
    int (*device)(int *device, int ordinal);
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*host_register)(void *at, size_t bytes, unsigned flags);
    int (*host_unregister)(void *at);

    /* copy */
    int (*device_name)(char *name, int n, int device);
    int (*attribute)(int *value, int which, int device);
    int (*mem_alloc)(void **at, size_t bytes);
    int (*mem_free)(void *at);
    int (*host_alloc)(void **at, size_t bytes, unsigned flags);
    int (*host_free)(void *at);
    int (*stream_priorities)(int *least, int *greatest);
    int (*stream_create)(void **stream, unsigned flags, int priority);
    int (*stream_destroy)(void *stream);
    int (*stream_sync)(void *stream);
    int (*stream_wait)(void *stream, void *event, unsigned flags);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_sync)(void *event);

    /* kern */
    int (*module_load)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*module_function)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                  unsigned by, unsigned bz, unsigned shared, void *stream, void **params,
                  void **extra);

    void (*vendor[8])(void); /* those whose form differs; driver.c knows them */
};

/* What a library may be called, the best first, NULL at the end. */
const char *const *kvt__driver_libraries(enum kvt__gpu_kind kind);

/* Fill the table from the library that the process has loaded; false: it has none, or one
 * that lacks what pinning needs. */
bool kvt__driver_find(enum kvt__gpu_kind kind, struct kvt__driver *d);

/* "CUDA_ERROR_OUT_OF_MEMORY" */
const char *kvt__driver_error(const struct kvt__driver *d, int error);

/* A device's primary context, kept alive. */
struct kvt__context {
    int device;
    void *handle;
    int before; /* HIP: this thread's device, while the context is entered */
};

/* -ENODEV: there is no such device, or no context of it. */
int kvt__context_hold(const struct kvt__driver *d, int ordinal, struct kvt__context *c);
void kvt__context_release(const struct kvt__driver *d, const struct kvt__context *c);

/* Make it the calling thread's, and give back what was.  Threads have a copy of *c each. */
int kvt__context_enter(const struct kvt__driver *d, struct kvt__context *c);
void kvt__context_leave(const struct kvt__driver *d, const struct kvt__context *c);

/* Asynchronous copies between any two places.  2D: rows of width bytes. */
struct kvt__rect {
    uint64_t to;
    uint64_t from;
    size_t to_pitch;
    size_t from_pitch;
    size_t width;
    size_t height;
};

int kvt__driver_copy(const struct kvt__driver *d, void *to, const void *from, size_t n,
                     void *stream);
int kvt__driver_copy_rect(const struct kvt__driver *d, const struct kvt__rect *r,
                          void *stream);

/* Many copies at once, in no order; by one call where the driver has that. */
int kvt__driver_copy_batch(const struct kvt__driver *d, uint64_t *to, uint64_t *from,
                           size_t *sizes, size_t n, void *stream);

/* The device's compute capability and how many multiprocessors it has. */
int kvt__driver_capability(const struct kvt__driver *d, int device, int *major,
                           int *minor, int *n_processors);

#endif
