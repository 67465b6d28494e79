/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared parts of the benchmark families of kvtier-bench: the list of cases, results, time
 * measurement, helper programs, an engine over a directory, chunks, and the baseline loop over
 * files ("baseline": system calls without kvtier).
 *
 * Functions that return int return 0 or an exit code of cli.h (CLI_...) after a message on
 * standard error, unless their comment says otherwise.  All functions are called from one
 * thread, unless their comment says otherwise. */
#ifndef KVT_BENCH_H
#define KVT_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "engine.h"
#include "kvtier.h"

/* Parameters of a case. */
struct bench {
    const char *name; /* name of the case */
    const char *dir; /* new directory of this case, on the file system to be measured */
    bool quick;      /* use tiny sizes, to show that the case runs; the figures mean nothing */
    const char *server; /* server of the s3 cases, a program or a URL; NULL: the default */
    const char *daemon; /* daemon program of the hf3fs cases; NULL: the default */
};

/* Result of a case.  Initialize with zeros. */
struct bench_result {
    double value;
    const char *unit; /* string constant */
    double limit; /* value of the baseline, or a fixed limit, in `unit` */
    double ratio; /* value / limit or limit / value, as --help says; 1: kvtier costs nothing */
    unsigned threads; /* threads that move data */
    struct json_t *details; /* object of further figures and texts, owned; NULL: none */
};

/* Run a case and fill in the result.  Return 0, an exit code after a message, or
 * BENCH_SKIPPED after a message: this machine cannot run the case. */
#define BENCH_SKIPPED (-1)
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
int bench_codec(const struct bench *bench, struct bench_result *out);

/* ----------------------------------------------------------------- result.c */

/* Add a figure or a text to result->details. */
void bench_add_figure(struct bench_result *result, const char *name, double value);
void bench_add_text(struct bench_result *result, const char *name, const char *text);

/* Return a new reference to the JSON object with all fields of the result; NULL: a figure is no
 * finite number. */
struct json_t *bench_result_json(const char *name, const struct bench_result *result);

/* Fill in a result from an object of bench_result_json().  Takes the reference to `line`: the
 * object is freed or becomes out->details.  Return false if a field is missing or has an unknown
 * unit. */
bool bench_result_from_json(struct json_t *line, struct bench_result *out);

/* Free the fields of a result, not the struct. */
void bench_result_free(struct bench_result *result);

/* ---------------------------------------------------------------- measure.c */

/* Cost of a step. */
struct bench_cost {
    double seconds; /* of wall-clock time */
    double cpu;     /* CPU seconds of all threads of this process */
};

/* Return the monotonic clock in seconds.  Any thread. */
double bench_now(void);

/* Start and stop the clocks of a cost. */
void bench_start(struct bench_cost *cost);
void bench_stop(struct bench_cost *cost);

/* Return the median of n > 0 values.  Sorts the values in place. */
double bench_median(double *values, size_t n);

/* Perform a step once and measure the step.  Return 0 or an exit code. */
typedef int (*bench_step_fn)(void *ctx, struct bench_cost *out);

#define BENCH_MAX_STEPS 3

/* Run n rounds of the steps and report progress as `what`.  A round runs each step once; every
 * second round runs the steps in reverse order, so that a change of the machine's speed affects
 * all steps alike.  Writes the cost to costs[step * n + round].  Stops at the first error, or at
 * an interrupt. */
int bench_alternate(const char *what, size_t n, const bench_step_fn *steps,
                    size_t n_steps, void *ctx, struct bench_cost *costs);

/* Return true after SIGINT or SIGTERM: the case must clean up and return.  Any thread. */
bool bench_interrupted(void);

/* Handle the first SIGINT and the first SIGTERM.  The same signal again ends
 * the process. */
void bench_catch_interrupts(void);

/* ---------------------------------------------------------------- program.c */

/* A child process that runs another program. */
struct bench_program {
    pid_t pid; /* 0: no process */
    int in;    /* pipe to the program's standard input; -1: closed */
    int out;   /* pipe from the program's standard output; -1: closed */
};

#define BENCH_NO_PROGRAM ((struct bench_program){ .in = -1, .out = -1 })

/* Write the path of `name` to `out`: relative to the directory of this executable, unless name
 * is absolute.  Return false if no readable file has the path; `out` is filled in even then. */
bool bench_program_path(const char *name, char *out, size_t size);

/* Write the path of a program that the build of the tests makes.  `name` is relative to the
 * tests' build directory.  Return as bench_program_path(). */
bool bench_program_test_path(const char *name, char *out, size_t size);

/* Start a program.  args[0] is the path, and the last element of args is NULL.  The kernel
 * sends SIGTERM to the program when the calling thread ends.  Return 0 or an errno; end the
 * program with bench_program_end() in both cases. */
int bench_program_start(struct bench_program *program, char **args);

/* Read the next line of the program's output and parse the line.  Blocks.  Return a new
 * reference; NULL: the line is no JSON, or the program closed the output. */
struct json_t *bench_program_read_json(const struct bench_program *program);

/* Close the program's standard input, which asks the program to end. */
void bench_program_close_input(struct bench_program *program);

/* Close the program's standard input and wait until the program ends.  Return the status of
 * waitpid(); 0 if no program was started. */
int bench_program_end(struct bench_program *program);

/* ---------------------------------------------------------------- helpers.c */

#define BENCH_HELPER_SKIPPED 77 /* exit code of a helper program for BENCH_SKIPPED */

/* ----------------------------------------------------------------- engine.c */

#define BENCH_CHUNK_TOKENS 256u
#define BENCH_CHUNK_BLOCKS (BENCH_CHUNK_TOKENS / CLI_BLOCK_TOKENS)

/* Delete a directory tree; report a failure. */
void bench_remove_tree(const char *path);

/* Return the payload bytes of a chunk of BENCH_CHUNK_TOKENS tokens. */
size_t bench_chunk_bytes(const struct cli_shape *shape);

/* Open an engine with a file-system tier in dir, or with the tiers of `settings` if dir is NULL.
 * settings: "key=value" strings that end with NULL.  The user's configuration has no effect,
 * except for HF3FS_CLIENT.  The caller closes *out. */
int bench_engine_open(const char *dir, const char *const *settings, uint32_t role,
                      const struct cli_shape *shape, struct kvt_engine **out);

/* Register `memory` as the engine's paged KV, with the layout [kv][layer][block][token][head].
 * The memory must outlive the engine. */
int bench_engine_view(struct kvt_engine *engine, const struct cli_shape *shape,
                      unsigned char *memory, uint32_t n_blocks);

/* Open a store over the file-system tier in dir, to delete and count the chunks of an engine.
 * The caller closes *out. */
int bench_store_open(const char *dir, struct kvt_store **out);

/* Open a store over the tiers of `settings`, as bench_engine_open() with dir NULL. */
int bench_store_open_settings(const char *const *settings, struct kvt_store **out);

/* Delete all chunks of a store. */
int bench_store_clear(struct kvt_store *store);

/* Count the files of a store and their stored bytes. */
int bench_store_count(struct kvt_store *store, size_t *n_files, uint64_t *bytes);

/* The index directory of a storage that several hosts share.  The directory is below /var/tmp
 * and remains after the store or engine is closed. */
struct bench_index_dir {
    char path[4096]; /* "": none */
};

/* Find the index directory that this process has open.  Leaves *out as it is if none is open:
 * initialize with zeros. */
void bench_index_dir_find(struct bench_index_dir *out);

/* Delete the directory, if bench_index_dir_find() found one. */
void bench_index_dir_remove(struct bench_index_dir *dir);

/* Fill in n pseudo-random token ids of prompt `number`. */
void bench_tokens(int32_t *tokens, size_t n, uint64_t number);

/* ----------------------------------------------------------------- chunks.c */

#define BENCH_ROUNDS 15

/* The chunks of a prompt, and paged KV in host memory with blocks for the chunks. */
struct bench_chunks {
    struct cli_shape shape;
    size_t n;           /* chunks */
    size_t n_rounds;    /* rounds of a measurement */
    size_t chunk_bytes; /* bytes of a chunk */
    size_t bytes;       /* bytes of all chunks */
    unsigned char *kv;   /* paged KV of `bytes` bytes; NULL after bench_chunks_open_no_kv() */
    unsigned char *copy; /* memory of `bytes` bytes for the baseline loop; NULL if kv is NULL */
    int32_t *tokens;
    int32_t *blocks;    /* block numbers of all chunks: 0, 1, 2 ... */
    int32_t *no_blocks; /* as many times -1: a load copies no chunk into a block */
    struct kvt_chunk *chunks;
    uint64_t prompt; /* number of the current prompt; 0: none */
};

/* Return the shape of the cases: 32 MiB a chunk, or 1 MiB if quick. */
struct cli_shape bench_chunks_shape(bool quick);

/* Allocate chunks with kv and copy.  Call bench_chunks_close() even after an error. */
int bench_chunks_open(struct bench_chunks *b, bool quick, size_t n_chunks);

/* Allocate chunks without kv and copy.  Call bench_chunks_close() even after an error. */
int bench_chunks_open_no_kv(struct bench_chunks *b, bool quick, size_t n_chunks);

/* Free the chunks.  Close the engine that has a view of kv first. */
void bench_chunks_close(struct bench_chunks *b);

/* Write the setting of the pool's size: one and a half times the bytes of all chunks, because
 * stores leave part of the pool to loads, and 64 MiB for everything else. */
void bench_chunks_pool_setting(const struct bench_chunks *b, char out[64]);

/* Switch to the next prompt, whose chunks were never stored. */
int bench_chunks_next_prompt(struct bench_chunks *b, struct kvt_engine *engine);

/* Describe n chunks from chunk `first` on, with their blocks, for a store or a load.  The result
 * points into b. */
struct kvt_group_io bench_chunks_io(const struct bench_chunks *b, size_t first, size_t n);

/* Load all chunks into `blocks` (b->blocks or b->no_blocks) and measure the load.  An error if
 * a chunk is not loaded, or if the engine did not read exactly storage_bytes from storage. */
int bench_chunks_load(const struct bench_chunks *b, struct kvt_engine *engine,
                      uint64_t storage_bytes, const int32_t *blocks,
                      struct bench_cost *out);

/* Fill in value, limit and ratio in GB/s from the costs of the rounds of kvtier and of the
 * baseline. */
void bench_chunks_fill_result(const struct bench_chunks *b, const struct bench_cost *ours,
                         const struct bench_cost *baseline, struct bench_result *out);

/* --------------------------------------------------------- baseline-files.c */

/* The baseline loop over files: threads write and read files with system calls.  The loop uses
 * O_DIRECT if the file system supports O_DIRECT.  A write creates a file with a temporary name
 * and renames the file at the end. */
struct bench_baseline {
    int dirfd;   /* directory of the files; -1: closed */
    bool direct; /* use O_DIRECT */
    unsigned n_threads;
    size_t n_files, file_bytes;
    size_t piece;   /* bytes of a system call or of an I/O of io_uring */
    unsigned depth; /* I/Os in flight in a thread's io_uring; 0: blocking calls */
    unsigned char *buffers; /* file_bytes for each thread */
};

/* Create the directory and allocate the buffers.  Call bench_baseline_close() even after an
 * error. */
int bench_baseline_open(struct bench_baseline *baseline, const char *dir, unsigned n_threads,
                    size_t n_files, size_t file_bytes);

/* Delete the files and free the buffers. */
void bench_baseline_close(struct bench_baseline *baseline);

/* Try several values of piece and depth, and set the fastest.  Before a tuning of reads,
 * bench_baseline_write() must have written the files. */
int bench_baseline_tune(struct bench_baseline *baseline, bool write);

/* Delete the files, then write all files and measure the writes. */
int bench_baseline_write(struct bench_baseline *baseline, struct bench_cost *out);

/* Read all files and measure the reads. */
int bench_baseline_read(struct bench_baseline *baseline, struct bench_cost *out);

/* Delete the files. */
void bench_baseline_clear(struct bench_baseline *baseline);

/* --------------------------------------------------------- baseline-uring.c */

/* An io_uring of one thread of the baseline loop. */
struct bench_uring;

/* Create a ring.  Return NULL if io_uring is unavailable.  The caller frees the ring; the free
 * function accepts NULL. */
struct bench_uring *bench_uring_new(unsigned depth);
void bench_uring_free(struct bench_uring *ring);

/* Write or read a whole file in I/Os of baseline->piece bytes.  Return 0 or an errno. */
int bench_uring_move(struct bench_uring *ring, const struct bench_baseline *baseline, int fd,
                    unsigned char *buffer, bool write);

/* Make io_uring_setup() fail with ENOSYS in the calling thread and in the threads that the
 * calling thread starts later.  Return 0 or an errno. */
int bench_forbid_uring(void);

#endif
