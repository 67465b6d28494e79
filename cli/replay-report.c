/* SPDX-License-Identifier: Apache-2.0
 *
 * The results of kvtier replay as JSON and as a table. */
#include "replay.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Return percentile p (0 to 1) in milliseconds; 0 if n is 0.  values: seconds; the function sorts
 * the values. */
static double
percentile(double *values, size_t n, double p)
{
    if (!n)
        return 0;
    qsort(values, n, sizeof *values, by_value);
    return values[(size_t)(p * (double)(n - 1) + 0.5)] * 1e3;
}

static double
share(uint64_t part, uint64_t all)
{
    return all ? (double)part / (double)all : 0;
}

static double
gb_per_s(uint64_t bytes, double seconds)
{
    return seconds > 0 ? (double)bytes / seconds * 1e-9 : 0;
}

json_t *
replay_result_json(const struct replay *r, unsigned pass, struct result *x)
{
    uint64_t each = 2u * r->shape.n_layers * token_bytes(r);
    uint64_t loaded = (x->memory_tokens + x->storage_tokens) * each;
    size_t n = r->trace.n;

    return json_pack("{s:i, s:I, s:f, s:I, s:I, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I,"
                     " s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
        "pass", (int)pass, "requests", (json_int_t)n, "seconds", x->seconds,
        "tokens", (json_int_t)x->tokens, "hit_tokens", (json_int_t)x->hit_tokens,
        "hit_rate", share(x->hit_tokens, x->tokens),
        "memory_hit_rate", share(x->memory_tokens, x->tokens),
        "storage_hit_rate", share(x->storage_tokens, x->tokens),
        "load_bytes", (json_int_t)x->load_bytes,
        "load_failed", (json_int_t)x->load_failed,
        "wrong_tokens", (json_int_t)x->wrong,
        "store_bytes", (json_int_t)x->store_bytes,
        "store_dropped", (json_int_t)x->store_dropped,
        "load_gb_per_s", gb_per_s(loaded, x->load_seconds),
        "store_gb_per_s", gb_per_s(x->store_bytes, x->store_seconds),
        "lookup_p50_ms", percentile(x->lookup, n, 0.5),
        "lookup_p99_ms", percentile(x->lookup, n, 0.99),
        "store_p50_ms", percentile(x->store, n, 0.5),
        "store_p99_ms", percentile(x->store, n, 0.99),
        "retrieve_p50_ms", percentile(x->load, x->n_loads, 0.5),
        "retrieve_p99_ms", percentile(x->load, x->n_loads, 0.99));
}

static double
number(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

static void
print_table(const json_t *passes)
{
    static const struct { const char *title, *name, *format; double scale; } rows[] = {
        { "requests", "requests", "%14.0f", 1 },
        { "tokens asked", "tokens", "%14.0f", 1 },
        { "tokens found", "hit_tokens", "%14.0f", 1 },
        { "hit rate, %", "hit_rate", "%14.1f", 100 },
        { "  from host memory, %", "memory_hit_rate", "%14.1f", 100 },
        { "  from storage, %", "storage_hit_rate", "%14.1f", 100 },
        { "read from storage, MB", "load_bytes", "%14.1f", 1e-6 },
        { "stored, MB", "store_bytes", "%14.1f", 1e-6 },
        { "retrieve, GB/s", "load_gb_per_s", "%14.2f", 1 },
        { "store, GB/s", "store_gb_per_s", "%14.2f", 1 },
        { "chunks dropped", "store_dropped", "%14.0f", 1 },
        { "chunks not loaded", "load_failed", "%14.0f", 1 },
        { "tokens with wrong bytes", "wrong_tokens", "%14.0f", 1 },
        { "lookup p50, ms", "lookup_p50_ms", "%14.3f", 1 },
        { "lookup p99, ms", "lookup_p99_ms", "%14.3f", 1 },
        { "retrieve p50, ms", "retrieve_p50_ms", "%14.2f", 1 },
        { "retrieve p99, ms", "retrieve_p99_ms", "%14.2f", 1 },
        { "store calls p50, ms", "store_p50_ms", "%14.2f", 1 },
        { "store calls p99, ms", "store_p99_ms", "%14.2f", 1 },
        { "seconds in all", "seconds", "%14.1f", 1 },
    };
    size_t i;
    json_t *pass;

    printf("%-26s", "");
    json_array_foreach((json_t *)passes, i, pass)
        printf("        pass %zu", i + 1);
    printf("\n");
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        printf("%-26s", rows[row].title);
        json_array_foreach((json_t *)passes, i, pass)
            printf(rows[row].format, number(pass, rows[row].name) * rows[row].scale);
        printf("\n");
    }
}

void
replay_print(const struct replay *r, json_t *passes)
{
    double kv_mib = (double)r->memory_bytes / (double)(1 << 20), peak_mib, rest_mib;
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    peak_mib = (double)usage.ru_maxrss / 1024;
    /* A short trace can end before the pool is fully allocated.  The remainder is then negative
     * and the rest is unknown. */
    rest_mib = peak_mib - r->pool_mib - kv_mib;
    if (!r->common.json) {
        print_table(passes);
        printf("%-26s%14.1f\n", "peak memory, MiB", peak_mib);
        printf("%-26s%14.1f\n", "  of it the pool", r->pool_mib);
        printf("%-26s%14.1f\n", "  the engine's paged KV", kv_mib);
        if (rest_mib >= 0)
            printf("%-26s%14.1f\n", "  the rest", rest_mib);
        else
            printf("%-26s%14s\n", "  the rest", "-");
        return;
    }
    json_t *all = json_pack("{s:O, s:i, s:I, s:f, s:f, s:f, s:o}", "passes", passes,
        "scale", (int)r->scale,
        "bytes_per_token", (json_int_t)(2u * r->shape.n_layers * token_bytes(r)),
        "peak_memory_mib", peak_mib, "pool_mib", r->pool_mib, "kv_mib", kv_mib,
        "rest_mib", rest_mib >= 0 ? json_real(rest_mib) : json_null());
    json_dumpf(all, stdout, JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(all);
}
