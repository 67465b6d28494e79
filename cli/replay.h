/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier replay: what is replayed, what a pass measures, and how that is told. */
#ifndef KVT_CLI_REPLAY_H
#define KVT_CLI_REPLAY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine.h"
#include "kvtier.h"
#include "trace.h"

/* What is replayed, and on what. */
struct replay {
    const char *config_file;
    const char *settings[16];
    size_t n_settings;
    size_t max_requests;
    unsigned passes;
    unsigned scale;
    struct cli_shape shape;
    bool json;
    bool progress;

    struct trace trace;
    uint32_t n_blocks;
    size_t memory_bytes;
    unsigned char *memory; /* [kv][layer][block][token][head] */
    double pool_mib;
    int32_t *tokens;
    int32_t *blocks;
    struct kvt_engine *engine;
};

/* What one pass measured. */
struct result {
    double seconds;
    uint64_t tokens, hit_tokens, wrong;
    uint64_t load_bytes, load_failed, store_bytes, store_dropped;
    uint64_t memory_tokens, storage_tokens; /* of the hits: where they were */
    double load_seconds;
    double store_seconds; /* until all was written */
    double *lookup, *store, *load; /* seconds a request; load: of those with a hit */
    size_t n_loads;
};

/* Bytes of a token in one plane: K or V of a layer. */
static inline size_t
token_bytes(const struct replay *r)
{
    return (size_t)r->shape.n_heads * r->shape.head_bytes;
}

/* The figures of a pass, whose times are sorted. */
json_t *replay_result_json(const struct replay *r, unsigned pass, struct result *x);

/* Tell all passes, and the memory of this process. */
void replay_print(const struct replay *r, json_t *passes);

#endif
