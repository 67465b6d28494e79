/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine over a directory of the bench's own, with a view like Llama's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cli.h"

/* Nothing of the user's configuration counts. */
static int
open_config(const char *dir, const char *const *settings, struct kvt_config **out)
{
    static const char *const no_environment[] = { NULL };
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    const char *all[16];
    char url[4096];
    size_t n = 0;

    snprintf(url, sizeof url, "remote_url=fs://%s", dir);
    all[n++] = url;
    while (*settings && n + 1 < sizeof all / sizeof *all)
        all[n++] = *settings++;
    all[n] = NULL;
    sources.environment = no_environment;
    sources.settings = all;
    return kvt_config_open(&sources, out);
}

size_t
bench_chunk_bytes(const struct bench_shape *shape)
{
    return (size_t)2 * shape->n_layers * BENCH_CHUNK_TOKENS * shape->n_heads *
           shape->head_bytes;
}

int
bench_engine_open(const char *dir, const char *const *settings, uint32_t role,
                  const struct bench_shape *shape, struct kvt_engine **out)
{
    struct kvt_engine_params params = KVT_INIT(struct kvt_engine_params);
    struct kvt_model model = KVT_INIT(struct kvt_model);
    struct kvt_group group = KVT_INIT(struct kvt_group);
    struct kvt_config *config;
    int err = open_config(dir, settings, &config);

    if (err)
        return cli_fail(err);
    model.name = "bench";
    model.kv_dtype = "bfloat16";
    model.world_size = 1;
    group.kind = KVT_GROUP_FULL;
    group.format = KVT_FORMAT_2LTD;
    group.block_tokens = BENCH_BLOCK_TOKENS;
    group.n_layers = shape->n_layers;
    group.n_heads = shape->n_heads;
    group.head_bytes = shape->head_bytes;
    params.config = config;
    params.role = role;
    params.model = &model;
    params.groups = &group;
    params.n_groups = 1;
    err = kvt_engine_open(&params, out);
    kvt_config_free(config);
    return err ? cli_fail(err) : 0;
}

int
bench_engine_view(struct kvt_engine *engine, const struct bench_shape *shape,
                  unsigned char *memory, uint32_t n_blocks)
{
    struct kvt_kv_view view = KVT_INIT(struct kvt_kv_view);
    size_t token_bytes = (size_t)shape->n_heads * shape->head_bytes;
    size_t block_bytes = BENCH_BLOCK_TOKENS * token_bytes;
    void **base = calloc(2u * shape->n_layers, sizeof *base);

    if (!base) {
        fprintf(stderr, "kvtier bench: not enough memory\n");
        return CLI_ENVIRONMENT;
    }
    for (size_t i = 0; i < 2u * shape->n_layers; i++)
        base[i] = memory + i * n_blocks * block_bytes;
    view.base = base;
    view.n_kv = 2;
    view.n_blocks = n_blocks;
    view.block_stride = (int64_t)block_bytes;
    view.token_stride = (int64_t)token_bytes;
    view.head_stride = shape->head_bytes;
    view.null_block = -1;
    int err = kvt_engine_set_view(engine, 0, &view);
    free(base);
    return err ? cli_fail(err) : 0;
}

uint64_t
bench_counter(const struct kvt_engine *engine, const char *name)
{
    uint64_t values[128];
    size_t n = kvt_n_counters();

    if (n > sizeof values / sizeof *values)
        n = sizeof values / sizeof *values;
    kvt_engine_counters(engine, values, n);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(kvt_counter(i)->name, name))
            return values[i];
    return 0;
}

/* ------------------------------------------------------------- the same by key */

int
bench_store_open(const char *dir, struct kvt_store **out)
{
    static const char *const no_settings[] = { NULL };
    struct kvt_config *config;
    int err = open_config(dir, no_settings, &config);

    if (err)
        return cli_fail(err);
    err = kvt_store_open(config, out);
    kvt_config_free(config);
    return err ? cli_fail(err) : 0;
}

struct keys {
    char **keys;
    size_t n;
    bool no_memory;
};

static int
note_key(void *ctx, const struct kvt_listed *listed)
{
    struct keys *k = ctx;
    char **grown = realloc(k->keys, (k->n + 1) * sizeof *grown);

    if (grown)
        k->keys = grown;
    if (grown && (grown[k->n] = strdup(listed->key))) {
        k->n++;
        return 0;
    }
    k->no_memory = true;
    return 1;
}

int
bench_store_clear(struct kvt_store *store)
{
    struct keys k = { 0 };
    int err = kvt_store_list(store, note_key, &k);

    for (size_t i = 0; i < k.n; i++) {
        struct kvt_op op = KVT_INIT(struct kvt_op);

        op.kind = KVT_OP_DELETE;
        op.key = k.keys[i];
        if (!err)
            err = kvt_store_run(store, &op);
        free(k.keys[i]);
    }
    free(k.keys);
    if (k.no_memory) {
        fprintf(stderr, "kvtier bench: not enough memory\n");
        return CLI_ENVIRONMENT;
    }
    return err ? cli_fail(err) : 0;
}

void
bench_tokens(int32_t *tokens, size_t n, uint64_t number)
{
    uint64_t x = number * UINT64_C(0x9e3779b97f4a7c15) + 1;

    for (size_t i = 0; i < n; i++) { /* xorshift, ids of a large vocabulary */
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        tokens[i] = (int32_t)(x % 128000);
    }
}
