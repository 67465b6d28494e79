/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoded chunks: a PUT encodes the chunk into memory of its own before the claim, and a GET reads
 * the encoded chunk into the slot and decodes the chunk there.  Tiers see only the encoded bytes.
 *
 * The gate limits the threads in codecs, because codecs compete with the engine for CPUs.  Loads
 * pass the gate before stores.
 *
 * A thread encodes into scratch memory, as large as a chunk.  A tier with blocking calls stores the
 * chunk from the scratch memory.  For another tier the encoded chunk moves to a slot of the pool,
 * because no thread waits for the storage; without room in the pool, the chunk is dropped.  So each
 * thread of the executor has at most one scratch memory. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "store/private.h"

/* Memory for an encoded chunk. */
struct kvt__scratch {
    struct kvt__scratch *next;
    unsigned char *memory;
    size_t bytes;
};

struct kvt__codec_gate {
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    unsigned n_free;      /* threads that may enter */
    unsigned n_loads;     /* loads that wait */
    struct kvt__scratch *free; /* memory that no request uses */
    struct kvt__pool *pool; /* for encoded chunks; NULL: none; constant after the first request */
    size_t keep_free;       /* bytes of the pool that stay free */
};

/* ------------------------------------------------------------------------- gate */

int
kvt__gate_open(struct kvt__store *store, int64_t codec_threads)
{
    struct kvt__codec_gate *gate = calloc(1, sizeof *gate);
    cpu_set_t cpus;
    int quarter = sched_getaffinity(0, sizeof cpus, &cpus) ? 1 : CPU_COUNT(&cpus) / 4;

    if (!gate)
        return kvt__fail(ENOMEM, "store: open");
    pthread_mutex_init(&gate->lock, NULL);
    pthread_cond_init(&gate->changed, NULL);
    gate->n_free = codec_threads ? (unsigned)codec_threads : quarter > 0 ? (unsigned)quarter : 1;
    store->codec_threads = gate->n_free;
    store->gate = gate;
    return 0;
}

void
kvt__gate_close(struct kvt__codec_gate *gate)
{
    if (!gate)
        return;
    for (struct kvt__scratch *next, *it = gate->free; it; it = next) {
        next = it->next;
        free(it->memory);
        free(it);
    }
    pthread_cond_destroy(&gate->changed);
    pthread_mutex_destroy(&gate->lock);
    free(gate);
}

void
kvt__store_use_pool(struct kvt__store *store, struct kvt__pool *pool, size_t keep_free)
{
    if (!store->gate)
        return;
    store->gate->pool = pool;
    store->gate->keep_free = keep_free;
}

static void
enter(struct kvt__codec_gate *gate, bool is_load)
{
    pthread_mutex_lock(&gate->lock);
    gate->n_loads += is_load;
    while (!gate->n_free || (!is_load && gate->n_loads))
        pthread_cond_wait(&gate->changed, &gate->lock);
    gate->n_loads -= is_load;
    gate->n_free--;
    pthread_mutex_unlock(&gate->lock);
}

static void
leave(struct kvt__codec_gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->n_free++;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

/* ---------------------------------------------------------------------- scratch */

/* Get memory of at least `bytes`.  NULL with a sentence: there is no memory. */
static struct kvt__scratch *
take_scratch(struct kvt__codec_gate *gate, size_t bytes)
{
    pthread_mutex_lock(&gate->lock);
    struct kvt__scratch *scratch = gate->free;
    if (scratch)
        gate->free = scratch->next;
    pthread_mutex_unlock(&gate->lock);
    if (!scratch)
        scratch = calloc(1, sizeof *scratch);
    if (scratch && scratch->bytes < bytes) {
        free(scratch->memory);
        scratch->bytes = kvt__round_up(bytes, 4096);
        scratch->memory = aligned_alloc(4096, scratch->bytes);
    }
    if (scratch && scratch->memory)
        return scratch;
    free(scratch);
    kvt__fail(ENOMEM, "allocate %zu bytes for an encoded chunk", bytes);
    return NULL;
}

static void
return_scratch(struct kvt__codec_gate *gate, struct kvt__scratch *scratch)
{
    pthread_mutex_lock(&gate->lock);
    scratch->next = gate->free;
    gate->free = scratch;
    pthread_mutex_unlock(&gate->lock);
}

/* ------------------------------------------------------------------------- put */

/* Acquire a slot of the pool for an encoded chunk; evict a chunk from host memory for the slot. */
static bool
acquire_slot(struct kvt__store *store, size_t bytes, struct kvt__slot *out)
{
    struct kvt__codec_gate *gate = store->gate;

    return gate->pool &&
           (kvt__pool_acquire(gate->pool, bytes, gate->keep_free, out) ||
            (kvt__store_evict_memory(store, bytes) &&
             kvt__pool_acquire(gate->pool, bytes, gate->keep_free, out)));
}

/* Set req->staging to the n bytes of an encoded chunk at scratch->memory + at.  0; -ENOSPC with a
 * sentence: the pool has no room. */
static int
keep_encoded(struct kvt__level *level, struct kvt__store_req *req, struct kvt__scratch *scratch,
             size_t at, size_t n)
{
    struct kvt__store *store = level->store;
    int err = 0;

    if (level->tier->ops->run && level->tier->exec == store->exec) {
        req->scratch = scratch;
        req->staging = (struct kvt__slot){ .payload = scratch->memory + at, .bytes = n };
        return 0;
    }
    if (acquire_slot(store, n, &req->staging))
        memcpy(req->staging.payload, scratch->memory + at, n);
    else
        err = kvt__fail(ENOSPC, "%s: no memory for an encoded chunk is free, because %s does not "
                        "store the chunks as fast as the engine; raise max_local_cpu_size.",
                        level->tier->ops->name, level->url);
    return_scratch(store->gate, scratch);
    return err;
}

int
kvt__level_encode(struct kvt__level *level, struct kvt__store_req *req)
{
    struct kvt__codec_gate *gate = level->store->gate;
    const struct kvt__chunk_shape *layout = &req->layout;
    size_t before = KVT__SLOT_MARGIN + level->tier->phase;

    assert(req->op == KVT__TIER_PUT && !req->staging.payload && level->serde);
    if (!kvt__chunk_shape_is_valid(layout) || kvt__chunk_shape_bytes(layout) != req->slot.bytes)
        return -ENOTSUP;
    struct kvt__scratch *scratch = take_scratch(gate, before + KVT__SLOT_MARGIN +
                                                kvt__frame_room(level->serde, layout));
    if (!scratch)
        return -ENOMEM;
    enter(gate, false);
    int64_t begin = kvt__now_ns();
    size_t n = kvt__frame_encode(level->serde, layout, &req->id, req->slot.payload, req->crc,
                                 scratch->memory + before);
    kvt__choice_count_codec(level->owner, KVT__PAUSE_WRITES, req->slot.bytes,
                            n ? n : req->slot.bytes, kvt__now_ns() - begin);
    leave(gate);
    if (!n) {
        return_scratch(gate, scratch);
        return -ENOTSUP;
    }
    return keep_encoded(level, req, scratch, before, n);
}

void
kvt__encoded_release(struct kvt__store_req *req)
{
    if (!req->staging.payload || req->by_key)
        return;
    if (req->scratch)
        return_scratch(req->store->gate, req->scratch);
    else
        kvt__pool_release(req->store->gate->pool, &req->staging);
    req->scratch = NULL;
    req->staging = (struct kvt__slot){ 0 };
}

/* ------------------------------------------------------------------------- get */

/* Compare the header with the request.  0; -EBADMSG with a sentence. */
static int
check_frame(const struct kvt__level *level, const struct kvt__store_req *req,
            const struct kvt__frame *frame)
{
    if (frame->serde != level->serde)
        return kvt__fail(EBADMSG, "the chunk is encoded as %s.", kvt__serde_name(frame->serde));
    if (!kvt__store_accepts_id(level->store, &req->id, &frame->id))
        return kvt__fail(EBADMSG, "the encoded chunk is another chunk.");
    if (kvt__chunk_shape_bytes(&frame->shape) != req->bytes)
        return kvt__fail(EBADMSG, "the decoded chunk has another length.");
    return 0;
}

/* Decode from the scratch into the slot; the thread is in the gate.  0; -ENOENT, -EBADMSG with a
 * sentence, as kvt__level_decode(). */
static int
decode(const struct kvt__level *level, struct kvt__store_req *req, const unsigned char *in,
       size_t n, uint32_t *crc)
{
    struct kvt__frame frame;
    int err = kvt__frame_parse(in, n, true, &frame);

    if (err && kvt__frame_is_unknown(in, n)) /* intact, by its checksum */
        return kvt__fail(ENOENT, "%s: another version of kvtier encoded the chunk.",
                         req->object.key);
    if (!err)
        err = check_frame(level, req, &frame);
    if (err)
        return err;
    *crc = frame.crc;
    return kvt__frame_decode(&frame, req->slot.payload)
        ? 0 : kvt__fail(EBADMSG, "the encoded chunk cannot be decoded.");
}

int
kvt__level_decode(struct kvt__level *level, struct kvt__store_req *req, size_t n, uint32_t *crc)
{
    struct kvt__codec_gate *gate = level->store->gate;
    int err = -ENOMEM;

    assert(req->op == KVT__TIER_GET && n < req->bytes && req->slot.bytes == req->bytes);
    enter(gate, !req->is_prefetch);
    if (req->is_wanted && !req->is_wanted(req)) {
        leave(gate);
        return kvt__fail(ECANCELED, "%s", req->object.key);
    }
    struct kvt__scratch *scratch = take_scratch(gate, n);
    if (scratch) {
        int64_t begin = kvt__now_ns();

        memcpy(scratch->memory, req->slot.payload, n);
        err = decode(level, req, scratch->memory, n, crc);
        kvt__choice_count_codec(level->owner, KVT__PAUSE_READS, req->bytes, n,
                                kvt__now_ns() - begin);
        return_scratch(gate, scratch);
    }
    leave(gate);
    return err;
}
