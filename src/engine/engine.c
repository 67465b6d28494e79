/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing an engine. */
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
#include "engine/worth.h"
#include "mem/numa.h"

#define MAX_TRANSFER ((size_t)512 << 20)
#define FIRST_POPULATED ((size_t)64 << 20) /* populated before the open returns: about 20 ms */
#define SLOT_OVERHEAD (4 * (size_t)KVT__SLOT_MARGIN) /* bytes of a slot besides the payload */
#define GIB ((double)(UINT64_C(1) << 30))

/* ------------------------------------------------------------ open and close */

/* Find the NUMA node that numa_mode names.  *node -1: numa_mode names no node, or the host does not
 * report one.  0; -EINVAL with a sentence. */
static int
memory_node(const struct kvt_engine *e, const struct kvt_config *config, int *node)
{
    *node = -1;
    if (!config->numa_mode)
        return 0;
    if (!strcmp(config->numa_mode, "auto")) {
        *node = kvt__numa_current_node();
        return 0;
    }
    int err = kvt__config_numa_node(config, e->rank % e->local_ranks, node);
    return err ? err : kvt__numa_check(*node, "gpu_to_numa_mapping");
}

/* Return the bytes of each worker's pool: max_local_cpu_size without the caller's staging memory.
 */
static size_t
pool_bytes_of(const struct kvt_engine_params *params)
{
    size_t bytes = (size_t)(params->config->max_local_cpu_size * GIB);

    return bytes > params->staging_bytes ? bytes - (size_t)params->staging_bytes : 0;
}

static int
open_pool(struct kvt_engine *e, const struct kvt_engine_params *engine_params)
{
    const struct kvt_config *config = engine_params->config;
    size_t staging_bytes = (size_t)engine_params->staging_bytes;
    int node, err = memory_node(e, config, &node);

    if (err)
        return err;
    struct kvt__pool_params params = {
        .bytes = pool_bytes_of(engine_params),
        .phase = kvt__store_traits(e->store)->phase,
        .huge_pages = config->local_cpu_use_hugepages,
        .node = node < 0 ? NULL : &node,
        .key = "max_local_cpu_size" };
    if (staging_bytes && params.bytes < 2 * e->largest_chunk)
        return kvt__fail(EINVAL, "max_local_cpu_size: %zu MiB cannot hold %zu MiB of staging for "
                         "the device and two chunks of %llu bytes; raise max_local_cpu_size or "
                         "lower chunk_size.", (size_t)(config->max_local_cpu_size * GIB) >> 20,
                         staging_bytes >> 20, (unsigned long long)e->largest_chunk);
    err = kvt__pool_open(&params, &e->pool);
    if (err)
        return err;
    /* Half of the transfer memory is reserved for loads, so transfers need at least two slots. */
    if (!kvt__pool_fits(e->pool, 2 * e->largest_chunk))
        return kvt__fail(EINVAL, "max_local_cpu_size: %zu MiB cannot hold two chunks of "
                         "%llu bytes; raise max_local_cpu_size or lower chunk_size.",
                         kvt__pool_bytes(e->pool) >> 20,
                         (unsigned long long)e->largest_chunk);
    /* Without other transfers, a load always finds a slot. */
    size_t least = e->largest_chunk + SLOT_OVERHEAD;
    kvt__pool_wait_populated(e->pool, least > FIRST_POPULATED ? least : FIRST_POPULATED);
    return 0;
}

/* Return the bytes of each worker's pool that are reserved for transfers. */
static size_t
transfer_bytes(const struct kvt_engine *e, size_t pool_bytes)
{
    size_t least = 2 * (e->largest_chunk + SLOT_OVERHEAD);
    size_t bytes = pool_bytes / 4 < MAX_TRANSFER ? pool_bytes / 4 : MAX_TRANSFER;

    bytes = bytes > least ? bytes : least;
    return bytes < pool_bytes ? bytes : pool_bytes;
}

/* Divide the pool into memory for transfers and memory in which chunks stay.  The scheduler has no
 * pool, and computes equal sizes. */
static int
open_memory(struct kvt_engine *e, const struct kvt_engine_params *params)
{
    size_t pool_bytes = pool_bytes_of(params);
    bool worker = e->role & KVT_ROLE_WORKER;

    /* With shared host memory, no chunk stays in the pool. */
    bool local = params->config->local_cpu && !params->config->shared_cpu;
    bool keeps = local || kvt__store_traits(e->store)->multi_host;

    e->transfer_bytes = keeps ? transfer_bytes(e, pool_bytes) : pool_bytes / 2;
    if (!keeps || (!worker && !params->instance))
        return 0;
    struct kvt__memory_params memory = {
        .config = params->config, .pool = e->pool, .instance = params->instance,
        .rank = e->rank, .n_ranks = e->world_size, .sees_all_ranks = e->role & KVT_ROLE_SCHEDULER,
        .prefetched_only = !local,
        .limit_bytes = pool_bytes - transfer_bytes(e, pool_bytes),
        .object_bytes = e->smallest_chunk };
    if (!memory.limit_bytes && !kvt__store_traits(e->store)->n_tiers)
        return kvt__fail(EINVAL, "max_local_cpu_size: transfers use all %zu MiB, and no storage "
                         "is configured; raise max_local_cpu_size.", pool_bytes >> 20);
    int err = memory.limit_bytes ? kvt__store_add_memory(e->store, &memory) : 0;
    if (err || !kvt__store_traits(e->store)->has_memory)
        return err;
    e->memory_bytes = memory.limit_bytes;
    e->memory_keeps = local;
    e->reads_ahead = params->config->enable_async_loading;
    e->lookups_wait = e->reads_ahead || kvt__store_traits(e->store)->multi_host;
    return 0;
}

static int
open_parts(struct kvt_engine *e, const struct kvt_engine_params *params)
{
    const struct kvt_config *config = params->config;
    int64_t n_threads = e->role & KVT_ROLE_WORKER ? config->disk_io_threads : 1;

    e->n_io_threads = n_threads ? (size_t)n_threads : 1;
    int err = kvt__exec_open(e->n_io_threads, &e->exec);

    if (err)
        return err;
    struct kvt__tier_params store = { .config = config, .exec = e->exec,
                                      .counters = &e->counters,
                                      .local_ranks = e->local_ranks,
                                      .transfers = e->role & KVT_ROLE_WORKER };
    err = kvt__store_open(&store, &e->store);
    if (!err && e->role & KVT_ROLE_WORKER)
        err = open_pool(e, params);
    if (!err)
        err = open_memory(e, params);
    if (!err && e->pool)
        kvt__store_use_pool(e->store, e->pool, e->transfer_bytes / 2);
    if (!err && !kvt__store_traits(e->store)->n_tiers)
        err = kvt__fail(EINVAL, "no tier is configured; set local_cpu: true, remote_url "
                        "(for example fs:///var/cache/kvtier), remote_storage_plugins, "
                        "local_disk or gds_path.");
    return err;
}

/* Callback on_slot_free: start waiting loads, then waiting prefetches. */
static void
start_waiting(struct kvt_engine *e)
{
    kvt__start_waiting_loads(e);
    kvt__start_waiting_prefetches(e);
}

/* Initialise the locks and lists, so that free_engine() works. */
static void
init_shared(struct kvt_engine *e)
{
    e->magic = KVT__ENGINE_MAGIC;
    e->on_slot_free = start_waiting;
    e->pid = getpid();
    pthread_mutex_init(&e->weights_lock, NULL);
    pthread_mutex_init(&e->calls.lock, NULL);
    kvt__cond_init(&e->calls.idle);
    e->calls.loads.last = &e->calls.loads.first;
    e->calls.prefetches.last = &e->calls.prefetches.first;
    e->calls.last_done = &e->calls.first_done;
}

static void
free_engine(struct kvt_engine *e)
{
    assert(!e->calls.n_stores[0] && !e->calls.n_stores[1] && !e->calls.n_loads);
    kvt__exec_close(e->exec); /* runs the queued jobs */
    kvt__store_close(e->store);
    if (e->gpu)
        kvt__gpu_close(e->gpu);
    kvt__unpin(&e->pin);
    kvt__pool_close(e->pool);
    if (e->calls.eventfd >= 0)
        close(e->calls.eventfd);
    for (uint32_t i = 0; i < e->n_stage_groups; i++) {
        free(e->stage_groups[i].layout);
        free(e->stage_groups[i].layers);
        free((void *)e->stage_groups[i].view.base);
    }
    free(e->stage_groups);
    free(e->keyspaces);
    free(e->model);
    free(e->kv_dtype);
    pthread_cond_destroy(&e->calls.idle);
    pthread_mutex_destroy(&e->worth.lock);
    pthread_mutex_destroy(&e->pins.lock);
    free(e->pins.pins); /* the leases last until their ends */
    pthread_mutex_destroy(&e->calls.lock);
    pthread_mutex_destroy(&e->weights_lock);
    e->magic = 0;
    free(e);
}

int
kvt_engine_open(const struct kvt_engine_params *theirs, struct kvt_engine **out)
{
    struct kvt__params_copy copy;
    struct kvt_engine_params *params = &copy.params;
    struct kvt_engine *e;
    int err = kvt__engine_copy_params(&copy, theirs);

    if (err)
        return err;
    e = calloc(1, sizeof *e);
    if (!e)
        return kvt__fail(ENOMEM, "kvt_engine_open");
    init_shared(e);
    kvt__worth_init(e, params->config);
    pthread_mutex_init(&e->pins.lock, NULL);
    e->calls.eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->calls.eventfd < 0)
        err = kvt__fail(errno, "kvt_engine_open: eventfd");
    if (!err)
        err = kvt__engine_describe(e, params);
    if (!err)
        err = open_parts(e, params);
    if (!err)
        err = kvt__keyspaces_make(e);
    if (err) {
        free_engine(e);
        return err;
    }
    if (e->role & KVT_ROLE_WORKER)
        kvt__store_start_upkeep(e->store);
    *out = e;
    return 0;
}

/* Cancel all loads and prefetches, and wait until all items have ended.  Then no device and no
 * storage uses a slot. */
static void
stop_calls(struct kvt_engine *e)
{
    struct kvt_load *load;

    atomic_store(&e->calls.stopping, true);
    start_waiting(e);
    pthread_mutex_lock(&e->calls.lock);
    while (e->calls.n_stores[0] || e->calls.n_stores[1] || e->calls.n_loads)
        pthread_cond_wait(&e->calls.idle, &e->calls.lock);
    pthread_mutex_unlock(&e->calls.lock);
    while (kvt_engine_poll(e, &load, 1))
        kvt_load_free(load);
}

void
kvt_engine_close(struct kvt_engine *engine)
{
    if (!engine || engine->magic != KVT__ENGINE_MAGIC || engine->pid != getpid())
        return; /* in a forked child: the parent closes the engine */
    /* Let stores in progress finish, for as long as a load may take. */
    if (engine->pool && kvt_engine_flush(engine, engine->load_timeout_ns / KVT__NS_PER_MS))
        kvt__log(KVT_LOG_INFO, "some chunks were not stored before the engine was closed: %s",
                 kvt__why());
    kvt__store_stop(engine->store);
    stop_calls(engine);
    free_engine(engine);
}

uint32_t
kvt_engine_chunk_tokens(const struct kvt_engine *engine)
{
    return engine->chunk_tokens;
}

/* ----------------------------------------------------------------- counters */

void
kvt_engine_counters(const struct kvt_engine *engine, uint64_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = i < KVT__N_COUNTERS ? kvt__counter_value(&engine->counters, (enum kvt__counter)i)
                                     : 0;
    if (engine->pool && n > KVT__N_pool_used && engine->pid == getpid())
        out[KVT__N_pool_used] = kvt__pool_used(engine->pool);
}
