/* SPDX-License-Identifier: Apache-2.0
 *
 * The public functions of loads: start, poll, cancel, results. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/load.h"

/* -------------------------------------------------------------------- starting */

/* Return true if the copy of an item computes the checksum: the blocks are in host memory, and at
 * least one block is copied.  Otherwise the store verifies the slot. */
static bool
consumes(const struct kvt__item *item)
{
    const struct kvt__view *view = kvt__item_view(item);
    size_t n = kvt__view_blocks(view, item->req.tokens);

    for (size_t b = 0; !item->call->engine->gpu && b < n; b++)
        if (kvt__block_real(view, item->blocks[b]))
            return true;
    return false;
}

static void
set_deadline(struct kvt_load *load)
{
    atomic_fetch_add(&load->call.refs, 1);
    load->deadline.run = kvt__load_on_deadline;
    load->deadline.at_ns = load->call.deadline_ns;
    kvt__timer_set(load->call.engine->exec, &load->deadline);
}

int
kvt_engine_load(struct kvt_engine *engine, const struct kvt_group_io *ios,
                size_t n_ios, uint64_t cookie, struct kvt_load **out)
{
    static const struct kvt__call_kind loads = {
        .name = "kvt_engine_load", .size = sizeof(struct kvt_load), .has_blocks = true,
        .template = { .op = KVT__TIER_GET, .is_wanted = kvt__load_is_wanted,
                      .on_done = kvt__load_on_read } };
    struct kvt__call *call;
    int err = kvt__call_check(engine, &loads, ios, n_ios);

    if (!err && engine->gpu)
        err = kvt__gpu_after(engine->gpu, atomic_load(&engine->stream));
    if (!err)
        err = kvt__call_new(engine, &loads, ios, n_ios, &call);
    if (err)
        return err;
    struct kvt_load *load = (struct kvt_load *)call;
    load->cookie = cookie;
    load->n_left = call->n_items;
    *out = load;
    if (!call->n_items) {
        kvt__load_close(load, 0);
        return 0;
    }
    for (size_t i = 0; i < call->n_items; i++) {
        call->items[i].status = KVT__PENDING;
        if (consumes(&call->items[i]))
            call->items[i].req.consume = kvt__load_consume;
    }
    set_deadline(load); /* from here on kvt_engine_poll() may return the load */
    pthread_mutex_lock(&engine->calls.lock);
    for (size_t i = 0; i < call->n_items; i++)
        kvt__queue_push(&engine->calls.loads, &call->items[i]);
    pthread_mutex_unlock(&engine->calls.lock);
    engine->on_slot_free(engine);
    return 0;
}

/* --------------------------------------------------------------------- results */

size_t
kvt_engine_poll(struct kvt_engine *engine, struct kvt_load **done, size_t max)
{
    uint64_t ignored;
    size_t n = 0;

    if (kvt__engine_check(engine, "kvt_engine_poll"))
        return 0;
    pthread_mutex_lock(&engine->calls.lock);
    while (n < max && engine->calls.first_done) {
        done[n] = engine->calls.first_done;
        engine->calls.first_done = done[n]->next_done;
        n++;
    }
    if (!engine->calls.first_done) {
        engine->calls.last_done = &engine->calls.first_done;
        if (read(engine->calls.eventfd, &ignored, sizeof ignored) < 0)
            ignored = 0; /* the counter was 0 */
    }
    pthread_mutex_unlock(&engine->calls.lock);
    return n;
}

int
kvt_engine_eventfd(const struct kvt_engine *engine)
{
    return engine->calls.eventfd;
}

void
kvt_load_cancel(struct kvt_load *load)
{
    if (kvt__engine_check(load->call.engine, "kvt_load_cancel"))
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
    const struct kvt__call *call = &load->call;

    if (io >= call->n_ios || chunk >= call->ios[io].n_chunks)
        return -EINVAL;
    int status = call->items[call->ios[io].first_item + chunk].status;
    return status == KVT__PENDING ? load->closed_status : status;
}

uint64_t
kvt_load_bytes(const struct kvt_load *load)
{
    return atomic_load(&load->bytes);
}

void
kvt_load_free(struct kvt_load *load)
{
    if (load)
        kvt__call_unref(&load->call);
}
