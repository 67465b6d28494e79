/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA's driver library or HIP's runtime behind one table of functions.  kvtier never loads the
 * library and never creates a context: a process that uses a GPU already has both.  Only the
 * helper program of gds/ loads the library and creates the context itself.  Any thread. */
#ifndef KVT_GPU_DRIVER_H
#define KVT_GPU_DRIVER_H

#include <stdbool.h>

#include "gpu/abi.h"
#include "gpu/device.h"

/* The functions return 0 or the vendor's error.  Device addresses have the width of pointers.
 * Pinning needs the functions of the section "pin", copies need "pin" and "copy", kernels need all
 * three sections. */
struct kvt__driver {
    enum kvt__gpu_kind kind;
    bool copies;  /* the library has all functions of "pin" and "copy" */
    bool kernels; /* the library has all functions of the three sections */
    const char *missing; /* name of a missing function of "pin" or "copy"; NULL: none */

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

    void (*vendor[8])(void); /* functions with a signature of one vendor; used by driver.c */
};

/* Return the file names of the vendor's library, in the order of preference, NULL at the end. */
const char *const *kvt__driver_libraries(enum kvt__gpu_kind kind);

/* Fill the table from the library that the process has loaded.  The table is valid as long as
 * the library stays loaded.  False: no library is loaded, or a function of "pin" is missing. */
bool kvt__driver_find(enum kvt__gpu_kind kind, struct kvt__driver *d);

/* Return the name of a vendor's error, like "CUDA_ERROR_OUT_OF_MEMORY". */
const char *kvt__driver_error(const struct kvt__driver *d, int error);

/* A reference to a device's primary context, which keeps the context alive. */
struct kvt__context {
    int device;
    void *handle;
    int before; /* HIP: the thread's previous device, while the context is entered */
};

/* Acquire a reference to the primary context of device number `ordinal`.  The caller releases the
 * reference with kvt__context_release().  0; -ENODEV with a sentence: the device does not exist, or
 * this process has no context of the device. */
int kvt__context_hold(const struct kvt__driver *d, int ordinal, struct kvt__context *c);
void kvt__context_release(const struct kvt__driver *d, const struct kvt__context *c);

/* Make the context current in the calling thread; leave() restores the thread's previous
 * context.  Each thread uses its own copy of *c, because enter() writes to *c.  enter() returns
 * 0, or -EIO with a sentence. */
int kvt__context_enter(const struct kvt__driver *d, struct kvt__context *c);
void kvt__context_leave(const struct kvt__driver *d, const struct kvt__context *c);

/* A copy of `height` rows of `width` bytes.  Addresses are of the host or of the device. */
struct kvt__rect {
    uint64_t to;
    uint64_t from;
    size_t to_pitch;
    size_t from_pitch;
    size_t width;
    size_t height;
};

/* Queue a copy of n bytes, or of rows, on the stream, between any two addresses of the host or
 * the device.  0 or the vendor's error. */
int kvt__driver_copy(const struct kvt__driver *d, void *to, const void *from, size_t n,
                     void *stream);
int kvt__driver_copy_rect(const struct kvt__driver *d, const struct kvt__rect *r,
                          void *stream);

/* Queue n copies, in no particular order among each other.  One call of the driver queues all n
 * if the driver has a batch copy.  0 or the vendor's error. */
int kvt__driver_copy_batch(const struct kvt__driver *d, uint64_t *to, uint64_t *from,
                           size_t *sizes, size_t n, void *stream);

/* Read the device's compute capability and number of multiprocessors.  0 or the vendor's
 * error. */
int kvt__driver_capability(const struct kvt__driver *d, int device, int *major,
                           int *minor, int *n_processors);

#endif
