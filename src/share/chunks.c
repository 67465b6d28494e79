/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks: lookups, puts, reads, status. */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "share/private.h"

#define TRIES 8 /* entries that change, victims of a full table */

/* The name of a chunk in a table of memory: the identity is random enough for a hash. */
static struct kvt__name
name_of(const struct kvt__id *id)
{
    struct kvt__name name = { .digest = 0 };

    memcpy(&name.hash.bits[0], id->b, sizeof name.hash.bits[0]);
    return name;
}

static bool
is_intact(const struct kvt__share *s, const struct kvt__record *record, uint32_t *slot,
          unsigned char **payload)
{
    return kvt__sh_locate(s, record->entry, slot, payload) &&
           SH_LOAD(&s->slots[*slot].bytes) == record->bytes &&
           !(SH_LOAD(&s->slots[*slot].flags) & SH_DAMAGED);
}

/* Find the READY entry of a chunk that is not damaged. */
static bool
find(const struct kvt__share *s, const struct kvt__id *id, struct kvt__record *record,
     uint32_t *slot)
{
    struct kvt__name name = name_of(id);
    unsigned char *payload;

    return kvt__table_find(s->table, &name, id, record) &&
           is_intact(s, record, slot, &payload);
}

/* ------------------------------------------------------------------- lookups */

bool
kvt__share_has(struct kvt__share *s, const struct kvt__id *id)
{
    struct kvt__record record;
    uint32_t slot;

    return sh_usable(s) && find(s, id, &record, &slot);
}

bool
kvt__share_lease(struct kvt__share *s, const struct kvt__id *id, int64_t until_ns)
{
    struct kvt__name name = name_of(id);
    struct kvt__record record;
    unsigned char *payload;
    uint32_t slot;

    if (!sh_usable(s) || !kvt__table_lease(s->table, &name, id, until_ns, &record))
        return false;
    if (is_intact(s, &record, &slot, &payload)) {
        kvt__sh_note_use(s, slot / s->segment_slots);
        return true;
    }
    kvt__table_unlease(s->table, &name, id);
    return false;
}

void
kvt__share_unlease(struct kvt__share *s, const struct kvt__id *id)
{
    struct kvt__name name = name_of(id);

    kvt__table_unlease(s->table, &name, id);
}

void
kvt__share_hold(struct kvt__share *s, const struct kvt__id *id, int64_t until_ns)
{
    struct kvt__name name = name_of(id);

    kvt__table_hold(s->table, &name, id, until_ns);
}

static void
note_use(struct kvt__share *s, const struct kvt__id *id, uint32_t slot)
{
    struct kvt__name name = name_of(id);

    kvt__table_touch(s->table, &name, id);
    kvt__sh_note_use(s, slot / s->segment_slots);
}

void
kvt__share_touch(struct kvt__share *s, const struct kvt__id *id)
{
    struct kvt__record record;
    uint32_t slot;

    if (sh_usable(s) && find(s, id, &record, &slot))
        note_use(s, id, slot);
}

/* ----------------------------------------------------------------------- put */

/* The table has an entry of the chunk: free the entry if its slot is damaged. */
static bool
forgets_damaged(struct kvt__share *s, const struct kvt__name *name, const struct kvt__id *id)
{
    struct kvt__record seen;
    unsigned char *payload;
    uint32_t slot;

    return kvt__table_find(s->table, name, id, &seen) &&
           !is_intact(s, &seen, &slot, &payload) && !kvt__sh_evict(s, &seen, true);
}

static bool
evicts_any(struct kvt__share *s)
{
    struct kvt__record victims[KVT__TABLE_VICTIMS];
    size_t n = kvt__table_victims(s->table, NULL, NULL, victims, KVT__TABLE_VICTIMS);

    for (size_t i = 0; i < n; i++)
        if (!kvt__sh_evict(s, &victims[i], false))
            return true;
    return false;
}

static int
claim(struct kvt__share *s, const struct kvt__id *id, uint64_t bytes, struct kvt__claim *out)
{
    struct kvt__record record = { .id = *id, .bytes = bytes };
    struct kvt__name name = name_of(id);
    int err = -EBUSY;

    for (int i = 0; i < TRIES; i++) {
        err = kvt__table_claim(s->table, &name, &record, NULL, NULL, out);
        bool again = err == -EEXIST ? forgets_damaged(s, &name, id)
                   : err == -ENOSPC && evicts_any(s);
        if (!again)
            break;
    }
    if (!err && out->replaces) { /* another identity with equal first bits */
        kvt__table_abort(s->table, out);
        return -EBUSY;
    }
    return err;
}

static void
fill(struct kvt__share *s, uint32_t slot, unsigned char *payload,
     const struct kvt__share_chunk *chunk)
{
    struct sh_slot *at = &s->slots[slot];

    memcpy(payload, chunk->payload, chunk->bytes);
    SH_STORE(&at->bytes, chunk->bytes);
    SH_STORE(&at->crc, chunk->crc);
    SH_STORE(&at->tokens, chunk->tokens);
    SH_STORE(&at->flags, chunk->flags & ~SH_DAMAGED);
}

int
kvt__share_put(struct kvt__share *s, const struct kvt__id *id,
               const struct kvt__share_chunk *chunk)
{
    unsigned char *payload;
    struct kvt__claim c;
    uint32_t slot;

    if (!sh_usable(s))
        return -ESTALE;
    if (!chunk->bytes || chunk->bytes > s->segment_bytes)
        return kvt__fail(EFBIG, "%s: a chunk of %llu bytes; shared memory has segments of "
                         "%llu bytes", s->key, (unsigned long long)chunk->bytes,
                         (unsigned long long)s->segment_bytes);
    int err = claim(s, id, chunk->bytes, &c);
    if (err)
        return err;
    err = kvt__sh_grow_entries(s, c.entry);
    if (!err)
        err = kvt__sh_alloc(s, c.entry, (uint32_t)((chunk->bytes + SH_PAGE - 1) / SH_PAGE),
                            &slot);
    if (err) {
        kvt__table_abort(s->table, &c);
        return err;
    }
    SH_STORE(&s->slots[slot].bytes, chunk->bytes); /* of an earlier, larger slot */
    if (!kvt__sh_locate(s, c.entry, &slot, &payload)) {
        kvt__sh_release(s, slot, c.entry);
        kvt__table_abort(s->table, &c);
        return kvt__fail(EIO, "%s: the records of shared memory are corrupt", s->key);
    }
    fill(s, slot, payload, chunk);
    kvt__sh_note_use(s, slot / s->segment_slots);
    return kvt__table_publish(s->table, &c) ? 0 : -ESTALE;
}

/* --------------------------------------------------------------------- reads */

/* Pin the entry and look at the word again. */
static int
try_read(struct kvt__share *s, const struct kvt__name *name, const struct kvt__id *id,
         struct kvt__share_read *out, uint32_t *slot)
{
    struct kvt__record record;
    unsigned char *payload;

    if (!kvt__table_find(s->table, name, id, &record))
        return -ENOENT;
    int pin = kvt__sh_pin(s, record.entry);
    if (pin < 0)
        return pin;
    bool same = kvt__table_is_same(s->table, record.entry, record.word);
    if (!same || !is_intact(s, &record, slot, &payload)) {
        kvt__sh_unpin(s, (unsigned)pin);
        return same ? -ENOENT : -ERESTART;
    }
    const struct sh_slot *at = &s->slots[*slot];
    *out = (struct kvt__share_read){
        .chunk = { payload, record.bytes, SH_LOAD(&at->crc), SH_LOAD(&at->tokens),
                   SH_LOAD(&at->flags) & ~SH_DAMAGED }, .pin = (unsigned)pin };
    return 0;
}

int
kvt__share_begin_read(struct kvt__share *s, const struct kvt__id *id,
                      struct kvt__share_read *out)
{
    struct kvt__name name = name_of(id);
    int err = -ERESTART;
    uint32_t slot = 0;

    if (!sh_usable(s))
        return -ESTALE;
    if (s->owner >= KVT__TABLE_OWNERS)
        return -EINVAL;
    for (int i = 0; i < TRIES && err == -ERESTART; i++)
        err = try_read(s, &name, id, out, &slot);
    if (!err)
        note_use(s, id, slot);
    return err == -ERESTART ? -ENOENT : err;
}

void
kvt__share_end_read(struct kvt__share *s, struct kvt__share_read *read)
{
    if (sh_usable(s) && read->chunk.payload)
        kvt__sh_unpin(s, read->pin);
    read->chunk.payload = NULL;
}

int
kvt__share_get(struct kvt__share *s, const struct kvt__id *id, void *payload, uint64_t bytes,
               struct kvt__share_chunk *out)
{
    struct kvt__share_read read;
    int err = kvt__share_begin_read(s, id, &read);

    if (err)
        return err;
    if (read.chunk.bytes == bytes)
        memcpy(payload, read.chunk.payload, bytes);
    else
        err = -ENOENT;
    *out = read.chunk;
    kvt__share_end_read(s, &read);
    if (!err && kvt__crc32c(0, payload, bytes) != out->crc) {
        kvt__share_forget(s, id);
        err = kvt__fail(EBADMSG, "%s: a chunk in shared memory is corrupt", s->key);
    }
    out->payload = payload;
    return err;
}

/* If the slot is pinned, a flag makes lookups miss.  The flag may meet the next chunk of the
 * slot, which is then lost. */
void
kvt__share_forget(struct kvt__share *s, const struct kvt__id *id)
{
    struct kvt__name name = name_of(id);
    struct kvt__record seen;
    unsigned char *payload;
    uint32_t slot;

    if (!sh_usable(s) || !kvt__table_find(s->table, &name, id, &seen) ||
        !kvt__sh_locate(s, seen.entry, &slot, &payload))
        return;
    if (kvt__sh_evict(s, &seen, true) == -EBUSY)
        __atomic_fetch_or(&s->slots[slot].flags, SH_DAMAGED, __ATOMIC_SEQ_CST);
}

/* -------------------------------------------------------------------- status */

struct each {
    struct kvt__share *share;
    bool (*fn)(void *ctx, const struct kvt__share_info *info);
    void *ctx;
};

static bool
visit(void *ctx, const struct kvt__record *record)
{
    struct each *e = ctx;
    unsigned char *payload;
    uint32_t slot;

    if (!is_intact(e->share, record, &slot, &payload))
        return true;
    const struct sh_slot *at = &e->share->slots[slot];
    struct kvt__share_info info = { record->id, record->bytes, SH_LOAD(&at->crc),
                                    SH_LOAD(&at->tokens),
                                    SH_LOAD(&at->flags) & ~SH_DAMAGED,
                                    record->recency_ns };
    return e->fn(e->ctx, &info);
}

void
kvt__share_each(struct kvt__share *s,
                bool (*fn)(void *ctx, const struct kvt__share_info *info), void *ctx)
{
    struct each e = { s, fn, ctx };

    if (sh_usable(s))
        kvt__table_each(s->table, visit, &e);
}

void
kvt__share_get_totals(struct kvt__share *s, struct kvt__share_totals *out)
{
    struct kvt__table_totals totals;

    *out = (struct kvt__share_totals){ .limit_bytes = s->limit_bytes };
    if (!sh_usable(s))
        return;
    kvt__table_get_totals(s->table, &totals);
    out->n_chunks = totals.n_entries;
    out->used_bytes = totals.used_bytes;
    for (uint32_t i = 0; i < s->n_segments; i++)
        out->memory_bytes += SH_LOAD(&s->segments[i].made_bytes);
}
