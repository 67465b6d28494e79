/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes between files and a GPU's memory without a way through the host's: by cuFile or
 * hipFile, opened at run time.  Whether that works for a directory at all is to be asked
 * of gpu/gds/probe.h before: it is the only thing that tells.
 *
 * Where a function of the library is called, the device's context is current in the
 * calling thread.  Any thread, unless said otherwise. */
#ifndef KVT_GPU_GDS_GDS_H
#define KVT_GPU_GDS_GDS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "gpu/gds/trouble.h"

/* What offsets, sizes and addresses are multiples of. */
#define KVT__GDS_ALIGN ((size_t)4096)

struct kvt__gds;

/* Registered memory of a device. */
struct kvt__gds_buffer {
    struct kvt__gds *gds; /* NULL: none */
    unsigned char *base;
    size_t bytes;
};

/* A registered file. */
struct kvt__gds_file {
    struct kvt__gds *gds;
    void *handle; /* NULL: none */
    atomic_uint n_moves;
};

/* Open a library's driver, or share it with those of this process that have it open.
 * p2pdma: ask cuFile for that, as the probe found it to be needed.  0, or -errno with a
 * sentence and a trouble.  Blocks. */
int kvt__gds_driver_open(enum kvt__gds_kind kind, bool p2pdma, struct kvt__gds **out);

/* No file and no buffer is registered any more. */
void kvt__gds_driver_close(struct kvt__gds *gds);

/* "libcufile 1.20"; until closed. */
const char *kvt__gds_describe(const struct kvt__gds *gds);

/* The file the library was loaded from. */
const char *kvt__gds_path(const struct kvt__gds *gds);

/* What moves at a time. */
size_t kvt__gds_piece(const struct kvt__gds *gds);

/* Register memory of a device, whose address is a multiple of 64 KiB, for long.  0, or
 * -errno with a sentence and a trouble. */
int kvt__gds_buffer_open(struct kvt__gds *gds, unsigned char *base, size_t bytes,
                         struct kvt__gds_buffer *out);
void kvt__gds_buffer_close(struct kvt__gds_buffer *buffer);

/* Register a file that is open with O_DIRECT; fd stays open until it is closed here.  0, or
 * -errno with a sentence and a trouble. */
int kvt__gds_file_open(struct kvt__gds *gds, int fd, struct kvt__gds_file *out);

/* Nothing moves, and nothing begins to: the library would take a call with a handle that
 * is gone for one reference of its driver less. */
void kvt__gds_file_close(struct kvt__gds_file *file);

/* Move bytes between the buffer, from at on, and the file, from offset on: to the file, or
 * to the buffer.  Blocks; several threads keep the device busy.  When it returns nothing
 * moves any more.  0, or -errno with a sentence and a trouble; -EIO: the file is shorter
 * than that. */
int kvt__gds_move(struct kvt__gds_file *file, const struct kvt__gds_buffer *buffer,
                  size_t at, size_t bytes, off_t offset, bool to_file);

#endif
