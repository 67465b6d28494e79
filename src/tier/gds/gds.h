/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of the gds tier. */
#ifndef KVT_TIER_GDS_GDS_H
#define KVT_TIER_GDS_GDS_H

#include "tier/files/files.h"
#include "tier/gds/choose.h"
#include "tier/gds/layout.h"

struct gds_tier {
    struct kvt__files files; /* first */
    struct kvt__gds_preference preference;
    size_t buffer_bytes; /* limit of GPU memory; 0: no limit is set */
    struct kvt__gds_device *device; /* NULL: bytes move through host memory */
};

/* ---------------------------------------------------------------- device.c */

/* The parameters of the probe in use_gpu(); only tests change the parameters. */
extern struct kvt__gds_probe_params kvt__gds_tier_probe;

/* Implement use_gpu and acquire_slot of struct kvt__tier_ops. */
int kvt__gds_use_gpu(struct kvt__tier *tier, struct kvt__gpu *gpu, size_t most);
bool kvt__gds_acquire_slot(struct kvt__tier *tier, enum kvt__prio prio, size_t bytes,
                           struct kvt__slot *out);

/* Implement kvt__files_kind.move_device.  On a thread of an executor, idle threads of the executor
 * process requests of the transfer in parallel. */
int kvt__gds_move_device(const struct kvt__files *files, int fd,
                         const struct kvt__slot *slot, off_t offset, bool to_file);

/* Implement kvt__files_kind.sum_device. */
int kvt__gds_sum_device(const struct kvt__files *files, const struct kvt__slot *slot,
                        uint32_t *crc);

void kvt__gds_device_close(struct gds_tier *t);

#endif
