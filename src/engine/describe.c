/* SPDX-License-Identifier: Apache-2.0
 *
 * The parameters of kvt_engine_open(): checked, and copied into the engine's own structs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sized.h"
#include "codec/dtype.h"
#include "conf/conf.h"
#include "engine/private.h"

/* -------------------------------------------------------------------- checking */

/* Return the multiple of every group's block size that is nearest to `wanted`, for a message. */
static uint64_t
legal_chunk_size(const struct kvt_engine_params *params, uint64_t wanted)
{
    uint64_t unit = 1;

    for (uint32_t g = 0; g < params->n_groups; g++) {
        uint64_t a = unit, b = params->groups[g].block_tokens;
        while (b) {
            uint64_t r = a % b;
            a = b;
            b = r;
        }
        unit = unit / a * params->groups[g].block_tokens;
    }
    uint64_t n = (wanted + unit / 2) / unit;
    return (n ? n : 1) * unit;
}

static int
check_group(const struct kvt_engine_params *params, uint32_t g, uint64_t chunk)
{
    const struct kvt_group *group = &params->groups[g];
    bool opaque = group->format == KVT_FORMAT_OPAQUE;

    if (!group->block_tokens || !group->n_layers ||
        (opaque ? !group->block_bytes : !group->n_heads || !group->head_bytes))
        return kvt__fail(EINVAL, "kvt_engine_open: group %u: block_tokens, n_layers and "
                         "%s must not be 0.", g,
                         opaque ? "block_bytes" : "n_heads, head_bytes");
    if (group->format < KVT_FORMAT_OPAQUE || group->format > KVT_FORMAT_MLA)
        return kvt__fail(EINVAL, "kvt_engine_open: group %u: format %u does not exist.", g,
                         group->format);
    if (!opaque && params->n_groups > 1)
        return kvt__fail(EINVAL, "kvt_engine_open: group %u: LMCache's names do not contain the "
                         "group; with several groups, set the format of each group to "
                         "KVT_FORMAT_OPAQUE.", g);
    if (group->kind != KVT_GROUP_FULL &&
        (group->kind != KVT_GROUP_SLIDING || group->window_tokens < 2))
        return kvt__fail(EINVAL, "kvt_engine_open: group %u: kind %u with window_tokens %u is "
                         "invalid; the kind is KVT_GROUP_FULL, or KVT_GROUP_SLIDING with a window "
                         "of at least 2 tokens.", g, group->kind, group->window_tokens);
    if (group->replicated > 1)
        return kvt__fail(EINVAL, "kvt_engine_open: group %u: replicated is %u and must be 0 "
                         "or 1.", g, group->replicated);
    if (chunk % group->block_tokens)
        return kvt__fail(EINVAL, "chunk_size %llu is no multiple of the engine's block "
                         "size %u; set chunk_size: %llu.", (unsigned long long)chunk,
                         group->block_tokens,
                         (unsigned long long)legal_chunk_size(params, chunk));
    return 0;
}

/* Return the number of stages; 0 counts as 1. */
static uint32_t
n_stages_of(const struct kvt_engine_params *params)
{
    return params->n_stages ? params->n_stages : 1;
}

/* Return the number of elements of params->groups. */
static uint64_t
n_stage_groups_of(const struct kvt_engine_params *params)
{
    return (uint64_t)params->n_groups *
           (params->role & KVT_ROLE_SCHEDULER ? n_stages_of(params) : 1);
}

/* Check that a group differs from the group of the first stage only in its layers. */
static int
check_stage(const struct kvt_engine_params *params, uint32_t i)
{
    const struct kvt_group *a = &params->groups[i % params->n_groups], *b = &params->groups[i];

    if (a->kind == b->kind && a->window_tokens == b->window_tokens &&
        a->block_tokens == b->block_tokens && a->format == b->format &&
        a->n_heads == b->n_heads && a->head_bytes == b->head_bytes &&
        a->block_bytes == b->block_bytes && a->replicated == b->replicated &&
        a->packing == b->packing && !strcmp(kvt__or_empty(a->layout), kvt__or_empty(b->layout)))
        return 0;
    return kvt__fail(EINVAL, "kvt_engine_open: group %u of stage %u differs from the first "
                     "stage's group in more than n_layers and layers.", i % params->n_groups,
                     i / params->n_groups);
}

static int
check_groups(const struct kvt_engine_params *params)
{
    for (uint32_t i = 0; i < n_stage_groups_of(params); i++) {
        int err = check_group(params, i, (uint64_t)params->config->chunk_size);

        if (!err)
            err = check_stage(params, i);
        if (err)
            return err;
    }
    return 0;
}

static int
check_params(const struct kvt_engine_params *params)
{
    const struct kvt_model *model = params->model;

    if (!params->config || !model || !model->name || !model->kv_dtype ||
        !params->groups || !params->n_groups)
        return kvt__fail(EINVAL, "kvt_engine_open: config, model with name and "
                         "kv_dtype, and 1 to %d groups are needed.", KVT__MAX_GROUPS);
    if (!(params->role & KVT_ROLE_BOTH) || params->role & ~(uint32_t)KVT_ROLE_BOTH)
        return kvt__fail(EINVAL, "kvt_engine_open: role %u does not exist.", params->role);
    if (!model->world_size || model->rank >= model->world_size)
        return kvt__fail(EINVAL, "kvt_engine_open: rank %u must be below world_size %u.",
                         model->rank, model->world_size);
    if (!*model->name || strchr(model->name, '@') ||
        strlen(model->name) > KVT__KEY_MODEL_MAX)
        return kvt__fail(EINVAL, "model name '%s' cannot be part of a key; a name has 1 to %d "
                         "bytes and no '@'.", model->name, KVT__KEY_MODEL_MAX);
    if (!kvt__key_dtype_known(model->kv_dtype))
        return kvt__fail(EINVAL, "KV dtype '%s' cannot be part of a key; use a name of LMCache, "
                         "for example bfloat16.", model->kv_dtype);
    if (model->world_size % n_stages_of(params))
        return kvt__fail(EINVAL, "kvt_engine_open: n_stages %u does not divide world_size %u.",
                         params->n_stages, model->world_size);
    return check_groups(params);
}

int
kvt__engine_copy_params(struct kvt__params_copy *copy, const struct kvt_engine_params *from)
{
    struct kvt_engine_params *params = &copy->params;
    int err = kvt__copy_sized(params, sizeof *params, from, "kvt_engine_open: params");

    if (!err)
        err = kvt__copy_sized(&copy->model, sizeof copy->model, params->model,
                              "kvt_engine_open: model");
    if (!err && params->n_groups > KVT__MAX_GROUPS)
        err = kvt__fail(EINVAL, "kvt_engine_open: n_groups is %u and must be at most %d.",
                        params->n_groups, KVT__MAX_GROUPS);
    if (!err && n_stage_groups_of(params) > KVT__MAX_STAGE_GROUPS)
        err = kvt__fail(EINVAL, "kvt_engine_open: %u stages with %u groups have more than %d "
                        "groups together.", params->n_stages, params->n_groups,
                        KVT__MAX_STAGE_GROUPS);
    const char *group = (const char *)params->groups;
    for (uint32_t g = 0; !err && group && g < n_stage_groups_of(params); g++) {
        err = kvt__copy_sized(&copy->groups[g], sizeof copy->groups[g], group,
                              "kvt_engine_open: group");
        if (!err)
            group += params->groups[0].struct_size;
    }
    params->model = &copy->model;
    if (params->groups)
        params->groups = copy->groups;
    return err ? err : check_params(params);
}

/* --------------------------------------------------------------------- copying */

static int
copy_group(const struct kvt_group *from, struct kvt__group *to)
{
    to->kind = from->kind;
    to->window_tokens = from->kind == KVT_GROUP_SLIDING ? from->window_tokens : 0;
    to->format = from->format;
    to->packing = from->packing;
    to->layout = strdup(kvt__or_empty(from->layout));
    to->layers = strdup(kvt__or_empty(from->layers));
    to->view = (struct kvt__view){
        .n_kv = from->format == KVT_FORMAT_2LTD ? 2 : 1, .n_layers = from->n_layers,
        .n_heads = from->n_heads, .head_bytes = from->head_bytes,
        .block_tokens = from->block_tokens, .block_bytes = from->block_bytes,
        .opaque = from->format == KVT_FORMAT_OPAQUE, .null_block = -1 };
    return to->layout && to->layers ? 0 : -ENOMEM;
}

/* Set the keys of a replicated group, as LMCache names the chunks: with save_only_first_rank, the
 * keys of a world with one rank for each stage; with remote_enable_mla_worker_id_as0, the keys of
 * the stage's first rank; with neither, the keys of each rank. */
static void
set_keys(const struct kvt_engine *e, const struct kvt_config *config, bool replicated,
         struct kvt__group *to)
{
    bool only_first = !kvt__config_is_set(config, save_only_first_rank) ||
                      config->save_only_first_rank;
    bool as_first = !kvt__config_is_set(config, remote_enable_mla_worker_id_as0) ||
                    config->remote_enable_mla_worker_id_as0;

    replicated = replicated && e->world_size > e->n_stages;
    to->replicated = replicated && (only_first || as_first);
    to->world_size = replicated && only_first ? e->n_stages : e->world_size;
}

/* Copy the groups of all known stages.  0; -ENOMEM with a sentence. */
static int
copy_groups(struct kvt_engine *e, const struct kvt_engine_params *params)
{
    uint32_t n = (uint32_t)n_stage_groups_of(params);

    e->stage_groups = calloc(n, sizeof *e->stage_groups);
    if (!e->stage_groups)
        return kvt__fail(ENOMEM, "kvt_engine_open");
    e->n_groups = params->n_groups;
    e->n_stage_groups = n;
    e->groups = e->stage_groups;
    if (e->role & KVT_ROLE_SCHEDULER)
        e->groups += (size_t)(e->rank / (e->world_size / e->n_stages)) * e->n_groups;
    for (uint32_t i = 0; i < n; i++) {
        struct kvt__group *to = &e->stage_groups[i];

        if (copy_group(&params->groups[i], to))
            return kvt__fail(ENOMEM, "kvt_engine_open");
        set_keys(e, params->config, params->groups[i].replicated, to);
        e->has_windows = e->has_windows || to->kind == KVT_GROUP_SLIDING;
        uint64_t bytes = kvt__chunk_bytes(&to->view, e->chunk_tokens);
        e->largest_chunk = bytes > e->largest_chunk ? bytes : e->largest_chunk;
        e->smallest_chunk = i && e->smallest_chunk < bytes ? e->smallest_chunk : bytes;
    }
    return 0;
}

static int
start_hashes(struct kvt_engine *e, const struct kvt_config *config)
{
    const char *release = config->lmcache_release;

    e->hash_kind = kvt__hash_kind_named(config->pre_caching_hash_algorithm, release);
    if (release && !strncmp(release, "0.3.", 4) && e->hash_kind == KVT__HASH_BUILTIN)
        kvt__log(KVT_LOG_WARN, "lmcache_release %s has no effect: kvtier does not compute the "
                 "builtin hashes of this release; set pre_caching_hash_algorithm to sha256_cbor",
                 release);
    return kvt__hash_start(&e->hash_root, e->hash_kind, config->hash_seed);
}

int
kvt__engine_describe(struct kvt_engine *e, const struct kvt_engine_params *params)
{
    const struct kvt_config *config = params->config;
    e->role = params->role;
    e->chunk_tokens = (uint32_t)config->chunk_size;
    e->partial_chunks = config->save_unfull_chunk;
    e->load_timeout_ns = config->blocking_timeout_secs * KVT__NS_PER_S;
    e->lookup_timeout_ns = config->lookup_timeout_ms * KVT__NS_PER_MS;
    e->lease_ns = config->pin_timeout_sec * KVT__NS_PER_S;
    e->gpu_copies = !strcmp(config->gpu_copies, "kernel") ? "kernel"
                    : !strcmp(config->gpu_copies, "batch") ? "batch" : NULL;
    e->world_size = params->model->world_size;
    e->rank = params->model->rank;
    e->n_stages = n_stages_of(params);
    e->first_rank = e->role & KVT_ROLE_SCHEDULER ? 0 : e->rank;
    e->end_rank = e->role & KVT_ROLE_SCHEDULER ? e->world_size : e->rank + 1;
    e->local_ranks = params->local_ranks ? params->local_ranks : e->world_size;
    e->model = strdup(params->model->name);
    e->kv_dtype = strdup(params->model->kv_dtype);
    kvt__weights_named(&e->weights.id, config->model_fingerprint
                       ? config->model_fingerprint : kvt__or_empty(params->model->fingerprint));
    if (!e->model || !e->kv_dtype)
        return kvt__fail(ENOMEM, "kvt_engine_open");
    int err = copy_groups(e, params);
    return err ? err : start_hashes(e, config);
}

/* Return the type of the engine's KV; uint8 if kvtier does not know the name. */
static const struct kvt__dtype *
dtype_of(const struct kvt_engine *e)
{
    const struct kvt__dtype *dtype = kvt__dtype_named(e->kv_dtype);

    return dtype ? dtype : kvt__dtype_named("uint8");
}

/* Return the shape of a group's chunk as headers of files describe the shape. */
static struct kvt__shape
shape_of(const struct kvt_engine *e, const struct kvt__group *group, uint32_t n_tokens)
{
    const struct kvt__view *view = &group->view;
    const struct kvt__dtype *dtype = dtype_of(e);

    if (view->opaque)
        return (struct kvt__shape){ .format = 4, .dtype = 6,
                                    .dims = { (uint32_t)kvt__chunk_bytes(view, n_tokens) } };
    return (struct kvt__shape){
        .format = group->format == KVT_FORMAT_2LTD ? 1 : 6,
        .dtype = dtype->code,
        .dims = { view->n_kv, view->n_layers, n_tokens,
                  view->n_heads * view->head_bytes / dtype->bytes } };
}

/* Return the shape of a chunk of copied blocks for codecs.  Without a known packing, a plane is a
 * layer of a block. */
static struct kvt__chunk_shape
opaque_layout(const struct kvt__group *group, const struct kvt__dtype *dtype, uint32_t n_blocks)
{
    const struct kvt__view *view = &group->view;
    uint64_t head_block = (uint64_t)view->block_tokens * view->head_bytes;
    bool is_known = group->packing == KVT_PACKING_HEADS && head_block &&
                    view->block_bytes == 2 * view->n_heads * head_block;
    uint64_t plane_bytes = is_known ? head_block : view->block_bytes;
    bool is_whole = plane_bytes % dtype->bytes == 0 && dtype->element != KVT__ELEMENT_BYTE &&
                    view->head_bytes % dtype->bytes == 0;
    uint32_t bytes = is_whole ? dtype->bytes : 1;

    return (struct kvt__chunk_shape){
        .element = is_whole ? dtype->element : KVT__ELEMENT_BYTE,
        .packing = is_known ? KVT__PACKING_HEADS : KVT__PACKING_NONE,
        .n_layers = is_known ? view->n_layers : 0, .n_heads = is_known ? view->n_heads : 1,
        .row = is_known ? view->head_bytes / bytes : 64,
        .n = plane_bytes <= UINT32_MAX ? (uint32_t)plane_bytes / bytes : 0,
        .n_planes = n_blocks * view->n_layers * (is_known ? 2 * view->n_heads : 1) };
}

/* Return the shape of a group's chunk for codecs. */
static struct kvt__chunk_shape
layout_of(const struct kvt_engine *e, const struct kvt__group *g, uint32_t n_tokens)
{
    const struct kvt__view *view = &g->view;
    const struct kvt__dtype *dtype = dtype_of(e);

    if (view->opaque)
        return opaque_layout(g, dtype, kvt__view_blocks(view, n_tokens));
    uint32_t bytes = dtype->element == KVT__ELEMENT_BYTE ? 1 : dtype->bytes;
    uint32_t row = view->n_heads * view->head_bytes / bytes;
    return (struct kvt__chunk_shape){
        .element = dtype->element,
        .packing = g->format == KVT_FORMAT_2LTD ? KVT__PACKING_2LTD : KVT__PACKING_MLA,
        .n_layers = view->n_layers, .n_heads = 1, .row = row, .n = row * n_tokens,
        .n_planes = view->n_kv * view->n_layers };
}

void
kvt__fill_request(const struct kvt_engine *engine, uint32_t rank, uint32_t group,
                  const struct kvt__space *space, const struct kvt_chunk *chunk,
                  struct kvt__store_req *req)
{
    const struct kvt__keyspace *k = kvt__keyspace(engine, rank, group);
    const struct kvt__group *g = kvt__group_of(engine, rank, group);
    struct kvt__prefix prefix;

    req->space = space;
    req->hash = kvt__chunk_hash(engine, chunk);
    req->tokens = chunk->n_tokens;
    req->needs_id = chunk->flags & KVT_CHUNK_OWN;
    req->is_full = chunk->n_tokens == engine->chunk_tokens;
    req->bytes = kvt__chunk_bytes(&g->view, chunk->n_tokens);
    req->shape = shape_of(engine, g, chunk->n_tokens);
    req->layout = layout_of(engine, g, chunk->n_tokens);
    memcpy(prefix.b, chunk->prefix, sizeof prefix.b);
    kvt__id_make(k->digest, &prefix, &req->id);
    if (kvt__store_traits(engine->store)->is_lossy)
        kvt__id_toggle_lossy(&req->id);
}
