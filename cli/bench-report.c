/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of kvtier bench as a table on the terminal and as lines of JSON. */
#include <inttypes.h>
#include <jansson.h>

#include "bench.h"
#include "common.h"

void
bench_print_head(void)
{
    printf("%-10s %-6s %4s %10s %9s %9s %9s %9s %9s %8s\n", "tier", "step", "conc", "MB/s",
           "ops/s", "p50 ms", "p90 ms", "p99 ms", "max ms", "CPU s/GB");
}

static bool
moves_bytes(const struct bench_row *row)
{
    return row->step == BENCH_WRITE || row->step == BENCH_READ;
}

/* Return CPU seconds for each GB that the step moved. */
static double
cpu_per_gb(const struct bench_row *row)
{
    return row->cpu_seconds * 1e9 / ((double)row->n_done * (double)row->chunk_bytes);
}

void
bench_print_row(const struct bench_row *row)
{
    char rate[24] = "-", cpu[24] = "-";

    if (row->n_done && moves_bytes(row)) {
        snprintf(rate, sizeof rate, "%.1f", bench_rate(row) / 1e6);
        snprintf(cpu, sizeof cpu, "%.3f", cpu_per_gb(row));
    }
    printf("%-10s %-6s %4u %10s %9.1f %9.2f %9.2f %9.2f %9.2f %8s\n", row->tier.tier,
           bench_step_name(row->step), row->concurrency, rate,
           row->seconds > 0 ? (double)row->n_done / row->seconds : 0,
           bench_percentile(row, 0.5), bench_percentile(row, 0.9),
           bench_percentile(row, 0.99), bench_percentile(row, 1), cpu);
    if (row->n_failed)
        printf("       %" PRIu64 " of %" PRIu64 " operations failed; the first: %s\n",
               row->n_failed, row->n_failed + row->n_done, row->why);
    fflush(stdout);
}

void
bench_print_json(const struct bench_row *row)
{
    json_t *latency = json_pack("{s:f, s:f, s:f, s:f}", "p50", bench_percentile(row, 0.5),
                                "p90", bench_percentile(row, 0.9), "p99",
                                bench_percentile(row, 0.99), "max", bench_percentile(row, 1));
    json_t *o = json_pack("{s:s, s:o, s:s, s:i, s:I, s:I, s:I, s:f, s:f, s:o}", "tier",
                          row->tier.tier, "url", cli_json_text(row->tier.url), "operation",
                          bench_step_name(row->step), "concurrency", (int)row->concurrency,
                          "chunk_bytes", (json_int_t)row->chunk_bytes, "done",
                          (json_int_t)row->n_done, "failed", (json_int_t)row->n_failed,
                          "seconds", row->seconds, "cpu_seconds", row->cpu_seconds,
                          "latency_ms", latency);

    if (row->n_done && moves_bytes(row)) {
        json_object_set_new(o, "bytes_per_s", json_real(bench_rate(row)));
        json_object_set_new(o, "cpu_s_per_gb", json_real(cpu_per_gb(row)));
    }
    if (row->n_failed)
        json_object_set_new(o, "error", cli_json_text(row->why));
    json_dumpf(o, stdout, JSON_REAL_PRECISION(6));
    printf("\n");
    fflush(stdout);
    json_decref(o);
}
