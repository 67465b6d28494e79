/* SPDX-License-Identifier: Apache-2.0
 *
 * Types and constants of cuFile and hipFile, declared here so that building kvtier needs no vendor
 * header.  The two ABIs differ only in the driver's properties and in the version. */
#ifndef KVT_GPU_GDS_ABI_H
#define KVT_GPU_GDS_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The functions return this struct by value, in one register. */
struct kvt__gds_status {
    int code;   /* 0, or at least 5000 */
    int driver; /* error of CUDA or HIP, if the driver caused the failure; else 0 */
};
_Static_assert(sizeof(struct kvt__gds_status) == 8, "CUfileError_t");

struct kvt__gds_descr {
    int type; /* KVT__GDS_FD */
    union {
        int fd;
        void *handle;
    };
    const void *operations;
};
_Static_assert(sizeof(struct kvt__gds_descr) == 24 &&
               offsetof(struct kvt__gds_descr, fd) == 8, "CUfileDescr_t");

#define KVT__GDS_FD 1

/* Sizes in KiB. */
struct kvt__cufile_props {
    unsigned nvfs_major, nvfs_minor; /* 0.0: nvidia-fs is not loaded */
    size_t poll_size;
    size_t max_direct_io_size;
    unsigned status_flags;
    unsigned control_flags;
    unsigned feature_flags;
    unsigned device_cache, buffer_cache, pinned_memory, batch_size, batch_timeout_ms;
};
_Static_assert(sizeof(struct kvt__cufile_props) == 56, "CUfileDrvProps_t");

struct kvt__hipfile_props {
    unsigned nvfs_major, nvfs_minor;
    size_t poll_size;
    size_t max_direct_io_size;
    unsigned status_flags;
    unsigned control_flags;
    unsigned feature_flags;
    uint64_t device_cache, buffer_cache, pinned_memory;
    unsigned batch_size, batch_timeout_ms;
};
_Static_assert(sizeof(struct kvt__hipfile_props) == 72, "hipFileDriverProps_t");

#define KVT__GDS_COMPAT_ALLOWED (1u << 1) /* bit of control_flags */
#define KVT__GDS_P2PDMA_WORKS (1u << 4)   /* bit of feature_flags, since 1.20 */

/* Boolean parameters, which can be set only while the driver is closed. */
#define KVT__GDS_SET_COMPAT 1
#define KVT__GDS_SET_P2PDMA 7

/* Status codes that the sources use by name. */
enum {
    KVT__GDS_BASE = 5000,
    KVT__GDS_NOT_OPEN = 5001,
    KVT__GDS_ALREADY_OPEN = 5026,
    KVT__GDS_NOT_REGISTERED = 5027,
    KVT__GDS_INTERNAL = 5030,
};

#endif
