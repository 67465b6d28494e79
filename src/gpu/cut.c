/* SPDX-License-Identifier: Apache-2.0
 *
 * Cut copies into steps, and allocate steps. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/error.h"
#include "gpu/lane.h"
#include "gpu/plan.h"

_Static_assert(KVT__MAX_STEP_BYTES / KVT__MAX_UNIT_BYTES <= KVT__MAX_UNITS &&
               KVT__MAX_UNITS + KVT__STEP_PIECES <= KVT__STEP_UNITS,
               "all units of a step fit");

#define STEP_BYTES (KVT__TABLE_BYTES + KVT__STEP_UNITS * sizeof(uint32_t))

/* -------------------------------------------------------------------- steps */

/* Allocate the memory and events of a slab's steps, and link the steps to a list.  0 or the
 * driver's error. */
static int
make_steps(const struct kvt__driver *d, struct kvt__step_slab *slab)
{
    void *pinned = NULL;
    int error = d->host_alloc(&pinned, KVT__SLAB_STEPS * STEP_BYTES,
                              KVT__HOST_PORTABLE | KVT__HOST_MAPPED);

    slab->pinned = pinned;
    for (size_t i = 0; !error && i < KVT__SLAB_STEPS; i++) {
        struct kvt__step *step = &slab->steps[i];

        step->table = slab->pinned + i * STEP_BYTES;
        step->results = (void *)(step->table + KVT__TABLE_BYTES);
        step->next = i + 1 < KVT__SLAB_STEPS ? step + 1 : NULL;
        error = d->event_create(&step->finished, KVT__EVENT_BLOCKS | KVT__EVENT_NO_TIME);
    }
    return error;
}

void
kvt__step_slab_free(struct kvt__step_slab *slab, const struct kvt__driver *d)
{
    for (size_t i = 0; d && i < KVT__SLAB_STEPS; i++)
        if (slab->steps[i].finished)
            d->event_destroy(slab->steps[i].finished);
    if (d && slab->pinned)
        d->host_free(slab->pinned);
    free(slab);
}

int
kvt__lane_grow(struct kvt__lane *lane)
{
    const struct kvt__driver *d = &lane->gpu->driver;
    struct kvt__step_slab *slab = calloc(1, sizeof *slab);

    if (!slab)
        return kvt__fail(ENOMEM, "a GPU's copies");
    int error = make_steps(d, slab);
    if (error) {
        kvt__step_slab_free(slab, d);
        return kvt__gpu_fail(lane->gpu, error, "No pinned memory for copies on the GPU");
    }
    slab->next = lane->slabs;
    lane->slabs = slab;
    kvt__lane_return_steps(lane, slab->steps);
    return 0;
}

/* Take an idle step, or allocate more steps.  NULL with a sentence: no memory. */
static struct kvt__step *
take_step(struct kvt__lane *lane, enum kvt__copy_path path)
{
    struct kvt__step *step;

    do {
        pthread_mutex_lock(&lane->lock);
        step = lane->idle;
        if (step)
            lane->idle = step->next;
        pthread_mutex_unlock(&lane->lock);
    } while (!step && kvt__lane_grow(lane) == 0);
    if (!step)
        return NULL;
    kvt__step_begin(step, path, lane->gather);
    step->next = NULL;
    if (path == KVT__PATH_STAGED) {
        step->part = lane->next_part;
        lane->next_part = (lane->next_part + 1) % KVT__N_STAGING_PARTS;
    }
    return step;
}

void
kvt__lane_return_steps(struct kvt__lane *lane, struct kvt__step *steps)
{
    struct kvt__step *next;

    pthread_mutex_lock(&lane->lock);
    for (; steps; steps = next) {
        next = steps->next;
        steps->next = lane->idle;
        lane->idle = steps;
    }
    pthread_mutex_unlock(&lane->lock);
}

/* ----------------------------------------------------------------- cutting */

static enum kvt__copy_path
path_of(const struct kvt__lane *lane, const struct kvt__gpu_copy *copy)
{
    const struct kvt__view *view = copy->view;
    uint64_t most = copy->own.bytes;

    if (view) { /* a block can be larger than the chunk's part of the block */
        uint64_t block = kvt__chunk_bytes(view, view->block_tokens);

        most = block > most ? block : most;
    }
    if (!lane->gpu->by_kernels || most > KVT__MAX_JOB_BYTES || !kvt__step_table_fits(copy))
        return KVT__PATH_BATCH;
    return copy->on_device ? KVT__PATH_DEVICE : KVT__PATH_STAGED;
}

/* Return the number of bytes that may still be added to the step. */
static uint64_t
bytes_left(const struct kvt__lane *lane, const struct kvt__step *step)
{
    uint64_t used = kvt__round_up(step->bytes, KVT__PART_ALIGN);

    if (step->path == KVT__PATH_BATCH)
        return UINT64_MAX;
    if (step->path == KVT__PATH_DEVICE)
        return used < KVT__MAX_STEP_BYTES ? KVT__MAX_STEP_BYTES - used : 0;
    return used < lane->part_bytes ? lane->part_bytes - used : 0;
}

/* Add the copy to the last step of the list, **end, and append further steps as needed. */
static int
cut(struct kvt__lane *lane, struct kvt__gpu_copy *copy, struct kvt__step **steps,
    struct kvt__step ***end)
{
    enum kvt__copy_path path = path_of(lane, copy);
    struct kvt__step *step = *steps ? **end : NULL;
    uint64_t from = 0, to, room, at;

    do {
        if (!step || step->path != path || !kvt__step_has_room(step, copy) ||
            (bytes_left(lane, step) == 0 && copy->own.bytes)) {
            *end = step ? &step->next : steps;
            step = **end = take_step(lane, path);
            if (!step)
                return -ENOMEM;
            assert(kvt__step_has_room(step, copy));
        }
        room = bytes_left(lane, step);
        to = copy->own.bytes - from < room ? copy->own.bytes : from + room;
        step->bytes = path == KVT__PATH_STAGED ? kvt__round_up(step->bytes, KVT__PART_ALIGN)
                                               : step->bytes;
        at = path == KVT__PATH_STAGED ? (uintptr_t)lane->parts[step->part].at + step->bytes
                                      : (uintptr_t)copy->chunk + from;
        kvt__step_add(step, copy, from, to, at);
        from = to;
    } while (from < copy->own.bytes);
    return 0;
}

int
kvt__lane_cut(struct kvt__lane *lane, struct kvt__gpu_copy *const *copies, size_t n,
              struct kvt__step **steps)
{
    size_t part = lane->next_part;
    struct kvt__step **end = steps;
    int err = 0;

    *steps = NULL;
    for (size_t i = 0; !err && i < n; i++) {
        copies[i]->own.bytes = copies[i]->view ? kvt__chunk_bytes(copies[i]->view,
                                                                  copies[i]->n_tokens)
                                               : copies[i]->own.bytes;
        copies[i]->own.sum = 0;
        copies[i]->own.err = 0;
        err = cut(lane, copies[i], steps, &end);
    }
    if (!err)
        return 0;
    kvt__lane_return_steps(lane, *steps);
    lane->next_part = part;
    return err;
}
