/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between the blocks of an engine's paged KV in the memory of a GPU, and chunks.  The copies
 * use CUDA's or HIP's driver, found at run time, and the primary context that the process
 * already has on the device.
 *
 * Copies run on kvtier's own streams; events order these streams with the caller's stream.  A
 * chunk in host memory passes through a staging buffer in device memory: a kernel gathers at the
 * speed of device memory, and the copy engine moves contiguous bytes over the bus.  A chunk in
 * device memory needs no staging.  Any thread. */
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
    size_t staging_bytes; /* device memory for staging, both directions; 0: 64 MiB */
    const char *copies;   /* "kernel" or "batch"; NULL: the faster method, measured at open */
    const char *cache;    /* parent of the private directory with compiled kernels; NULL:
                           * KVT__LOCAL_DIR (base/private-dir.h) */
};

/* Open a GPU.  The caller closes *out.  Blocks, for seconds if kernels are compiled.  Errors, with
 * a sentence: -ENODEV no driver, no such device, or no context of this process on the device;
 * -ENOMEM too little free device memory; -ENOENT no kernels, although `copies` requires them;
 * -EIO the device failed. */
int kvt__gpu_open(const struct kvt__gpu_params *params, struct kvt__gpu **out);

/* Wait for the copies under way and free the GPU, with all memory of kvt__gpu_alloc().  No other
 * call may run or follow.  If the context no longer exists (the process ends), device resources
 * are not freed, and on_done gets -EIO. */
void kvt__gpu_close(struct kvt__gpu *gpu);

/* Return the device and the method of copying, for a log line: "CUDA device 0 (NVIDIA H200),
 * kernels", or "..., batch copies: REASON".  The text is valid until kvt__gpu_close(). */
const char *kvt__gpu_describe(const struct kvt__gpu *gpu);

/* The copy of one chunk.  Owner: the caller until the submit and from the call of on_done on. */
struct kvt__gpu_copy {
    const struct kvt__view *view; /* bases are device addresses; unchanged until on_done */
    const int32_t *blocks;        /* block ids of n_tokens tokens; read only during the submit.
                                   * Gather: all real; scatter skips ids that are not real */
    uint32_t n_tokens;
    bool sums;                    /* on_done gets the CRC32C of the chunk */
    bool on_device;               /* the chunk is in device memory; false: in host memory, which
                                   * should be pinned, else copies are slow and synchronous */
    unsigned char *chunk;
    /* Called once, on a thread of the GPU; must not block.  err 0: the chunk (gather) or the
     * blocks (scatter) are complete, and any thread or device may use them; crc is valid if
     * `sums`.  -EIO, -ENOMEM: the copy failed. */
    void (*on_done)(struct kvt__gpu_copy *copy, int err, uint32_t crc);
    struct {                      /* private to the GPU until on_done */
        uint64_t bytes;
        uint32_t sum;
        int err;
    } own;
};

/* kvt__gpu_gather() and kvt__gpu_scatter() submit n copies.  If the staging buffer is full, the
 * device queues a copy behind the copies that free the buffer, so neither call waits for the
 * device, unless the driver's own queue is full: on an H200, with 450 MiB of copies over the bus.
 * 0; -errno with a sentence: no copy was submitted, and on_done will not be called. */

/* Copy from blocks to chunks.  The copies run after the work now queued on the caller's stream;
 * work that the caller queues later runs after the blocks were read.  stream: a CUstream or
 * hipStream_t; NULL: the default stream. */
int kvt__gpu_gather(struct kvt__gpu *gpu, void *stream,
                    struct kvt__gpu_copy *const *copies, size_t n);

/* Copy from chunks to blocks.  The copies run after the work that was queued on the caller's
 * stream at the last kvt__gpu_after(). */
int kvt__gpu_scatter(struct kvt__gpu *gpu, struct kvt__gpu_copy *const *copies, size_t n);

/* Order all later scatters after the work now queued on the caller's stream.  0, or -errno with a
 * sentence. */
int kvt__gpu_after(struct kvt__gpu *gpu, void *stream);

/* Compute the CRC32C of bytes in device memory, for example after a direct transfer.  Blocks.
 * 0 or -errno with a sentence. */
int kvt__gpu_sum(struct kvt__gpu *gpu, const unsigned char *at, size_t bytes,
                 uint32_t *crc);

enum kvt__gpu_kind kvt__gpu_kind(const struct kvt__gpu *gpu);
int kvt__gpu_ordinal(const struct kvt__gpu *gpu);

/* The state that kvt__gpu_leave() restores. */
struct kvt__gpu_entered {
    int before; /* HIP: the thread's previous device */
};

/* Make the device's context current in the calling thread, for libraries that require a current
 * context.  After each success the caller calls kvt__gpu_leave() on the same thread, which restores
 * the thread's previous context.  0 or -EIO with a sentence. */
int kvt__gpu_enter(const struct kvt__gpu *gpu, struct kvt__gpu_entered *entered);
void kvt__gpu_leave(const struct kvt__gpu *gpu, const struct kvt__gpu_entered *entered);

/* Allocate device memory, aligned to 64 KiB.  The caller frees the memory with kvt__gpu_free();
 * kvt__gpu_close() frees the rest.  -ENOMEM or -EIO with a sentence. */
int kvt__gpu_alloc(struct kvt__gpu *gpu, size_t bytes, unsigned char **out);
void kvt__gpu_free(struct kvt__gpu *gpu, unsigned char *at);

#endif
