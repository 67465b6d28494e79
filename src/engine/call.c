/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls and their items: arguments, allocation, end. */
#include "engine/call.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* -------------------------------------------------------------------- checking */

static int
check_io(const struct kvt_engine *engine, const struct kvt__call_kind *kind, size_t i,
         const struct kvt_group_io *io)
{
    int err = kvt__check_tags(engine, io->tags);
    size_t need = 0;

    if (err)
        return err;
    if (io->group >= engine->n_groups || !engine->groups[io->group].view.base)
        return kvt__fail(EINVAL, "%s: ios[%zu]: group %u does not exist or has no view; call "
                         "kvt_engine_set_view() first.", kind->name, i, io->group);
    if (io->ttl_seconds > KVT_TTL_MAX_S)
        return kvt__fail(EINVAL, "%s: ios[%zu]: ttl_seconds is %u and must be at most %u.",
                         kind->name, i, io->ttl_seconds, KVT_TTL_MAX_S);
    const struct kvt__view *view = &engine->groups[io->group].view;
    for (uint32_t c = 0; c < io->n_chunks; c++) {
        uint32_t n = io->chunks[c].n_tokens;
        if (!n || n > engine->chunk_tokens)
            return kvt__fail(EINVAL, "%s: ios[%zu]: chunk %u has %u tokens; a chunk has 1 to %u "
                             "tokens.", kind->name, i, c, n, engine->chunk_tokens);
        need += kvt__view_blocks(view, n);
    }
    if (!kind->has_blocks)
        return 0;
    if (need != io->n_blocks)
        return kvt__fail(EINVAL, "%s: ios[%zu] has %zu block ids; the chunks need %zu block ids.",
                         kind->name, i, io->n_blocks, need);
    for (size_t b = 0; b < need; b++)
        if (io->blocks[b] >= (int64_t)view->n_blocks)
            return kvt__fail(EINVAL, "%s: ios[%zu]: block id %d is out of range; the view has %u "
                             "blocks.", kind->name, i, io->blocks[b], view->n_blocks);
    return 0;
}

int
kvt__call_check(const struct kvt_engine *engine, const struct kvt__call_kind *kind,
                const struct kvt_group_io *ios, size_t n_ios)
{
    int err = kvt__engine_check(engine, kind->name);

    for (size_t i = 0; !err && i < n_ios; i++)
        err = check_io(engine, kind, i, &ios[i]);
    if (!err && !engine->pool)
        err = kvt__fail(EINVAL, "%s: the engine has no pool; open the engine with "
                        "KVT_ROLE_WORKER.", kind->name);
    return err;
}

/* ---------------------------------------------------------------------- making */

/* Fill in ios and items. */
static void
describe(struct kvt__call *call, const struct kvt_group_io *ios)
{
    struct kvt_engine *e = call->engine;
    const struct kvt__store_req *template = &call->kind->template;
    struct kvt__item *item = call->items;
    int32_t *blocks = call->blocks;

    for (size_t i = 0; i < call->n_ios; i++) {
        const struct kvt_group_io *io = &ios[i];
        struct kvt__call_io *to = &call->ios[i];
        const struct kvt__space *space =
            kvt__engine_space(e, e->rank, io->group, io->tags, &to->space);

        to->group = io->group;
        to->n_chunks = io->n_chunks;
        to->first_item = (size_t)(item - call->items);
        to->first_failed = UINT32_MAX;
        if (call->kind->has_blocks && io->n_blocks)
            memcpy(blocks, io->blocks, io->n_blocks * sizeof *blocks);
        for (uint32_t c = 0; c < io->n_chunks; c++, item++) {
            item->call = call;
            item->io = to;
            item->chunk = c;
            item->blocks = blocks;
            item->req.op = template->op;
            item->req.is_prefetch = template->is_prefetch;
            item->req.is_wanted = template->is_wanted;
            item->req.on_done = template->on_done;
            if (template->op == KVT__TIER_PUT)
                item->req.expires_ns = kvt__store_expiry(e->store, io->ttl_seconds);
            kvt__fill_request(e, e->rank, io->group, space, &io->chunks[c], &item->req);
            if (call->kind->has_blocks)
                blocks += kvt__view_blocks(kvt__item_view(item), item->req.tokens);
        }
    }
}

/* Return the engine's count of unfinished items: of the stores of the call's epoch, or of loads and
 * prefetches. */
static size_t *
n_items_of(struct kvt_engine *e, const struct kvt__call *call)
{
    return call->kind->template.op == KVT__TIER_PUT ? &e->calls.n_stores[call->epoch % 2]
                                                    : &e->calls.n_loads;
}

int
kvt__call_new(struct kvt_engine *engine, const struct kvt__call_kind *kind,
              const struct kvt_group_io *ios, size_t n_ios, struct kvt__call **out)
{
    size_t n_items = 0, n_blocks = 0;
    struct kvt__call *call = calloc(1, kind->size);

    if (!call)
        return kvt__fail(ENOMEM, "%s", kind->name);
    for (size_t i = 0; i < n_ios; i++) {
        n_items += ios[i].n_chunks;
        n_blocks += kind->has_blocks ? ios[i].n_blocks : 0;
    }
    call->engine = engine;
    call->kind = kind;
    call->refs = 1;
    call->deadline_ns = kvt__now_ns() + engine->load_timeout_ns;
    call->n_ios = n_ios;
    call->n_items = n_items;
    call->ios = calloc(n_ios ? n_ios : 1, sizeof *call->ios);
    call->items = calloc(n_items ? n_items : 1, sizeof *call->items);
    call->blocks = calloc(n_blocks ? n_blocks : 1, sizeof *call->blocks);
    if (!call->ios || !call->items || !call->blocks) {
        kvt__call_unref(call);
        return kvt__fail(ENOMEM, "%s", kind->name);
    }
    describe(call, ios);
    call->refs += (int)n_items;
    pthread_mutex_lock(&engine->calls.lock);
    call->epoch = engine->calls.epoch;
    *n_items_of(engine, call) += n_items;
    pthread_mutex_unlock(&engine->calls.lock);
    *out = call;
    return 0;
}

/* ---------------------------------------------------------------------- ending */

void
kvt__call_unref(struct kvt__call *call)
{
    int refs = atomic_fetch_sub(&call->refs, 1);

    assert(refs > 0);
    if (refs > 1)
        return;
    free(call->ios);
    free(call->items);
    free(call->blocks);
    free(call);
}

void
kvt__item_end(struct kvt__item *item)
{
    struct kvt_engine *e = item->call->engine;
    size_t *n = n_items_of(e, item->call);

    assert(!item->req.slot.payload);
    kvt__call_unref(item->call);
    pthread_mutex_lock(&e->calls.lock);
    assert(*n);
    if (!--*n)
        pthread_cond_broadcast(&e->calls.idle);
    pthread_mutex_unlock(&e->calls.lock);
}
