/* SPDX-License-Identifier: Apache-2.0
 *
 * The results and the reports of `kvtier codec`. */
#ifndef KVT_CLI_CODEC_H
#define KVT_CLI_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kvtier.h"

#define CODEC_MAX 8 /* codecs of a build */

/* The sum of a codec's results for one or several chunks. */
struct codec_row {
    const char *codec;
    uint64_t n, n_left_out;       /* measured chunks; chunks that the codec cannot measure */
    uint64_t bytes, encoded_bytes; /* of the measured chunks */
    uint64_t decoded_bytes;        /* of the chunks that the codec made smaller */
    double encode_s, decode_s;
    double square_sum;  /* sum of rms_error * rms_error * bytes */
    double max_error;
    char why[160];      /* sentence of the first chunk that was left out */
};

/* A chunk, or the sum of all chunks. */
struct codec_report {
    char *name; /* argument of the command; NULL: the sum */
    uint64_t n_chunks, n_failed;
    uint64_t n_lossy;     /* chunks that a lossy codec has encoded */
    uint64_t n_estimated; /* chunks whose encoded size is an estimate */
    uint64_t bytes;
    const char *encoding, *dtype; /* NULL in the sum */
    char why[320];                /* sentence of the failure of the chunk */
    struct codec_row rows[CODEC_MAX];
    size_t n_rows;
};

/* Return figures of a row with at least one measured chunk: how many times smaller the chunks
 * become; decoded bytes per second, 0 if the codec decoded no chunk; the relative error. */
double codec_ratio(const struct codec_row *row);
double codec_encode_rate(const struct codec_row *row);
double codec_decode_rate(const struct codec_row *row);
double codec_rms_error(const struct codec_row *row);

/* Print the report as a table, or as a line of JSON. */
void codec_print_table(const struct codec_report *report);
void codec_print_json(const struct codec_report *report);

/* Write a self-contained HTML page with a chart and tables. */
void codec_write_html(FILE *out, const struct codec_report *total,
                      const struct codec_report *chunks, size_t n);

#endif
