/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of `kvtier bench` share: the plan, a measurement, the reports. */
#ifndef KVT_CLI_BENCH_H
#define KVT_CLI_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kvtier.h"

#define BENCH_MAX_LEVELS 16 /* of concurrency */
#define BENCH_MAX_CONCURRENCY 1024

enum bench_step { BENCH_WRITE, BENCH_EXISTS, BENCH_READ, BENCH_DELETE, BENCH_N_STEPS };

/* Return "write", "exists", "read" or "delete". */
const char *bench_step_name(enum bench_step step);

/* The plan of all tiers. */
struct bench_plan {
    uint64_t chunk_bytes;
    uint64_t n_chunks; /* of each measurement */
    unsigned concurrency[BENCH_MAX_LEVELS];
    size_t n_levels;
};

/* A measurement: a step of all chunks in a tier at a concurrency. */
struct bench_row {
    struct kvt_tier_info tier;
    uint64_t chunk_bytes;
    enum bench_step step;
    unsigned concurrency;
    uint64_t n_done, n_failed; /* operations */
    double seconds, cpu_seconds;
    double *latency_ms; /* of the operations without failure, ascending; n_done values */
    int status;         /* of the first failed operation, or 0 */
    char why[320];      /* sentence of the first failed operation */
};

/* Measure tier number `tier` of the store at one concurrency: write, look up, read and delete
 * n_chunks chunks.  rows: BENCH_N_STEPS rows, which the caller frees with bench_row_free() also
 * after an error.  All written chunks are deleted, also after a failure or an interrupt.  0, or an
 * exit code after printing the reason; failed operations are counted in the rows. */
int bench_measure(struct kvt_store *store, size_t tier, const struct bench_plan *plan,
                  unsigned concurrency, struct bench_row *rows);

void bench_row_free(struct bench_row *row);

/* Return the latency that a share of the operations does not exceed; 0 without operations. */
double bench_percentile(const struct bench_row *row, double share);

/* Return bytes a second; 0 without operations.  Meaningful for write and read. */
double bench_rate(const struct bench_row *row);

/* Return true after SIGINT or SIGTERM. */
bool bench_interrupted(void);
void bench_catch_interrupts(void);

/* Print a row for people, and as a line of JSON. */
void bench_print_head(void);
void bench_print_row(const struct bench_row *row);
void bench_print_json(const struct bench_row *row);

/* Write a self-contained HTML page with tables and plots of all rows to out. */
void bench_write_html(FILE *out, const struct bench_row *rows, size_t n);

#endif
