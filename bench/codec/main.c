/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier-bench-codec CASE DIR [--quick]: run a case of the codec family on one thread and print
 * the result as one line of JSON.  Exit code: as kvtier, or BENCH_HELPER_SKIPPED.
 *
 * The chunk is the KV of 256 tokens of Llama 3.1 8B in bfloat16, 32 MiB.  Throughput counts decoded
 * bytes. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cli.h"
#include "codec/affine.h"
#include "codec/cachegen.h"
#include "codec/codec.h"
#include "codec/lossless.h"
#include "common.h"
#include "kv.h"
#include "libraries.h"

enum codec { LOSSLESS, KV8, KV4, CACHEGEN };

static const struct kvt__codec *const codecs[] = { &kvt__codec_lossless, &kvt__codec_kv8,
                                                   &kvt__codec_kv4, &kvt__codec_cachegen };

struct rig {
    enum codec codec;
    size_t form; /* the fastest is number 0 */
    struct kvt__plane_shape shape;
    size_t n_planes, n_rounds, chunk_bytes, room;
    uint16_t *chunk;
    unsigned char *copy;    /* chunk_bytes: decoded, or copied by the baseline */
    unsigned char *encoded; /* n_planes * room bytes */
    size_t *sizes;          /* encoded bytes of each plane */
};

static size_t
plane_bytes(const struct rig *r)
{
    return r->chunk_bytes / r->n_planes;
}

/* Return the shape of plane number p: K and V of each layer. */
static struct kvt__plane_shape
shape_of(const struct rig *r, size_t p)
{
    struct kvt__plane_shape shape = r->shape;

    shape.layer = (uint32_t)p / 2;
    shape.is_value = p % 2;
    shape.n_layers = (uint32_t)r->n_planes / 2;
    return shape;
}

/* Return the name of a form of the rig's codec; NULL: there are fewer forms. */
static const char *
form_name(const struct rig *r, size_t form)
{
    switch (r->codec) {
    case LOSSLESS:
        return kvt__lossless_forms()[form] ? kvt__lossless_forms()[form]->name : NULL;
    case CACHEGEN:
        return kvt__cachegen_forms()[form] ? kvt__cachegen_forms()[form]->name : NULL;
    default:
        return kvt__affine_forms()[form] ? kvt__affine_forms()[form]->name : NULL;
    }
}

static size_t
encode_plane(const struct rig *r, size_t p, const unsigned char *plane, unsigned char *out)
{
    struct kvt__plane_shape shape = shape_of(r, p);

    switch (r->codec) {
    case LOSSLESS:
        return kvt__lossless_encode(kvt__lossless_forms()[r->form], &shape, plane, out);
    case CACHEGEN:
        return kvt__cachegen_encode(kvt__cachegen_forms()[r->form], &shape, plane, out);
    default:
        return kvt__affine_encode(kvt__affine_forms()[r->form], r->codec == KV8 ? 8 : 4, &shape,
                                  plane, out);
    }
}

static bool
decode_plane(const struct rig *r, size_t p, const unsigned char *in, size_t n,
             unsigned char *plane)
{
    struct kvt__plane_shape shape = shape_of(r, p);

    switch (r->codec) {
    case LOSSLESS:
        return kvt__lossless_decode(kvt__lossless_forms()[r->form], &shape, in, n, plane);
    case CACHEGEN:
        return kvt__cachegen_decode(kvt__cachegen_forms()[r->form], &shape, in, n, plane);
    default:
        return kvt__affine_decode(kvt__affine_forms()[r->form], r->codec == KV8 ? 8 : 4, &shape,
                                  in, n, plane);
    }
}

static int
encode(struct rig *r)
{
    for (size_t p = 0; p < r->n_planes; p++)
        r->sizes[p] = encode_plane(r, p, (unsigned char *)r->chunk + p * plane_bytes(r),
                                   r->encoded + p * r->room);
    return 0;
}

static int
decode(struct rig *r)
{
    for (size_t p = 0; p < r->n_planes; p++)
        if (!decode_plane(r, p, r->encoded + p * r->room, r->sizes[p],
                          r->copy + p * plane_bytes(r))) {
            fprintf(stderr, "kvtier-bench: a plane cannot be decoded\n");
            return CLI_NEGATIVE;
        }
    return 0;
}

static void
rig_close(struct rig *r)
{
    free(r->chunk);
    free(r->copy);
    free(r->encoded);
    free(r->sizes);
}

static int
rig_open(struct rig *r, enum codec codec, bool quick)
{
    *r = (struct rig){ .codec = codec, .n_rounds = quick ? 3 : BENCH_ROUNDS, .shape = {
        .element = KVT__ELEMENT_BF16, .row = 1024, .n = quick ? 16 * 1024 : 256 * 1024 },
        .n_planes = quick ? 2 : 64 };
    r->chunk_bytes = r->n_planes * r->shape.n * 2;
    struct kvt__plane_shape shape = shape_of(r, 0);
    r->room = codecs[codec]->room(&shape);
    r->chunk = malloc(r->chunk_bytes);
    r->copy = malloc(r->chunk_bytes);
    r->encoded = malloc(r->n_planes * r->room);
    r->sizes = calloc(r->n_planes, sizeof *r->sizes);
    if (!r->chunk || !r->copy || !r->encoded || !r->sizes) {
        fprintf(stderr, "kvtier-bench: not enough memory\n");
        return CLI_ENVIRONMENT;
    }
    kv_fill(&r->shape, r->n_planes, r->chunk);
    memset(r->copy, 0, r->chunk_bytes);
    encode(r);
    int code = decode(r);
    if (!code && codec == LOSSLESS && memcmp(r->copy, r->chunk, r->chunk_bytes)) {
        fprintf(stderr, "kvtier-bench: WRONG BYTES: the decoded chunk differs\n");
        code = CLI_NEGATIVE;
    }
    return code;
}

/* -------------------------------------------------------------------- libraries */

enum what { SIZE, ENCODE, DECODE };

/* Compress and decompress the chunk once.  Return the figure of the case: how many times smaller
 * the chunk becomes, or GB/s.  0: the library failed. */
static double
library_figure(struct rig *r, const struct library *library, enum what what, unsigned char *out,
               size_t room)
{
    struct bench_cost cost[2];

    bench_start(&cost[0]);
    size_t n = library->compress(r->chunk, r->chunk_bytes, out, room);
    bench_stop(&cost[0]);
    bench_start(&cost[1]);
    int err = n ? library->decompress(out, n, r->copy, r->chunk_bytes) : 1;
    bench_stop(&cost[1]);
    if (err || memcmp(r->copy, r->chunk, r->chunk_bytes))
        return 0;
    return what == SIZE ? (double)r->chunk_bytes / (double)n
                        : (double)r->chunk_bytes / cost[what == DECODE].seconds / 1e9;
}

/* Add the median of three runs of each library. */
static int
measure_libraries(struct rig *r, enum what what, struct bench_result *out)
{
    size_t room = r->chunk_bytes + r->chunk_bytes / 8 + 4096;
    unsigned char *compressed = malloc(room);

    if (!compressed) {
        fprintf(stderr, "kvtier-bench: not enough memory\n");
        return CLI_ENVIRONMENT;
    }
    for (const struct library *l = libraries; l->name && !bench_interrupted(); l++) {
        double figures[3];

        for (size_t i = 0; i < 3; i++)
            figures[i] = library_figure(r, l, what, compressed, room);
        bench_add_figure(out, l->name, bench_median(figures, 3));
    }
    free(compressed);
    return 0;
}

/* ------------------------------------------------------------------------ cases */

static int
step_encode(void *ctx, struct bench_cost *out)
{
    bench_start(out);
    int code = encode(ctx);
    bench_stop(out);
    return code;
}

static int
step_decode(void *ctx, struct bench_cost *out)
{
    bench_start(out);
    int code = decode(ctx);
    bench_stop(out);
    return code;
}

static int
step_copy(void *ctx, struct bench_cost *out)
{
    struct rig *r = ctx;

    bench_start(out);
    memcpy(r->copy, r->chunk, r->chunk_bytes);
    bench_stop(out);
    return 0;
}

/* Add the throughput of the slower forms. */
static int
measure_forms(struct rig *r, bench_step_fn step, struct bench_result *out)
{
    double rates[BENCH_ROUNDS];
    struct bench_cost cost;

    bench_add_text(out, "form", form_name(r, 0));
    for (r->form = 1; form_name(r, r->form); r->form++) {
        char name[64];

        for (size_t i = 0; i < r->n_rounds && !bench_interrupted(); i++) {
            int code = step(r, &cost);

            if (code)
                return code;
            rates[i] = (double)r->chunk_bytes / cost.seconds / 1e9;
        }
        snprintf(name, sizeof name, "%s, GB/s", form_name(r, r->form));
        bench_add_figure(out, name, bench_median(rates, r->n_rounds));
    }
    r->form = 0;
    return 0;
}

/* Fill in throughputs, as the median of the rounds. */
static int
measure(struct rig *r, enum what what, bench_step_fn step, struct bench_result *out)
{
    const bench_step_fn steps[] = { step, step_copy };
    struct bench_cost costs[2 * BENCH_ROUNDS];
    double ours[BENCH_ROUNDS], plain[BENCH_ROUNDS], ratios[BENCH_ROUNDS];
    int code = bench_alternate(what == ENCODE ? "encode" : "decode", r->n_rounds, steps, 2, r,
                               costs);

    if (code)
        return code;
    for (size_t i = 0; i < r->n_rounds; i++) {
        ours[i] = (double)r->chunk_bytes / costs[i].seconds / 1e9;
        plain[i] = (double)r->chunk_bytes / costs[r->n_rounds + i].seconds / 1e9;
        ratios[i] = ours[i] / plain[i];
    }
    out->unit = "GB/s";
    out->value = bench_median(ours, r->n_rounds);
    out->limit = bench_median(plain, r->n_rounds);
    out->ratio = bench_median(ratios, r->n_rounds);
    code = measure_forms(r, step, out);
    return code || r->codec != LOSSLESS ? code : measure_libraries(r, what, out);
}

static int
case_encode(struct rig *r, struct bench_result *out)
{
    return measure(r, ENCODE, step_encode, out);
}

static int
case_decode(struct rig *r, struct bench_result *out)
{
    return measure(r, DECODE, step_decode, out);
}

/* Compare the ratio of sizes with the bound of a code with one table for each plane, that copies
 * mantissas and signs. */
static int
case_size(struct rig *r, struct bench_result *out)
{
    double bits = kv_plane_entropy(&r->shape, r->n_planes, r->chunk);
    size_t encoded = 0;

    for (size_t p = 0; p < r->n_planes; p++)
        encoded += r->sizes[p];
    out->unit = "times";
    out->value = (double)r->chunk_bytes / (double)encoded;
    out->limit = 16 / (8 + bits);
    out->ratio = out->value / out->limit;
    bench_add_figure(out, "plane_entropy", bits);
    bench_add_figure(out, "column_entropy", kv_column_entropy(&r->shape, r->n_planes, r->chunk));
    return measure_libraries(r, SIZE, out);
}

/* Compare the ratio of sizes with the bound of a code with one table for each plane, that needs no
 * bytes for tables and maxima. */
static int
case_cachegen_size(struct rig *r, struct bench_result *out)
{
    double bits = 0;
    size_t encoded = 0;

    for (size_t p = 0; p < r->n_planes; p++) {
        struct kvt__plane_shape shape = shape_of(r, p);

        encoded += r->sizes[p];
        bits += kv_symbol_entropy(&shape, kvt__cachegen_c(&shape), r->chunk + p * shape.n);
    }
    out->unit = "times";
    out->value = (double)r->chunk_bytes / (double)encoded;
    out->limit = 16 / (bits / (double)r->n_planes);
    out->ratio = out->value / out->limit;
    bench_add_figure(out, "plane_entropy", bits / (double)r->n_planes);
    return 0;
}

static const struct {
    const char *name;
    enum codec codec;
    int (*run)(struct rig *r, struct bench_result *out);
} cases[] = {
    { "codec.lossless.size", LOSSLESS, case_size },
    { "codec.lossless.encode", LOSSLESS, case_encode },
    { "codec.lossless.decode", LOSSLESS, case_decode },
    { "codec.kv8.encode", KV8, case_encode },
    { "codec.kv8.decode", KV8, case_decode },
    { "codec.kv4.encode", KV4, case_encode },
    { "codec.kv4.decode", KV4, case_decode },
    { "codec.cachegen.size", CACHEGEN, case_cachegen_size },
    { "codec.cachegen.encode", CACHEGEN, case_encode },
    { "codec.cachegen.decode", CACHEGEN, case_decode },
};

static int
run(size_t i, bool quick)
{
    struct bench_result result = { .threads = 1 };
    struct rig r;

    int code = rig_open(&r, cases[i].codec, quick);
    if (!code)
        code = cases[i].run(&r, &result);
    rig_close(&r);
    json_t *line = code ? NULL : bench_result_json(cases[i].name, &result);
    if (!code && (json_dumpf(line, stdout, JSON_REAL_PRECISION(6)) || putchar('\n') < 0 ||
                  fflush(stdout)))
        code = CLI_ENVIRONMENT;
    json_decref(line);
    bench_result_free(&result);
    return code;
}

int
main(int argc, char **argv)
{
    bool quick = argc == 4 && !strcmp(argv[3], "--quick");

    bench_catch_interrupts();
    for (size_t i = 0; (argc == 3 || quick) && i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].name, argv[1]))
            return run(i, quick);
    fprintf(stderr, "Usage: kvtier-bench-codec CASE DIR [--quick]\n"
            "kvtier-bench starts this program.\n");
    return CLI_USAGE;
}
