/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <string.h>

int
cli_engine_open(const struct kvt_config *config, const char *name, uint32_t role,
                const struct cli_shape *shape, struct kvt_engine **out)
{
    struct kvt_engine_params params = KVT_INIT(struct kvt_engine_params);
    struct kvt_model model = KVT_INIT(struct kvt_model);
    struct kvt_group group = KVT_INIT(struct kvt_group);

    model.name = name;
    model.kv_dtype = "bfloat16";
    model.world_size = 1;
    group.kind = KVT_GROUP_FULL;
    group.format = KVT_FORMAT_2LTD;
    group.block_tokens = CLI_BLOCK_TOKENS;
    group.n_layers = shape->n_layers;
    group.n_heads = shape->n_heads;
    group.head_bytes = shape->head_bytes;
    params.config = config;
    params.role = role;
    params.model = &model;
    params.groups = &group;
    params.n_groups = 1;
    return kvt_engine_open(&params, out);
}

int
cli_engine_view(struct kvt_engine *engine, const struct cli_shape *shape,
                unsigned char *memory, uint32_t n_blocks, int32_t null_block)
{
    struct kvt_kv_view view = KVT_INIT(struct kvt_kv_view);
    size_t token_bytes = (size_t)shape->n_heads * shape->head_bytes;
    size_t block_bytes = CLI_BLOCK_TOKENS * token_bytes;
    void *base[2 * CLI_MAX_LAYERS];

    for (size_t i = 0; i < 2 * (size_t)shape->n_layers; i++)
        base[i] = memory + i * n_blocks * block_bytes;
    view.base = base;
    view.n_kv = 2;
    view.n_blocks = n_blocks;
    view.block_stride = (int64_t)block_bytes;
    view.token_stride = (int64_t)token_bytes;
    view.head_stride = shape->head_bytes;
    view.null_block = null_block;
    return kvt_engine_set_view(engine, 0, &view);
}

uint64_t
cli_counter(const struct kvt_engine *engine, const char *name)
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
