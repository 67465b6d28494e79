/* SPDX-License-Identifier: Apache-2.0
 *
 * The case hf3fs.exists: check 10,000 chunks of a 3FS with a high metadata latency, with 64
 * requests in flight.  The baseline is one request at a time. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "hf3fs.h"
#include "cli.h"

#define DELAY_US 200
#define IN_FLIGHT 64
#define CHUNK_BYTES 1024
#define LEAST_IOV 104857600u

struct rig {
    struct bench_hf3fs_mount mount;
    struct kvt_store *store;
    struct bench_index_dir index;
    size_t n;
    struct kvt_op ops[IN_FLIGHT];
    char keys[IN_FLIGHT][64];
    unsigned char chunk[CHUNK_BYTES];
};

static void
describe_op(struct rig *r, size_t slot, size_t number, uint32_t kind)
{
    snprintf(r->keys[slot], sizeof r->keys[slot], "bench@1@0@%zx@bfloat16", number + 1);
    r->ops[slot] = (struct kvt_op){ .struct_size = sizeof r->ops[slot], .kind = kind,
                                    .key = r->keys[slot], .buf = r->chunk,
                                    .bytes = sizeof r->chunk };
}

static int
check(const struct kvt_op *op)
{
    if (!op->status && (op->kind == KVT_OP_PUT || op->found_bytes == CHUNK_BYTES))
        return 0;
    fprintf(stderr, "kvtier-bench: %s: %s\n", op->key,
            *op->why ? op->why : "the stored length differs");
    return CLI_ENVIRONMENT;
}

/* ------------------------------------------------------------------------ steps */

static int
submit(struct rig *r, struct kvt_op *op)
{
    int err = kvt_store_submit(r->store, &op, 1);

    return err ? cli_fail(err) : 0;
}

/* Run an operation of this kind for each chunk, with IN_FLIGHT operations in flight. */
static int
run_batched(struct rig *r, uint32_t kind)
{
    struct pollfd fd = { .fd = kvt_store_eventfd(r->store), .events = POLLIN };
    struct kvt_op *done[IN_FLIGHT];
    size_t n_started = 0, n_done = 0;
    int code = 0;

    while (!code && n_started < IN_FLIGHT && n_started < r->n) {
        describe_op(r, n_started, n_started, kind);
        code = submit(r, &r->ops[n_started++]);
    }
    while (!code && n_done < r->n) {
        poll(&fd, 1, 1000);
        size_t n = kvt_store_poll(r->store, done, IN_FLIGHT);

        for (size_t i = 0; !code && i < n; i++, n_done++) {
            code = check(done[i]);
            if (code || n_started == r->n)
                continue;
            describe_op(r, (size_t)(done[i] - r->ops), n_started++, kind);
            code = submit(r, done[i]);
        }
        if (bench_interrupted())
            code = CLI_ENVIRONMENT;
    }
    return code;
}

static int
step_batched(void *ctx, struct bench_cost *out)
{
    bench_start(out);
    int code = run_batched(ctx, KVT_OP_STAT);
    bench_stop(out);
    return code;
}

static int
step_one_by_one(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;
    int code = 0;

    bench_start(out);
    for (size_t i = 0; !code && i < r->n; i++) {
        describe_op(r, 0, i, KVT_OP_STAT);
        (void)kvt_store_run(r->store, &r->ops[0]); /* check() reads op.status */
        code = bench_interrupted() ? CLI_ENVIRONMENT : check(&r->ops[0]);
    }
    bench_stop(out);
    return code;
}

/* ----------------------------------------------------------------------- the case */

static int
rig_open(struct rig *r, const struct bench *bench)
{
    const struct bench_hf3fs_mount_params params = { .delay_us = DELAY_US,
                                               .shm_bytes = LEAST_IOV };
    struct bench_hf3fs_settings settings;

    r->n = bench->quick ? 100 : 10000;
    int code = bench_hf3fs_mount_open(bench, &params, &r->mount);
    if (code)
        return code;
    bench_hf3fs_settings(&r->mount, LEAST_IOV, &settings);
    code = bench_store_open_settings(settings.list, &r->store);
    bench_index_dir_find(&r->index);
    return code ? code : run_batched(r, KVT_OP_PUT);
}

static void
rig_close(struct rig *r)
{
    kvt_store_close(r->store);
    bench_hf3fs_mount_close(&r->mount);
    bench_index_dir_remove(&r->index);
    free(r);
}

static void
figures(const struct rig *r, const struct bench_cost *costs, size_t n,
        struct bench_result *out)
{
    double value[BENCH_ROUNDS], limit[BENCH_ROUNDS], ratio[BENCH_ROUNDS];

    for (size_t i = 0; i < n; i++) {
        value[i] = costs[i].seconds;
        limit[i] = costs[n + i].seconds;
        ratio[i] = limit[i] / value[i];
    }
    out->value = bench_median(value, n);
    out->limit = bench_median(limit, n);
    out->ratio = bench_median(ratio, n);
    out->unit = "s";
    out->threads = 1;
    bench_add_figure(out, "checks", (double)r->n);
    bench_add_figure(out, "in_flight", IN_FLIGHT);
    bench_add_figure(out, "delay_us", DELAY_US);
    bench_add_figure(out, "ratio_least", ratio[0]);
    bench_add_figure(out, "ratio_most", ratio[n - 1]);
}

int
bench_hf3fs_exists(const struct bench *bench, struct bench_result *out)
{
    static const bench_step_fn steps[] = { step_batched, step_one_by_one };
    struct bench_cost costs[2 * BENCH_ROUNDS];
    struct rig *r = calloc(1, sizeof *r);
    size_t n = bench->quick ? 2 : 5;

    if (!r) {
        fprintf(stderr, "kvtier-bench: not enough memory\n");
        return CLI_ENVIRONMENT;
    }
    r->mount.daemon = BENCH_NO_PROGRAM;
    int code = rig_open(r, bench);
    for (size_t i = 0; !code && i < 2; i++)
        code = steps[i](r, costs);
    if (!code)
        code = bench_alternate("hf3fs.exists", n, steps, 2, r, costs);
    if (!code)
        figures(r, costs, n, out);
    rig_close(r);
    return code;
}
