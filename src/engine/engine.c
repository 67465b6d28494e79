/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing an engine, and where its KV lies. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "base/log.h"
#include "base/sized.h"
#include "conf/conf.h"
#include "engine/private.h"
#include "mem/numa.h"

#define MAX_TRANSFER ((size_t)512 << 20)
#define FIRST_POPULATED ((size_t)64 << 20) /* before open returns, some 20 ms */
#define ROOM_FOR_ONE (4 * (size_t)KVT__SLOT_ROOM) /* what a slot has around it */
#define GIB ((double)(UINT64_C(1) << 30))

int
kvt__engine_check(const struct kvt_engine *engine, const char *call)
{
    if (!engine || engine->magic != KVT__ENGINE_MAGIC)
        return kvt__fail(EINVAL, "%s: not an open engine.", call);
    if (engine->pid != getpid())
        return kvt__fail(ESTALE, "%s: the engine was opened by process %ld, before a "
                         "fork; open one in this process.", call, (long)engine->pid);
    return 0;
}

/* --------------------------------------------------------------- description */

static const char *
or_empty(const char *text)
{
    return text ? text : "";
}

/* The nearest multiple of every group's block size, for the message. */
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
        return kvt__fail(EINVAL, "kvt_engine_open: group %u: no format %u.", g,
                         group->format);
    if (group->kind != KVT_GROUP_FULL &&
        (group->kind != KVT_GROUP_SLIDING || group->window_tokens < 2))
        return kvt__fail(EINVAL, "kvt_engine_open: group %u: kind %u with window %u.", g,
                         group->kind, group->window_tokens);
    if (group->replicated > 1)
        return kvt__fail(EINVAL, "kvt_engine_open: group %u: replicated is %u, 0 or 1 is "
                         "possible.", g, group->replicated);
    if (chunk % group->block_tokens)
        return kvt__fail(EINVAL, "chunk_size %llu is no multiple of the engine's block "
                         "size %u; set chunk_size: %llu.", (unsigned long long)chunk,
                         group->block_tokens,
                         (unsigned long long)legal_chunk_size(params, chunk));
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
        return kvt__fail(EINVAL, "kvt_engine_open: no role %u.", params->role);
    if (!model->world_size || model->rank >= model->world_size)
        return kvt__fail(EINVAL, "kvt_engine_open: rank %u of %u.", model->rank,
                         model->world_size);
    if (!*model->name || strchr(model->name, '@') ||
        strlen(model->name) > KVT__KEY_MODEL_MAX)
        return kvt__fail(EINVAL, "model name '%s': 1 to %d bytes without '@' can be "
                         "part of a key.", model->name, KVT__KEY_MODEL_MAX);
    if (!kvt__key_dtype_known(model->kv_dtype))
        return kvt__fail(EINVAL, "KV dtype '%s' is none that keys know.",
                         model->kv_dtype);
    for (uint32_t g = 0; g < params->n_groups; g++) {
        int err = check_group(params, g, (uint64_t)params->config->chunk_size);
        if (err)
            return err;
    }
    return 0;
}

static int
copy_group(const struct kvt_group *from, struct kvt__group *to)
{
    to->kind = from->kind;
    to->window_tokens = from->kind == KVT_GROUP_SLIDING ? from->window_tokens : 0;
    to->format = from->format;
    to->layout = strdup(or_empty(from->layout));
    to->layers = strdup(or_empty(from->layers));
    to->view = (struct kvt__view){
        .n_kv = from->format == KVT_FORMAT_2LTD ? 2 : 1, .n_layers = from->n_layers,
        .n_heads = from->n_heads, .head_bytes = from->head_bytes,
        .block_tokens = from->block_tokens, .block_bytes = from->block_bytes,
        .opaque = from->format == KVT_FORMAT_OPAQUE, .null_block = -1 };
    return to->layout && to->layers ? 0 : -ENOMEM;
}

/* Whose keys the chunks of a replicated group have, as LMCache names them: with
 * save_only_first_rank those of a world of one, with remote_enable_mla_worker_id_as0
 * those of the first rank, with neither each rank's own. */
static void
set_keys(const struct kvt_engine *e, const struct kvt_config *config, bool replicated,
         struct kvt__group *to)
{
    bool only_first = !kvt__config_is_set(config, save_only_first_rank) ||
                      config->save_only_first_rank;
    bool as_first = !kvt__config_is_set(config, remote_enable_mla_worker_id_as0) ||
                    config->remote_enable_mla_worker_id_as0;

    replicated = replicated && e->world_size > 1;
    to->replicated = replicated && (only_first || as_first);
    to->world_size = replicated && only_first ? 1 : e->world_size;
}

static int
start_hashes(struct kvt_engine *e, const struct kvt_config *config)
{
    const char *release = config->lmcache_release;

    e->hash_kind = kvt__hash_kind_named(config->pre_caching_hash_algorithm, release);
    if (release && !strncmp(release, "0.3.", 4) && e->hash_kind == KVT__HASH_BUILTIN)
        kvt__log(KVT_LOG_WARN, "lmcache_release %s has no effect on hashes by builtin: "
                 "kvtier does not make those of that LMCache; set "
                 "pre_caching_hash_algorithm to sha256_cbor", release);
    return kvt__hash_start(&e->hash_root, e->hash_kind, config->hash_seed);
}

static int
copy_description(struct kvt_engine *e, const struct kvt_engine_params *params)
{
    const struct kvt_config *config = params->config;
    const char *fingerprint = config->model_fingerprint;

    e->role = params->role;
    e->chunk_tokens = (uint32_t)config->chunk_size;
    e->partial_chunks = config->save_unfull_chunk;
    e->load_timeout_ns = config->blocking_timeout_secs * KVT__NS_PER_S;
    e->lookup_timeout_ns = config->lookup_timeout_ms * KVT__NS_PER_MS;
    e->lease_ns = config->pin_timeout_sec * KVT__NS_PER_S;
    e->world_size = params->model->world_size;
    e->rank = params->model->rank;
    e->local_ranks = params->local_ranks ? params->local_ranks : e->world_size;
    e->model = strdup(params->model->name);
    e->kv_dtype = strdup(params->model->kv_dtype);
    e->fingerprint = strdup(fingerprint ? fingerprint
                                        : or_empty(params->model->fingerprint));
    e->groups = calloc(params->n_groups, sizeof *e->groups);
    if (!e->model || !e->kv_dtype || !e->fingerprint || !e->groups)
        return kvt__fail(ENOMEM, "kvt_engine_open");
    e->n_groups = params->n_groups;
    for (uint32_t g = 0; g < e->n_groups; g++) {
        if (copy_group(&params->groups[g], &e->groups[g]))
            return kvt__fail(ENOMEM, "kvt_engine_open");
        set_keys(e, config, params->groups[g].replicated, &e->groups[g]);
    }
    return start_hashes(e, config);
}

struct kvt__shape
kvt__group_shape(const struct kvt_engine *engine, uint32_t group, uint32_t n_tokens)
{
    static const struct { const char *name; uint32_t code; } dtypes[] = {
        { "half", 2 }, { "bfloat16", 3 }, { "float", 4 }, { "double", 5 },
        { "uint8", 6 }, { "fp8_e4m3fn", 7 }, { "fp8_e5m2", 8 },
    };
    const struct kvt__view *view = &engine->groups[group].view;
    struct kvt__shape shape = { .format = 4, .dtype = 6 };

    if (view->opaque) {
        shape.dims[0] = (uint32_t)kvt__chunk_bytes(view, n_tokens);
        return shape;
    }
    uint32_t item = 1;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(engine->kv_dtype, dtypes[i].name))
            shape.dtype = dtypes[i].code;
    if (shape.dtype == 2 || shape.dtype == 3)
        item = 2;
    else if (shape.dtype == 4 || shape.dtype == 5)
        item = shape.dtype == 4 ? 4 : 8;
    shape.format = engine->groups[group].format == KVT_FORMAT_2LTD ? 1 : 6;
    shape.dims[0] = view->n_kv;
    shape.dims[1] = view->n_layers;
    shape.dims[2] = n_tokens;
    shape.dims[3] = view->n_heads * view->head_bytes / item;
    return shape;
}

/* ------------------------------------------------------------ open and close */

static uint64_t
largest_chunk(const struct kvt_engine *e)
{
    uint64_t most = 0;

    for (uint32_t g = 0; g < e->n_groups; g++) {
        uint64_t bytes = kvt__chunk_bytes(&e->groups[g].view, e->chunk_tokens);
        if (bytes > most)
            most = bytes;
    }
    return most;
}

static uint64_t
smallest_chunk(const struct kvt_engine *e)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t g = 0; g < e->n_groups; g++) {
        uint64_t bytes = kvt__chunk_bytes(&e->groups[g].view, e->chunk_tokens);
        if (bytes < least)
            least = bytes;
    }
    return least;
}

/* The memory node that numa_mode names; -1: it names none, or the machine tells none. */
static int
memory_node(const struct kvt_engine *e, const struct kvt_config *config, int *node)
{
    *node = -1;
    if (!config->numa_mode)
        return 0;
    if (!strcmp(config->numa_mode, "auto")) {
        *node = kvt__numa_here();
        return 0;
    }
    int err = kvt__config_numa_node(config, e->rank % e->local_ranks, node);
    return err ? err : kvt__numa_check(*node, "gpu_to_numa_mapping");
}

static int
open_pool(struct kvt_engine *e, const struct kvt_config *config)
{
    int node, err = memory_node(e, config, &node);

    if (err)
        return err;
    struct kvt__pool_params params = {
        .bytes = (size_t)(config->max_local_cpu_size * GIB),
        .phase = kvt__store_phase(e->store),
        .huge_pages = config->local_cpu_use_hugepages,
        .node = node < 0 ? NULL : &node,
        .key = "max_local_cpu_size" };
    err = kvt__pool_open(&params, &e->pool);
    if (err)
        return err;
    /* Half of the memory for transfers is kept for loads: two slots is the least that
     * can work. */
    if (!kvt__pool_fits(e->pool, 2 * largest_chunk(e)))
        return kvt__fail(EINVAL, "max_local_cpu_size: %zu MiB cannot hold two chunks of "
                         "%llu bytes; raise it or lower chunk_size.",
                         kvt__pool_bytes(e->pool) >> 20,
                         (unsigned long long)largest_chunk(e));
    /* A load that is alone always finds its slot. */
    size_t least = (size_t)largest_chunk(e) + ROOM_FOR_ONE;
    kvt__pool_wait_populated(e->pool, least > FIRST_POPULATED ? least : FIRST_POPULATED);
    return 0;
}

/* How much of each worker's pool chunks only pass through. */
static size_t
transfer_bytes(const struct kvt_engine *e, size_t pool_bytes)
{
    size_t least = 2 * ((size_t)largest_chunk(e) + ROOM_FOR_ONE);
    size_t bytes = pool_bytes / 4 < MAX_TRANSFER ? pool_bytes / 4 : MAX_TRANSFER;

    bytes = bytes > least ? bytes : least;
    return bytes < pool_bytes ? bytes : pool_bytes;
}

/* The scheduler works out the same numbers as the workers without having a pool. */
static int
open_memory(struct kvt_engine *e, const struct kvt_engine_params *params)
{
    size_t pool_bytes = (size_t)(params->config->max_local_cpu_size * GIB);
    bool worker = e->role & KVT_ROLE_WORKER;

    bool keeps = params->config->local_cpu || kvt__store_has_shared(e->store);

    e->transfer_bytes = keeps ? transfer_bytes(e, pool_bytes) : pool_bytes / 2;
    if (!keeps || (!worker && !params->instance))
        return 0;
    struct kvt__memory_params memory = {
        .config = params->config, .pool = e->pool, .instance = params->instance,
        .rank = e->rank, .n_ranks = e->world_size, .looks_up = e->role & KVT_ROLE_SCHEDULER,
        .passing = !params->config->local_cpu,
        .limit_bytes = pool_bytes - transfer_bytes(e, pool_bytes),
        .object_bytes = smallest_chunk(e) };
    if (!memory.limit_bytes && !kvt__store_n_tiers(e->store))
        return kvt__fail(EINVAL, "max_local_cpu_size: %zu MiB leave no room for a chunk to "
                         "stay in, and there is no storage; raise it.", pool_bytes >> 20);
    int err = memory.limit_bytes ? kvt__store_add_memory(e->store, &memory) : 0;
    if (err || !kvt__store_has_memory(e->store))
        return err;
    e->memory_bytes = memory.limit_bytes;
    e->reads_ahead = params->config->enable_async_loading;
    e->waits = e->reads_ahead || kvt__store_has_shared(e->store);
    return 0;
}

static int
open_parts(struct kvt_engine *e, const struct kvt_engine_params *params)
{
    const struct kvt_config *config = params->config;
    size_t n_threads = e->role & KVT_ROLE_WORKER ? (size_t)config->disk_io_threads : 1;
    int err = kvt__exec_open(n_threads ? n_threads : 1, &e->exec);

    if (err)
        return err;
    struct kvt__store_params store = { .config = config, .exec = e->exec,
                                       .counters = &e->counters,
                                       .object_bytes = largest_chunk(e),
                                       .local_ranks = e->local_ranks };
    err = kvt__store_open(&store, &e->store);
    if (!err && e->role & KVT_ROLE_WORKER)
        err = open_pool(e, config);
    if (!err)
        err = open_memory(e, params);
    if (!err && !kvt__store_n_tiers(e->store))
        err = kvt__fail(EINVAL, "no tier is configured; set local_cpu: true, remote_url "
                        "(for example fs:///var/cache/kvtier), remote_storage_plugins or "
                        "local_disk.");
    return err ? err : kvt__tagset(e, "", &e->untagged);
}

static void
run_scan(struct kvt__job *job)
{
    struct kvt_engine *e = (struct kvt_engine *)
        ((char *)job - offsetof(struct kvt_engine, scan));

    kvt__store_scan(e->store);
}

static void
init_shared(struct kvt_engine *e)
{
    e->magic = KVT__ENGINE_MAGIC;
    e->pid = getpid();
    pthread_mutex_init(&e->keyspace_lock, NULL);
    pthread_mutex_init(&e->saves.lock, NULL);
    pthread_mutex_init(&e->prefetches.lock, NULL);
    pthread_mutex_init(&e->loads.lock, NULL);
    kvt__cond_init(&e->saves.idle);
    kvt__cond_init(&e->loads.idle);
    e->prefetches.last_waiting = &e->prefetches.first_waiting;
    e->loads.last_waiting = &e->loads.first_waiting;
    e->loads.last_done = &e->loads.first_done;
}

static void
free_engine(struct kvt_engine *e)
{
    kvt__exec_close(e->exec); /* runs what is queued */
    kvt__saves_free(e);
    kvt__prefetches_free(e);
    kvt__tagsets_free(e);
    kvt__store_close(e->store);
    kvt__pool_close(e->pool);
    if (e->loads.eventfd >= 0)
        close(e->loads.eventfd);
    for (uint32_t g = 0; g < e->n_groups; g++) {
        free(e->groups[g].layout);
        free(e->groups[g].layers);
        free((void *)e->groups[g].view.base);
    }
    free(e->groups);
    free(e->model);
    free(e->fingerprint);
    free(e->kv_dtype);
    pthread_cond_destroy(&e->saves.idle);
    pthread_cond_destroy(&e->loads.idle);
    pthread_mutex_destroy(&e->loads.lock);
    pthread_mutex_destroy(&e->prefetches.lock);
    pthread_mutex_destroy(&e->saves.lock);
    pthread_mutex_destroy(&e->keyspace_lock);
    e->magic = 0;
    free(e);
}

/* The caller's structs, in this library's sizes. */
struct taken {
    struct kvt_engine_params params;
    struct kvt_model model;
    struct kvt_group groups[KVT__MAX_GROUPS];
};

static int
take(struct taken *taken, const struct kvt_engine_params *from)
{
    struct kvt_engine_params *params = &taken->params;
    int err = kvt__take_sized(params, sizeof *params, from, "kvt_engine_open: params");

    if (!err)
        err = kvt__take_sized(&taken->model, sizeof taken->model, params->model,
                              "kvt_engine_open: model");
    if (!err && params->n_groups > KVT__MAX_GROUPS)
        err = kvt__fail(EINVAL, "kvt_engine_open: %u groups, at most %d are possible.",
                        params->n_groups, KVT__MAX_GROUPS);
    const char *group = (const char *)params->groups;
    for (uint32_t g = 0; !err && group && g < params->n_groups; g++) {
        err = kvt__take_sized(&taken->groups[g], sizeof taken->groups[g], group,
                              "kvt_engine_open: group");
        if (!err)
            group += params->groups[0].struct_size;
    }
    params->model = &taken->model;
    if (params->groups)
        params->groups = taken->groups;
    return err ? err : check_params(params);
}

int
kvt_engine_open(const struct kvt_engine_params *theirs, struct kvt_engine **out)
{
    struct taken taken;
    struct kvt_engine_params *params = &taken.params;
    struct kvt_engine *e;
    int err = take(&taken, theirs);

    if (err)
        return err;
    e = calloc(1, sizeof *e);
    if (!e)
        return kvt__fail(ENOMEM, "kvt_engine_open");
    init_shared(e);
    e->loads.eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->loads.eventfd < 0)
        err = kvt__fail(errno, "kvt_engine_open: eventfd");
    if (!err)
        err = copy_description(e, params);
    if (!err)
        err = open_parts(e, params);
    if (err) {
        free_engine(e);
        return err;
    }
    if (e->role & KVT_ROLE_WORKER) {
        e->scan.run = run_scan;
        kvt__exec_submit(e->exec, KVT__PRIO_PREFETCH, &e->scan);
    }
    *out = e;
    return 0;
}

void
kvt_engine_close(struct kvt_engine *engine)
{
    if (!engine || engine->magic != KVT__ENGINE_MAGIC || engine->pid != getpid())
        return; /* a forked child has nothing of it: the parent closes it */
    if (engine->pool) /* what is being stored is worth some time */
        (void)!kvt_engine_flush(engine, engine->load_timeout_ns / KVT__NS_PER_MS);
    kvt__store_stop(engine->store);
    kvt__loads_stop(engine);
    free_engine(engine);
}

uint32_t
kvt_engine_chunk_tokens(const struct kvt_engine *engine)
{
    return engine->chunk_tokens;
}

/* ----------------------------------------------------------------- the rest */

int
kvt_engine_set_view(struct kvt_engine *engine, uint32_t group,
                    const struct kvt_kv_view *theirs)
{
    struct kvt_kv_view view_in, *from = &view_in;
    int err = kvt__engine_check(engine, "kvt_engine_set_view");

    if (!err)
        err = kvt__take_sized(from, sizeof *from, theirs, "kvt_engine_set_view: view");
    if (err)
        return err;
    if (group >= engine->n_groups)
        return kvt__fail(EINVAL, "kvt_engine_set_view: no group %u.", group);
    struct kvt__view *view = &engine->groups[group].view;
    size_t n = (size_t)view->n_kv * view->n_layers;
    if (!from->base || !from->n_blocks || from->n_blocks > INT32_MAX ||
        from->n_kv != view->n_kv)
        return kvt__fail(EINVAL, "kvt_engine_set_view: group %u needs base, n_blocks and "
                         "n_kv %u.", group, view->n_kv);
    void **base = calloc(n, sizeof *base);
    if (!base)
        return kvt__fail(ENOMEM, "kvt_engine_set_view");
    memcpy(base, from->base, n * sizeof *base);
    free((void *)view->base);
    view->base = base;
    view->n_blocks = from->n_blocks;
    view->block_stride = from->block_stride;
    view->head_stride = from->head_stride;
    view->token_stride = from->token_stride;
    view->null_block = from->null_block;
    return 0;
}

int
kvt_engine_reset(struct kvt_engine *engine)
{
    int err = kvt__engine_check(engine, "kvt_engine_reset");

    for (uint32_t i = 0; !err && i < engine->world_size * engine->n_groups; i++) {
        struct kvt__keyspace *k = atomic_load(&engine->untagged->at[i]);
        int why = k ? kvt__store_next_epoch(engine->store, &k->space) : 0;

        if (why)
            kvt__log(KVT_LOG_WARN, "the reset of the cache is forgotten if the index is "
                     "lost: %s", kvt__why());
    }
    return err;
}

void
kvt_engine_counters(const struct kvt_engine *engine, uint64_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = i < KVT__N_COUNTERS ? kvt__counted(&engine->counters, (enum kvt__counter)i)
                                     : 0;
    if (engine->pool && n > KVT__N_pool_used && engine->pid == getpid())
        out[KVT__N_pool_used] = kvt__pool_used(engine->pool);
}

int
kvt__check_chunks(const struct kvt_engine *engine, const char *call,
                  const struct kvt_group_io *ios, size_t n_ios)
{
    for (size_t i = 0; i < n_ios; i++) {
        if (ios[i].group >= engine->n_groups || !engine->groups[ios[i].group].view.base)
            return kvt__fail(EINVAL, "%s: ios[%zu]: group %u is unknown or has no view.",
                             call, i, ios[i].group);
        for (uint32_t c = 0; c < ios[i].n_chunks; c++) {
            uint32_t n = ios[i].chunks[c].n_tokens;
            if (!n || n > engine->chunk_tokens)
                return kvt__fail(EINVAL, "%s: ios[%zu]: chunk %u has %u tokens, 1 to %u "
                                 "are possible.", call, i, c, n, engine->chunk_tokens);
        }
    }
    return 0;
}

int
kvt__check_ios(const struct kvt_engine *engine, const char *call,
               const struct kvt_group_io *ios, size_t n_ios)
{
    int err = kvt__check_chunks(engine, call, ios, n_ios);

    for (size_t i = 0; !err && i < n_ios; i++) {
        const struct kvt_group_io *io = &ios[i];
        const struct kvt__group *group = &engine->groups[io->group];
        size_t need = 0;

        for (uint32_t c = 0; c < io->n_chunks; c++)
            need += kvt__group_blocks(group, io->chunks[c].n_tokens);
        if (need != io->n_blocks)
            return kvt__fail(EINVAL, "%s: ios[%zu]: %zu block ids, its chunks need %zu.",
                             call, i, io->n_blocks, need);
        for (size_t b = 0; b < need; b++)
            if (io->blocks[b] >= (int64_t)group->view.n_blocks)
                return kvt__fail(EINVAL, "%s: ios[%zu]: block id %d, the view has %u.",
                                 call, i, io->blocks[b], group->view.n_blocks);
    }
    return err;
}
