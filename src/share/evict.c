/* SPDX-License-Identifier: Apache-2.0
 *
 * Evictions.  A full memory evicts a chunk of the new chunk's size, or gives the size
 * another size's segment whose last use is older than the chunk's. */
#include <errno.h>

#include "base/clock.h"
#include "share/private.h"

int
kvt__sh_evict(struct kvt__share *s, const struct kvt__record *seen, bool force)
{
    unsigned char *payload;
    struct kvt__claim claim;
    uint32_t slot;
    bool located = kvt__sh_locate(s, seen->entry, &slot, &payload);
    int err = kvt__table_evict(s->table, seen, force, &claim);

    if (err)
        return err;
    if (kvt__sh_is_pinned(s, seen->entry)) {
        kvt__table_restore(s->table, &claim);
        return -EBUSY;
    }
    kvt__table_evicted(s->table, &claim);
    if (located) {
        kvt__sh_sweep_slot(s, slot);
        SH_STORE(&s->segments[slot / s->segment_slots].hand, slot % s->segment_slots);
    }
    return 0;
}

/* ------------------------------------------------------------------- victims */

/* Collect entries of one size, a stride apart.  Returns their number. */
static size_t
sample(struct kvt__share *s, uint32_t pages, uint32_t entries[KVT__TABLE_SAMPLES])
{
    uint32_t n_slots[SH_N_SEGMENTS];
    uint64_t total = 0, before = 0;
    size_t n = 0;

    for (uint32_t i = 0; i < s->n_segments; i++) {
        uint64_t word = SH_LOAD(&s->segments[i].word);

        n_slots[i] = sh_pages(word) == pages && !(word & SH_DRAINING)
            ? sh_n_made(s, i, word) : 0;
        total += n_slots[i];
    }
    uint64_t stride = total / KVT__TABLE_SAMPLES;
    stride = stride ? stride : 1;
    uint64_t at = __atomic_fetch_add(&s->header->sample, 1, __ATOMIC_RELAXED) % stride;
    for (uint32_t i = 0; i < s->n_segments; before += n_slots[i++])
        for (; at < before + n_slots[i] && n < KVT__TABLE_SAMPLES; at += stride) {
            uint64_t slot = (uint64_t)i * s->segment_slots + (at - before);
            uint32_t name = (uint32_t)SH_LOAD(&s->slots[slot].word);

            if (name)
                entries[n++] = name - 1;
        }
    return n;
}

/* The segment of another size whose last use is oldest; SH_N_SEGMENTS: none. */
static uint32_t
oldest_other(struct kvt__share *s, uint32_t pages, uint64_t *used_ns)
{
    uint32_t oldest = SH_N_SEGMENTS;

    *used_ns = UINT64_MAX;
    for (uint32_t i = 0; i < s->n_segments; i++) {
        uint64_t word = SH_LOAD(&s->segments[i].word);
        uint64_t used = SH_LOAD(&s->segments[i].used_ns);

        if (sh_pages(word) && sh_pages(word) != pages && !(word & SH_DRAINING) &&
            used < *used_ns) {
            oldest = i;
            *used_ns = used;
        }
    }
    return oldest;
}

/* ------------------------------------------------------------------- drains */

/* Evict all chunks of a draining segment.  False: a chunk is leased, read or being
 * stored. */
static bool
empty_segment(struct kvt__share *s, uint32_t segment, uint64_t word, bool force)
{
    uint32_t n = sh_n_made(s, segment, word);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = segment * s->segment_slots + i;
        uint32_t name = (uint32_t)SH_LOAD(&s->slots[slot].word);
        struct kvt__record seen;

        if (name && kvt__table_read(s->table, name - 1, &seen))
            (void)kvt__sh_evict(s, &seen, force);
        kvt__sh_sweep_slot(s, slot);
        if ((uint32_t)SH_LOAD(&s->slots[slot].word))
            return false;
    }
    return true;
}

/* Begin to drain a segment: nobody takes slots of it from now on.  Returns the new word, or
 * 0. */
static uint64_t
begin_drain(struct kvt__share *s, uint32_t segment, uint64_t word)
{
    uint64_t mine = sh_segment_word(word, sh_pages(word)) | SH_DRAINING |
                    (uint64_t)s->owner << 25;

    return !(word & SH_DRAINING) && SH_SWAP(&s->segments[segment].word, &word, mine)
        ? mine : 0;
}

/* A failed drain counts as a use, so that other segments are drained first. */
static void
abort_drain(struct kvt__share *s, uint32_t segment, uint64_t word)
{
    struct sh_segment *g = &s->segments[segment];

    SH_STORE(&g->used_ns, (uint64_t)kvt__wall_ns());
    SH_STORE(&g->has_free, 1);
    SH_STORE(&g->word, sh_segment_word(word, sh_pages(word)));
}

/* Empty a segment and give its memory to slots of another size. */
static int
take_segment(struct kvt__share *s, uint32_t segment, uint32_t pages)
{
    struct sh_segment *g = &s->segments[segment];
    int err = kvt__sh_allocate_slots(s, segment, pages);
    uint64_t word = err ? 0 : begin_drain(s, segment, SH_LOAD(&g->word));

    if (!word)
        return -EBUSY;
    if (!empty_segment(s, segment, word, false)) {
        abort_drain(s, segment, word);
        return -EBUSY;
    }
    SH_STORE(&g->has_free, 1);
    SH_STORE(&g->used_ns, (uint64_t)kvt__wall_ns());
    SH_STORE(&g->word, sh_segment_word(word, pages));
    return 0;
}

int
kvt__sh_make_room(struct kvt__share *s, uint32_t pages)
{
    uint32_t entries[KVT__TABLE_SAMPLES];
    struct kvt__record victims[KVT__TABLE_VICTIMS];
    uint64_t used_ns;
    size_t n = kvt__table_victims_of(s->table, entries, sample(s, pages, entries), victims,
                                     KVT__TABLE_VICTIMS);
    uint32_t other = oldest_other(s, pages, &used_ns);

    if (other < SH_N_SEGMENTS && (!n || used_ns < (uint64_t)victims[0].recency_ns) &&
        !take_segment(s, other, pages))
        return 0;
    for (size_t i = 0; i < n; i++)
        if (!kvt__sh_evict(s, &victims[i], false))
            return 0;
    return -ENOSPC;
}

/* -------------------------------------------------------------------- clear */

static bool
evict_any(void *ctx, const struct kvt__record *record)
{
    (void)kvt__sh_evict(ctx, record, true);
    return true;
}

/* Threads of this process may store meanwhile: their segments keep the memory. */
void
kvt__sh_empty(struct kvt__share *s, bool give_back)
{
    kvt__table_each(s->table, evict_any, s);
    if (!give_back)
        return;
    pthread_mutex_lock(&s->growth);
    for (uint32_t i = 0; i < s->n_segments && !s->has_reported; i++) {
        uint64_t word = begin_drain(s, i, SH_LOAD(&s->segments[i].word));

        if (word && empty_segment(s, i, word, true))
            kvt__sh_give_back(s, i);
        else if (word)
            abort_drain(s, i, word);
    }
    pthread_mutex_unlock(&s->growth);
}
