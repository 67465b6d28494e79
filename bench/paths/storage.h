/* SPDX-License-Identifier: Apache-2.0
 *
 * Measure an engine that stores chunks to storage and loads chunks from storage, against a
 * baseline loop.  Shared by the families file, gds, gds.gpu and hf3fs.
 *
 * Functions that return int return 0 or an exit code after a message. */
#ifndef KVT_BENCH_STORAGE_H
#define KVT_BENCH_STORAGE_H

#include "bench.h"

/* The baseline loop of a family: the loop moves the same number of files of the same size. */
struct bench_loop {
    void *ctx; /* argument of the functions */
    int (*tune)(void *ctx, bool write); /* find the fastest parameters of writes or reads */
    bench_step_fn write, read; /* move all files once */
};

struct bench_storage {
    struct bench_chunks b;
    struct kvt_engine *engine;
    struct kvt_store *store; /* over the same storage; deletes the chunks of the engine */
    uint64_t storage_bytes;  /* bytes that the last step wrote to storage or read from storage */
    struct bench_loop baseline;  /* set by the family after bench_storage_open() */
    bool scatters;           /* loads copy chunks into blocks of KV in host memory; a baseline
                              * copy into the blocks is measured too */

    /* If KV is not in host memory, the family sets view before bench_storage_open().  view
     * registers the KV with the engine, and loads copy chunks into the blocks of this KV.
     * Returns 0 or an exit code. */
    int (*view)(void *ctx, struct kvt_engine *engine);
    void *view_ctx;
};

/* Open an engine and a store over dir, or over the storage of `settings` if dir is NULL.
 * settings: "key=value" strings that end with NULL, added to the settings of all cases.  Fields
 * of t that are not set must be zero.  Call bench_storage_close() even after an error. */
int bench_storage_open(struct bench_storage *t, const char *dir,
                       const char *const *settings, bool quick, size_t n_chunks);
void bench_storage_close(struct bench_storage *t);

/* Store prompts until the engine drops no chunk of a prompt.  The pool's memory is populated in
 * the background; a store drops chunks while the pool has no room. */
int bench_storage_fill(struct bench_storage *t);

/* Load all chunks of the current prompt and measure the load. */
int bench_storage_load(struct bench_storage *t, struct bench_cost *out);

/* Prepare a measurement: write the files to be read, wait for the pool, tune the baseline loop,
 * and run one round that is not measured. */
int bench_storage_prepare(struct bench_storage *t, bool write);

/* Measure the rounds and fill in the result: speeds in GB/s, or, if cpu, the CPU seconds a GB
 * beyond the CPU seconds of the baseline loop and of the baseline copy.  If KV is in host memory,
 * the baseline of a write, and of a read that scatters, includes the baseline copy. */
int bench_storage_measure(struct bench_storage *t, const char *name, bool write, bool cpu,
                          struct bench_result *out);

#endif
