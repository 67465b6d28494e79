/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks through an engine to storage and back: what the families that move files share. */
#ifndef KVT_BENCH_THROUGH_H
#define KVT_BENCH_THROUGH_H

#include "bench.h"

/* What a family measures beside: as many files of the same size, by itself. */
struct bench_loop {
    void *ctx;
    int (*tune)(void *ctx, bool write);
    bench_step_fn write, read; /* with ctx */
};

struct bench_through {
    struct bench_chunks b;
    struct kvt_engine *engine;
    struct kvt_store *store; /* removes what the engine wrote */
    uint64_t storage_bytes;  /* what the last step wrote to files, or read from them */
    struct bench_loop bare;  /* the family's, before measuring */
    bool scatters;           /* loads copy chunks into blocks of the host's KV, and a bare
                              * copy of the same pieces is measured too */

    /* Set before opening, where KV is no memory of the host: say where it is.  What is
     * loaded is copied into its blocks then.  0 or an exit code. */
    int (*view)(void *ctx, struct kvt_engine *engine);
    void *view_ctx;
};

/* An engine and a store over dir (NULL: over what the settings name), with settings
 * besides those that all cases have.  0 or an exit code, after saying why; to be closed
 * also then. */
int bench_through_open(struct bench_through *t, const char *dir,
                       const char *const *settings, bool quick, size_t n_chunks);
void bench_through_close(struct bench_through *t);

/* The pool is populated in the background, and until then drops what finds no room: wait
 * until all chunks are stored. */
int bench_through_wait(struct bench_through *t);

/* Load all of them. */
int bench_through_load(struct bench_through *t, struct bench_cost *out);

/* What does not count: files to read, the loop's best shape, a round. */
int bench_through_prepare(struct bench_through *t, bool write);

/* Measure the rounds and fill in their figures: speeds, or CPU seconds above the sum of the
 * bare loop and of the bare copy.  The bare copy is part of a write, and of a read that
 * scatters. */
int bench_through_measure(struct bench_through *t, const char *name, bool write, bool cpu,
                          struct bench_result *out);

#endif
