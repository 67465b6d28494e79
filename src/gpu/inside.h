/* SPDX-License-Identifier: Apache-2.0
 *
 * What a GPU consists of, for the files of this room that move its bytes.
 *
 * A lane is one direction: two streams (kernels, and copies over the bus), a ring of
 * staging parts in the device's memory, and a thread that waits for what was begun, in
 * that order.  What is asked for is cut into steps, each of which is at most one part, one
 * launch and, for bytes of the host, one set of copies. */
#ifndef KVT_GPU_INSIDE_H
#define KVT_GPU_INSIDE_H

#include <pthread.h>

#include "gpu/device.h"
#include "gpu/driver.h"
#include "gpu/kernels.h"

#define KVT__N_PARTS 4
#define KVT__STEP_PIECES 256
#define KVT__STEP_UNITS 1536
#define KVT__TABLE_BYTES ((size_t)128 << 10)
#define KVT__MAX_STEP_BYTES ((uint64_t)1 << 30) /* launches are few beside their work */

/* Which way a step's bytes take. */
enum kvt__way {
    KVT__STAGED,  /* kernels between blocks and a part, copies between it and the host */
    KVT__DEVICE,  /* kernels between blocks and a chunk in the device's memory */
    KVT__WITHOUT, /* of kernels: copies between blocks and chunk */
};

/* Sums have a lane of their own: they wait for no stream of a caller. */
enum { KVT__LANE_GATHER, KVT__LANE_SCATTER, KVT__LANE_SUM, KVT__N_LANES };

/* Some bytes of a chunk. */
struct kvt__piece {
    struct kvt__gpu_copy *copy;
    uint64_t from;
    uint64_t to;
    uint64_t at;    /* where they lie in a part, or in the chunk if that is the device's */
    uint64_t bases; /* in the table */
    uint64_t blocks;
    uint32_t first_unit;
    uint32_t n_units;
};

struct kvt__step {
    struct kvt__step *next;
    void *finished;       /* event */
    unsigned char *table; /* of the host, pinned: what kernels are told */
    uint32_t *results;    /* likewise: what they answer */
    const struct kvt__view *view; /* whose bases the table has already, */
    uint64_t bases;               /* and where */
    enum kvt__way way;
    bool gather;
    bool lost; /* the event was not recorded */
    int err;
    uint32_t log; /* of the width of elements */
    size_t part;
    uint64_t bytes;
    size_t table_used; /* bases and blocks; jobs and units go behind them */
    size_t jobs_at;
    size_t units_at;
    uint32_t n_units;
    uint32_t n_pieces;
    struct kvt__piece pieces[KVT__STEP_PIECES];
};

struct kvt__part {
    unsigned char *at;
    void *empty; /* event: what filled it has left again */
    bool used;
};

struct kvt__lane;
struct kvt__bounce;
struct kvt__slab;

struct kvt__gpu {
    struct kvt__driver driver;
    struct kvt__context context;
    int ordinal;
    bool by_kernels;
    int n_processors;
    void *module; /* NULL: there are no kernels */
    void *copy[KVT__WIDTHS];
    void *fetch;
    void *sums; /* struct kvt__sums, in the device's memory */
    struct kvt__bounce *bounce;
    struct kvt__lane *lanes[KVT__N_LANES];
    pthread_mutex_t lock;
    struct kvt__slab *slabs; /* what was allocated for others */
    char describe[384];
};

/* --------------------------------------------------------------------- lane */

/* staging_bytes 0: no chunk of it is the host's. */
int kvt__lane_open(struct kvt__gpu *gpu, bool gather, size_t staging_bytes,
                   struct kvt__lane **out);

/* Waits for what is under way.  The context is entered; else (!entered) it is gone, and
 * nothing is given back. */
void kvt__lane_close(struct kvt__lane *lane, bool entered);

/* As kvt__gpu_gather() and kvt__gpu_after(), the context entered.  A copy without a view
 * is only summed, own.bytes of it. */
int kvt__lane_gather(struct kvt__lane *lane, void *stream,
                     struct kvt__gpu_copy *const *copies, size_t n);
int kvt__lane_after(struct kvt__lane *lane, void *stream);

/* What both have in common, and scattering. */
int kvt__lane_copy(struct kvt__lane *lane, struct kvt__gpu_copy *const *copies, size_t n);

/* --------------------------------------------------------------------- step */

void kvt__step_begin(struct kvt__step *step, enum kvt__way way, bool gather);

/* Whether the table has room for a piece of the copy. */
bool kvt__step_has_room(const struct kvt__step *step, const struct kvt__gpu_copy *copy);
void kvt__step_add(struct kvt__step *step, struct kvt__gpu_copy *copy, uint64_t from,
                   uint64_t to, uint64_t at);

/* Complete the table, which will lie at so; bytes of it that the device needs. */
size_t kvt__step_seal(struct kvt__step *step, const struct kvt__gpu *gpu, uint64_t table);

/* Begin its kernel, whose table lies at table by then.  0 or the driver's error. */
int kvt__step_launch(struct kvt__step *step, const struct kvt__gpu *gpu, void *table,
                     void *stream);

/* It has ended: err is 0 or -errno.  Calls done for copies whose last piece this was. */
void kvt__step_end(struct kvt__step *step, struct kvt__gpu *gpu, int err);

/* -------------------------------------------------------------------- other */

/* Copies between all blocks and the chunk.  0 or the driver's error. */
int kvt__batch_copy(const struct kvt__driver *d, const struct kvt__gpu_copy *copy,
                    bool gather, void *stream);

/* A way for bytes of the device to the processor, where kernels are not to be had. */
int kvt__bounce_open(struct kvt__gpu *gpu, struct kvt__bounce **out);
void kvt__bounce_close(struct kvt__gpu *gpu, struct kvt__bounce *b, bool entered);
int kvt__bounce_sum(struct kvt__gpu *gpu, const unsigned char *at, uint64_t bytes,
                    uint32_t *crc);

/* Which is faster on this machine; 0 or -errno. */
int kvt__measure(struct kvt__gpu *gpu);

/* A driver's error as ours, with a sentence: "what (NAME)." */
int kvt__gpu_fail(const struct kvt__gpu *gpu, int error, const char *what);

#endif
