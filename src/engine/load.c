/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading chunks into blocks.
 *
 * A load is a list of items, one a chunk.  An item waits for a slot, is read by
 * the store into it and verified there (or shares the slot of a chunk that is in
 * host memory), and is then copied into its blocks, unless the load was closed
 * meanwhile (deadline or cancel).  A load is done when it is
 * closed and no copy runs, or when all items have ended; what is still being read
 * then keeps its slot until the storage answers.
 *
 *      waiting ──slot──► reading ──► copying ──► ended
 *         └──── closed, or the prefix broke before it ────┘
 *
 * engine->loads.lock guards the queues of items that wait and of loads done;
 * load->lock what changes in a load.  The first may be taken while the second is
 * held. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/private.h"

#define PENDING 1 /* no errno is positive */

struct kvt__load_item {
    struct kvt__store_req req;
    struct kvt_load *load;
    struct kvt__load_item *next_waiting;
    const int32_t *blocks;
    uint32_t io;
    uint32_t chunk;
    int status; /* PENDING until it has ended */
};

/* One group_io, as far as it is needed. */
struct part {
    uint32_t group;
    uint32_t n_chunks;
    _Atomic uint32_t broken_at; /* the first chunk that failed */
    size_t first_item;
};

struct kvt_load {
    struct kvt_engine *engine;
    uint64_t cookie;
    struct kvt__timer deadline;
    atomic_int refs; /* the caller's, and one for each item not ended */

    pthread_mutex_t lock;
    atomic_bool closed; /* nothing may be copied any more */
    bool done;         /* handed to kvt_engine_poll() */
    int closed_status; /* of items not ended when it was closed */
    size_t n_copying;
    size_t n_left;
    uint64_t bytes;
    struct kvt_load *next_done;

    size_t n_parts;
    struct part *parts;
    int32_t *blocks;
    size_t n_items;
    struct kvt__load_item items[];
};

static void
unref(struct kvt_load *load)
{
    if (atomic_fetch_sub(&load->refs, 1) != 1)
        return;
    pthread_mutex_destroy(&load->lock);
    free(load->parts);
    free(load->blocks);
    free(load);
}

/* ---------------------------------------------------------------------- ending */

/* Hand the load to kvt_engine_poll(); load->lock is held. */
static void
finish_locked(struct kvt_load *load)
{
    struct kvt_engine *e = load->engine;
    uint64_t one = 1;

    load->done = true;
    load->next_done = NULL;
    pthread_mutex_lock(&e->loads.lock);
    *e->loads.last_done = load;
    e->loads.last_done = &load->next_done;
    pthread_mutex_unlock(&e->loads.lock);
    if (write(e->loads.eventfd, &one, sizeof one) < 0)
        return; /* full: it is readable all the same */
}

static void
finish_if_due_locked(struct kvt_load *load)
{
    if (!load->done && !load->n_copying && (load->closed || !load->n_left))
        finish_locked(load);
}

static void
close_load(struct kvt_load *load, int status)
{
    pthread_mutex_lock(&load->lock);
    if (!load->closed && !load->done) {
        load->closed = true;
        load->closed_status = status;
    }
    finish_if_due_locked(load);
    pthread_mutex_unlock(&load->lock);
}

static void
deadline_passed(struct kvt__timer *timer)
{
    struct kvt_load *load = (struct kvt_load *)
        ((char *)timer - offsetof(struct kvt_load, deadline));

    kvt__store_look_for_hangs(load->engine->store, load->engine->load_timeout_ns / 2);
    close_load(load, -ETIMEDOUT);
    unref(load);
}

static void
count(struct kvt_engine *e, int status)
{
    switch (status) {
    case 0:
        kvt__count(&e->counters, KVT__N_load_chunks, 1);
        break;
    case -ENOENT:
        kvt__count(&e->counters, KVT__N_load_missing, 1);
        break;
    case -EBADMSG:
        kvt__count(&e->counters, KVT__N_load_corrupt, 1);
        break;
    case -ETIMEDOUT:
    case -ECANCELED:
        kvt__count(&e->counters, KVT__N_load_late, 1);
        break;
    default:
        kvt__count(&e->counters, KVT__N_load_failed, 1);
        break;
    }
}

/* The item needs nothing any more. */
static void
end_item(struct kvt__load_item *item, int status)
{
    struct kvt_load *load = item->load;
    struct kvt_engine *e = load->engine;
    struct part *part = &load->parts[item->io];

    count(e, status);
    pthread_mutex_lock(&load->lock);
    if (!load->closed)
        item->status = status;
    if (status && item->chunk < part->broken_at)
        part->broken_at = item->chunk;
    load->n_left--;
    finish_if_due_locked(load);
    bool last = !load->n_left;
    pthread_mutex_unlock(&load->lock);
    if (last && kvt__timer_clear(e->exec, &load->deadline))
        unref(load);
    unref(load);
    pthread_mutex_lock(&e->loads.lock);
    if (!--e->loads.n_items)
        pthread_cond_broadcast(&e->loads.idle);
    pthread_mutex_unlock(&e->loads.lock);
}

/* --------------------------------------------------------------------- reading */

/* What kvt_load_status() may say: all else that storage answers is -EIO. */
static int
load_status(int status)
{
    switch (status) {
    case 0:
    case -ENOENT:
    case -EBADMSG:
    case -ECANCELED:
        return status;
    default:
        return -EIO;
    }
}

/* May this item's bytes be copied?  Then the load is not done before end_copy(). */
static bool
begin_copy(struct kvt_load *load)
{
    pthread_mutex_lock(&load->lock);
    bool open = !load->closed;
    if (open)
        load->n_copying++;
    pthread_mutex_unlock(&load->lock);
    return open;
}

static void
end_copy(struct kvt_load *load, struct kvt__load_item *item)
{
    pthread_mutex_lock(&load->lock);
    load->n_copying--;
    item->status = 0; /* also when it was closed during the copy */
    finish_if_due_locked(load);
    pthread_mutex_unlock(&load->lock);
}

/* Where the chunk came from. */
static void
count_bytes(struct kvt__load_item *item)
{
    const struct kvt__store_req *req = &item->req;
    struct kvt_load *load = item->load;
    struct kvt__counters *counters = &load->engine->counters;

    if (!req->verified)
        kvt__count(counters, KVT__N_unverified_chunks, 1);
    if (req->borrowed) {
        kvt__count(counters, KVT__N_memory_hits, 1);
        return;
    }
    kvt__count(counters, KVT__N_load_bytes, req->slot.bytes);
    pthread_mutex_lock(&load->lock);
    load->bytes += req->slot.bytes;
    pthread_mutex_unlock(&load->lock);
}

static void
was_read(struct kvt__store_req *req)
{
    struct kvt__load_item *item = (struct kvt__load_item *)req;
    struct kvt_load *load = item->load;
    struct kvt_engine *e = load->engine;
    int status = load_status(req->status);

    if (!status) {
        count_bytes(item);
        if (begin_copy(load)) {
            kvt__scatter(&e->groups[load->parts[item->io].group].view, item->blocks,
                         req->tokens, req->slot.payload);
            end_copy(load, item);
        } else {
            status = -ECANCELED;
        }
    }
    kvt__pool_release(e->pool, &req->slot);
    kvt__count_down(&e->counters, KVT__N_loads_pending, 1);
    if (!req->borrowed) {
        pthread_mutex_lock(&e->loads.lock);
        e->loads.n_reading--;
        pthread_mutex_unlock(&e->loads.lock);
    }
    end_item(item, status);
    kvt__loads_pump(e);
}

/* Whether an item that is not being read yet is still to be read. */
static bool
wanted(const struct kvt__store_req *req)
{
    const struct kvt__load_item *item = (const struct kvt__load_item *)req;
    const struct kvt_load *load = item->load;

    return !atomic_load(&load->engine->loads.stopping) &&
           !atomic_load(&load->closed) &&
           item->chunk <= atomic_load(&load->parts[item->io].broken_at);
}

/* Find memory for an item: what holds its chunk already, or a slot to read it into;
 * loads.lock is held. */
static bool
find_slot_locked(struct kvt_engine *e, struct kvt__load_item *item)
{
    if (kvt__store_borrow(e->store, &item->req))
        return true;
    if (!kvt__store_lend(e->store, item->req.bytes, &item->req.slot) &&
        !kvt__pool_acquire(e->pool, item->req.bytes, 0, &item->req.slot))
        return false;
    e->loads.n_reading++;
    return true;
}

/* Take the first waiting item, if it has a slot or needs none.  short_of: bytes that it
 * lacks and no read under way will give back; 0: none. */
static struct kvt__load_item *
take_waiting(struct kvt_engine *e, uint64_t *short_of)
{
    *short_of = 0;
    pthread_mutex_lock(&e->loads.lock);
    struct kvt__load_item *item = e->loads.first_waiting;
    if (item && wanted(&item->req) && !find_slot_locked(e, item)) {
        *short_of = e->loads.n_reading ? 0 : item->req.bytes;
        item = NULL;
    }
    if (item) {
        e->loads.first_waiting = item->next_waiting;
        if (!e->loads.first_waiting)
            e->loads.last_waiting = &e->loads.first_waiting;
    }
    pthread_mutex_unlock(&e->loads.lock);
    return item;
}

void
kvt__loads_pump(struct kvt_engine *engine)
{
    struct kvt__load_item *item;
    uint64_t short_of;

    for (;;) {
        item = take_waiting(engine, &short_of);
        if (!item && (!short_of || !kvt__store_reclaim(engine->store, short_of)))
            break;
        if (!item)
            continue;
        if (item->req.slot.payload) {
            kvt__count(&engine->counters, KVT__N_loads_pending, 1);
            kvt__store_submit(engine->store, &item->req);
        } else {
            end_item(item, -ECANCELED);
        }
    }
    kvt__prefetches_pump(engine);
}

/* -------------------------------------------------------------------- starting */

static size_t
total_blocks(const struct kvt_group_io *ios, size_t n_ios)
{
    size_t n = 0;

    for (size_t i = 0; i < n_ios; i++)
        n += ios[i].n_blocks;
    return n;
}

void
kvt__load_request(const struct kvt_engine *engine, const struct kvt__keyspace *k,
                  uint32_t group, const struct kvt_chunk *chunk,
                  struct kvt__store_req *req)
{
    struct kvt__prefix prefix;

    req->op = KVT__STORE_GET;
    req->space = &k->space;
    req->hash = kvt__chunk_hash(engine, chunk);
    req->tokens = chunk->n_tokens;
    /* After a reset what was there before is no hit, and what says nothing may be that. */
    req->own_only = chunk->flags & KVT_CHUNK_OWN || k->epoch;
    req->whole = chunk->n_tokens == engine->chunk_tokens;
    req->bytes = kvt__chunk_bytes(&engine->groups[group].view, chunk->n_tokens);
    memcpy(prefix.b, chunk->prefix, sizeof prefix.b);
    kvt__id_make(k->digest, &prefix, &req->id);
}

/* Fill in parts and items.  0 or -errno with a sentence. */
static int
describe(struct kvt_load *load, const struct kvt_group_io *ios)
{
    struct kvt_engine *e = load->engine;
    struct kvt__load_item *item = load->items;
    int32_t *blocks = load->blocks;

    for (size_t i = 0; i < load->n_parts; i++) {
        const struct kvt_group_io *io = &ios[i];
        struct kvt__tagset *tagset;
        int err = kvt__tagset(e, io->tags ? io->tags : "", &tagset);

        if (err)
            return err;
        const struct kvt__keyspace *k = kvt__keyspace(e, tagset, e->rank, io->group);
        if (!k)
            return kvt__fail(ENOMEM, "kvt_engine_load");
        load->parts[i].group = io->group;
        load->parts[i].n_chunks = io->n_chunks;
        load->parts[i].broken_at = UINT32_MAX;
        load->parts[i].first_item = (size_t)(item - load->items);
        if (io->n_blocks)
            memcpy(blocks, io->blocks, io->n_blocks * sizeof *blocks);
        for (uint32_t c = 0; c < io->n_chunks; c++, item++) {
            item->status = PENDING;
            item->req = (struct kvt__store_req){ .wanted = wanted, .done = was_read };
            kvt__load_request(e, k, io->group, &io->chunks[c], &item->req);
            item->load = load;
            item->io = (uint32_t)i;
            item->chunk = c;
            item->blocks = blocks;
            blocks += kvt__group_blocks(&e->groups[io->group], io->chunks[c].n_tokens);
        }
    }
    return 0;
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
    unref(load);
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
    err = describe(load, ios);
    if (err) {
        unref(load);
        return err;
    }
    load->cookie = cookie;
    *out = load;
    if (!load->n_items) {
        close_load(load, 0);
        return 0;
    }
    load->refs += (int)load->n_items + 1; /* and the timer's */
    load->deadline.run = deadline_passed;
    load->deadline.at_ns = kvt__now_ns() + engine->load_timeout_ns;
    kvt__timer_set(engine->exec, &load->deadline);
    queue_items(load);
    kvt__loads_pump(engine);
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
    close_load(load, -ECANCELED);
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
    return status == PENDING ? load->closed_status : status;
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
        unref(load);
}

void
kvt__loads_stop(struct kvt_engine *engine)
{
    if (!engine->pool)
        return;
    atomic_store(&engine->loads.stopping, true);
    kvt__loads_pump(engine);
    pthread_mutex_lock(&engine->loads.lock);
    while (engine->loads.n_items)
        pthread_cond_wait(&engine->loads.idle, &engine->loads.lock);
    pthread_mutex_unlock(&engine->loads.lock);
    while (engine->loads.first_done) {
        struct kvt_load *load = engine->loads.first_done;
        engine->loads.first_done = load->next_done;
        unref(load);
    }
}
