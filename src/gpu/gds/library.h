/* SPDX-License-Identifier: Apache-2.0
 *
 * One table of functions for cuFile and hipFile, loaded at run time.  Any thread. */
#ifndef KVT_GPU_GDS_LIBRARY_H
#define KVT_GPU_GDS_LIBRARY_H

#include <stdbool.h>

#include "gpu/gds/failure.h"

struct kvt__gds_library {
    enum kvt__gds_kind kind;
    char path[256]; /* path of the loaded file */
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
    /* Functions that some versions lack; NULL: missing. */
    struct kvt__gds_status (*set_bool)(int parameter, bool value);
    struct kvt__gds_status (*properties)(void *props); /* props: a struct for each kind */
    void *version; /* a function with a signature for each kind */
};

/* Load a library by a path or a name for the dynamic loader.  file NULL: the library's usual name.
 * A loaded library is never unloaded.  0, or -errno with a sentence, and a layer and a code
 * (kvt__gds_failure()). */
int kvt__gds_load(enum kvt__gds_kind kind, const char *file, struct kvt__gds_library *out);

/* Write to out the path of the library that this process has loaded already; if none is loaded,
 * the library's usual name. */
void kvt__gds_file_name(enum kvt__gds_kind kind, char *out, size_t size);

/* Write the version to out, like "1.20"; "" if the library does not report a version. */
void kvt__gds_version(const struct kvt__gds_library *library, char *out, size_t size);

#endif
