/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies to and from the shared memory, and slots that are chunks of the shared memory.  Before a
 * PUT the store has claimed the entry; a GET and an acquired chunk pin the place. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tier/shared_cpu/shared_cpu.h"

/* Pins with higher numbers are reserved for threads that copy chunks. */
#define MAX_ACQUIRED ((int)SC_N_PINS - 256)

static struct sc_tier *
of(const struct kvt__tier *tier)
{
    return (struct sc_tier *)tier;
}

struct sc_opened *
kvt__sc_opened(const struct kvt__tier *tier, const struct kvt__table *index)
{
    struct sc_opened *o = atomic_load(&of(tier)->opened);

    while (o && o->memory.table != index)
        o = o->next;
    return o;
}

/* ------------------------------------------------------------------- operations */

static int
put(struct sc_tier *t, struct sc_memory *m, const struct kvt__tier_op *op)
{
    struct sc_evicted evicted;
    int err = kvt__sc_acquire_place(m, op->object->entry, op->slot.bytes, &evicted);

    if (t->counters) {
        kvt__count(t->counters, KVT__N_evicted_chunks, evicted.n);
        kvt__count(t->counters, KVT__N_evicted_bytes, evicted.bytes);
    }
    if (err)
        return err;
    unsigned char *payload = kvt__sc_payload(m, op->object->entry, op->slot.bytes);
    if (!payload)
        return kvt__fail(EIO, "shared_cpu: the memory is corrupt");
    memcpy(payload, op->slot.payload, op->slot.bytes);
    return 0;
}

/* Describe a chunk with the fields of the chunk's entry.  0; -ENOENT with a sentence: the entry has
 * changed. */
static int
probe(const struct sc_memory *m, struct kvt__tier_op *op)
{
    const struct kvt__object *object = op->object;
    struct kvt__record record;

    if (!kvt__table_read(m->table, object->entry, &record) || record.word != object->word)
        return kvt__fail(ENOENT, "shared_cpu: chunk %s", object->key);
    op->found = (struct kvt__found){ .payload_bytes = record.bytes,
                                     .stored_bytes = record.bytes, .has_id = true,
                                     .id = record.id, .has_read_crc = true };
    return 0;
}

/* Copy a chunk into the operation's slot.  The bytes of a READY entry are complete, because a
 * process that is killed during a copy leaves a CLAIMED entry.  So the payload needs no
 * checksum. */
static int
get(const struct sc_memory *m, struct kvt__tier_op *op)
{
    const struct kvt__object *object = op->object;
    int err = probe(m, op);

    if (err)
        return err;
    int pin = kvt__sc_pin(m, object->entry, object->word);
    if (pin == -ENOENT)
        return kvt__fail(ENOENT, "shared_cpu: chunk %s", object->key);
    if (pin < 0) /* -EAGAIN, because after -ENOENT the store would delete the entry */
        return kvt__fail(EAGAIN, "shared_cpu: chunk %s: this process reads too many chunks",
                         object->key);
    const unsigned char *payload = kvt__sc_pinned_payload(m, (unsigned)pin, op->slot.bytes);
    if (payload && op->found.payload_bytes == op->slot.bytes)
        memcpy(op->slot.payload, payload, op->slot.bytes);
    else
        err = kvt__fail(EBADMSG, "shared_cpu: chunk %s has another size", object->key);
    kvt__sc_unpin(m, (unsigned)pin);
    return err;
}

int
kvt__sc_run(struct kvt__tier *tier, struct kvt__tier_op *op)
{
    if (op->kind == KVT__TIER_REMOVE) /* the store frees the entry, which deletes the chunk */
        return 0;
    struct sc_opened *o = kvt__sc_opened(tier, op->object->index);
    /* The store has passed the object's index to use_index(). */
    assert(o && !kvt__slot_on_device(&op->slot));
    if (op->kind == KVT__TIER_PUT)
        return put(of(tier), &o->memory, op);
    if (op->kind == KVT__TIER_GET)
        return get(&o->memory, op);
    return probe(&o->memory, op);
}

/* ------------------------------------------------------------------- acquired chunks */

struct acquired {
    struct kvt__slot_source source;
    const struct sc_memory *memory;
    unsigned pin;
};

static void
release(struct kvt__slot_source *source, struct kvt__slot *slot)
{
    struct acquired *acquired = (struct acquired *)source;

    (void)slot;
    kvt__sc_unpin(acquired->memory, acquired->pin);
    free(acquired);
}

bool
kvt__sc_acquire_chunk(struct kvt__tier *tier, const struct kvt__object *object, size_t bytes,
                      struct kvt__slot *out)
{
    const struct sc_opened *o = kvt__sc_opened(tier, object->index);
    struct acquired *acquired = o ? malloc(sizeof *acquired) : NULL;

    if (!acquired)
        return false;
    int pin = kvt__sc_pin(&o->memory, object->entry, object->word);
    unsigned char *payload = pin < 0 || pin >= MAX_ACQUIRED
        ? NULL : kvt__sc_pinned_payload(&o->memory, (unsigned)pin, bytes);
    if (!payload) {
        if (pin >= 0)
            kvt__sc_unpin(&o->memory, (unsigned)pin);
        free(acquired);
        return false;
    }
    *acquired = (struct acquired){ { .release = release }, &o->memory, (unsigned)pin };
    *out = (struct kvt__slot){ .payload = payload, .bytes = bytes,
                               .source = &acquired->source };
    return true;
}
