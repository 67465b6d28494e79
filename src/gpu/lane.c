/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue the steps of one direction on the device.  Events order the kernels and the bus copies of
 * a part on the device, so that the calling thread does not wait.  Only the lane's thread waits,
 * for one step after another. */
#include "gpu/lane.h"

#include <errno.h>

#include "base/error.h"
#include "base/log.h"

/* ----------------------------------------------------------------- streams */

/* Make later work on stream `to` wait for the work now queued on stream `from`. */
static int
order_streams(const struct kvt__driver *d, void *event, void *from, void *to)
{
    int error = d->event_record(event, from);

    return error ? error : d->stream_wait(to, event, 0);
}

static int
launch_step(struct kvt__lane *lane, struct kvt__step *step)
{
    kvt__step_seal(step, lane->gpu, (uintptr_t)lane->table);
    return kvt__step_launch(step, lane->gpu, lane->table, lane->kernels);
}

/* Queue the copies between a part and chunks in host memory.  Pieces that are adjacent on both
 * sides are one copy. */
static int
copy_over_bus(struct kvt__lane *lane, const struct kvt__step *step)
{
    const struct kvt__step_piece *p = step->pieces, *end = p + step->n_pieces;
    const struct kvt__driver *d = &lane->gpu->driver;
    int error = 0;

    while (!error && p < end) {
        unsigned char *host = p->copy->chunk + p->from;
        unsigned char *part = (unsigned char *)(uintptr_t)p->at;
        uint64_t n = p->to - p->from;

        while (++p < end && p->copy->chunk + p->from == host + n &&
               p->at == (uintptr_t)part + n)
            n += p->to - p->from;
        if (n)
            error = lane->gather ? kvt__driver_copy(d, host, part, n, lane->copies)
                                 : kvt__driver_copy(d, part, host, n, lane->copies);
    }
    return error;
}

static int
begin_staged(struct kvt__lane *lane, struct kvt__step *step)
{
    const struct kvt__driver *d = &lane->gpu->driver;
    struct kvt__staging_part *part = &lane->parts[step->part];
    void *from = lane->gather ? lane->kernels : lane->copies;
    void *to = lane->gather ? lane->copies : lane->kernels;
    int error = part->used ? d->stream_wait(from, part->empty, 0) : 0;

    if (!error)
        error = lane->gather ? launch_step(lane, step) : copy_over_bus(lane, step);
    if (!error)
        error = order_streams(d, lane->handover, from, to);
    if (!error)
        error = lane->gather ? copy_over_bus(lane, step) : launch_step(lane, step);
    /* Also after an error: work that was queued before the error uses the part. */
    if (d->event_record(part->empty, to) == 0)
        part->used = true;
    else if (!error)
        error = -1;
    return error;
}

static int
begin_batch(struct kvt__lane *lane, struct kvt__step *step)
{
    int error = 0;

    for (uint32_t i = 0; !error && i < step->n_pieces; i++)
        if (step->pieces[i].from < step->pieces[i].to)
            error = kvt__batch_copy(&lane->gpu->driver, step->pieces[i].copy, lane->gather,
                                    lane->copies);
    return error;
}

static void
begin_step(struct kvt__lane *lane, struct kvt__step *step)
{
    const struct kvt__driver *d = &lane->gpu->driver;
    bool ends_on_kernels = step->path == KVT__PATH_DEVICE ||
                           (step->path == KVT__PATH_STAGED && !lane->gather);
    int error = step->path == KVT__PATH_STAGED ? begin_staged(lane, step)
              : step->path == KVT__PATH_DEVICE ? launch_step(lane, step)
              : begin_batch(lane, step);

    if (error) {
        step->err = kvt__gpu_fail(lane->gpu, error, "A copy on the GPU cannot be queued");
        KVT__LOG_ONCE(KVT_LOG_WARN, "%s", kvt__why());
    }
    step->no_event = error || d->event_record(step->finished, ends_on_kernels ? lane->kernels
                                                                              : lane->copies);
}

/* ------------------------------------------------------------------ the thread */

static void
end_step(struct kvt__lane *lane, struct kvt__step *step)
{
    const struct kvt__driver *d = &lane->gpu->driver;
    int error = step->no_event ? 0 : d->event_sync(step->finished);

    if (error) {
        kvt__gpu_fail(lane->gpu, error, "A copy on the GPU has failed");
        KVT__LOG_ONCE(KVT_LOG_WARN, "%s", kvt__why());
    }
    if (step->no_event || error) { /* done may free the memory: no copy may still use the memory */
        step->err = -EIO;
        d->stream_sync(lane->copies);
        d->stream_sync(lane->kernels);
    }
    kvt__step_end(step, lane->gpu, step->err);
}

void *
kvt__lane_run(void *arg)
{
    struct kvt__lane *lane = arg;
    struct kvt__context context = lane->gpu->context;
    bool entered = kvt__context_enter(&lane->gpu->driver, &context) == 0;

    pthread_mutex_lock(&lane->lock);
    while (!lane->stop || lane->first) {
        struct kvt__step *step = lane->first;

        if (!step) {
            pthread_cond_wait(&lane->wakeup, &lane->lock);
            continue;
        }
        lane->first = step->next;
        if (!lane->first)
            lane->last = &lane->first;
        step->next = NULL;
        pthread_mutex_unlock(&lane->lock);
        end_step(lane, step);
        kvt__lane_return_steps(lane, step);
        pthread_mutex_lock(&lane->lock);
    }
    pthread_mutex_unlock(&lane->lock);
    if (entered)
        kvt__context_leave(&lane->gpu->driver, &context);
    return NULL;
}

/* --------------------------------------------------------------- submitting */

static bool
has_batch_step(const struct kvt__step *steps)
{
    while (steps && steps->path != KVT__PATH_BATCH)
        steps = steps->next;
    return steps;
}

/* Batch copies run on the lane's copy stream, which also has to wait for the caller's stream. */
static int
order_batch_copies(struct kvt__lane *lane, const struct kvt__step *steps)
{
    if (!lane->has_caller_event || !has_batch_step(steps))
        return 0;
    int error = lane->gpu->driver.stream_wait(lane->copies, lane->caller_event, 0);
    return error ? kvt__gpu_fail(lane->gpu, error, "The GPU's streams cannot be ordered")
                 : 0;
}

static void
queue_all(struct kvt__lane *lane, struct kvt__step *steps)
{
    struct kvt__step *next;

    for (; steps; steps = next) {
        next = steps->next;
        begin_step(lane, steps);
        steps->next = NULL;
        pthread_mutex_lock(&lane->lock);
        *lane->last = steps;
        lane->last = &steps->next;
        pthread_cond_signal(&lane->wakeup);
        pthread_mutex_unlock(&lane->lock);
    }
}

static int
mark_caller_locked(struct kvt__lane *lane, void *stream)
{
    int error = order_streams(&lane->gpu->driver, lane->caller_event, stream, lane->kernels);

    /* After an error the order of an earlier call still holds. */
    if (!error)
        lane->has_caller_event = true;
    return error ? kvt__gpu_fail(lane->gpu, error, "The GPU's streams cannot be ordered")
                 : 0;
}

/* Cut the copies into steps and queue the steps.  Set *has_batch to true if a step copies without
 * kernels. */
static int
copy_locked(struct kvt__lane *lane, struct kvt__gpu_copy *const *copies, size_t n,
            bool *has_batch)
{
    struct kvt__step *steps;

    int err = kvt__lane_cut(lane, copies, n, &steps);
    if (err)
        return err;
    *has_batch = has_batch_step(steps);
    err = order_batch_copies(lane, steps);
    if (err)
        kvt__lane_return_steps(lane, steps);
    else
        queue_all(lane, steps);
    return err;
}

int
kvt__lane_after(struct kvt__lane *lane, void *stream)
{
    pthread_mutex_lock(&lane->order);
    int err = mark_caller_locked(lane, stream);
    pthread_mutex_unlock(&lane->order);
    return err;
}

int
kvt__lane_copy(struct kvt__lane *lane, struct kvt__gpu_copy *const *copies, size_t n)
{
    bool has_batch;

    pthread_mutex_lock(&lane->order);
    int err = copy_locked(lane, copies, n, &has_batch);
    pthread_mutex_unlock(&lane->order);
    return err;
}

/* Make later work on the caller's stream wait for `stream`.  If the driver fails to order the
 * streams, the calling thread waits for `stream` instead. */
static void
order_caller(struct kvt__lane *lane, void *stream, void *caller)
{
    if (order_streams(&lane->gpu->driver, lane->handover, stream, caller))
        lane->gpu->driver.stream_sync(stream);
}

int
kvt__lane_gather(struct kvt__lane *lane, void *stream,
                 struct kvt__gpu_copy *const *copies, size_t n)
{
    bool has_batch;

    pthread_mutex_lock(&lane->order);
    int err = mark_caller_locked(lane, stream);
    if (!err)
        err = copy_locked(lane, copies, n, &has_batch);
    if (!err) {
        order_caller(lane, lane->kernels, stream);
        if (has_batch)
            order_caller(lane, lane->copies, stream);
    }
    pthread_mutex_unlock(&lane->order);
    return err;
}
