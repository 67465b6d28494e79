/* SPDX-License-Identifier: Apache-2.0
 *
 * Put, get and probe of one chunk: level after level is asked.  A request runs on an
 * executor thread.  Where a tier lets nobody wait it leaves the thread and goes on, on
 * one of them, when the tier has answered. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "store/private.h"

static int
describe(const struct kvt__store_req *req, char *key, size_t size,
         struct kvt__object *object)
{
    char text[KVT__INDEX_SPACE_TEXT_MAX + 1];

    *object = (struct kvt__object){
        .key = key, .hash = req->hash, .opaque = req->space->opaque,
        .whole = req->whole, .tokens = req->tokens, .rank = req->space->rank,
        .id = req->id, .id_of_key = req->id_of_key, .shape = req->shape };
    int err = kvt__space_text(req->space, req->tags, text);
    return err ? err : kvt__space_key(text, &req->hash, key, size);
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

static void was_answered(struct kvt__tier_op *op, int err);

static void
prepare(struct kvt__store_req *req, const struct kvt__object *object)
{
    static const enum kvt__tier_what whats[] = {
        [KVT__STORE_PUT] = KVT__TIER_PUT,
        [KVT__STORE_GET] = KVT__TIER_GET,
        [KVT__STORE_PROBE] = KVT__TIER_PROBE,
    };

    req->tier_op = (struct kvt__tier_op){
        .what = whats[req->op], .prio = prio_of(req), .object = object,
        .slot = req->slot, .overwrite = req->overwrite, .crc = req->crc,
        .done = was_answered };
}

/* Ask the level's tier, and wait. */
static int
ask(struct kvt__store_req *req, struct kvt__level *level,
    const struct kvt__object *object)
{
    const struct kvt__tier_ops *ops = level->tier->ops;

    prepare(req, object);
    if (ops->start)
        return kvt__tier_wait(level->tier, &req->tier_op);
    switch (req->op) {
    case KVT__STORE_PUT:
        return ops->put(level->tier, object, &req->slot, req->crc);
    case KVT__STORE_GET:
        return ops->get(level->tier, object, &req->slot, &req->tier_op.found);
    default:
        return ops->probe(level->tier, object, &req->tier_op.found);
    }
}

/* Ask it; was_answered() goes on. */
static void
start(struct kvt__store_req *req, struct kvt__level *level,
      const struct kvt__object *object)
{
    prepare(req, object);
    kvt__exec_expect(req->store->exec);
    level->tier->ops->start(level->tier, &req->tier_op);
}

/* Whether it is worse than that there is nothing, or nothing to do: worth telling. */
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
conclude(struct kvt__store_req *req, const struct kvt__object *object)
{
    if (req->failed && (req->status || req->op == KVT__STORE_PUT))
        req->status = req->failed;
    else if (req->status == -ENOENT) {
        (void)kvt__fail(ENOENT, "chunk %s", object->key);
        snprintf(req->why, sizeof req->why, "%s", kvt__why());
    } else
        req->why[0] = '\0';
}

/* Ask the levels from req->level on.  A put goes to all of them, one that fails does not
 * keep it from the others.  False: a tier was started that lets nobody wait. */
static bool
go_on(struct kvt__store_req *req, struct kvt__object *object, bool waits)
{
    char stored_key[KVT__KEY_TEXT_MAX + 1];

    for (; req->level < req->store->n_levels; req->level++) {
        struct kvt__level *level = &req->store->levels[req->level];
        struct kvt__object stored = *object;

        stored.unsummed = kvt__level_sums_later(level, req);
        int err = kvt__level_ask(req, level, &stored, stored_key, sizeof stored_key);

        if (!err && level->tier->ops->start && !waits) {
            start(req, level, &stored);
            return false;
        }
        if (!err)
            err = kvt__level_answer(req, level, &stored, ask(req, level, &stored));
        if (settle(req, err))
            break;
    }
    conclude(req, object);
    return true;
}

/* ------------------------------------------------------------------ running */

/* True: the request has ended. */
static bool
begin_run(struct kvt__store_req *req, bool waits)
{
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__object object;

    req->level = 0;
    req->failed = 0;
    req->why[0] = '\0';
    req->status = req->borrowed ? 0 : describe(req, key, sizeof key, &object);
    if (req->status) {
        snprintf(req->why, sizeof req->why, "%s", kvt__why());
        return true;
    }
    if (req->borrowed) {
        req->status = req->unsummed ? kvt__memory_verify(req->store, req) : 0;
        return true;
    }
    req->status = req->op == KVT__STORE_PUT ? -EEXIST : -ENOENT;
    return go_on(req, &object, waits);
}

void
kvt__store_run(struct kvt__store *store, struct kvt__store_req *req)
{
    req->store = store;
    (void)begin_run(req, true);
}

/* After the answer of a tier that was started. */
static void
run_rest(struct kvt__job *job)
{
    struct kvt__store_req *req = (struct kvt__store_req *)
        ((char *)job - offsetof(struct kvt__store_req, job));
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__object object;

    if (req->answer)
        kvt__set_why(req->tier_why);
    (void)describe(req, key, sizeof key, &object); /* as it was before */
    int err = kvt__level_answer(req, &req->store->levels[req->level], &object,
                                req->answer);
    if (settle(req, err)) {
        conclude(req, &object);
    } else {
        req->level++;
        if (!go_on(req, &object, false))
            return;
    }
    req->done(req);
}

static void
was_answered(struct kvt__tier_op *op, int err)
{
    struct kvt__store_req *req = (struct kvt__store_req *)
        ((char *)op - offsetof(struct kvt__store_req, tier_op));

    req->answer = err;
    if (err)
        snprintf(req->tier_why, sizeof req->tier_why, "%s", kvt__why());
    req->job.run = run_rest;
    kvt__exec_submit_expected(req->store->exec, prio_of(req), &req->job);
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
        req->status = store->levels[0].no_put ? -EEXIST
                                              : kvt__memory_keep(store, req, true);
        if (req->status != -ENODEV && !kvt__store_puts_in_storage(store, req->space)) {
            if (req->status)
                snprintf(req->why, sizeof req->why, "%s", kvt__why());
            req->done(req);
            return;
        }
    }
    kvt__exec_submit(store->exec, prio_of(req), &req->job);
}
