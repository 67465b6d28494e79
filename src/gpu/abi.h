/* SPDX-License-Identifier: Apache-2.0
 *
 * Types and constants of CUDA's driver library, HIP's runtime and their run-time compilers,
 * declared here so that building kvtier needs no vendor header.  functions.def names the
 * functions.  The test gpu-headers compares this file and functions.def with the vendors'
 * headers. */
#ifndef KVT_GPU_ABI_H
#define KVT_GPU_ABI_H

#include <stddef.h>
#include <stdint.h>

#define KVT__HOST_PORTABLE 1u /* pinned for all contexts, not only the current context */
#define KVT__HOST_MAPPED 2u   /* the device can access the memory, at the same address */
#define KVT__STREAM_ALONE 1u  /* the stream and the default stream do not wait for each other */
#define KVT__EVENT_BLOCKS 1u  /* a thread that waits for the event sleeps, and does not spin */
#define KVT__EVENT_NO_TIME 2u
#define KVT__OUT_OF_MEMORY 2

/* Attributes of a device: compute capability, and number of multiprocessors. */
enum {
    KVT__CU_MAJOR = 75,
    KVT__CU_MINOR = 76,
    KVT__CU_PROCESSORS = 16,
    KVT__HIP_MAJOR = 23,
    KVT__HIP_MINOR = 61,
    KVT__HIP_PROCESSORS = 63,
};

/* The driver derives the kind of memory (host or device) from the address. */
#define KVT__CU_UNIFIED 4 /* a value of kvt__cu_side.type */
#define KVT__HIP_ANY 4    /* a value of the argument kind of kvt__hip_copy */

/* CUDA_MEMCPY2D: first the source, then the destination. */
struct kvt__cu_side {
    size_t x;
    size_t y;
    int type;
    const void *host;
    uint64_t device;
    void *array;
    size_t pitch;
};
struct kvt__cu_rect {
    struct kvt__cu_side from;
    struct kvt__cu_side to;
    size_t width;
    size_t height;
};

/* CUmemcpyAttributes */
struct kvt__cu_attributes {
    int order;
    int from_hint[2];
    int to_hint[2];
    unsigned flags;
};
#define KVT__CU_STREAM_ORDER 1 /* the sources are read in the stream's order */
#define KVT__CU_OVERLAP 1u     /* use the copy engines, so that copies overlap with kernels */

/* Functions with a signature of one vendor only.  CUDA 13 removed the argument for the index of
 * the failed copy from the batch copy. */
typedef int kvt__cu_error_name(int error, const char **name);
typedef int kvt__cu_state(int device, unsigned *flags, int *active);
typedef int kvt__cu_push(void *context);
typedef int kvt__cu_pop(void **context);
typedef int kvt__cu_copy(uint64_t to, uint64_t from, size_t n, void *stream);
typedef int kvt__cu_copy_2d(const struct kvt__cu_rect *rect, void *stream);
typedef int kvt__cu_batch_13(uint64_t *to, uint64_t *from, size_t *sizes, size_t n,
                             struct kvt__cu_attributes *attributes, size_t *starts,
                             size_t n_attributes, void *stream);
typedef int kvt__cu_batch_12(uint64_t *to, uint64_t *from, size_t *sizes, size_t n,
                             struct kvt__cu_attributes *attributes, size_t *starts,
                             size_t n_attributes, size_t *failed, void *stream);
typedef const char *kvt__hip_error_name(int error);
typedef int kvt__hip_get_device(int *device);
typedef int kvt__hip_set_device(int device);
typedef int kvt__hip_copy(void *to, const void *from, size_t n, int kind, void *stream);
typedef int kvt__hip_copy_2d(void *to, size_t to_pitch, const void *from,
                             size_t from_pitch, size_t width, size_t height, int kind,
                             void *stream);

/* The run-time compiler, NVRTC or hipRTC.  The two differ only in names. */
struct kvt__compiler {
    int (*version)(int *major, int *minor);
    int (*create)(void **program, const char *source, const char *name, int n_headers,
                  const char *const *headers, const char *const *header_names);
    int (*compile)(void *program, int n_options, const char *const *options);
    int (*image_size)(void *program, size_t *n);
    int (*image)(void *program, char *to);
    int (*log_size)(void *program, size_t *n);
    int (*log)(void *program, char *to);
    int (*destroy)(void **program);
};

#endif
