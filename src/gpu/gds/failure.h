/* SPDX-License-Identifier: Apache-2.0
 *
 * Failures of direct transfers: the layer between storage and GPU that failed, and a message with
 * a remedy.  Any thread. */
#ifndef KVT_GPU_GDS_FAILURE_H
#define KVT_GPU_GDS_FAILURE_H

#include <stdbool.h>

#include "gpu/gds/abi.h"

enum kvt__gds_kind { KVT__GDS_CUFILE, KVT__GDS_HIPFILE };

/* The names of each library. */
extern const struct kvt__gds_names {
    const char *library; /* "libcufile" */
    const char *prefix;  /* of the functions: "cuFile" */
} kvt__gds_names[2];

/* The layers in the order of dependency: each layer needs the layers above it in this list. */
enum kvt__gds_layer {
    KVT__GDS_NO_LAYER, /* no failure */
    KVT__GDS_HELPER,   /* the helper program that probes */
    KVT__GDS_LIBRARY,
    KVT__GDS_GPU,
    KVT__GDS_DRIVER,   /* the library's driver */
    KVT__GDS_MODULE,   /* nvidia-fs, or the kernel's P2PDMA */
    KVT__GDS_FILE_SYSTEM,
    KVT__GDS_UDEV,
    KVT__GDS_MEMORY,   /* registered device memory */
    KVT__GDS_IO,
    KVT__GDS_N_LAYERS
};

/* Return the layer's name for messages, like "nvidia-fs or P2PDMA". */
const char *kvt__gds_layer_name(enum kvt__gds_layer layer);

/* Return the layer's identifier in JSON, like "module". */
const char *kvt__gds_layer_word(enum kvt__gds_layer layer);

/* Convert a layer's identifier to the layer.  False: unknown word. */
bool kvt__gds_layer_from_word(const char *word, enum kvt__gds_layer *out);

/* The calls of the library that may fail with a status code. */
enum kvt__gds_call {
    KVT__GDS_OPEN,
    KVT__GDS_ADD_FILE,
    KVT__GDS_ADD_BUFFER,
    KVT__GDS_READ,
    KVT__GDS_WRITE,
};

struct kvt__gds_failure {
    enum kvt__gds_layer layer;
    int code; /* the library's status code, else an errno */
};

/* Return layer and code of the calling thread's last failure in gpu/gds; kvt__why() has the
 * sentence. */
struct kvt__gds_failure kvt__gds_failure(void);

/* Record layer, code and sentence of a failure.  err, fmt: as in kvt__fail().  Return -err. */
int kvt__gds_fail(enum kvt__gds_layer layer, int code, int err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Record layer and code of a failure whose sentence is recorded.  Return err, an -errno. */
int kvt__gds_add_layer(enum kvt__gds_layer layer, int code, int err);

/* Record the failure of a call of the library, with a sentence that names the library, the call,
 * the code and a remedy.  Return -errno. */
int kvt__gds_fail_call(enum kvt__gds_kind kind, enum kvt__gds_call call,
                       struct kvt__gds_status status);

/* Interpret the result of a read or a write; the libraries report errors in several forms.
 * saved_errno: errno after the call, if errno was 0 before the call.  Return the number of bytes,
 * or record the failure and return -errno. */
ssize_t kvt__gds_check_result(enum kvt__gds_kind kind, enum kvt__gds_call call,
                              ssize_t result, int saved_errno);

#endif
