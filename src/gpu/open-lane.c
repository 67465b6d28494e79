/* SPDX-License-Identifier: Apache-2.0
 *
 * Open and close a lane. */
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/thread.h"
#include "gpu/lane.h"

static int
make_streams(struct kvt__lane *lane, const struct kvt__driver *d)
{
    int least = 0, greatest = 0;
    int error = d->stream_priorities(&least, &greatest);

    /* The highest priority: gather kernels are short, and the caller's kernels wait for them. */
    if (!error)
        error = d->stream_create(&lane->kernels, KVT__STREAM_ALONE, greatest);
    if (!error)
        error = d->stream_create(&lane->copies, KVT__STREAM_ALONE, greatest);
    if (!error)
        error = d->event_create(&lane->caller_event, KVT__EVENT_NO_TIME);
    if (!error)
        error = d->event_create(&lane->handover, KVT__EVENT_NO_TIME);
    return error ? kvt__gpu_fail(lane->gpu, error, "The GPU's driver cannot create a stream")
                 : 0;
}

static int
make_parts(struct kvt__lane *lane, const struct kvt__driver *d, size_t staging_bytes)
{
    void *staging = NULL;
    int error;

    lane->part_bytes = staging_bytes / KVT__N_STAGING_PARTS / KVT__PART_ALIGN * KVT__PART_ALIGN;
    error = d->mem_alloc(&lane->table, KVT__TABLE_BYTES);
    if (!error)
        error = d->mem_alloc(&staging, KVT__N_STAGING_PARTS * lane->part_bytes + KVT__PART_ALIGN);
    lane->staging = staging;
    for (size_t i = 0; !error && i < KVT__N_STAGING_PARTS; i++) {
        lane->parts[i].at = (unsigned char *)(uintptr_t)
            kvt__round_up((uintptr_t)staging, KVT__PART_ALIGN) + i * lane->part_bytes;
        error = d->event_create(&lane->parts[i].empty, KVT__EVENT_NO_TIME);
    }
    return error ? kvt__gpu_fail(lane->gpu, error, "The GPU has no free memory for staging")
                 : 0;
}

int
kvt__lane_open(struct kvt__gpu *gpu, bool gather, size_t staging_bytes,
               struct kvt__lane **out)
{
    struct kvt__lane *lane = calloc(1, sizeof *lane);

    if (!lane)
        return kvt__fail(ENOMEM, "a GPU's copies");
    lane->gpu = gpu;
    lane->gather = gather;
    lane->last = &lane->first;
    pthread_mutex_init(&lane->order, NULL);
    pthread_mutex_init(&lane->lock, NULL);
    pthread_cond_init(&lane->wakeup, NULL);
    int err = make_streams(lane, &gpu->driver);
    if (!err && gpu->by_kernels)
        err = make_parts(lane, &gpu->driver, staging_bytes);
    if (!err)
        err = kvt__lane_grow(lane);
    if (!err)
        err = kvt__thread_start(&lane->thread, gather ? "kvt-gather"
                                               : staging_bytes ? "kvt-scatter" : "kvt-sum",
                                kvt__lane_run, lane);
    lane->started = !err;
    if (err)
        kvt__lane_close(lane, true);
    else
        *out = lane;
    return err;
}

static void
free_slabs(struct kvt__lane *lane, bool entered)
{
    struct kvt__step_slab *next;

    for (struct kvt__step_slab *slab = lane->slabs; slab; slab = next) {
        next = slab->next;
        kvt__step_slab_free(slab, entered ? &lane->gpu->driver : NULL);
    }
}

static void
stop_thread(struct kvt__lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    lane->stop = true;
    pthread_cond_signal(&lane->wakeup);
    pthread_mutex_unlock(&lane->lock);
    pthread_join(lane->thread, NULL);
}

static void
free_streams(struct kvt__lane *lane)
{
    const struct kvt__driver *d = &lane->gpu->driver;
    void *streams[] = { lane->kernels, lane->copies };
    void *events[] = { lane->caller_event, lane->handover };

    for (size_t i = 0; i < 2; i++) {
        if (streams[i]) {
            d->stream_sync(streams[i]);
            d->stream_destroy(streams[i]);
        }
    }
    for (size_t i = 0; i < 2; i++)
        if (events[i])
            d->event_destroy(events[i]);
}

static void
free_parts(struct kvt__lane *lane)
{
    const struct kvt__driver *d = &lane->gpu->driver;

    for (size_t i = 0; i < KVT__N_STAGING_PARTS; i++)
        if (lane->parts[i].empty)
            d->event_destroy(lane->parts[i].empty);
    if (lane->staging)
        d->mem_free(lane->staging);
    if (lane->table)
        d->mem_free(lane->table);
}

void
kvt__lane_close(struct kvt__lane *lane, bool entered)
{
    if (!lane)
        return;
    if (lane->started)
        stop_thread(lane);
    if (entered) {
        free_streams(lane);
        free_parts(lane);
    }
    free_slabs(lane, entered);
    pthread_mutex_destroy(&lane->order);
    pthread_mutex_destroy(&lane->lock);
    pthread_cond_destroy(&lane->wakeup);
    free(lane);
}
