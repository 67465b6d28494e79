/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#define MAX_TOKENS (4u << 20)

static int
parse_line(const char *line, struct trace_request *r)
{
    json_t *object = json_loads(line, 0, NULL);
    json_t *length = json_object_get(object, "input_length");
    json_t *ids = json_object_get(object, "hash_ids");
    int ok = json_is_integer(length) && json_is_array(ids) &&
             json_integer_value(length) > 0 && json_integer_value(length) <= MAX_TOKENS;

    if (ok) {
        r->n_tokens = (uint32_t)json_integer_value(length);
        r->n_ids = (uint32_t)json_array_size(ids);
        ok = (uint64_t)r->n_ids * TRACE_BLOCK_TOKENS >= r->n_tokens;
        r->ids = ok ? calloc(r->n_ids, sizeof *r->ids) : NULL;
        ok = r->ids != NULL;
    }
    for (uint32_t i = 0; ok && i < r->n_ids; i++)
        r->ids[i] = (uint64_t)json_integer_value(json_array_get(ids, i));
    json_decref(object);
    return ok ? 0 : -EINVAL;
}

static int
add_line(struct trace *trace, const char *line)
{
    struct trace_request r = { 0 };

    if (parse_line(line, &r))
        return -EINVAL;
    struct trace_request *grown =
        realloc(trace->requests, (trace->n + 1) * sizeof *grown);
    if (!grown) {
        free(r.ids);
        return -ENOMEM;
    }
    trace->requests = grown;
    trace->requests[trace->n++] = r;
    if (r.n_tokens > trace->longest)
        trace->longest = r.n_tokens;
    return 0;
}

int
trace_read(const char *path, size_t max, struct trace *out)
{
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t size = 0;
    int err = 0;

    *out = (struct trace){ 0 };
    if (!f)
        return cli_error(CLI_USAGE, "open trace %s: %m", path);
    while (!err && out->n < max && getline(&line, &size, f) > 0)
        err = add_line(out, line);
    free(line);
    fclose(f);
    if (err)
        cli_error(CLI_USAGE, "%s line %zu: %s", path, out->n + 1,
                  err == -EINVAL ? "no request: input_length and hash_ids, one id for "
                                   "each 512 tokens, are needed" : strerror(-err));
    else if (!out->n)
        cli_error(CLI_USAGE, "%s holds no request", path);
    if (err || !out->n) {
        trace_free(out);
        return err == -ENOMEM ? CLI_ENVIRONMENT : CLI_USAGE;
    }
    return 0;
}

void
trace_free(struct trace *trace)
{
    for (size_t i = 0; i < trace->n; i++)
        free(trace->requests[i].ids);
    free(trace->requests);
    *trace = (struct trace){ 0 };
}

void
trace_tokens(const struct trace_request *request, int32_t *tokens)
{
    for (uint32_t i = 0; i < request->n_tokens; i++) {
        uint64_t x = request->ids[i / TRACE_BLOCK_TOKENS] * TRACE_BLOCK_TOKENS +
                     i % TRACE_BLOCK_TOKENS;

        x *= UINT64_C(0x9e3779b97f4a7c15);
        tokens[i] = (int32_t)((x >> 33) % 128256); /* size of Llama 3's vocabulary */
    }
}
