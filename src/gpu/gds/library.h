/* SPDX-License-Identifier: Apache-2.0
 *
 * One table of functions over both vendors' libraries, which are opened at run time. */
#ifndef KVT_GPU_GDS_LIBRARY_H
#define KVT_GPU_GDS_LIBRARY_H

#include <stdbool.h>

#include "gpu/gds/trouble.h"

struct kvt__gds_library {
    enum kvt__gds_kind kind;
    char path[256]; /* the file it was loaded from */
    struct kvt__gds_status (*driver_open)(void);
    struct kvt__gds_status (*driver_close)(void);
    struct kvt__gds_status (*add_file)(void **handle, struct kvt__gds_descr *descr);
    void (*remove_file)(void *handle);
    struct kvt__gds_status (*add_buffer)(const void *base, size_t bytes, int flags);
    struct kvt__gds_status (*remove_buffer)(const void *base);
    ssize_t (*read)(void *handle, void *base, size_t bytes, off_t file_offset,
                    off_t buffer_offset);
    ssize_t (*write)(void *handle, const void *base, size_t bytes, off_t file_offset,
                     off_t buffer_offset);
    /* Not in every version: NULL. */
    struct kvt__gds_status (*set_bool)(int parameter, bool value);
    struct kvt__gds_status (*properties)(void *props); /* of the kind's own layout */
    void *version;                                     /* of the kind's own type */
};

/* Load a library: file, or NULL for the usual name, as the dynamic loader finds it.  Once
 * loaded it stays.  0 or -errno with a sentence and a trouble. */
int kvt__gds_load(enum kvt__gds_kind kind, const char *file, struct kvt__gds_library *out);

/* The file of the library that this process has already, or the usual name. */
void kvt__gds_file_name(enum kvt__gds_kind kind, char *out, size_t size);

/* "1.20"; "" where it does not tell. */
void kvt__gds_version(const struct kvt__gds_library *library, char *out, size_t size);

#endif
