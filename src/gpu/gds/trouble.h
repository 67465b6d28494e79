/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands between storage and a GPU: which layer it is, and how it is mended.
 * Any thread. */
#ifndef KVT_GPU_GDS_TROUBLE_H
#define KVT_GPU_GDS_TROUBLE_H

#include "gpu/gds/abi.h"

enum kvt__gds_kind { KVT__GDS_CUFILE, KVT__GDS_HIPFILE };

/* In the order in which each needs those before it. */
enum kvt__gds_layer {
    KVT__GDS_NO_LAYER, /* nothing is missing */
    KVT__GDS_HELPER,   /* what is to find out could not be run */
    KVT__GDS_LIBRARY,
    KVT__GDS_GPU,
    KVT__GDS_DRIVER,   /* the library's driver, which is opened */
    KVT__GDS_MODULE,   /* nvidia-fs, or the kernel's P2PDMA */
    KVT__GDS_FILE_SYSTEM,
    KVT__GDS_UDEV,
    KVT__GDS_MEMORY,   /* the device's, registered */
    KVT__GDS_IO,
    KVT__GDS_N_LAYERS
};

/* "nvidia-fs or P2PDMA"; and the word that stands for it between processes. */
const char *kvt__gds_layer_name(enum kvt__gds_layer layer);
const char *kvt__gds_layer_word(enum kvt__gds_layer layer);

/* The calls that a library may refuse. */
enum kvt__gds_call {
    KVT__GDS_OPEN,
    KVT__GDS_ADD_FILE,
    KVT__GDS_ADD_BUFFER,
    KVT__GDS_READ,
    KVT__GDS_WRITE,
};

/* Of the calling thread's last failure of a function of gds.h, beside kvt__why(). */
struct kvt__gds_trouble {
    enum kvt__gds_layer layer;
    int code; /* the library's, else an errno */
};
struct kvt__gds_trouble kvt__gds_trouble(void);

/* Keep a sentence made with kvt__fail(), whose result is err, and the rest.  err. */
int kvt__gds_keep(enum kvt__gds_layer layer, int code, int err);

/* Make a sentence of what a library answered: with its name, the call, the code and the
 * cure.  -errno. */
int kvt__gds_refused(enum kvt__gds_kind kind, enum kvt__gds_call call,
                     struct kvt__gds_status status);

/* What a read or a write returned, in whichever of its forms; saved_errno: after the call,
 * 0 before it.  Bytes, or -errno with a sentence. */
ssize_t kvt__gds_moved(enum kvt__gds_kind kind, enum kvt__gds_call call, ssize_t result,
                       int saved_errno);

#endif
