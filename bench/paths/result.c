/* SPDX-License-Identifier: Apache-2.0
 *
 * Results of cases as JSON objects, which kvtier-bench prints and helper programs send to
 * kvtier-bench. */
#include <jansson.h>
#include <string.h>

#include "bench.h"

/* Convert a number to JSON: an integer, such as a count, exactly; otherwise a real. */
static json_t *
figure(double value)
{
    if (value >= 0 && value < 0x1p53 && value == (double)(int64_t)value)
        return json_integer((json_int_t)value);
    return json_real(value);
}

static void
add(struct bench_result *result, const char *name, json_t *value)
{
    if (!result->details)
        result->details = json_object();
    json_object_set_new(result->details, name, value);
}

void
bench_add_figure(struct bench_result *result, const char *name, double value)
{
    add(result, name, figure(value));
}

void
bench_add_text(struct bench_result *result, const char *name, const char *text)
{
    add(result, name, json_string(text));
}

json_t *
bench_result_json(const char *name, const struct bench_result *r)
{
    json_t *line = json_pack("{s:s, s:f, s:s, s:f, s:f, s:i}", "case", name, "value",
                             r->value, "unit", r->unit, "limit", r->limit, "ratio",
                             r->ratio, "threads", (int)r->threads);

    if (line && r->details)
        json_object_update(line, r->details);
    return line;
}

/* Return the string constant that equals a helper program's unit; NULL: unknown unit. */
static const char *
known_unit(const char *unit)
{
    static const char *const units[] = { "GB/s", "bytes", "ns", "1/s", "times" };

    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(units[i], unit))
            return units[i];
    return NULL;
}

bool
bench_result_from_json(json_t *line, struct bench_result *out)
{
    static const char *const own[] = { "case", "value", "unit", "limit", "ratio",
                                       "threads" };
    const char *unit;
    int threads;

    if (json_unpack(line, "{s:f, s:s, s:f, s:f, s:i}", "value", &out->value, "unit", &unit,
                    "limit", &out->limit, "ratio", &out->ratio, "threads", &threads) ||
        !known_unit(unit)) {
        json_decref(line);
        return false;
    }
    out->unit = known_unit(unit);
    out->threads = (unsigned)threads;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        json_object_del(line, own[i]);
    out->details = line;
    return true;
}

void
bench_result_free(struct bench_result *result)
{
    json_decref(result->details);
    result->details = NULL;
}
