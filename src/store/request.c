/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests for a chunk.  A request walks over the levels on an executor thread.  A tier that blocks
 * runs its operation on this thread.  If the tier does not block, the walk leaves the thread, and
 * the end of the operation queues the rest of the walk. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "store/private.h"

/* Fill in the object and its key; for a PUT by key, the checksum.  0; -errno with a sentence. */
static int
describe(struct kvt__store_req *req)
{
    req->object = (struct kvt__object){
        .key = req->by_key ? req->by_key : req->key, .hash = req->hash,
        .opaque = req->space->opaque, .is_name = req->is_name, .is_full = req->is_full,
        .tokens = req->tokens, .rank = req->space->rank, .id = req->id,
        .id_of_key = req->id_of_key, .expires = req->op == KVT__TIER_PUT && req->expires_ns,
        .shape = req->shape };
    if (!req->by_key)
        return kvt__space_key(req->space->text, &req->hash, req->key, sizeof req->key);
    if (req->op == KVT__TIER_PUT)
        req->crc = kvt__crc32c_cold(0, req->slot.payload, req->slot.bytes);
    return 0;
}

/* ---------------------------------------------------------------- the walk */

static enum kvt__prio
prio_of(const struct kvt__store_req *req)
{
    static const enum kvt__prio prios[] = {
        [KVT__TIER_PUT] = KVT__PRIO_STORE,
        [KVT__TIER_GET] = KVT__PRIO_LOAD,
        [KVT__TIER_PROBE] = KVT__PRIO_LOOKUP,
        [KVT__TIER_REMOVE] = KVT__PRIO_LOAD,
    };

    return req->is_prefetch ? KVT__PRIO_PREFETCH : prios[req->op];
}

static void resume_walk(struct kvt__job *job);

static void
queue_walk(struct kvt__store_req *req)
{
    assert(req->store->exec && !req->is_sync);
    req->job.run = resume_walk;
    kvt__exec_submit_expected(req->store->exec, prio_of(req), &req->job);
}

/* Return true if any thread may run the walk, because no step of the walk blocks or copies.  Then
 * the tier's thread that ends an operation continues the walk. */
static bool
is_light(const struct kvt__store_req *req)
{
    return req->by_key && !req->verifies && (req->op != KVT__TIER_PUT || req->is_name) &&
           req->store->traits.any_memory && req->store->traits.any_name;
}

/* Callback: the tier has ended the operation.  If the walk has left its thread, continue the walk;
 * else submit() continues. */
static void
on_end(struct kvt__tier_op *op)
{
    struct kvt__store_req *req = (struct kvt__store_req *)
        ((char *)op - offsetof(struct kvt__store_req, tier_op));

    assert(!req->is_sync);
    if (!atomic_exchange(&req->first_event, true))
        return;
    if (is_light(req))
        resume_walk(&req->job);
    else
        queue_walk(req);
}

/* Submit the operation to the level's tier.  Return true if the operation has ended and the caller
 * continues the walk; false: the walk leaves the thread, and on_end() or a job continues. */
static bool
submit(struct kvt__store_req *req, struct kvt__level *level)
{
    bool light = is_light(req);

    /* A request with allocated memory waits on its thread, so that the number of threads limits the
     * memory. */
    if (req->is_sync || (req->by_key && req->staging.payload)) {
        (void)kvt__tier_wait(level->tier, &req->tier_op);
        return true;
    }
    atomic_store(&req->first_event, false);
    level->tier->ops->submit(level->tier, &req->tier_op);
    if (atomic_load(&req->first_event))
        return true;
    if (!light)
        kvt__exec_expect(req->store->exec);
    if (!atomic_exchange(&req->first_event, true))
        return false;
    if (!light)
        queue_walk(req);
    return light;
}

/* Begin the part of the current level.  Result as kvt__level_prepare(). */
static int
prepare(struct kvt__store_req *req, struct kvt__level *level)
{
    req->object.skips_crc = kvt__level_defers_crc(level, req);
    req->tier_op = (struct kvt__tier_op){
        .kind = req->op, .prio = prio_of(req), .object = &req->object,
        .slot = req->slot, .overwrite = req->overwrite, .crc = req->crc, .on_done = on_end };
    int err = req->by_key || !req->store->gate ? 0 : kvt__level_describe(level, req);
    return err ? err : kvt__level_prepare(req, level);
}

static void
log_result(const struct kvt__store_req *req, int err)
{
    static const char *const names[] = { [KVT__TIER_PUT] = "PUT", [KVT__TIER_GET] = "GET",
                                         [KVT__TIER_PROBE] = "LOOKUP",
                                         [KVT__TIER_REMOVE] = "DELETE" };

    if (kvt__log_is_enabled(KVT_LOG_TRACE))
        kvt__log(KVT_LOG_TRACE, "%s: %s %s: %s",
                 req->store->levels[req->level].tier->ops->name, names[req->tier_op.kind],
                 req->object.key, !err ? "done" : err == -ENOENT ? "absent" : kvt__why());
}

/* End the part of the current level.  Return the result as kvt__level_complete(). */
static int
complete(struct kvt__store_req *req)
{
    int err = kvt__error_raise(&req->tier_op.error);

    log_result(req, err);
    return kvt__level_complete(req, &req->store->levels[req->level], err);
}

/* Return true if the result of a level is a failure.  A missing chunk is no failure, nor is a PUT
 * of a chunk that the level has. */
static bool
is_failure(const struct kvt__store_req *req, int err)
{
    switch (req->op) {
    case KVT__TIER_PUT:
        return err && err != -EEXIST;
    case KVT__TIER_PROBE:
        return err && err != -ENOENT && req->by_key;
    default:
        return err && err != -ENOENT;
    }
}

/* Return the number after the last level of the walk. */
static size_t
end_level(const struct kvt__store_req *req)
{
    return req->only_level ? req->only_level
           : req->by_key   ? req->store->n_storages
                           : req->store->n_levels;
}

/* Note the result of a level and go to the next level.  Return true if the walk ends. */
static bool
note_result(struct kvt__store_req *req, int err)
{
    bool failed = is_failure(req, err);

    assert(req->level < end_level(req));
    assert(err <= 0 || (err == KVT__LEVEL_AGAIN && req->is_probed));
    if (err == KVT__LEVEL_AGAIN)
        return false;
    if (!err || (err == -EEXIST && req->op == KVT__TIER_PROBE)) {
        req->has_success = true;
        req->found_in |= kvt__level_bit(&req->store->levels[req->level]);
    }
    if (failed && !req->error.code)
        kvt__error_set(&req->error, err);
    req->level++;
    req->is_probed = false; /* at the next level */
    if (req->op == KVT__TIER_PUT)
        return false;
    return req->by_key ? failed || (!err && req->op != KVT__TIER_REMOVE)
                       : (!err || err == -ECANCELED) && req->op == KVT__TIER_GET;
}

/* Set the result of the request: for PUT and REMOVE the first failure of a level, for other
 * requests success if a level succeeded. */
static void
set_result(struct kvt__store_req *req)
{
    assert(!req->is_probed && req->error.code <= 0);
    if (req->has_success && (req->op == KVT__TIER_GET || req->op == KVT__TIER_PROBE))
        req->error.code = 0;
    if (!req->has_success && !req->error.code)
        kvt__error_set(&req->error, req->op == KVT__TIER_PUT
                       ? -EEXIST : kvt__key_fail_absent(req));
    if (req->by_key)
        kvt__key_release(req);
}

/* Continue the walk at req->level.  A PUT visits all levels, also after a failure.  Return false if
 * the walk has left the thread; true: the request has ended. */
static bool
walk(struct kvt__store_req *req)
{
    assert(req->level <= end_level(req));
    while (req->level < end_level(req)) {
        struct kvt__level *level = &req->store->levels[req->level];
        int err = prepare(req, level);

        if (!err && !submit(req, level))
            return false;
        if (!err)
            err = complete(req);
        if (note_result(req, err))
            break;
    }
    set_result(req);
    return true;
}

/* ------------------------------------------------------------------ running */

/* Start a request on this thread.  Return true if the request has ended. */
static bool
begin_walk(struct kvt__store_req *req)
{
    bool verifies = req->is_in_place && req->crc_pending;

    assert(!req->is_in_place || (req->op == KVT__TIER_GET && req->slot.payload));
    assert(!req->by_key || !req->is_in_place);
    assert(!req->only_level || (req->by_key && req->only_level <= req->store->n_storages));
    assert(!req->staging.payload && !req->staging_heap);
    req->stores_raw = 0;
    req->scratch = NULL;
    int err = req->is_in_place && !verifies ? 0 : describe(req);

    req->level = req->only_level ? req->only_level - 1 : 0;
    req->has_success = req->is_probed = false;
    req->found_in = 0;
    if (!err && verifies) {
        err = kvt__memory_verify(req->store, req);
        req->expires_ns = req->seen.expires_ns;
        if (!err)
            kvt__level_copy_to_shared(req);
    }
    kvt__error_set(&req->error, err);
    return err || req->is_in_place ||
           (req->op == KVT__TIER_GET && !req->by_key && !req->is_prefetch &&
            !kvt__memory_get(req->store, req)) ||
           walk(req);
}

void
kvt__store_run(struct kvt__store *store, struct kvt__store_req *req)
{
    req->store = store;
    req->is_sync = true;
    (void)begin_walk(req);
}

static void
resume_walk(struct kvt__job *job)
{
    struct kvt__store_req *req = (struct kvt__store_req *)
        ((char *)job - offsetof(struct kvt__store_req, job));

    assert(!req->is_sync && atomic_load(&req->first_event));
    if (note_result(req, complete(req)))
        set_result(req);
    else if (!walk(req))
        return;
    req->on_done(req);
}

static void
run_job(struct kvt__job *job)
{
    struct kvt__store_req *req = (struct kvt__store_req *)
        ((char *)job - offsetof(struct kvt__store_req, job));

    if (req->is_wanted && !req->is_wanted(req))
        kvt__error_set(&req->error, kvt__fail(ECANCELED, "%s", req->space->text));
    else if (req->by_key && atomic_load(&req->store->stopping))
        kvt__error_set(&req->error, kvt__fail(ECANCELED, "%s: the store is being closed.",
                                              req->by_key));
    else if (!begin_walk(req))
        return;
    req->on_done(req);
}

void
kvt__store_submit(struct kvt__store *store, struct kvt__store_req *req)
{
    assert(req->on_done);
    req->store = store;
    req->is_sync = false;
    req->job.run = run_job;
    if (req->op == KVT__TIER_PUT && !req->by_key) {
        int err = kvt__memory_may_put(store) ? kvt__memory_keep(store, req, true)
                : store->memory ? -EEXIST : -ENODEV;

        if (err != -ENODEV && !kvt__store_puts_in_storage(store, req->space, req->expires_ns)) {
            kvt__error_set(&req->error, err);
            req->on_done(req);
            return;
        }
    }
    assert(store->exec);
    kvt__exec_submit(store->exec, prio_of(req), &req->job);
}

bool
kvt__store_acquire_chunk(struct kvt__store *store, struct kvt__store_req *req)
{
    assert(req->op == KVT__TIER_GET && !req->by_key && !req->is_in_place);
    req->is_in_place = kvt__memory_acquire_chunk(store, req);
    for (size_t i = 0; !req->is_in_place && i < store->n_storages; i++)
        req->is_in_place = kvt__level_acquire_chunk(&store->levels[i], req);
    return req->is_in_place;
}
