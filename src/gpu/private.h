/* SPDX-License-Identifier: Apache-2.0
 *
 * Internal structures of a GPU, for the files of this room that move the GPU's bytes.
 *
 * A lane serves one direction of copies.  A lane has two streams (one for kernels, one for copies
 * over the bus), a ring of staging parts in device memory, and a thread.  The caller's thread
 * queues all work; the lane's thread waits for the work in the order of queueing.
 *
 * Copies are cut into steps.  A step uses at most one staging part, one launch of the copy
 * kernel and, if the chunks are in host memory, one set of bus copies. */
#ifndef KVT_GPU_PRIVATE_H
#define KVT_GPU_PRIVATE_H

#include <pthread.h>

#include "gpu/device.h"
#include "gpu/driver.h"
#include "gpu/kernels.h"

#define KVT__N_STAGING_PARTS 4                   /* staging parts of a lane */
#define KVT__STEP_PIECES 256                     /* pieces of a step, at most */
#define KVT__STEP_UNITS 1536                     /* units of a step, at most */
#define KVT__TABLE_BYTES ((size_t)128 << 10)     /* size of a step's table */
#define KVT__MAX_STEP_BYTES ((uint64_t)1 << 30) /* so large that launches cost little */

/* The data path of a step. */
enum kvt__copy_path {
    KVT__PATH_STAGED, /* kernels between blocks and a part, bus copies between part and host */
    KVT__PATH_DEVICE, /* kernels between blocks and a chunk in device memory */
    KVT__PATH_BATCH,  /* no kernels: copies of the driver between blocks and chunk */
};

/* Sums have a lane of their own, so that a sum never waits for a caller's stream. */
enum { KVT__LANE_GATHER, KVT__LANE_SCATTER, KVT__LANE_SUM, KVT__N_LANES };

/* The bytes [from, to) of one chunk. */
struct kvt__step_piece {
    struct kvt__gpu_copy *copy;
    uint64_t from;
    uint64_t to;
    uint64_t at;     /* address of byte `from`: in a part if the step is staged, else in the
                      * chunk */
    uint64_t bases;   /* offset in the table of the addresses of the planes */
    uint64_t offsets; /* offset in the table of the offsets of the blocks in a plane */
    uint32_t first_unit;
    uint32_t n_units;
};

struct kvt__step {
    struct kvt__step *next;
    void *finished;       /* event: recorded behind the step's work */
    unsigned char *table; /* pinned host memory: the input of the kernels */
    uint32_t *results;    /* pinned host memory: one sum for each unit, from the kernels */
    const struct kvt__view *view; /* view of the last bases in the table */
    uint64_t bases;       /* offset in the table of these bases */
    enum kvt__copy_path path;
    bool gather;
    bool no_event;        /* `finished` was not recorded */
    int err;              /* 0 or -errno: the work could not be queued */
    uint32_t log;         /* binary logarithm of the element width in bytes */
    size_t part;          /* staged: index in lane->parts */
    uint64_t bytes;
    size_t table_used;    /* bytes of bases and offsets; jobs and units follow */
    size_t jobs_at;       /* offset in the table */
    size_t units_at;      /* offset in the table */
    uint32_t n_units;
    uint32_t n_pieces;
    struct kvt__step_piece pieces[KVT__STEP_PIECES];
};

/* A part of a lane's staging memory. */
struct kvt__staging_part {
    unsigned char *at;
    void *empty; /* event: the last copy out of the part has ended, so the part is free */
    bool used;   /* `empty` was recorded at least once */
};

struct kvt__lane;
struct kvt__bounce;
struct kvt__gpu_allocation;

struct kvt__gpu {
    struct kvt__driver driver;
    struct kvt__context context;
    int ordinal;
    bool by_kernels;
    int n_processors;        /* multiprocessors of the device */
    void *module;            /* NULL: no kernels are loaded */
    void *copy[KVT__WIDTHS]; /* copy kernels, by the logarithm of the element width */
    void *fetch;             /* kernel: copies a step's table into device memory */
    void *sums;              /* struct kvt__sums in device memory */
    struct kvt__bounce *bounce;
    struct kvt__lane *lanes[KVT__N_LANES];
    pthread_mutex_t lock;    /* guards allocations */
    struct kvt__gpu_allocation *allocations; /* list of the memory of kvt__gpu_alloc() */
    char describe[384];      /* text of kvt__gpu_describe() */
};

/* Before each call below, the calling thread enters the device's context, unless the comment says
 * "Any thread."  Driver errors are the vendor's numbers; 0 is success. */

/* --------------------------------------------------------------------- lane */

/* Open a lane and start the lane's thread.  staging_bytes: device memory for all parts; 0: the
 * lane copies no chunk of host memory.  The lane uses gpu until kvt__lane_close().  0 or -errno
 * with a sentence. */
int kvt__lane_open(struct kvt__gpu *gpu, bool gather, size_t staging_bytes,
                   struct kvt__lane **out);

/* Wait for the steps under way, stop the thread and free the lane.  lane NULL: do nothing.
 * entered false: the device's context no longer exists; device resources are not freed. */
void kvt__lane_close(struct kvt__lane *lane, bool entered);

/* As kvt__gpu_gather() and kvt__gpu_after().  Any thread. */
int kvt__lane_gather(struct kvt__lane *lane, void *stream,
                     struct kvt__gpu_copy *const *copies, size_t n);
int kvt__lane_after(struct kvt__lane *lane, void *stream);

/* Queue the copies, as kvt__gpu_scatter(), in the direction of the lane.  A copy without a view
 * only computes the sum of own.bytes bytes of the chunk.  Any thread. */
int kvt__lane_copy(struct kvt__lane *lane, struct kvt__gpu_copy *const *copies, size_t n);

/* --------------------------------------------------------------------- step */

/* Reset a step, but keep the memory and the event: table, results and finished. */
void kvt__step_begin(struct kvt__step *step, enum kvt__copy_path path, bool gather);

/* Return true if the bases and offsets of the copy fit into the table of an empty step.  Copies
 * that do not fit need KVT__PATH_BATCH. */
bool kvt__step_table_fits(const struct kvt__gpu_copy *copy);

/* Return true if the step has room for one more piece of the copy. */
bool kvt__step_has_room(const struct kvt__step *step, const struct kvt__gpu_copy *copy);

/* Add the bytes [from, to) of the copy's chunk.  at: as kvt__step_piece.at.  The step must have
 * room. */
void kvt__step_add(struct kvt__step *step, struct kvt__gpu_copy *copy, uint64_t from,
                   uint64_t to, uint64_t at);

/* Write jobs and units into the step's table.  table: the address in device memory where the
 * kernel will read the table.  Return the bytes of the table. */
size_t kvt__step_seal(struct kvt__step *step, const struct kvt__gpu *gpu, uint64_t table);

/* Queue the step's two kernels on the stream: the kernel `fetch` copies the sealed table to `table`
 * in device memory, then the copy kernel runs.  0 or the driver's error. */
int kvt__step_launch(struct kvt__step *step, const struct kvt__gpu *gpu, void *table,
                     void *stream);

/* Evaluate a step whose work has ended with err (0 or -errno): join the sums, and call on_done for
 * each copy that ends with this step.  Calls on_done on the calling thread. */
void kvt__step_end(struct kvt__step *step, struct kvt__gpu *gpu, int err);

/* -------------------------------------------------------------------- other */

/* Queue driver copies on the stream between all real blocks and the chunk.  0 or the driver's
 * error. */
int kvt__batch_copy(const struct kvt__driver *d, const struct kvt__gpu_copy *copy,
                    bool gather, void *stream);

/* A bounce buffer in pinned host memory, by which the CPU sums device memory where no kernel
 * can.  open: 0 or -errno with a sentence.  close: b NULL does nothing; entered as in
 * kvt__lane_close(). */
int kvt__bounce_open(struct kvt__gpu *gpu, struct kvt__bounce **out);
void kvt__bounce_close(struct kvt__gpu *gpu, struct kvt__bounce *b, bool entered);

/* Compute the CRC32C of device memory on the CPU.  Blocks; any thread.  0 or -errno with a
 * sentence. */
int kvt__bounce_sum(struct kvt__gpu *gpu, const unsigned char *at, uint64_t bytes,
                    uint32_t *crc);

/* Measure kernels and batch copies on this machine, and set gpu->by_kernels to the faster
 * method.  Blocks.  0; -errno with a sentence: neither method works, or memory is missing. */
int kvt__measure(struct kvt__gpu *gpu);

/* Store the sentence "what (NAME)." for a driver's error.  Return -ENOMEM if the device has no
 * memory left, else -EIO. */
int kvt__gpu_fail(const struct kvt__gpu *gpu, int error, const char *what);

#endif
