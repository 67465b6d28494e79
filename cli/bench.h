/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan, the rows and the reports of `kvtier bench`. */
#ifndef KVT_CLI_BENCH_H
#define KVT_CLI_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kvtier.h"

#define BENCH_MAX_LEVELS 16 /* levels of concurrency */
#define BENCH_MAX_CONCURRENCY 1024

enum bench_step { BENCH_WRITE, BENCH_EXISTS, BENCH_READ, BENCH_DELETE, BENCH_N_STEPS };

/* Return "write", "exists", "read" or "delete". */
const char *bench_step_name(enum bench_step step);

/* The measurements that bench makes in each tier. */
struct bench_plan {
    uint64_t chunk_bytes;
    uint64_t n_chunks; /* chunks of each measurement */
    unsigned concurrency[BENCH_MAX_LEVELS];
    size_t n_levels;
};

/* The result of a step for all chunks in a tier at a concurrency. */
struct bench_row {
    struct kvt_tier_info tier;
    uint64_t chunk_bytes;
    enum bench_step step;
    unsigned concurrency;
    uint64_t n_done, n_failed; /* operations */
    double seconds, cpu_seconds;
    double *latency_ms; /* latencies of the successful operations, ascending; n_done values */
    int status;         /* status of the first failed operation; 0: no operation failed */
    char why[320];      /* sentence of the first failed operation */
};

/* Measure tier number `tier` of the store at a concurrency: write, look up, read and delete
 * n_chunks chunks.  rows: BENCH_N_STEPS rows, which the caller frees with bench_row_free() also
 * after an error.  Also after a failure or an interrupt, the function deletes the written chunks,
 * and the chunks whose write failed, because storage may hold such chunks.  Return 0, or an exit
 * code after printing the error; failed operations are no error and are counted in the rows.
 * Blocks. */
int bench_measure(struct kvt_store *store, size_t tier, const struct bench_plan *plan,
                  unsigned concurrency, struct bench_row *rows);

/* Free the latencies of a row.  The row itself belongs to the caller. */
void bench_row_free(struct bench_row *row);

/* Return the latency in ms that a share (0 to 1) of the successful operations does not exceed; 0
 * if no operation succeeded. */
double bench_percentile(const struct bench_row *row, double share);

/* Return the payload bytes per second of a write or read row; 0 if no operation succeeded. */
double bench_rate(const struct bench_row *row);

/* Make the first SIGINT, SIGTERM or SIGHUP set bench_interrupted().  A second signal ends the
 * process. */
void bench_catch_interrupts(void);
bool bench_interrupted(void);

/* Print the head of the table and a row of the table, or a row as a line of JSON. */
void bench_print_head(void);
void bench_print_row(const struct bench_row *row);
void bench_print_json(const struct bench_row *row);

/* Write a self-contained HTML page with tables and plots of all rows to out. */
void bench_write_html(FILE *out, const struct bench_row *rows, size_t n);

#endif
