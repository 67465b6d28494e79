/* SPDX-License-Identifier: Apache-2.0
 *
 * The cases with an index of one process: bytes of memory, finds and stores. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "index.h"

#define MANY UINT64_C(10000000)
#define FEW UINT64_C(20000)
#define BATCH 32u

struct kvt__name
index_name(uint64_t digest, uint64_t i)
{
    return (struct kvt__name){ .digest = digest,
                               .hash = { .bits = { index_random(2 * i) } } };
}

struct kvt__record
index_record(uint64_t i)
{
    struct kvt__record record = { .bytes = INDEX_CHUNK_BYTES };
    uint64_t id[2] = { index_random(2 * i + 1), i + 1 };

    memcpy(record.id.b, id, sizeof id);
    return record;
}

uint64_t
index_n_chunks(const struct bench *bench)
{
    return bench->quick ? FEW : MANY;
}

static uint64_t
resident_bytes(void)
{
    unsigned long long size, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    if (f && fscanf(f, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int
fail(const char *what, int err)
{
    fprintf(stderr, "kvtier-bench: the index failed to %s: %s\n", what, strerror(-err));
    return CLI_ENVIRONMENT;
}

int
index_fill(struct kvt__table *table, uint64_t digest, uint64_t first, uint64_t n)
{
    for (uint64_t i = first; i < first + n && !bench_interrupted(); i++) {
        struct kvt__name name = index_name(digest, i);
        struct kvt__record record = index_record(i);
        int err = kvt__table_enter(table, &name, &record, INDEX_TEXT);

        if (err)
            return fail("enter a chunk", err);
    }
    return bench_interrupted() ? CLI_ENVIRONMENT : 0;
}

/* Open an index and enter n chunks.  limit: the index's budget in chunks; 0: no budget.  The
 * caller closes *out. */
static int
open_filled(uint64_t n, uint64_t limit, uint64_t *digest, struct kvt__table **out)
{
    struct kvt__table_params params = { .limit_bytes = limit * INDEX_CHUNK_BYTES,
                                        .writer = true };
    int err = kvt__table_open_private(&params, out);

    if (err)
        return fail("open", err);
    *digest = kvt__table_digest(INDEX_TEXT);
    err = index_fill(*out, *digest, 0, n);
    if (err)
        kvt__table_close(*out);
    return err;
}

int
case_bytes(const struct bench *bench, struct bench_result *out)
{
    uint64_t n = bench->quick ? FEW * 10 : MANY, before = resident_bytes(), digest;
    struct kvt__table *table;
    int code = open_filled(n, 0, &digest, &table);

    if (code)
        return code;
    out->threads = 1;
    out->value = (double)(resident_bytes() - before) / (double)n;
    out->unit = "bytes";
    out->limit = 64;
    out->ratio = out->value / out->limit;
    bench_add_figure(out, "chunks", (double)n);
    kvt__table_close(table);
    return 0;
}

/* --------------------------------------------------------------------- finds */

struct finds {
    struct kvt__table *table;
    struct baseline baseline;
    uint64_t n, digest, seed, n_finds;
};

static void
pick(struct finds *f, struct kvt__name *name, struct kvt__id *id)
{
    uint64_t i = index_random(f->seed++) % f->n;

    *name = index_name(f->digest, i);
    *id = index_record(i).id;
}

static int
report_lost_chunk(void)
{
    fprintf(stderr, "kvtier-bench: the index lost a chunk\n");
    return CLI_ENVIRONMENT;
}

/* Measure n_finds finds of random chunks, and write the mean nanoseconds.  baseline: in the
 * baseline table.  batched: prefetch BATCH names before their finds.  The time to compute the
 * names is not measured. */
static int
measure_finds(struct finds *f, bool baseline, bool batched, double *ns)
{
    struct kvt__name names[BATCH];
    struct kvt__id ids[BATCH];
    double seconds = 0;
    unsigned n_found = 0;

    for (uint64_t done = 0; done < f->n_finds; done += BATCH) {
        for (unsigned i = 0; i < BATCH; i++)
            pick(f, &names[i], &ids[i]);
        double began = bench_now();
        if (batched && !baseline)
            kvt__table_prefetch(f->table, names, BATCH);
        for (unsigned i = 0; batched && baseline && i < BATCH; i++)
            baseline_prefetch(&f->baseline, names[i].hash.bits[0]);
        for (unsigned i = 0; i < BATCH; i++)
            n_found += baseline
                ? baseline_find(&f->baseline, names[i].hash.bits[0], &ids[i]) != NULL
                : kvt__table_find(f->table, &names[i], &ids[i], NULL);
        seconds += bench_now() - began;
    }
    *ns = seconds * 1e9 / (double)f->n_finds;
    return n_found == f->n_finds ? 0 : report_lost_chunk();
}

#define ROUNDS 5

int
case_find(const struct bench *bench, struct bench_result *out)
{
    struct finds f = { .n = index_n_chunks(bench),
                       .n_finds = bench->quick ? 3200 : 320000 };
    double ns[4][ROUNDS];
    int code = open_filled(f.n, 0, &f.digest, &f.table);

    if (code)
        return code;
    code = baseline_open(&f.baseline, f.n);
    for (uint64_t i = 0; !code && i < f.n; i++) {
        struct kvt__name name = index_name(f.digest, i);
        struct kvt__record record = index_record(i);

        baseline_insert(&f.baseline, &name, &record);
    }
    for (int round = 0; !code && round < ROUNDS; round++)
        for (int way = 0; !code && way < 4; way++)
            code = measure_finds(&f, way & 1, way & 2, &ns[way][round]);
    if (!code) {
        out->threads = 1;
        out->value = bench_median(ns[2], ROUNDS);
        out->limit = bench_median(ns[3], ROUNDS);
        out->unit = "ns";
        out->ratio = out->value / out->limit;
        bench_add_figure(out, "one_by_one_ns", bench_median(ns[0], ROUNDS));
        bench_add_figure(out, "baseline_one_by_one_ns", bench_median(ns[1], ROUNDS));
    }
    if (f.baseline.entries)
        baseline_close(&f.baseline);
    kvt__table_close(f.table);
    return code;
}

/* -------------------------------------------------------------------- stores */

int
index_store(struct kvt__table *table, uint64_t digest, uint64_t i,
          struct kvt__record victims[KVT__TABLE_VICTIMS], size_t *n_victims)
{
    struct kvt__name name = index_name(digest, i);
    struct kvt__record record = index_record(i);
    struct kvt__claim claim;

    if (!*n_victims)
        *n_victims = kvt__table_victims(table, NULL, NULL, victims, KVT__TABLE_VICTIMS);
    if (!*n_victims)
        return -ENOSPC;
    (void)kvt__table_forget(table, &victims[--*n_victims], false);
    int err = kvt__table_claim(table, &name, &record, INDEX_TEXT, &claim);
    if (!err)
        kvt__table_publish(table, &claim);
    return err;
}

/* Store chunks first .. first + n - 1 into a full index, and write the mean nanoseconds. */
static int
measure_stores(struct kvt__table *table, uint64_t digest, uint64_t first, uint64_t n,
           double *ns)
{
    struct kvt__record victims[KVT__TABLE_VICTIMS];
    size_t n_victims = 0;
    double began = bench_now();

    for (uint64_t i = first; i < first + n; i++) {
        int err = index_store(table, digest, i, victims, &n_victims);

        if (err)
            return fail("store a chunk", err);
    }
    *ns = (bench_now() - began) * 1e9 / (double)n;
    return 0;
}

/* Insert the chunks into the baseline table, and write the mean nanoseconds. */
static void
measure_inserts(struct baseline *baseline, uint64_t first, uint64_t n, double *ns)
{
    double began = bench_now();

    for (uint64_t i = first; i < first + n; i++) {
        struct kvt__name name = index_name(0, i);
        struct kvt__record record = index_record(i);

        baseline_insert(baseline, &name, &record);
    }
    *ns = (bench_now() - began) * 1e9 / (double)n;
}

int
case_store(const struct bench *bench, struct bench_result *out)
{
    uint64_t n = index_n_chunks(bench), each = bench->quick ? 1000 : 200000, digest;
    double ours[ROUNDS], baseline_ns[ROUNDS], rest;
    struct kvt__table *table;
    struct baseline baseline = { 0 };
    int code = open_filled(n, n, &digest, &table);

    if (code)
        return code;
    code = baseline_open(&baseline, n + ROUNDS * each);
    if (!code)
        measure_inserts(&baseline, 0, n, &rest);
    for (uint64_t round = 0; !code && round < ROUNDS; round++) {
        code = measure_stores(table, digest, n + round * each, each, &ours[round]);
        measure_inserts(&baseline, n + round * each, each, &baseline_ns[round]);
    }
    if (!code) {
        out->threads = 1;
        out->value = bench_median(ours, ROUNDS);
        out->limit = bench_median(baseline_ns, ROUNDS);
        out->unit = "ns";
        out->ratio = out->value / out->limit;
    }
    if (baseline.entries)
        baseline_close(&baseline);
    kvt__table_close(table);
    return code;
}
