/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared parts of the benchmark cases of the gpu family: the GPU, paged KV in GPU memory, and a
 * stream that is kept busy.
 *
 * Only the main thread calls these functions, with the GPU's context current.  The CPU never
 * accesses device memory directly: copies move bytes between device memory and pinned host memory.
 * Functions that return int return 0, or an exit code after a message on standard error. */
#ifndef KVT_BENCH_GPU_H
#define KVT_BENCH_GPU_H

#include "bench.h"
#include "cli.h"
#include "gpu/copy.h"
#include "gpu/driver.h"

/* ---------------------------------------------------------------- machine.c */

struct machine {
    struct kvt__driver d;
    struct kvt__context context;
    void *stream; /* for the baseline copies; not the default stream */
};

/* Load the driver and create the primary context of the first GPU, as an engine does.
 * BENCH_SKIPPED: this machine has no GPU. */
int machine_open(struct machine *m);
void machine_close(struct machine *m);

/* Report a failure: error > 0 is the driver's error, error < 0 is kvtier's with kvt__why().  Return
 * an exit code. */
int machine_fail(const struct machine *m, int error, const char *what);

/* Allocate device memory, or pinned host memory whose pages are populated.  On failure *out is
 * NULL.  The free functions accept NULL. */
int machine_alloc(const struct machine *m, size_t bytes, unsigned char **out);
int machine_alloc_pinned(const struct machine *m, size_t bytes, unsigned char **out);
void machine_free(const struct machine *m, unsigned char *at);
void machine_free_pinned(const struct machine *m, unsigned char *at);

/* Return the number of chunks, at most `wanted`, that fit into free device memory with `each` bytes
 * for a chunk and `rest` bytes for everything else.  0, after a message: not even one chunk. */
size_t machine_fit(const struct machine *m, size_t wanted, size_t each, size_t rest);

/* Measure one copy of the driver between any two addresses, and wait for the copy. */
int machine_copy(const struct machine *m, void *to, const void *from, size_t bytes,
                 struct bench_cost *out);

/* --------------------------------------------------------------------- kv.c */

/* Paged KV in vLLM's layouts: for each layer [block][token][head][K, V] (nhd) or
 * [block][head][token][K, V] (hnd).  A number determines the expected bytes of a chunk. */
struct kv {
    const struct machine *m;
    struct cli_shape shape;
    size_t n_chunks, chunk_bytes, block_bytes;
    unsigned char *memory; /* device memory */
    unsigned char *image;  /* the blocks of a chunk, in pinned host memory */
    void *base[2 * CLI_MAX_LAYERS];
    int64_t token_stride, head_stride;
};

/* Allocate KV for n_chunks chunks.  The caller calls kv_close() also after an error. */
int kv_open(struct kv *kv, const struct machine *m, bool quick, bool hnd, size_t n_chunks);
void kv_close(struct kv *kv);

struct kvt__view kv_view(const struct kv *kv);

/* Set view and stream of an engine to this KV.  ctx: a struct kv. */
int kv_set_view(void *ctx, struct kvt_engine *engine);

/* Shuffle the block ids of all chunks, always in the same way. */
void kv_shuffle(int32_t *blocks, size_t n);

/* Fill the blocks of a chunk with the bytes of `number`, or compare the blocks with these bytes.
 * CLI_NEGATIVE: the bytes differ. */
int kv_fill(const struct kv *kv, const int32_t *blocks, uint64_t number);
int kv_check(const struct kv *kv, const int32_t *blocks, uint64_t number);

/* Write the expected chunk of `number` to host memory. */
void kv_chunk(const struct kv *kv, uint64_t number, unsigned char *out);

/* ------------------------------------------------------------------- busy.c */

/* A stream with work at all times. */
struct busy;

/* Start the work.  The caller calls busy_end() also after an error. */
int busy_begin(const struct machine *m, bool quick, struct busy **out);

/* Return the kind of work: "kernels" or "copies". */
const char *busy_kind(const struct busy *busy);

/* Stop the work and free busy.  NULL: do nothing.  Return an exit code if the work has failed. */
int busy_end(struct busy *busy);

/* ------------------------------------------------------------ device-log.c */

/* Log lines of the library about the device, and about the data path between device and files;
 * "": not logged yet. */
struct device_log {
    char device[400];
    char data_path[400];
};

/* Collect log lines into *log until kvt_set_log() is called again, and print warnings. */
void device_log_start(struct device_log *log);

/* -------------------------------------------------------------------- cases */

struct gpu_case {
    const char *name;
    int (*run)(const struct gpu_case *c, const struct bench *bench, const struct machine *m,
               struct bench_result *out);
    bool from_kv; /* bytes leave the KV: gather, store, write; else scatter, load, read */
    bool hnd;     /* layout hnd; else nhd */
};

#define WANTED_CHUNKS(quick) ((quick) ? (size_t)4 : (size_t)32)

int case_copies(const struct gpu_case *c, const struct bench *bench,
                const struct machine *m, struct bench_result *out);
int case_pool(const struct gpu_case *c, const struct bench *bench, const struct machine *m,
              struct bench_result *out);
int case_files(const struct gpu_case *c, const struct bench *bench,
               const struct machine *m, struct bench_result *out);

#endif
