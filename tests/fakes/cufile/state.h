/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared state of the sources of the fake libcufile.so.0 and libhipfile.so.0. */
#ifndef KVT_FAKE_GDS_STATE_H
#define KVT_FAKE_GDS_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "gds.h"
#include "gpu/gds/abi.h"

#ifdef HIP
#define NAME(name) hipFile##name
typedef struct kvt__hipfile_props props_t;
#else
#define NAME(name) cuFile##name
typedef struct kvt__cufile_props props_t;
#endif

#define MAX_FILES 16384
#define MAX_BUFFERS 16

typedef struct kvt__gds_status status_t;

struct gds_fake_traps {
    long nvfs, p2pdma, compat, setter, version, piece, open, driver, hang, file, buffer,
        read, write, form, only, shorter, delay, meet, damage;
};
extern struct gds_fake_traps traps;

extern pthread_mutex_t lock; /* guards everything below */
extern pthread_cond_t met;
extern struct gds_fake state;
extern int n_begun; /* moves since the switches were set */

extern struct file {
    bool used;
    int fd;
} files[MAX_FILES]; /* entries are never reused, so that a dead handle is detected */

extern struct buffer {
    const char *base; /* NULL: free */
    size_t bytes;
} buffers[MAX_BUFFERS];

/* Return the index of a buffer, or -1. */
int find_buffer_locked(const void *base);
void hang(void);
void step(void);

#endif
