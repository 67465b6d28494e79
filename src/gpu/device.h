/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU that an engine keeps its paged KV on: copies between its blocks and chunks, by
 * CUDA's or HIP's driver, which is opened at run time, in the context that the process has
 * there already (the primary one).
 *
 * Copies are done on streams of its own, ordered with the caller's by events.  Chunks in
 * host memory pass through a staging buffer of the device: a kernel gathers at the speed of
 * the device's memory, the copy engine moves what lies together.  Chunks in device memory
 * need none.  Any thread. */
#ifndef KVT_GPU_DEVICE_H
#define KVT_GPU_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/copy.h"

enum kvt__gpu_kind { KVT__GPU_CUDA = 1, KVT__GPU_HIP };

struct kvt__gpu;

struct kvt__gpu_params {
    enum kvt__gpu_kind kind;
    int ordinal;
    size_t staging_bytes; /* of the device's memory; 0: as much as is useful */
    const char *copies;   /* "kernel", "batch"; NULL: what is found to be faster */
    const char *cache;    /* where the directory with compiled kernels is made; NULL:
                           * KVT__LOCAL_DIR (base/private-dir.h) */
};

/* -ENODEV: no driver, no such device, or the process has no context there; -ENOMEM: the
 * device has not so much memory free; with a sentence.  Blocks: kernels may be
 * compiled. */
int kvt__gpu_open(const struct kvt__gpu_params *params, struct kvt__gpu **out);

/* Waits for what is under way.  Without a context any more (the process ends) nothing is
 * given back and done says -EIO. */
void kvt__gpu_close(struct kvt__gpu *gpu);

/* How it copies, for a line of the log: "CUDA device 0 (NVIDIA H200), kernels", or
 * "..., batch copies" with the reason. */
const char *kvt__gpu_describe(const struct kvt__gpu *gpu);

/* One chunk to be copied; the caller's until it is submitted, and again when done is
 * called. */
struct kvt__gpu_copy {
    const struct kvt__view *view; /* its bases are the device's addresses; until done */
    const int32_t *blocks;        /* of n_tokens tokens; until submitted.  Gathered ones
                                   * are real; scattering leaves those out that are not */
    uint32_t n_tokens;
    bool sums;                    /* CRC32C of the chunk is wanted */
    bool on_device;               /* the chunk is in the device's memory, else in the
                                   * host's (pinned, to be fast and asynchronous) */
    unsigned char *chunk;
    /* Called once, on a thread of the device's that must not be kept waiting.  0: the
     * chunk (gather) or the blocks (scatter) are whole and every thread and device may be
     * handed them; crc: if it was wanted.  -EIO: the device failed. */
    void (*done)(struct kvt__gpu_copy *copy, int err, uint32_t crc);
    struct {                      /* the device's, until done */
        uint64_t bytes;
        uint32_t sum;
        int err;
    } own;
};

/* Both never wait for the device: what finds no room in the staging buffer is queued on
 * the device behind what will leave it.  0; or -errno with a sentence: none was begun, done
 * is not called. */

/* From blocks to chunks, after what is on the caller's stream now; what the caller puts
 * there afterwards is after the reading of the blocks.  stream: a CUstream or hipStream_t,
 * NULL: the default one. */
int kvt__gpu_gather(struct kvt__gpu *gpu, void *stream,
                    struct kvt__gpu_copy *const *copies, size_t n);

/* From chunks to blocks, after what was on the caller's stream at the last
 * kvt__gpu_after(). */
int kvt__gpu_scatter(struct kvt__gpu *gpu, struct kvt__gpu_copy *const *copies, size_t n);

/* What is scattered from now on is after what is on the caller's stream now. */
int kvt__gpu_after(struct kvt__gpu *gpu, void *stream);

/* CRC32C of what lies in the device's memory, where a direct transfer has put it; waits
 * for it.  0 or -EIO with a sentence. */
int kvt__gpu_sum(struct kvt__gpu *gpu, const unsigned char *at, size_t bytes,
                 uint32_t *crc);

enum kvt__gpu_kind kvt__gpu_kind(const struct kvt__gpu *gpu);
int kvt__gpu_ordinal(const struct kvt__gpu *gpu);

/* Make the device's context the calling thread's, for libraries that want it so, and give
 * back what was.  0 or -EIO with a sentence. */
struct kvt__gpu_entered {
    int before; /* HIP: this thread's device */
};
int kvt__gpu_enter(const struct kvt__gpu *gpu, struct kvt__gpu_entered *entered);
void kvt__gpu_leave(const struct kvt__gpu *gpu, const struct kvt__gpu_entered *entered);

/* Memory of the device, 64 KiB aligned.  -ENOMEM with a sentence. */
int kvt__gpu_alloc(struct kvt__gpu *gpu, size_t bytes, unsigned char **out);
void kvt__gpu_free(struct kvt__gpu *gpu, unsigned char *at);

#endif
