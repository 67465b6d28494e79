/* SPDX-License-Identifier: Apache-2.0
 *
 * Put, get and probe of one chunk.  A request walks the levels on an executor thread, and a
 * tier that blocks runs its operation there.  At a tier that does not block the request leaves
 * the thread; the end of the operation queues the rest of the walk. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "store/private.h"

/* Fill in the object and its key. */
static int
describe(struct kvt__store_req *req)
{
    req->object = (struct kvt__object){
        .key = req->key, .hash = req->hash, .opaque = req->space->opaque,
        .whole = req->whole, .tokens = req->tokens, .rank = req->space->rank,
        .id = req->id, .id_of_key = req->id_of_key, .shape = req->shape };
    return kvt__space_key(req->space->text, &req->hash, req->key, sizeof req->key);
}

/* ---------------------------------------------------------------- level after level */

static enum kvt__prio
prio_of(const struct kvt__store_req *req)
{
    static const enum kvt__prio prios[] = {
        [KVT__STORE_PUT] = KVT__PRIO_STORE,
        [KVT__STORE_GET] = KVT__PRIO_LOAD,
        [KVT__STORE_PROBE] = KVT__PRIO_LOOKUP,
    };

    return req->early ? KVT__PRIO_PREFETCH : prios[req->op];
}

static void run_rest(struct kvt__job *job);

/* The walk leaves the thread, and the tier ends the operation: the second of both queues the
 * rest of the walk. */
static void
meet(struct kvt__store_req *req)
{
    if (!atomic_exchange(&req->met, true))
        return;
    req->job.run = run_rest;
    kvt__exec_submit_expected(req->store->exec, prio_of(req), &req->job);
}

static void
on_end(struct kvt__tier_op *op)
{
    meet((struct kvt__store_req *)((char *)op - offsetof(struct kvt__store_req, tier_op)));
}

/* Submit the operation to the level's tier.  Return true if the operation has ended. */
static bool
submit(struct kvt__store_req *req, struct kvt__level *level, bool waits)
{
    static const enum kvt__tier_what whats[] = {
        [KVT__STORE_PUT] = KVT__TIER_PUT,
        [KVT__STORE_GET] = KVT__TIER_GET,
        [KVT__STORE_PROBE] = KVT__TIER_PROBE,
    };

    req->tier_op = (struct kvt__tier_op){
        .what = whats[req->op], .prio = prio_of(req), .object = &req->object,
        .slot = req->slot, .overwrite = req->overwrite, .crc = req->crc, .done = on_end };
    if (waits) {
        (void)kvt__tier_wait(level->tier, &req->tier_op);
        return true;
    }
    atomic_store(&req->met, false);
    level->tier->ops->submit(level->tier, &req->tier_op);
    if (atomic_load(&req->met))
        return true;
    kvt__exec_expect(req->store->exec);
    meet(req);
    return false;
}

/* Evaluate the end of the tier's operation. */
static int
answer(struct kvt__store_req *req)
{
    return kvt__level_answer(req, &req->store->levels[req->level], &req->object,
                             kvt__error_raise(&req->tier_op.error));
}

/* Return true if the result of a level is a failure; a missing chunk, and a PUT of a chunk that
 * the level has, are none. */
static bool
is_failure(const struct kvt__store_req *req, int err)
{
    switch (req->op) {
    case KVT__STORE_PUT:
        return err && err != -EEXIST;
    case KVT__STORE_GET:
        return err && err != -ENOENT;
    default:
        return false;
    }
}

/* Note how a level has answered.  True: the others need not be asked. */
static bool
settle(struct kvt__store_req *req, int err)
{
    if (!err || (err == -EEXIST && req->op == KVT__STORE_PROBE))
        req->status = 0;
    if (is_failure(req, err) && !req->failed) {
        req->failed = err;
        snprintf(req->why, sizeof req->why, "%s", kvt__why());
    }
    return !err && req->op == KVT__STORE_GET;
}

/* A put is as good as its worst level, all else as its best. */
static void
conclude(struct kvt__store_req *req)
{
    if (req->failed && (req->status || req->op == KVT__STORE_PUT))
        req->status = req->failed;
    else if (req->status == -ENOENT) {
        (void)kvt__fail(ENOENT, "chunk %s", req->key);
        snprintf(req->why, sizeof req->why, "%s", kvt__why());
    } else
        req->why[0] = '\0';
}

/* Walk the levels from req->level on.  A PUT visits all levels, also after a level that failed.
 * Return false if the walk has left the thread. */
static bool
go_on(struct kvt__store_req *req, bool waits)
{
    for (; req->level < req->store->n_levels; req->level++) {
        struct kvt__level *level = &req->store->levels[req->level];

        req->object.unsummed = kvt__level_sums_later(level, req);
        int err = kvt__level_ask(req, level, &req->object);

        if (!err && !submit(req, level, waits))
            return false;
        if (!err)
            err = answer(req);
        if (settle(req, err))
            break;
    }
    conclude(req);
    return true;
}

/* ------------------------------------------------------------------ running */

/* True: the request has ended. */
static bool
begin_run(struct kvt__store_req *req, bool waits)
{
    req->level = 0;
    req->failed = 0;
    req->why[0] = '\0';
    req->status = req->borrowed ? 0 : describe(req);
    if (req->status) {
        snprintf(req->why, sizeof req->why, "%s", kvt__why());
        return true;
    }
    if (req->borrowed) {
        req->status = req->unsummed ? kvt__memory_verify(req->store, req) : 0;
        return true;
    }
    req->status = req->op == KVT__STORE_PUT ? -EEXIST : -ENOENT;
    if (req->op == KVT__STORE_GET && !kvt__memory_get(req->store, req)) {
        req->status = 0;
        return true;
    }
    return go_on(req, waits);
}

void
kvt__store_run(struct kvt__store *store, struct kvt__store_req *req)
{
    req->store = store;
    (void)begin_run(req, true);
}

static void
run_rest(struct kvt__job *job)
{
    struct kvt__store_req *req = (struct kvt__store_req *)
        ((char *)job - offsetof(struct kvt__store_req, job));

    if (settle(req, answer(req))) {
        conclude(req);
    } else {
        req->level++;
        if (!go_on(req, false))
            return;
    }
    req->done(req);
}

static void
run_job(struct kvt__job *job)
{
    struct kvt__store_req *req = (struct kvt__store_req *)
        ((char *)job - offsetof(struct kvt__store_req, job));

    if (req->wanted && !req->wanted(req))
        req->status = -ECANCELED;
    else if (!begin_run(req, false))
        return;
    req->done(req);
}

void
kvt__store_submit(struct kvt__store *store, struct kvt__store_req *req)
{
    req->store = store;
    req->job.run = run_job;
    if (req->op == KVT__STORE_PUT) {
        req->why[0] = '\0';
        req->status = kvt__memory_may_put(store) ? kvt__memory_keep(store, req, true)
                                                 : store->memory ? -EEXIST : -ENODEV;
        if (req->status != -ENODEV && !kvt__store_puts_in_storage(store, req->space)) {
            if (req->status)
                snprintf(req->why, sizeof req->why, "%s", kvt__why());
            req->done(req);
            return;
        }
    }
    kvt__exec_submit(store->exec, prio_of(req), &req->job);
}
