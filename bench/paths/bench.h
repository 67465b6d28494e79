/* SPDX-License-Identifier: Apache-2.0
 *
 * What the families of `kvtier-bench` share: the cases, measuring, an engine over
 * a directory, the bare loop. */
#ifndef KVT_BENCH_H
#define KVT_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "engine.h"
#include "kvtier.h"

/* What all cases are given. */
struct bench {
    const char *name; /* the case's */
    const char *dir; /* ours alone, on the file system to be measured */
    bool quick;      /* tiny sizes: does it run, not how fast */
    const char *server; /* of the s3 cases: a program or a URL; NULL: the usual one */
    const char *daemon; /* of the hf3fs cases: a program; NULL: the usual one */
};

/* All zero at first. */
struct bench_result {
    double value;
    const char *unit;
    double limit; /* of the bare loop, in the same unit */
    double ratio; /* 1: as good as the bare loop */
    unsigned threads;
    struct json_t *more; /* figures beside it, and words; NULL: none */
};

/* Cases return 0, or an exit code or BENCH_LEFT_OUT after saying why. */
#define BENCH_LEFT_OUT (-1)
int bench_file_write(const struct bench *bench, struct bench_result *out);
int bench_file_read(const struct bench *bench, struct bench_result *out);
int bench_file_read_threads(const struct bench *bench, struct bench_result *out);
int bench_file_cpu(const struct bench *bench, struct bench_result *out);
int bench_file_retrieve(const struct bench *bench, struct bench_result *out);
int bench_store_file(const struct bench *bench, struct bench_result *out);
int bench_cpu_store(const struct bench *bench, struct bench_result *out);
int bench_cpu_retrieve(const struct bench *bench, struct bench_result *out);
int bench_cpu_store_paged(const struct bench *bench, struct bench_result *out);
int bench_cpu_retrieve_paged(const struct bench *bench, struct bench_result *out);
int bench_lookup_builtin(const struct bench *bench, struct bench_result *out);
int bench_lookup_sha256(const struct bench *bench, struct bench_result *out);
int bench_open_index(const struct bench *bench, struct bench_result *out);
int bench_scan_warm(const struct bench *bench, struct bench_result *out);
int bench_scan_cold(const struct bench *bench, struct bench_result *out);
int bench_gds_scan(const struct bench *bench, struct bench_result *out);
int bench_gds_scan_cold(const struct bench *bench, struct bench_result *out);
int bench_gds_write(const struct bench *bench, struct bench_result *out);
int bench_gds_read(const struct bench *bench, struct bench_result *out);
int bench_s3_get(const struct bench *bench, struct bench_result *out);
int bench_s3_put(const struct bench *bench, struct bench_result *out);
int bench_s3_get_tls(const struct bench *bench, struct bench_result *out);
int bench_s3_put_tls(const struct bench *bench, struct bench_result *out);
int bench_s3_get_rate(const struct bench *bench, struct bench_result *out);
int bench_s3_head(const struct bench *bench, struct bench_result *out);
int bench_s3_memory(const struct bench *bench, struct bench_result *out);
int bench_hf3fs_write(const struct bench *bench, struct bench_result *out);
int bench_hf3fs_read(const struct bench *bench, struct bench_result *out);
int bench_hf3fs_cpu_write(const struct bench *bench, struct bench_result *out);
int bench_hf3fs_cpu_read(const struct bench *bench, struct bench_result *out);
int bench_hf3fs_rate(const struct bench *bench, struct bench_result *out);
int bench_hf3fs_exists(const struct bench *bench, struct bench_result *out);
int bench_gpu(const struct bench *bench, struct bench_result *out);
int bench_index(const struct bench *bench, struct bench_result *out);

/* ----------------------------------------------------------------- result.c */

void bench_more(struct bench_result *result, const char *name, double value);
void bench_more_text(struct bench_result *result, const char *name, const char *text);

/* The line that says it all; the caller's. */
struct json_t *bench_result_json(const char *name, const struct bench_result *result);

/* The other way: such a line of another program, which is taken.  False: it is none. */
bool bench_result_take(struct json_t *line, struct bench_result *out);

void bench_result_free(struct bench_result *result);

/* ---------------------------------------------------------------- measure.c */

/* Wall clock, and CPU of all threads of this process, in seconds. */
struct bench_cost {
    double seconds;
    double cpu;
};

double bench_now(void);
void bench_start(struct bench_cost *cost);
void bench_stop(struct bench_cost *cost);

/* Sorts the values. */
double bench_median(double *values, size_t n);

/* Do something once and measure it.  0 or an exit code. */
typedef int (*bench_step_fn)(void *ctx, struct bench_cost *out);

#define BENCH_MAX_STEPS 3

/* Do the steps in turn, n rounds long and every second round backwards, so that a
 * machine that changes its speed changes it for all; costs[step * n + round].
 * 0 or an exit code. */
int bench_alternate(const char *what, size_t n, const bench_step_fn *steps,
                    size_t n_steps, void *ctx, struct bench_cost *costs);

/* True after an interrupt: end soon, and clean up. */
bool bench_interrupted(void);
void bench_catch_interrupts(void);

/* ---------------------------------------------------------------- program.c */

/* A program that this one has started, with pipes to and from it. */
struct bench_program {
    pid_t pid; /* 0: none */
    int in, out;
};

#define BENCH_NO_PROGRAM ((struct bench_program){ .in = -1, .out = -1 })

/* Where name is, as seen from this program's directory.  False: it is not there. */
bool bench_program_beside(const char *name, char *out, size_t size);

/* What the tests built: name is below their directory. */
bool bench_program_find(const char *name, char *out, size_t size);

/* args[0]: its path.  0 or an errno. */
int bench_program_start(struct bench_program *program, char **args);

/* The JSON that is its next line.  NULL: it said something else, or nothing. */
struct json_t *bench_program_hear(const struct bench_program *program);

/* It is told nothing more, and ends. */
void bench_program_no_more(struct bench_program *program);

/* Likewise, and waits until it has ended.  Its status. */
int bench_program_end(struct bench_program *program);

/* ------------------------------------------------------------------ inside.c */

#define BENCH_INSIDE_LEFT_OUT 77 /* a helper program's exit code for BENCH_LEFT_OUT */

/* ----------------------------------------------------------------- engine.c */

#define BENCH_CHUNK_TOKENS 256u
#define BENCH_CHUNK_BLOCKS (BENCH_CHUNK_TOKENS / CLI_BLOCK_TOKENS)

/* A directory and all in it. */
void bench_remove_tree(const char *path);

size_t bench_chunk_bytes(const struct cli_shape *shape);

/* Open an engine over dir (NULL: over what the settings name) with settings
 * ("key=value", ends with NULL) and nothing of the user's.  0 or an exit code, after saying
 * why. */
int bench_engine_open(const char *dir, const char *const *settings, uint32_t role,
                      const struct cli_shape *shape, struct kvt_engine **out);

/* memory: [kv][layer][block][token][head]. */
int bench_engine_view(struct kvt_engine *engine, const struct cli_shape *shape,
                      unsigned char *memory, uint32_t n_blocks);

/* The same chunks, by key: to remove and to count them.  0 or an exit code. */
int bench_store_open(const char *dir, struct kvt_store **out);
int bench_store_open_with(const char *const *settings, struct kvt_store **out);
int bench_store_clear(struct kvt_store *store);
int bench_store_bytes(struct kvt_store *store, size_t *n_files, uint64_t *bytes);

/* A store that other hosts share keeps its index below /var/tmp, and keeps it when it is
 * closed.  Find that of one that is open; remove it, if there was one. */
struct bench_index_dir {
    char path[4096];
};
void bench_find_index(struct bench_index_dir *out);
void bench_remove_index(struct bench_index_dir *dir);

/* Ids of a made-up prompt; another number, another prompt. */
void bench_tokens(int32_t *tokens, size_t n, uint64_t number);

/* ----------------------------------------------------------------- chunks.c */

#define BENCH_ROUNDS 15

/* Chunks of a prompt, and paged KV of as many. */
struct bench_chunks {
    struct cli_shape shape;
    size_t n, n_rounds, chunk_bytes, bytes; /* bytes: of all */
    unsigned char *kv, *copy; /* copy: as much again, for the bare loop; or neither */
    int32_t *tokens, *blocks, *no_blocks;
    struct kvt_chunk *chunks;
    uint64_t prompt; /* number of the last one */
};

struct cli_shape bench_chunks_shape(bool quick);

/* 0 or an exit code, after saying why; to be closed also then. */
int bench_chunks_open(struct bench_chunks *b, bool quick, size_t n_chunks);

/* The same without KV and copy. */
int bench_chunks_open_without(struct bench_chunks *b, bool quick, size_t n_chunks);
void bench_chunks_close(struct bench_chunks *b);

/* A setting: room for all chunks, for what stores leave to loads, and for the rest. */
void bench_chunks_pool(const struct bench_chunks *b, char out[64]);

/* From now on the chunks are those of a prompt that was never stored. */
int bench_chunks_prompt(struct bench_chunks *b, struct kvt_engine *engine);

/* n of them from the first on, with their blocks. */
struct kvt_group_io bench_chunks_io(const struct bench_chunks *b, size_t first, size_t n);

/* Load all into blocks.  Fails if not just so many bytes came from storage. */
int bench_chunks_load(const struct bench_chunks *b, struct kvt_engine *engine,
                      uint64_t storage_bytes, const int32_t *blocks,
                      struct bench_cost *out);

/* Fill in value, limit and ratio in GB/s. */
void bench_chunks_speeds(const struct bench_chunks *b, const struct bench_cost *ours,
                         const struct bench_cost *bare, struct bench_result *out);

/* ------------------------------------------------------------------- bare.c */

/* Files written and read by nothing but system calls: without the page cache
 * where that works, each under another name first and then renamed. */
struct bench_bare {
    int dirfd;
    bool direct;
    unsigned n_threads;
    size_t n_files, file_bytes;
    size_t piece;   /* bytes a call */
    unsigned depth; /* pieces under way in a thread's io_uring; 0: blocking calls */
    unsigned char *buffers; /* of file_bytes for each thread */
};

/* 0 or an exit code, after saying why. */
int bench_bare_open(struct bench_bare *bare, const char *dir, unsigned n_threads,
                    size_t n_files, size_t file_bytes);
void bench_bare_close(struct bench_bare *bare);

/* Find the fastest piece and depth. */
int bench_bare_tune(struct bench_bare *bare, bool write);

int bench_bare_write(struct bench_bare *bare, struct bench_cost *out);
int bench_bare_read(struct bench_bare *bare, struct bench_cost *out);
void bench_bare_clear(struct bench_bare *bare);

/* ------------------------------------------------------------------ uring.c */

/* A thread's ring, or NULL where there is none. */
struct bench_ring;
struct bench_ring *bench_ring_new(unsigned depth);
void bench_ring_free(struct bench_ring *ring);

/* All of a file in pieces.  0 or an errno. */
int bench_ring_move(struct bench_ring *ring, const struct bench_bare *bare, int fd,
                    unsigned char *buffer, bool write);

/* From now on this thread, and those it starts, cannot make one.  0 or an errno. */
int bench_forbid_uring(void);

#endif
