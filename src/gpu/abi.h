/* SPDX-License-Identifier: Apache-2.0
 *
 * Types and numbers of CUDA's driver library, HIP's runtime and their compilers.  Written
 * down here so that no header of theirs is needed to build; functions.def names the
 * functions, and the test gpu-headers compares all of it with the vendors' headers. */
#ifndef KVT_GPU_ABI_H
#define KVT_GPU_ABI_H

#include <stddef.h>
#include <stdint.h>

#define KVT__HOST_PORTABLE 1u /* for all contexts, not only the current one */
#define KVT__HOST_MAPPED 2u   /* the device sees it, at the same address */
#define KVT__STREAM_ALONE 1u  /* does not wait for the default stream, nor it for this */
#define KVT__EVENT_BLOCKS 1u  /* who waits for it sleeps */
#define KVT__EVENT_NO_TIME 2u
#define KVT__OUT_OF_MEMORY 2

/* Attributes of a device: compute capability, and how many multiprocessors it has. */
enum {
    KVT__CU_MAJOR = 75,
    KVT__CU_MINOR = 76,
    KVT__CU_PROCESSORS = 16,
    KVT__HIP_MAJOR = 23,
    KVT__HIP_MINOR = 61,
    KVT__HIP_PROCESSORS = 63,
};

/* Addresses say where it is. */
#define KVT__CU_UNIFIED 4 /* of kvt__cu_side.type */
#define KVT__HIP_ANY 4    /* a kind of copy */

/* CUDA_MEMCPY2D, of which the source's side stands first. */
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
#define KVT__CU_OVERLAP 1u     /* with what computes, rather than by it */

/* Functions whose form is one vendor's own.  CUDA 13 dropped from the copies of many the
 * place for the index of the one that failed. */
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

/* nvrtc.h and hiprtc.h differ in names alone. */
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
