/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads as the caller sees them: started, polled, cancelled, asked. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/load.h"

/* -------------------------------------------------------------------- starting */

static size_t
total_blocks(const struct kvt_group_io *ios, size_t n_ios)
{
    size_t n = 0;

    for (size_t i = 0; i < n_ios; i++)
        n += ios[i].n_blocks;
    return n;
}

/* Return true if the copy of an item computes the checksum.  A kernel's copy ends on another
 * thread, and without a copy the tier computes the checksum while other bytes arrive. */
static bool
consumes(const struct kvt__load_item *item, const struct kvt__group *group)
{
    size_t n = kvt__group_blocks(group, item->req.tokens);

    for (size_t b = 0; !item->load->engine->gpu && b < n; b++)
        if (kvt__block_real(&group->view, item->blocks[b]))
            return true;
    return false;
}

/* Fill in parts and items. */
static void
describe(struct kvt_load *load, const struct kvt_group_io *ios)
{
    struct kvt_engine *e = load->engine;
    struct kvt__load_item *item = load->items;
    int32_t *blocks = load->blocks;

    for (size_t i = 0; i < load->n_parts; i++) {
        const struct kvt_group_io *io = &ios[i];

        const struct kvt__space *space =
            kvt__engine_space(e, e->rank, io->group, io->tags, &load->parts[i].space);

        load->parts[i].group = io->group;
        load->parts[i].n_chunks = io->n_chunks;
        load->parts[i].broken_at = UINT32_MAX;
        load->parts[i].first_item = (size_t)(item - load->items);
        if (io->n_blocks)
            memcpy(blocks, io->blocks, io->n_blocks * sizeof *blocks);
        for (uint32_t c = 0; c < io->n_chunks; c++, item++) {
            item->status = KVT__PENDING;
            item->req = (struct kvt__store_req){ .wanted = kvt__load_wants,
                                                .done = kvt__load_was_read };
            kvt__load_request(e, e->rank, io->group, space, &io->chunks[c], &item->req);
            item->load = load;
            item->io = (uint32_t)i;
            item->chunk = c;
            item->blocks = blocks;
            if (consumes(item, &e->groups[io->group]))
                item->req.consume = kvt__load_consume;
            blocks += kvt__group_blocks(&e->groups[io->group], io->chunks[c].n_tokens);
        }
    }
}

static struct kvt_load *
new_load(struct kvt_engine *e, const struct kvt_group_io *ios, size_t n_ios)
{
    size_t n_items = 0, n_blocks = total_blocks(ios, n_ios);

    for (size_t i = 0; i < n_ios; i++)
        n_items += ios[i].n_chunks;
    struct kvt_load *load = calloc(1, sizeof *load + n_items * sizeof *load->items);
    if (!load)
        return NULL;
    pthread_mutex_init(&load->lock, NULL);
    load->refs = 1;
    load->engine = e;
    load->n_items = load->n_left = n_items;
    load->n_parts = n_ios;
    load->parts = calloc(n_ios ? n_ios : 1, sizeof *load->parts);
    load->blocks = calloc(n_blocks ? n_blocks : 1, sizeof *load->blocks);
    if (load->parts && load->blocks)
        return load;
    kvt__load_unref(load);
    return NULL;
}

static void
queue_items(struct kvt_load *load)
{
    struct kvt_engine *e = load->engine;

    pthread_mutex_lock(&e->loads.lock);
    for (size_t i = 0; i < load->n_items; i++) {
        *e->loads.last_waiting = &load->items[i];
        e->loads.last_waiting = &load->items[i].next_waiting;
    }
    e->loads.n_items += load->n_items;
    pthread_mutex_unlock(&e->loads.lock);
}

int
kvt_engine_load(struct kvt_engine *engine, const struct kvt_group_io *ios,
                size_t n_ios, uint64_t cookie, struct kvt_load **out)
{
    int err = kvt__engine_check(engine, "kvt_engine_load");

    if (!err)
        err = kvt__check_ios(engine, "kvt_engine_load", ios, n_ios);
    if (err)
        return err;
    if (!engine->pool)
        return kvt__fail(EINVAL, "kvt_engine_load: a scheduler's engine has no pool.");
    struct kvt_load *load = new_load(engine, ios, n_ios);
    if (!load)
        return kvt__fail(ENOMEM, "kvt_engine_load");
    describe(load, ios);
    if (engine->gpu)
        err = kvt__gpu_after(engine->gpu, atomic_load(&engine->stream));
    if (err) {
        kvt__load_unref(load);
        return err;
    }
    load->cookie = cookie;
    *out = load;
    if (!load->n_items) {
        kvt__load_close(load, 0);
        return 0;
    }
    load->refs += (int)load->n_items + 1; /* and the timer's */
    load->deadline.run = kvt__load_deadline;
    load->deadline.at_ns = kvt__now_ns() + engine->load_timeout_ns;
    kvt__timer_set(engine->exec, &load->deadline);
    queue_items(load);
    engine->on_slot_free(engine);
    return 0;
}

/* ---------------------------------------------------------------- the caller's */

size_t
kvt_engine_poll(struct kvt_engine *engine, struct kvt_load **done, size_t max)
{
    uint64_t ignored;
    size_t n = 0;

    if (kvt__engine_check(engine, "kvt_engine_poll"))
        return 0;
    pthread_mutex_lock(&engine->loads.lock);
    while (n < max && engine->loads.first_done) {
        done[n] = engine->loads.first_done;
        engine->loads.first_done = done[n]->next_done;
        n++;
    }
    if (!engine->loads.first_done) {
        engine->loads.last_done = &engine->loads.first_done;
        if (read(engine->loads.eventfd, &ignored, sizeof ignored) < 0)
            ignored = 0; /* it was not readable: nothing to drain */
    }
    pthread_mutex_unlock(&engine->loads.lock);
    return n;
}

int
kvt_engine_eventfd(const struct kvt_engine *engine)
{
    return engine->loads.eventfd;
}

void
kvt_load_cancel(struct kvt_load *load)
{
    if (kvt__engine_check(load->engine, "kvt_load_cancel"))
        return;
    kvt__load_close(load, -ECANCELED);
}

uint64_t
kvt_load_cookie(const struct kvt_load *load)
{
    return load->cookie;
}

int
kvt_load_status(const struct kvt_load *load, size_t io, size_t chunk)
{
    if (io >= load->n_parts || chunk >= load->parts[io].n_chunks)
        return -EINVAL;
    int status = load->items[load->parts[io].first_item + chunk].status;
    return status == KVT__PENDING ? load->closed_status : status;
}

uint64_t
kvt_load_bytes(const struct kvt_load *load)
{
    struct kvt_load *l = (struct kvt_load *)load;

    pthread_mutex_lock(&l->lock);
    uint64_t bytes = l->bytes;
    pthread_mutex_unlock(&l->lock);
    return bytes;
}

void
kvt_load_free(struct kvt_load *load)
{
    if (load)
        kvt__load_unref(load);
}

void
kvt__loads_stop(struct kvt_engine *engine)
{
    if (!engine->pool)
        return;
    atomic_store(&engine->loads.stopping, true);
    engine->on_slot_free(engine);
    pthread_mutex_lock(&engine->loads.lock);
    while (engine->loads.n_items)
        pthread_cond_wait(&engine->loads.idle, &engine->loads.lock);
    pthread_mutex_unlock(&engine->loads.lock);
    while (engine->loads.first_done) {
        struct kvt_load *load = engine->loads.first_done;
        engine->loads.first_done = load->next_done;
        kvt__load_unref(load);
    }
}
