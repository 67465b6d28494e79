/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier replay: do an inference engine's work for a request trace, without a model.  For each
 * request, replay looks up the tokens, loads the hit into paged KV, checks the loaded bytes,
 * "computes" the remaining tokens (writes a pattern made from the tokens) and stores their KV.
 * Before each further pass (--passes), replay closes the engine and opens an engine again: a
 * restart. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "common.h"
#include "replay.h"

#define STEP_TOKENS 2048u /* tokens of a prefill step */
#define MAX_SCALE 2048u   /* at this scale a token has 64 bytes */
#define MAX_REQUESTS UINT64_C(1000000000)

/* Llama 3.1 8B: a token has 128 KiB. */
static const struct cli_shape llama = { 32, 8, 256 };

static double
now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ------------------------------------------------------------------- paged KV */

/* Return the address of a token of the current request in a plane. */
static unsigned char *
token_at(const struct replay *r, size_t plane, uint32_t token)
{
    size_t block = 1 + token / CLI_BLOCK_TOKENS; /* block 0 is the null block */

    return r->memory + ((plane * r->n_blocks + block) * CLI_BLOCK_TOKENS +
                        token % CLI_BLOCK_TOKENS) * token_bytes(r);
}

/* Return the hash of all tokens up to and including `token`.  prefix: the hash of the earlier
 * tokens; 0: no token is earlier.  The pattern of a token depends on all earlier tokens, as a
 * model's KV does. */
static uint64_t
next_prefix(uint64_t prefix, int32_t token)
{
    return (prefix ^ (uint64_t)(uint32_t)token) * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

/* Return the pattern of a token in a plane. */
static uint64_t
word_of(uint64_t prefix, size_t plane)
{
    return prefix ^ plane * UINT64_C(0xd6e8feb86659fd93);
}

/* Block id in replay.blocks of a chunk that the engine could not load. */
#define NOT_LOADED (-1)

/* Write the pattern of tokens [from, n) and of the tokens in chunks that were not loaded.  Return
 * the number of loaded tokens with wrong bytes. */
static uint64_t
walk_tokens(struct replay *r, uint32_t n, uint32_t from)
{
    size_t n_planes = 2u * r->shape.n_layers, words = token_bytes(r) / 8;
    uint64_t prefix = 0, wrong = 0;

    for (uint32_t t = 0; t < n; t++) {
        bool bad = false;

        prefix = next_prefix(prefix, r->tokens[t]);
        for (size_t plane = 0; plane < n_planes; plane++) {
            uint64_t *at = (uint64_t *)token_at(r, plane, t);
            uint64_t word = word_of(prefix, plane);

            if (t < from && r->blocks[t / CLI_BLOCK_TOKENS] != NOT_LOADED)
                bad |= at[0] != word || at[words - 1] != word;
            else
                for (size_t i = 0; i < words; i++)
                    at[i] = word;
        }
        wrong += bad;
    }
    return wrong;
}

/* ------------------------------------------------------------------- a request */

/* Look up the sequence and wait for the result.  The hit has whole chunks only, also with
 * save_unfull_chunk.  Return 0 or a negative errno. */
static int
lookup(struct replay *r, struct kvt_seq *seq, uint32_t n_tokens, uint64_t *hit)
{
    uint32_t chunk = kvt_engine_chunk_tokens(r->engine);
    uint64_t max = (n_tokens - 1) / chunk * chunk;
    int err;

    while ((err = kvt_engine_lookup(r->engine, seq, 0, max, hit)) == -EAGAIN)
        usleep(50);
    return err;
}

/* Fill io for a load or store of whole chunks first .. first + n - 1.  io refers to chunks (room
 * for n chunks) and to r->blocks.  Return 0 or a negative errno. */
static int
describe(struct replay *r, const struct kvt_seq *seq, size_t first, size_t n,
         struct kvt_chunk *chunks, struct kvt_group_io *io)
{
    uint32_t chunk = kvt_engine_chunk_tokens(r->engine);
    size_t per_chunk = chunk / CLI_BLOCK_TOKENS;
    int err = kvt_seq_chunks(seq, first, n, chunks);

    for (size_t i = 0; i < n * per_chunk; i++)
        r->blocks[i] = (int32_t)(1 + first * per_chunk + i);
    *io = (struct kvt_group_io){ .n_chunks = (uint32_t)n, .chunks = chunks,
                                 .blocks = r->blocks, .n_blocks = n * per_chunk };
    return err;
}

/* Load a hit of `hit` tokens and wait for the end of the load.  The blocks of each chunk that was
 * not loaded become NOT_LOADED.  Return 0 or a negative errno. */
static int
load(struct replay *r, const struct kvt_seq *seq, uint64_t hit,
     struct kvt_chunk *chunks, struct result *result)
{
    struct pollfd fd = { .fd = kvt_engine_eventfd(r->engine), .events = POLLIN };
    size_t n = hit / kvt_engine_chunk_tokens(r->engine);
    struct kvt_group_io io;
    struct kvt_load *started, *done;
    double start = now();
    int err = describe(r, seq, 0, n, chunks, &io);

    if (!err)
        err = kvt_engine_load(r->engine, &io, 1, 0, &started);
    if (err)
        return err;
    while (!kvt_engine_poll(r->engine, &done, 1))
        poll(&fd, 1, 1000);
    double took = now() - start;
    result->load[result->n_loads++] = took;
    result->load_seconds += took;
    for (size_t c = 0; c < n; c++)
        if (kvt_load_status(done, 0, c)) {
            result->load_failed++;
            for (size_t i = 0; i < io.n_blocks / n; i++)
                r->blocks[c * (io.n_blocks / n) + i] = NOT_LOADED;
        }
    kvt_load_free(done);
    return 0;
}

/* Store the whole chunks from chunk `first` on in steps of STEP_TOKENS, as an engine prefills.
 * Each step is written to storage before the next step begins.  *seconds grows by the duration of
 * the calls of kvt_engine_store().  Return 0 or a negative errno. */
static int
store(struct replay *r, const struct kvt_seq *seq, size_t first,
      struct kvt_chunk *chunks, struct result *result, double *seconds)
{
    uint32_t chunk = kvt_engine_chunk_tokens(r->engine);
    size_t end = kvt_seq_tokens(seq) / chunk;
    size_t step = STEP_TOKENS > chunk ? STEP_TOKENS / chunk : 1;
    struct kvt_group_io io;
    int err = 0;

    for (; !err && first < end; first += step) {
        err = describe(r, seq, first, end - first < step ? end - first : step, chunks,
                       &io);
        double start = now();
        if (!err)
            err = kvt_engine_store(r->engine, &io, 1);
        *seconds += now() - start;
        if (!err)
            err = kvt_engine_flush(r->engine, -1);
        result->store_seconds += now() - start;
    }
    return err;
}

static int
run_request(struct replay *r, size_t number, struct kvt_chunk *chunks,
            struct result *result)
{
    const struct trace_request *request = &r->trace.requests[number];
    struct kvt_seq *seq;
    uint64_t hit = 0;

    trace_tokens(request, r->tokens);
    double start = now();
    int err = kvt_seq_new(r->engine, r->tokens, request->n_tokens, NULL, &seq);
    if (err)
        return err;
    err = lookup(r, seq, request->n_tokens, &hit);
    result->lookup[number] = now() - start;
    if (!err && hit)
        err = load(r, seq, hit, chunks, result);
    if (!err) {
        kvt_engine_release(r->engine, seq);
        result->tokens += request->n_tokens;
        result->hit_tokens += hit;
        result->wrong += walk_tokens(r, request->n_tokens, (uint32_t)hit);
        err = store(r, seq, hit / kvt_engine_chunk_tokens(r->engine), chunks,
                    result, &result->store[number]);
    }
    kvt_seq_free(seq);
    return err;
}

/* ------------------------------------------------------------------------ a pass */

static double
pool_mib(const struct kvt_config *config)
{
    char *text = kvt_config_json(config);
    json_t *settings = text ? json_loads(text, 0, NULL) : NULL;
    json_t *size = json_object_get(settings, "max_local_cpu_size");
    double mib = json_number_value(json_object_get(size, "value")) * 1024;

    json_decref(settings);
    kvt_free(text);
    return mib;
}

static int
open_engine(struct replay *r)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct kvt_config *config;

    sources.file = r->common.config_file;
    sources.settings = r->common.settings;
    if (kvt_config_open(&sources, &config))
        return -EINVAL; /* all errors of kvt_config_open() count as configuration errors */
    r->pool_mib = pool_mib(config);
    int err = cli_engine_open(config, "replay", KVT_ROLE_BOTH, &r->shape, &r->engine);
    kvt_config_free(config);
    return err ? err : cli_engine_view(r->engine, &r->shape, r->memory, r->n_blocks, 0);
}

static void
read_counters(const struct replay *r, struct result *result)
{
    uint32_t chunk = kvt_engine_chunk_tokens(r->engine);
    uint64_t in_memory = cli_counter(r->engine, "memory_hits");
    uint64_t ahead = cli_counter(r->engine, "prefetch_chunks"); /* chunks read by lookups */

    in_memory -= ahead < in_memory ? ahead : in_memory;
    result->memory_tokens = in_memory * chunk;
    result->storage_tokens = (cli_counter(r->engine, "load_chunks") - in_memory) * chunk;
    result->load_bytes = cli_counter(r->engine, "load_bytes");
    result->store_bytes = cli_counter(r->engine, "store_bytes");
    result->store_dropped = cli_counter(r->engine, "store_dropped");
}

static int
run_pass(struct replay *r, unsigned pass, struct result *result)
{
    size_t n = r->trace.n;
    struct kvt_chunk *chunks = calloc(r->trace.longest, sizeof *chunks);
    char progress[32];
    double start;
    int err;

    snprintf(progress, sizeof progress, "pass %u, requests:", pass);
    result->lookup = calloc(n, sizeof *result->lookup);
    result->store = calloc(n, sizeof *result->store);
    result->load = calloc(n, sizeof *result->load);
    if (!chunks || !result->lookup || !result->store || !result->load) {
        free(chunks);
        cli_error(CLI_ENVIRONMENT, "replay: not enough memory");
        return -ENOMEM;
    }
    err = open_engine(r);
    start = now();
    for (size_t i = 0; !err && i < n; i++) {
        err = run_request(r, i, chunks, result);
        cli_progress(progress, i + 1, n);
    }
    if (!err)
        err = kvt_engine_flush(r->engine, -1);
    result->seconds = now() - start;
    cli_progress_end();
    if (err)
        cli_fail(err);
    if (r->engine) {
        read_counters(r, result);
        kvt_engine_close(r->engine);
        r->engine = NULL;
    }
    free(chunks);
    return err;
}

/* ------------------------------------------------------------------------ the command */

static int
run_passes(struct replay *r)
{
    json_t *passes = json_array();
    uint64_t bad = 0;
    int err = 0;

    for (unsigned pass = 1; !err && pass <= r->passes; pass++) {
        struct result result = { 0 };

        err = run_pass(r, pass, &result);
        if (!err)
            json_array_append_new(passes, replay_result_json(r, pass, &result));
        bad += result.wrong + result.load_failed;
        free(result.lookup);
        free(result.store);
        free(result.load);
    }
    if (!err)
        replay_print(r, passes);
    json_decref(passes);
    if (err)
        return err == -EINVAL ? CLI_USAGE : CLI_ENVIRONMENT;
    return bad ? CLI_NEGATIVE : CLI_DONE;
}

static int
run_trace(struct replay *r, const char *path)
{
    int code = trace_read(path, r->max_requests, &r->trace);

    if (code)
        return code;
    r->n_blocks = r->trace.longest / CLI_BLOCK_TOKENS + 2;
    r->memory_bytes = (size_t)2 * r->shape.n_layers * r->n_blocks * CLI_BLOCK_TOKENS *
                      token_bytes(r);
    r->memory = aligned_alloc(64, (r->memory_bytes + 63) / 64 * 64);
    r->tokens = calloc(r->trace.longest, sizeof *r->tokens);
    r->blocks = calloc(r->n_blocks, sizeof *r->blocks);
    if (r->memory && r->tokens && r->blocks) {
        code = run_passes(r);
    } else {
        code = cli_error(CLI_ENVIRONMENT, "replay: %zu MiB of paged KV for the longest "
                         "request do not fit into memory; use a larger --scale",
                         r->memory_bytes >> 20);
    }
    free(r->memory);
    free(r->tokens);
    free(r->blocks);
    trace_free(&r->trace);
    return code;
}

static bool
is_power_of_two(uint64_t n)
{
    return !(n & (n - 1));
}

/* Return Llama's shape with the bytes of a token divided by scale: first divide the layers, then
 * the heads, then the bytes of a head. */
static struct cli_shape
scaled(uint64_t scale)
{
    struct cli_shape shape = llama;

    for (; scale > 1; scale /= 2) {
        if (shape.n_layers > 1)
            shape.n_layers /= 2;
        else if (shape.n_heads > 1)
            shape.n_heads /= 2;
        else
            shape.head_bytes /= 2;
    }
    return shape;
}

static int
replay_run(int argc, char **argv)
{
    struct replay r = { .max_requests = MAX_REQUESTS, .passes = 1, .scale = 16 };
    int code = cli_parse(&cli_replay, argc, argv, (const struct cli_option[]){
        { "requests", .number = &r.max_requests, .max = MAX_REQUESTS },
        { "passes", .number = &r.passes, .max = 100 },
        { "scale", .number = &r.scale, .max = MAX_SCALE }, { 0 } }, 1, 1, &r.common);

    if (!code && !is_power_of_two(r.scale))
        code = cli_usage(&cli_replay, "--scale '%" PRIu64 "' is no power of two", r.scale);
    if (code)
        return code;
    r.shape = scaled(r.scale);
    return run_trace(&r, r.common.args[0]);
}

const struct cli_command cli_replay = {
    .name = "replay",
    .usage = "[OPTIONS] TRACE",
    .summary = "do an engine's work for a request trace and measure it",
    .help =
        "Reads a trace of requests in Mooncake's format (each line a JSON object with\n"
        "input_length and hash_ids). For each request the command looks up the tokens,\n"
        "loads the hit into paged KV, checks the loaded bytes and stores the rest, as an\n"
        "engine does. The KV has the shape of Llama 3.1 8B (128 KiB for each token), scaled\n"
        "down: limits divided by the same number give the hit rates of the large machine.\n"
        "\n"
        "  --requests N     only the first N requests\n"
        "  --passes N       run the trace N times, with a restart before each further\n"
        "                   pass (default 1)\n"
        "  --scale N        divide the bytes of a token by N, a power of two: first the\n"
        "                   layers, then the heads, then their size (default 16: 8 KiB)\n"
        CLI_COMMON_HELP,
    .negative = "a loaded chunk had wrong bytes, or a promised chunk was not loaded",
    .run = replay_run,
};
