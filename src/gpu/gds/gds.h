/* SPDX-License-Identifier: Apache-2.0
 *
 * Direct transfers between files and a GPU's memory, without a copy in host memory, by cuFile or
 * hipFile, loaded at run time.  Call kvt__gds_probe() (gpu/gds/probe.h) first: only a probe shows
 * whether direct transfers work for a directory.
 *
 * The caller makes the device's context current in the calling thread.  Any thread, unless the
 * text says otherwise. */
#ifndef KVT_GPU_GDS_GDS_H
#define KVT_GPU_GDS_GDS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "gpu/gds/failure.h"

/* Alignment of offsets, sizes and addresses. */
#define KVT__GDS_ALIGN ((size_t)4096)

struct kvt__gds;

/* Registered device memory. */
struct kvt__gds_buffer {
    struct kvt__gds *gds; /* NULL: not registered */
    unsigned char *base;
    size_t bytes;
};

/* A registered file. */
struct kvt__gds_file {
    struct kvt__gds *gds;
    void *handle; /* NULL: not registered */
    atomic_uint n_moves; /* transfers in flight */
};

/* Calls that return int return 0, or -errno with a sentence (kvt__why()) and with a layer and a
 * code (kvt__gds_failure()). */

/* Open the library's driver, or add a reference to the open driver of this process; the last
 * kvt__gds_driver_close() closes the driver.  p2pdma: request P2PDMA from cuFile, as
 * kvt__gds_finding.p2pdma requires; ignored if the driver is open.  Blocks. */
int kvt__gds_driver_open(enum kvt__gds_kind kind, bool p2pdma, struct kvt__gds **out);

/* Release the reference of one kvt__gds_driver_open().  Before, the caller closes all files and
 * buffers. */
void kvt__gds_driver_close(struct kvt__gds *gds);

/* Return name and version, like "libcufile 1.20".  Valid until the driver is closed. */
const char *kvt__gds_describe(const struct kvt__gds *gds);

/* Return the path of the library's file.  Valid until the driver is closed. */
const char *kvt__gds_path(const struct kvt__gds *gds);

/* Return the largest number of bytes of one request of the library. */
size_t kvt__gds_max_request(const struct kvt__gds *gds);

/* Register device memory, for many transfers.  base is a multiple of 64 KiB.  The memory stays
 * allocated until kvt__gds_buffer_close(). */
int kvt__gds_buffer_open(struct kvt__gds *gds, unsigned char *base, size_t bytes,
                         struct kvt__gds_buffer *out);
void kvt__gds_buffer_close(struct kvt__gds_buffer *buffer);

/* Register a file that is open with O_DIRECT.  The caller keeps fd open until
 * kvt__gds_file_close(), and closes fd. */
int kvt__gds_file_open(struct kvt__gds *gds, int fd, struct kvt__gds_file *out);

/* Deregister a file without transfers in flight.  No later call may use the file: the library
 * would count a call with a stale handle as the release of a reference to its driver. */
void kvt__gds_file_close(struct kvt__gds_file *file);

/* Transfer `bytes` bytes between the buffer, from byte `at` on, and the file, from `offset` on.
 * to_file: write the file; else read the file.  Blocks; several threads together keep the device
 * busy.  After the return, also with an error, no transfer of this call is in flight.  -EIO: also
 * if the file is shorter. */
int kvt__gds_move(struct kvt__gds_file *file, const struct kvt__gds_buffer *buffer,
                  size_t at, size_t bytes, off_t offset, bool to_file);

#endif
