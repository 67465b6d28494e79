/* SPDX-License-Identifier: Apache-2.0
 *
 * The views: addresses of an engine's KV. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sized.h"
#include "engine/private.h"

/* Pin the pool.  A GPU copies from and to pinned memory at the full speed of its bus, while kernels
 * run. */
static void
pin_pool(struct kvt_engine *e)
{
    size_t bytes = kvt__pool_bytes(e->pool);
    int64_t begun = kvt__now_ns();

    kvt__pool_wait_populated(e->pool, bytes);
    if (kvt__pin(&e->pin, kvt__pool_memory(e->pool), bytes))
        kvt__log(KVT_LOG_INFO, "max_local_cpu_size: %zu MiB are pinned for the GPU "
                 "(%.1f s)", bytes >> 20,
                 (double)(kvt__now_ns() - begun) / (double)KVT__NS_PER_S);
}

/* Return the largest size of the slots of a tier in a device's memory: a chunk for each I/O thread,
 * and as many waiting chunks. */
static size_t
transfer_bytes(const struct kvt_engine *e)
{
    return 2 * e->n_io_threads * e->largest_chunk;
}

/* Open the GPU of the first view, and pin the pool for the GPU. */
static int
open_device(struct kvt_engine *e, const struct kvt_kv_view *from)
{
    struct kvt__gpu_params params = {
        .kind = from->memory == KVT_MEMORY_CUDA ? KVT__GPU_CUDA : KVT__GPU_HIP,
        .ordinal = from->device, .copies = e->gpu_copies };
    int err = kvt__gpu_open(&params, &e->gpu);

    if (err)
        return err;
    kvt__log(KVT_LOG_INFO, "%s", kvt__gpu_describe(e->gpu));
    pin_pool(e);
    return 0;
}

/* Open the memory of the first view, and pass the GPU to the tiers. */
static int
open_memory(struct kvt_engine *e, const struct kvt_kv_view *from)
{
    int err = from->memory ? open_device(e, from) : 0;

    if (!err && e->pool)
        err = kvt__store_use_gpu(e->store, e->gpu, transfer_bytes(e));
    if (err && e->gpu) {
        kvt__unpin(&e->pin);
        kvt__gpu_close(e->gpu);
        e->gpu = NULL;
    }
    return err;
}

/* Check that a view has the memory kind and device of all earlier views, because a call stores or
 * loads several groups.  The first view opens its memory.  0; -errno with a sentence. */
static int
check_memory(struct kvt_engine *e, const struct kvt_kv_view *from)
{
    bool first = true;

    if (from->memory > KVT_MEMORY_HIP)
        return kvt__fail(EINVAL, "kvt_engine_set_view: memory kind %u does not exist.",
                         from->memory);
    if (from->memory && !e->pool)
        return kvt__fail(EINVAL, "kvt_engine_set_view: KV on a GPU needs an engine with "
                         "KVT_ROLE_WORKER.");
    for (uint32_t g = 0; g < e->n_groups; g++)
        first = first && !e->groups[g].view.base;
    if (!first && (from->memory != e->memory ||
                   (from->memory && from->device != e->device)))
        return kvt__fail(EINVAL, "kvt_engine_set_view: all groups must be in memory of the same "
                         "kind and device.");
    if (!first)
        return 0;
    int err = open_memory(e, from);
    if (!err) {
        e->memory = from->memory;
        e->device = from->device;
    }
    return err;
}

int
kvt_engine_set_view(struct kvt_engine *engine, uint32_t group,
                    const struct kvt_kv_view *theirs)
{
    struct kvt_kv_view view_in, *from = &view_in;
    int err = kvt__engine_check(engine, "kvt_engine_set_view");

    if (!err)
        err = kvt__copy_sized(from, sizeof *from, theirs, "kvt_engine_set_view: view");
    if (err)
        return err;
    if (group >= engine->n_groups)
        return kvt__fail(EINVAL, "kvt_engine_set_view: group %u does not exist.", group);
    struct kvt__view *view = &engine->groups[group].view;
    size_t n = (size_t)view->n_kv * view->n_layers;
    if (!from->base || !from->n_blocks || from->n_blocks > INT32_MAX ||
        from->n_kv != view->n_kv)
        return kvt__fail(EINVAL, "kvt_engine_set_view: group %u: base and n_blocks must be set, "
                         "and n_kv must be %u.", group, view->n_kv);
    void **base = calloc(n, sizeof *base);
    if (!base)
        return kvt__fail(ENOMEM, "kvt_engine_set_view");
    err = check_memory(engine, from); /* the first view opens the device once */
    if (err) {
        free(base);
        return err;
    }
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
kvt_engine_set_stream(struct kvt_engine *engine, void *stream)
{
    int err = kvt__engine_check(engine, "kvt_engine_set_stream");

    if (!err)
        atomic_store(&engine->stream, stream);
    return err;
}
