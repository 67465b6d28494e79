/* SPDX-License-Identifier: Apache-2.0
 *
 * What the cases of the gpu family share: the GPU, KV on it, a stream that is busy.
 *
 * All is called by the main thread, which the GPU's context is current on.  The host never
 * touches memory of the device: bytes go there and back by copies from and to memory that
 * is pinned.  Functions that return int return 0 or an exit code, after saying why. */
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
    void *stream; /* of plain copies; not the default one */
};

/* The first GPU, with a context as an engine makes it.  Or BENCH_LEFT_OUT. */
int machine_open(struct machine *m);
void machine_close(struct machine *m);

/* Say that the driver failed; an exit code. */
int machine_fail(const struct machine *m, int error, const char *what);

/* The device's memory, and the host's that is pinned, its pages there. */
int machine_alloc(const struct machine *m, size_t bytes, unsigned char **out);
int machine_pinned(const struct machine *m, size_t bytes, unsigned char **out);
void machine_free(const struct machine *m, unsigned char *at);
void machine_unpin(const struct machine *m, unsigned char *at);

/* How many chunks, wanted or less, find room on the device with so many bytes for each and
 * bytes for the rest; 0 after saying that there is none. */
size_t machine_fit(const struct machine *m, size_t wanted, size_t each, size_t rest);

/* One plain copy between any two places, until it is done. */
int machine_copy(const struct machine *m, void *to, const void *from, size_t bytes,
                 struct bench_cost *out);

/* --------------------------------------------------------------------- kv.c */

/* Paged KV as vLLM has it: for each layer [block][token][head][K, V] (nhd) or
 * [block][head][token][K, V] (hnd).  Bytes that are checked are made from a number. */
struct kv {
    const struct machine *m;
    struct cli_shape shape;
    size_t n_chunks, chunk_bytes, block_bytes;
    unsigned char *memory; /* the device's */
    unsigned char *image;  /* a chunk's blocks; the host's, pinned */
    void *base[2 * CLI_MAX_LAYERS];
    int64_t token_stride, head_stride;
};

/* To be closed also after an error. */
int kv_open(struct kv *kv, const struct machine *m, bool quick, bool hnd, size_t n_chunks);
void kv_close(struct kv *kv);

struct kvt__view kv_view(const struct kv *kv);

/* Tell an engine; ctx: a struct kv. */
int kv_set_view(void *ctx, struct kvt_engine *engine);

/* Blocks in no order, of all chunks. */
void kv_shuffle(int32_t *blocks, size_t n);

/* Fill a chunk's blocks; see whether they hold that (CLI_NO: they do not). */
int kv_fill(const struct kv *kv, const int32_t *blocks, uint64_t number);
int kv_check(const struct kv *kv, const int32_t *blocks, uint64_t number);

/* The chunk itself: its bytes, in host memory. */
void kv_chunk(const struct kv *kv, uint64_t number, unsigned char *out);

/* ------------------------------------------------------------------- busy.c */

/* A stream that has work all the time. */
struct busy;

/* Begin; what it does: "kernels" or "copies". */
int busy_begin(const struct machine *m, bool quick, struct busy **out);
const char *busy_what(const struct busy *busy);

/* An exit code if it was not busy until now; NULL: 0. */
int busy_end(struct busy *busy);

/* ------------------------------------------------------------------- told.c */

/* What the library says of the device, and of the way between it and files; "": nothing
 * yet.  Warnings are printed. */
struct told {
    char device[400];
    char way[400];
};
void told_listen(struct told *told);

/* -------------------------------------------------------------------- cases */

struct gpu_case {
    const char *name;
    int (*run)(const struct gpu_case *c, const struct bench *bench, const struct machine *m,
               struct bench_result *out);
    bool from_kv; /* gather, store, write; else into it */
    bool hnd;
};

#define WANTED_CHUNKS(quick) ((quick) ? (size_t)4 : (size_t)32)

int case_copies(const struct gpu_case *c, const struct bench *bench,
                const struct machine *m, struct bench_result *out);
int case_pool(const struct gpu_case *c, const struct bench *bench, const struct machine *m,
              struct bench_result *out);
int case_files(const struct gpu_case *c, const struct bench *bench,
               const struct machine *m, struct bench_result *out);

#endif
