/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier replay: the parameters and buffers of a replay, the result of a pass, the report. */
#ifndef KVT_CLI_REPLAY_H
#define KVT_CLI_REPLAY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common.h"
#include "engine.h"
#include "kvtier.h"
#include "trace.h"

/* The parameters and the buffers of a replay. */
struct replay {
    struct cli_common common;
    uint64_t max_requests;
    uint64_t passes;
    uint64_t scale; /* divisor of the bytes of a token */
    struct cli_shape shape;

    struct trace trace;
    uint32_t n_blocks;     /* blocks of memory; block 0 is the null block */
    size_t memory_bytes;
    unsigned char *memory; /* paged KV: [kv][layer][block][token][head] */
    double pool_mib;       /* max_local_cpu_size */
    int32_t *tokens;       /* tokens of the current request */
    int32_t *blocks;       /* block ids of the current load or store; NOT_LOADED: see replay.c */
    struct kvt_engine *engine; /* engine of the current pass */
};

/* The result of a pass. */
struct result {
    double seconds;
    uint64_t tokens, hit_tokens, wrong; /* tokens of requests, of hits, with wrong loaded bytes */
    uint64_t load_bytes, load_failed, store_bytes, store_dropped;
    uint64_t memory_tokens, storage_tokens; /* loaded tokens from host memory and from storage */
    double load_seconds;
    double store_seconds; /* time of store calls and of the writes to storage */
    /* Seconds of each request's lookup and store calls, and of each of the n_loads loads. */
    double *lookup, *store, *load;
    size_t n_loads; /* requests with a hit */
};

/* Return the bytes of a token in a plane.  A plane is K or V of a layer. */
static inline size_t
token_bytes(const struct replay *r)
{
    return (size_t)r->shape.n_heads * r->shape.head_bytes;
}

/* Return the result of a pass as a new JSON object.  Sorts the times in x. */
json_t *replay_result_json(const struct replay *r, unsigned pass, struct result *x);

/* Print the results of all passes and the memory of the process, as a table or as JSON. */
void replay_print(const struct replay *r, json_t *passes);

#endif
