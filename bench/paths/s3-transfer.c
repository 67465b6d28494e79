/* SPDX-License-Identifier: Apache-2.0
 *
 * GET and PUT of the s3 family: objects of 32 MiB, with a server on another core.  The baseline
 * loop uses the same number of sockets and the same buffers.
 *
 * kvtier signs requests, verifies a GET against the checksum in the response, and sends a checksum
 * with a PUT.  The baseline loop does none of this. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "s3.h"
#include "cli.h"

#define N_SLOTS 8
#define MAX_ROUNDS 31

struct pair {
    struct bench_s3 ours;
    struct bench_socket baseline;
    size_t n_rounds;
};

static int
step_ours(void *ctx, struct bench_cost *out)
{
    return bench_s3_run(&((struct pair *)ctx)->ours, out);
}

static int
step_baseline(void *ctx, struct bench_cost *out)
{
    struct pair *p = ctx;

    return bench_socket_run(&p->baseline, p->ours.n_objects, out);
}

static int
pair_open(struct pair *p, const struct bench *bench)
{
    int code = bench_s3_open(&p->ours, bench);

    p->baseline = (struct bench_socket){
        .server = &p->ours.server, .kind = p->ours.kind, .tls = p->ours.tls,
        .n_conns = p->ours.n_slots, .object_bytes = p->ours.object_bytes,
        .buffers = p->ours.memory, .epoll = -1 };
    p->n_rounds = bench->quick ? 2 : MAX_ROUNDS;
    if (!code)
        code = bench_s3_open_store(&p->ours);
    return code ? code : bench_socket_open(&p->baseline);
}

static void
pair_close(struct pair *p)
{
    bench_socket_close(&p->baseline);
    bench_s3_close(&p->ours, NULL);
}

/* ----------------------------------------------------------------- equality of bytes */

static uint64_t
sum(const struct pair *p, size_t slot)
{
    const unsigned char *at = p->ours.memory + slot * p->ours.object_bytes;
    uint64_t sum = 0, word;

    for (size_t i = 0; i + sizeof word <= p->ours.object_bytes; i += sizeof word) {
        memcpy(&word, at + i, sizeof word);
        sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        sum ^= sum >> 29;
    }
    return sum;
}

/* Run a warm-up round, and check that kvtier and the baseline loop receive equal bytes. */
static int
compare(struct pair *p)
{
    uint64_t baseline[N_SLOTS];
    struct bench_cost cost;
    int code = step_baseline(p, &cost);

    for (size_t i = 0; i < N_SLOTS; i++)
        baseline[i] = sum(p, i);
    if (p->ours.kind == BENCH_GET)
        memset(p->ours.memory, 0, p->ours.n_slots * p->ours.object_bytes);
    if (!code)
        code = step_ours(p, &cost);
    for (size_t i = 0; !code && i < N_SLOTS; i++) {
        if (sum(p, i) != baseline[i]) {
            fprintf(stderr, "kvtier-bench: the baseline loop received other bytes\n");
            code = CLI_ENVIRONMENT;
        }
    }
    return code;
}

/* ---------------------------------------------------------------- GET and PUT */

static double
gigabytes(const struct pair *p)
{
    return (double)p->ours.n_objects * (double)p->ours.object_bytes * 1e-9;
}

static void
figures(const struct pair *p, const struct bench_cost *ours,
        const struct bench_cost *baseline, bool rate, struct bench_result *out)
{
    double value[MAX_ROUNDS], limit[MAX_ROUNDS], ratio[MAX_ROUNDS], other[MAX_ROUNDS];
    size_t n = p->n_rounds;

    for (size_t i = 0; i < n; i++) {
        value[i] = rate ? gigabytes(p) / ours[i].seconds : ours[i].cpu / gigabytes(p);
        limit[i] = rate ? gigabytes(p) / baseline[i].seconds : baseline[i].cpu / gigabytes(p);
        other[i] = rate ? ours[i].cpu / gigabytes(p) : gigabytes(p) / ours[i].seconds;
        ratio[i] = value[i] / limit[i];
    }
    out->value = bench_median(value, n);
    out->limit = bench_median(limit, n);
    out->ratio = bench_median(ratio, n);
    out->unit = rate ? "GB/s" : "CPU s/GB";
    out->threads = 1;
    bench_add_figure(out, rate ? "cpu_s_per_gb" : "gb_per_s", bench_median(other, n));
    bench_add_figure(out, "ratio_least", ratio[0]);
    bench_add_figure(out, "ratio_most", ratio[n - 1]);
    bench_add_figure(out, "rounds", (double)n);
    bench_add_figure(out, "objects", (double)p->ours.n_objects);
    bench_add_figure(out, "object_bytes", (double)p->ours.object_bytes);
    bench_add_figure(out, "baseline_lowat", p->baseline.lowat);
    bench_add_figure(out, "baseline_read_buffer", (double)p->baseline.read_buffer);
    bench_add_figure(out, "pinned", p->ours.server.pinned);
}

static int
run(const struct bench *bench, const char *name, enum bench_socket_kind kind, bool tls,
    bool rate, struct bench_result *out)
{
    static const bench_step_fn steps[] = { step_ours, step_baseline };
    struct bench_cost costs[2 * MAX_ROUNDS];
    struct pair p = { .ours = {
        .kind = kind, .tls = tls, .n_slots = N_SLOTS,
        .object_bytes = bench->quick ? (size_t)1 << 20 : (size_t)32 << 20,
        .n_objects = bench->quick ? 8 : tls ? 16 : 32 } };
    int code = pair_open(&p, bench);

    if (!code)
        code = compare(&p);
    if (!code)
        code = bench_socket_tune(&p.baseline, p.ours.n_objects, !rate);
    if (!code)
        code = bench_alternate(name, p.n_rounds, steps, 2, &p, costs);
    if (!code)
        figures(&p, costs, costs + p.n_rounds, rate, out);
    pair_close(&p);
    return code;
}

int
bench_s3_get(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "s3.get", BENCH_GET, false, false, out);
}

int
bench_s3_put(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "s3.put", BENCH_PUT, false, false, out);
}

int
bench_s3_get_tls(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "s3.get.tls", BENCH_GET, true, false, out);
}

int
bench_s3_put_tls(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "s3.put.tls", BENCH_PUT, true, false, out);
}

int
bench_s3_get_rate(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "s3.get.rate", BENCH_GET, false, true, out);
}
