/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests tell the fake libcuda.so.1, and ask it.  Of a machine with two GPUs. */
#ifndef KVT_FAKE_CUDA_H
#define KVT_FAKE_CUDA_H

#include <stddef.h>

struct fake_cuda {
    int active;        /* the device that has a context; -1: none has */
    int fails;         /* what registering memory answers; 0: it works */
    int n_retained;    /* contexts, more often than released */
    int n_current;     /* contexts, pushed more often than popped */
    int n_registered;
    void *at;          /* what was registered last */
    size_t bytes;
    unsigned flags;
};

/* The function "fake_cuda" of the library. */
typedef struct fake_cuda *fake_cuda_fn(void);

#endif
