/* SPDX-License-Identifier: Apache-2.0
 *
 * The cases s3.head and s3.memory, with 64 requests in flight: check which objects exist at a
 * server with slow responses, and measure memory. */
#include <stdio.h>
#include <unistd.h>

#include "s3.h"
#include "cli.h"

#define N_SLOTS 64 /* default number of connections */
#define DELAY_MS 5

/* -------------------------------------------------------------------------- heads */

struct heads {
    struct bench_s3 ours;
    struct bench_socket baseline;
};

static int
step_ours(void *ctx, struct bench_cost *out)
{
    return bench_s3_run(&((struct heads *)ctx)->ours, out);
}

static int
step_baseline(void *ctx, struct bench_cost *out)
{
    struct heads *h = ctx;

    return bench_socket_run(&h->baseline, h->ours.n_objects, out);
}

/* Check n absent objects at a new server, and write the number of connections that the server
 * accepted. */
static int
count_connections(const struct bench *bench, size_t n, uint64_t *n_connections)
{
    struct bench_s3 r = { .kind = BENCH_HEAD, .n_slots = N_SLOTS, .object_bytes = 4096,
                          .n_objects = n, .head_delay_ms = DELAY_MS, .all_absent = true };
    struct bench_cost cost;
    int code = bench_s3_open(&r, bench);

    if (!code)
        code = bench_s3_open_store(&r);
    if (!code)
        code = bench_s3_run(&r, &cost);
    int closed = bench_s3_close(&r, code ? NULL : n_connections);
    return code ? code : closed;
}

/* Measure n rounds of kvtier and of the baseline loop.  The first run of each connects and is not
 * measured. */
static int
measure(struct heads *h, const struct bench *bench, size_t n, struct bench_cost *costs)
{
    static const bench_step_fn steps[] = { step_ours, step_baseline };
    int code = bench_s3_open(&h->ours, bench);

    h->baseline = (struct bench_socket){
        .server = &h->ours.server, .kind = BENCH_HEAD, .n_conns = N_SLOTS,
        .object_bytes = h->ours.object_bytes, .buffers = h->ours.memory, .epoll = -1 };
    if (!code)
        code = bench_s3_open_store(&h->ours);
    if (!code)
        code = bench_socket_open(&h->baseline);
    for (size_t i = 0; !code && i < 2; i++)
        code = steps[i](h, costs);
    if (!code)
        code = bench_alternate("s3.head", n, steps, 2, h, costs);
    bench_socket_close(&h->baseline);
    bench_s3_close(&h->ours, NULL);
    return code;
}

int
bench_s3_head(const struct bench *bench, struct bench_result *out)
{
    double value[BENCH_ROUNDS], limit[BENCH_ROUNDS], ratio[BENCH_ROUNDS];
    size_t n = bench->quick ? 2 : BENCH_ROUNDS, n_absent = bench->quick ? 200 : 10000;
    struct bench_cost costs[2 * BENCH_ROUNDS];
    struct heads h = { .ours = { .kind = BENCH_HEAD, .n_slots = N_SLOTS,
                                 .object_bytes = 4096, .head_delay_ms = DELAY_MS,
                                 .n_objects = bench->quick ? 100 : 1000 } };
    uint64_t n_connections = 0;
    int code = measure(&h, bench, n, costs);

    if (!code)
        code = count_connections(bench, n_absent, &n_connections);
    if (code)
        return code;
    for (size_t i = 0; i < n; i++) {
        value[i] = costs[i].seconds;
        limit[i] = costs[n + i].seconds;
        ratio[i] = value[i] / limit[i];
    }
    out->value = bench_median(value, n);
    out->limit = bench_median(limit, n);
    out->ratio = bench_median(ratio, n);
    out->unit = "s";
    out->threads = 1;
    bench_add_figure(out, "heads", (double)h.ours.n_objects);
    bench_add_figure(out, "in_flight", N_SLOTS);
    bench_add_figure(out, "delay_ms", DELAY_MS);
    bench_add_figure(out, "value_most", value[n - 1]);
    bench_add_figure(out, "misses", (double)n_absent);
    bench_add_figure(out, "connections_for_misses", (double)n_connections);
    return 0;
}

/* ------------------------------------------------------------------------- memory */

static size_t
resident_kib(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    if (f && fscanf(f, "%*u %lu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * ((size_t)sysconf(_SC_PAGESIZE) >> 10);
}

static void
record_memory(struct bench_s3 *r)
{
    size_t now = resident_kib();

    if (now > r->max_kib)
        r->max_kib = now;
}

/* Write the MiB by which the resident memory grows when the store is open and loads objects.  The
 * caller's buffers are not part of the growth. */
static int
growth(const struct bench *bench, double *mib)
{
    struct bench_s3 r = { .kind = BENCH_GET, .tls = true, .n_slots = N_SLOTS,
                          .object_bytes = (size_t)(bench->quick ? 1 : 4) << 20,
                          .n_objects = bench->quick ? 64 : 640, .on_progress = record_memory };
    struct bench_cost cost;
    int code = bench_s3_open(&r, bench);
    size_t before = resident_kib();

    if (!code)
        code = bench_s3_open_store(&r);
    if (!code)
        code = bench_s3_run(&r, &cost);
    *mib = r.max_kib > before ? (double)(r.max_kib - before) / 1024 : 0;
    bench_s3_close(&r, NULL);
    return code;
}

int
bench_s3_memory(const struct bench *bench, struct bench_result *out)
{
    int code = growth(bench, &out->value);

    out->limit = 16 + N_SLOTS * 300.0 / 1024;
    out->ratio = out->value / out->limit;
    out->unit = "MiB";
    out->threads = 1;
    bench_add_figure(out, "in_flight", N_SLOTS);
    return code;
}
