/* SPDX-License-Identifier: Apache-2.0
 *
 * The store part of kvtier.h: open and close, operations and their requests, listings. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/sha256.h"
#include "base/thread.h"
#include "kvtier.h"
#include "store/private.h"

struct kvt_store {
    pid_t pid;
    struct kvt__counters counters;
    struct kvt__exec *exec;
    struct kvt__store *store;
    int64_t close_timeout_ns; /* longest wait of kvt_store_close() for responses */
    uint32_t chunk_tokens;    /* of the configuration */

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t idle;  /* n_in_progress has become 0; monotonic clock */
    size_t n_in_progress;
    struct task *first_done, **last_done;
    int eventfd;
};

/* An operation and its request. */
struct task {
    struct kvt__store_req req; /* must be the first member */
    struct kvt__space space;
    struct kvt_store *store;
    struct kvt_op *op;
    struct task *next;
};

/* ------------------------------------------------------------------ operations */

static int
check_process(const struct kvt_store *store, const char *call)
{
    if (store->pid != getpid())
        return kvt__fail(ESTALE, "%s: the store was opened by process %ld, before a "
                         "fork; open a store in this process.", call, (long)store->pid);
    return 0;
}

static int
check_op(const struct kvt_op *op)
{
    if (!op || op->struct_size < offsetof(struct kvt_op, tier) || !op->key ||
        ((op->kind == KVT_OP_PUT || op->kind == KVT_OP_GET) && !op->buf && op->bytes))
        return kvt__fail(EINVAL, "kvt_op: struct_size, key and buf must be set.");
    return 0;
}

static void on_done(struct kvt__store_req *req);

/* Compute the identity of a chunk that is stored by its key. */
static void
fill_id(const char *key, struct kvt__id *out)
{
    struct kvt__sha256 sha;
    uint8_t digest[KVT__SHA256_BYTES];

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, "K", 1);
    kvt__sha256_add(&sha, key, strlen(key));
    kvt__sha256_end(&sha, digest);
    memcpy(out->b, digest, sizeof out->b);
}

/* Return 0 if a PUT stores the chunk in at least one of the request's tiers; -EINVAL with a
 * sentence. */
static int
check_puts(const struct kvt__store *store, const struct kvt__store_req *req)
{
    char tiers[256] = "";
    size_t used = 0;

    if (req->only_level
        ? kvt__level_may_put(&store->levels[req->only_level - 1], req->space, req->expires_ns)
        : kvt__store_puts_in_storage(store, req->space, req->expires_ns))
        return 0;
    if (req->expires_ns && kvt__store_puts_in_storage(store, req->space, 0))
        return kvt__fail(EINVAL, "nothing is stored: max_ttl_seconds is set, and storage that "
                         "other hosts share cannot delete chunks in time. Add a local directory, "
                         "or remove max_ttl_seconds.");
    for (size_t i = 0; i < store->n_storages && used < sizeof tiers; i++)
        used += (size_t)snprintf(tiers + used, sizeof tiers - used, "%s%s (%s)",
                                 i ? ", " : "", store->levels[i].location,
                                 store->levels[i].tier->ops->name);
    return kvt__fail(EINVAL, "nothing is stored: store_location is %s, and the tiers "
                     "with storage are %s. Name one of these in store_location, or leave "
                     "it out.",
                     store->store_location, tiers);
}

/* Fill in identity, space and hash of the request's key.  The name of an S3 object has no space and
 * no hash.  0; -EINVAL, ... with a sentence. */
static int
describe_key(struct task *task)
{
    struct kvt__store *store = task->store->store;
    struct kvt__store_req *req = &task->req;

    fill_id(req->by_key, &req->id);
    if (req->is_name)
        return store->traits.any_name
            ? 0 : kvt__fail(EINVAL, "%s: the name is no key text, and other names need a store "
                            "with s3:// alone.", req->by_key);
    int err = kvt__space_from_key(req->by_key, &task->space, &req->hash);
    return err ? err : kvt__store_set_tags(store, &task->space, "");
}

/* Fill in the identity and the tokens of a copied chunk. */
static int
describe_copy(struct task *task)
{
    const struct kvt_op *op = task->op;
    struct kvt__store_req *req = &task->req;

    if (op->kind != KVT_OP_PUT || req->is_name || !(op->found & KVT_FOUND_ID))
        return kvt__fail(EINVAL, "%s: KVT_OP_WITH_ID needs a PUT by key text and the identity "
                         "of a GET.", op->key);
    memcpy(req->id.b, op->id, sizeof req->id.b);
    req->id_of_key = op->found & KVT_FOUND_KEY_ID;
    req->tokens = op->tokens;
    req->is_full = !op->tokens || op->tokens == task->store->chunk_tokens;
    if (op->struct_size >= offsetof(struct kvt_op, expires_ns) && op->found & KVT_FOUND_SHAPE) {
        req->shape = (struct kvt__shape){ .format = op->format, .dtype = op->dtype };
        memcpy(req->shape.dims, op->dims, sizeof op->dims);
    }
    return 0;
}

/* Return op->tier; 0 if the caller's header lacks the field. */
static uint32_t
tier_of(const struct kvt_op *op)
{
    return op->struct_size >= offsetof(struct kvt_op, format) ? op->tier : 0;
}

/* Fill in the request of the operation.  0; -EINVAL, ... with a sentence. */
static int
describe(struct task *task)
{
    static const enum kvt__tier_op_kind ops[] = {
        [KVT_OP_PUT] = KVT__TIER_PUT, [KVT_OP_GET] = KVT__TIER_GET,
        [KVT_OP_STAT] = KVT__TIER_PROBE, [KVT_OP_DELETE] = KVT__TIER_REMOVE,
        [KVT_OP_VERIFY] = KVT__TIER_GET };
    const struct kvt_op *op = task->op;

    if (op->kind < KVT_OP_PUT || op->kind > KVT_OP_VERIFY)
        return kvt__fail(EINVAL, "kvt_op: kind %u does not exist.", op->kind);
    if (tier_of(op) > task->store->store->n_storages)
        return kvt__fail(EINVAL, "kvt_op: the store has no tier %u.", tier_of(op) - 1);
    task->req = (struct kvt__store_req){
        .op = ops[op->kind], .by_key = op->key, .is_name = op->flags & KVT_OP_NAME,
        .listed = op->flags & KVT_OP_LISTED || op->kind == KVT_OP_VERIFY,
        .verifies = op->kind == KVT_OP_VERIFY, .space = &task->space, .is_full = true,
        .id_of_key = true,
        .only_level = tier_of(op), .overwrite = true, .on_done = on_done,
        .expires_ns = op->kind == KVT_OP_PUT ? kvt__store_expiry(task->store->store, 0) : 0,
        .slot = { .payload = op->buf, .bytes = op->bytes },
        .shape = { .format = 4, .dtype = 6, .dims = { (uint32_t)op->bytes } } };
    int err = describe_key(task);
    if (!err && op->flags & KVT_OP_WITH_ID)
        err = describe_copy(task);
    return !err && op->kind == KVT_OP_PUT
        ? check_puts(task->store->store, &task->req) : err;
}

/* Write the result of the request to the operation. */
static void
report(struct task *task)
{
    const struct kvt__store_req *req = &task->req;
    struct kvt_op *op = task->op;

    assert(req->error.code <= 0);
    op->status = req->error.code;
    kvt__op_report(op, &req->found, req->verified);
    if (op->struct_size >= sizeof *op)
        op->expires_ns = op->status ? 0 : req->expires_ns;
    op->why[0] = '\0';
    if (op->status)
        snprintf(op->why, sizeof op->why, "%.*s", (int)sizeof op->why - 1, req->error.why);
}

int
kvt_store_run(struct kvt_store *store, struct kvt_op *op)
{
    struct task task = { .store = store, .op = op };
    int err = check_process(store, "kvt_store_run");

    if (!err)
        err = check_op(op);
    if (err)
        return err;
    kvt__error_set(&task.req.error, describe(&task));
    if (!task.req.error.code)
        kvt__store_run(store->store, &task.req);
    report(&task);
    return kvt__error_raise(&task.req.error);
}

/* ------------------------------------------------------------------ asynchronous */

static void
on_done(struct kvt__store_req *req)
{
    struct task *task = (struct task *)req;
    struct kvt_store *s = task->store;
    uint64_t one = 1;

    report(task);
    task->next = NULL;
    pthread_mutex_lock(&s->lock);
    assert(s->n_in_progress);
    *s->last_done = task;
    s->last_done = &task->next;
    if (write(s->eventfd, &one, sizeof one) < 0)
        one = 0; /* the counter is full, so the eventfd is readable */
    if (!--s->n_in_progress)
        pthread_cond_signal(&s->idle);
    pthread_mutex_unlock(&s->lock);
}

/* Submit the request of a task, or end the task with an error. */
static void
start(struct task *task)
{
    int err = describe(task);

    kvt__error_set(&task->req.error, err);
    if (err)
        on_done(&task->req);
    else
        kvt__store_submit(task->store->store, &task->req);
}

int
kvt_store_submit(struct kvt_store *store, struct kvt_op *const *ops, size_t n)
{
    struct task *tasks = NULL;
    int err = check_process(store, "kvt_store_submit");

    for (size_t i = 0; !err && i < n; i++)
        err = check_op(ops[i]);
    for (size_t i = 0; !err && i < n; i++) {
        struct task *task = malloc(sizeof *task);

        if (!task)
            err = kvt__fail(ENOMEM, "kvt_store_submit");
        else
            *task = (struct task){ .store = store, .op = ops[n - 1 - i], .next = tasks };
        tasks = task ? task : tasks;
    }
    if (!err) { /* in a forked child, err is set: the lock may be held by a lost thread */
        pthread_mutex_lock(&store->lock);
        store->n_in_progress += n;
        pthread_mutex_unlock(&store->lock);
    }
    while (tasks) { /* start all tasks, or free all tasks */
        struct task *task = tasks;

        tasks = task->next;
        if (err)
            free(task);
        else
            start(task);
    }
    return err;
}

size_t
kvt_store_poll(struct kvt_store *store, struct kvt_op **done, size_t max)
{
    uint64_t ignored;
    size_t n = 0;

    pthread_mutex_lock(&store->lock);
    while (n < max && store->first_done) {
        struct task *task = store->first_done;

        store->first_done = task->next;
        done[n++] = task->op;
        free(task);
    }
    if (!store->first_done) {
        store->last_done = &store->first_done;
        (void)!read(store->eventfd, &ignored, sizeof ignored); /* -EAGAIN: the counter was 0 */
    }
    pthread_mutex_unlock(&store->lock);
    return n;
}

int
kvt_store_eventfd(const struct kvt_store *store)
{
    return store->eventfd;
}

/* ------------------------------------------------------------------ open and close */

/* Wait until no operation is in progress, at most until until_ns.  Return false if operations are
 * still in progress. */
static bool
wait_until_idle(struct kvt_store *store, int64_t until_ns)
{
    struct timespec until = kvt__timespec(until_ns);
    int err = 0;

    pthread_mutex_lock(&store->lock);
    while (store->n_in_progress && err != ETIMEDOUT)
        err = pthread_cond_timedwait(&store->idle, &store->lock, &until);
    bool idle = !store->n_in_progress;
    pthread_mutex_unlock(&store->lock);
    return idle;
}

/* Wait for all operations.  After close_timeout_ns, cancel the operations of tiers that can cancel,
 * and wait for the others. */
static void
end_requests(struct kvt_store *store)
{
    if (wait_until_idle(store, kvt__now_ns() + store->close_timeout_ns))
        return;
    kvt__store_stop(store->store);
    (void)wait_until_idle(store, INT64_MAX);
}

void
kvt_store_close(struct kvt_store *store)
{
    struct kvt_op *dropped;

    if (!store || store->pid != getpid())
        return;
    end_requests(store);
    assert(!store->n_in_progress);
    kvt__exec_close(store->exec);
    while (store->eventfd >= 0 && kvt_store_poll(store, &dropped, 1))
        continue;
    kvt__store_close(store->store);
    if (store->eventfd >= 0)
        close(store->eventfd);
    pthread_cond_destroy(&store->idle);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

int
kvt_store_open(const struct kvt_config *config, struct kvt_store **out)
{
    struct kvt_store *s = calloc(1, sizeof *s);
    int err = 0;

    if (!s)
        return kvt__fail(ENOMEM, "kvt_store_open");
    s->pid = getpid();
    s->close_timeout_ns = config->blocking_timeout_secs * KVT__NS_PER_S;
    s->chunk_tokens = (uint32_t)config->chunk_size;
    pthread_mutex_init(&s->lock, NULL);
    kvt__cond_init(&s->idle);
    s->last_done = &s->first_done;
    s->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->eventfd < 0)
        err = kvt__fail(errno, "kvt_store_open: eventfd");
    if (!err)
        err = kvt__exec_open((size_t)(config->disk_io_threads > 0
                                      ? config->disk_io_threads : 1), &s->exec);
    if (!err) {
        struct kvt__tier_params params = { .config = config, .exec = s->exec,
                                           .counters = &s->counters, .caller_reports = true,
                                           .only_existing = true };
        err = kvt__store_open(&params, &s->store);
    }
    if (!err && !s->store->traits.n_tiers)
        err = config->shared_cpu
            ? kvt__fail(ENOENT, "shared_cpu: there is no shared host memory in %s; an engine "
                        "makes the memory at its start.", config->shared_cpu_path)
            : kvt__fail(EINVAL, "no tier with storage is configured; set remote_url (for "
                        "example fs:///var/cache/kvtier), remote_storage_plugins, "
                        "local_disk or gds_path.");
    if (err) {
        kvt_store_close(s);
        return err;
    }
    *out = s;
    return 0;
}

struct listing {
    const char *tier;
    uint32_t tier_index;
    const char *prefix;
    int (*fn)(void *ctx, const struct kvt_listed *listed);
    void *ctx;
    bool stop;
};

static void
list_one(void *ctx, const char *key, bool opaque, uint64_t stored_bytes, int64_t mtime_ns,
         bool expires)
{
    struct listing *l = ctx;
    struct kvt_listed listed = KVT_INIT(struct kvt_listed);

    (void)opaque;
    (void)expires;
    if (l->stop || strncmp(key, l->prefix, strlen(l->prefix)))
        return;
    listed.key = key;
    listed.tier = l->tier;
    listed.tier_index = l->tier_index;
    listed.stored_bytes = stored_bytes;
    listed.mtime_ns = mtime_ns;
    l->stop = l->fn(l->ctx, &listed) != 0;
}

/* Copy the prefix with `slash` in place of each '/', as the tier lists keys. */
static void
translate_prefix(const char *prefix, char slash, char *out)
{
    strcpy(out, prefix);
    while ((out = strchr(out, '/')) && slash != '/')
        *out = slash;
}

int
kvt_store_list(struct kvt_store *store, const char *prefix,
               int (*fn)(void *ctx, const struct kvt_listed *listed), void *ctx)
{
    char *translated = malloc(strlen(prefix) + 1);
    struct listing l = { .prefix = translated, .fn = fn, .ctx = ctx };
    int err = check_process(store, "kvt_store_list");

    if (!err && !translated)
        err = kvt__fail(ENOMEM, "kvt_store_list");
    for (size_t i = 0; !err && !l.stop && i < store->store->n_storages; i++) {
        struct kvt__tier *tier = store->store->levels[i].tier;

        l.tier = tier->ops->name;
        l.tier_index = (uint32_t)i;
        translate_prefix(prefix, tier->slash, translated);
        err = tier->ops->list(tier, translated, list_one, &l);
    }
    free(translated);
    return err;
}

int
kvt_store_tier(const struct kvt_store *store, size_t i, struct kvt_tier_info *out)
{
    struct kvt_tier_info info = KVT_INIT(struct kvt_tier_info);
    struct kvt__table_totals totals;
    size_t size = out->struct_size;

    if (i >= store->store->n_storages)
        return kvt__fail(ENOENT, "the store has no tier %zu.", i);
    const struct kvt__level *level = &store->store->levels[i];
    kvt__table_get_totals(level->index, &totals);
    snprintf(info.tier, sizeof info.tier, "%s", level->tier->ops->name);
    snprintf(info.url, sizeof info.url, "%s", level->url);
    info.n_chunks = totals.n_entries;
    info.used_bytes = totals.used_bytes;
    info.limit_bytes = totals.limit_bytes;
    info.n_entries = totals.max_entries;
    info.index_shared = kvt__table_is_shared(level->index);
    info.takes_puts = !level->no_put && !level->tier->in_memory;
    if (level->choice.is_measured) {
        struct kvt__table_rates rates = kvt__table_get_rates(level->index);

        snprintf(info.serde, sizeof info.serde, "auto");
        kvt__choice_text(&rates, info.serde_reason, sizeof info.serde_reason);
    } else {
        snprintf(info.serde, sizeof info.serde, "%s", kvt__serde_name(level->serde));
    }
    struct kvt__table_speed speed = kvt__table_get_speed(level->index);

    info.load_latency_ns = speed.latency_ns;
    info.load_bytes_per_s = level->tier->in_memory ? 0 : speed.bytes_per_s;
    level->tier->ops->info(level->tier, &info);
    memcpy(out, &info, size < sizeof info ? size : sizeof info);
    out->struct_size = size;
    return 0;
}

/* Return the shortest prompt whose load is faster than the computation; 0: none. */
static uint64_t
break_even(const struct kvt__table_speed *speed, const struct kvt__table_prefill *prefill)
{
    if (!speed->bytes_per_s)
        return 0;
    double latency = (double)speed->latency_ns, p = prefill->ns_per_position;
    double gain = prefill->ns_per_token - (double)prefill->bytes_per_token * 1e9 /
                                              (double)speed->bytes_per_s;
    /* latency = gain * n + p * n * n / 2; each form is exact where the terms do not cancel. */
    double root = sqrt(gain * gain + 2 * p * latency);
    double n = gain > 0 ? 2 * latency / (gain + root) : p > 0 ? (root - gain) / p : INFINITY;

    return n < 1e12 ? (uint64_t)ceil(fmax(n, 1)) : 0;
}

int
kvt_store_prefill(const struct kvt_store *store, size_t i, size_t j, struct kvt_prefill_info *out)
{
    size_t size = out->struct_size;

    for (unsigned place = 0; i < store->store->n_storages && place < KVT__TABLE_PREFILLS; place++) {
        const struct kvt__table *index = kvt__level_index(&store->store->levels[i]);
        struct kvt__table_prefill prefill = kvt__table_get_prefill(index, place);
        struct kvt__table_speed speed = kvt__table_get_speed(index);

        if (!prefill.key || j--)
            continue;
        struct kvt_prefill_info info = {
            .struct_size = size, .ns_per_token = prefill.ns_per_token,
            .ns_per_position = prefill.ns_per_position,
            .bytes_per_token = prefill.bytes_per_token,
            .break_even_tokens = break_even(&speed, &prefill) };

        memcpy(info.model, prefill.model, sizeof info.model);
        memcpy(out, &info, size < sizeof info ? size : sizeof info);
        return 0;
    }
    return kvt__fail(ENOENT, "the index of tier %zu has no more prefill times.", i);
}

int
kvt_store_clear(struct kvt_store *store)
{
    int err = check_process(store, "kvt_store_clear");
    int result = -ENOENT;

    for (size_t i = 0; !err && i < store->store->n_storages; i++) {
        struct kvt__tier *tier = store->store->levels[i].tier;

        if (tier->in_memory)
            err = result = tier->ops->clear(tier);
    }
    return err ? err : result ? kvt__fail(ENOENT, "there is no shared host memory") : 0;
}
