/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots: taking, giving back, and the search for slots that a killed process left. */
#include "base/clock.h"
#include "share/private.h"

static uint64_t
next_word(uint64_t word, uint32_t name)
{
    return ((word >> 32) + 1) << 32 | name;
}

/* Return true if the entry names the slot and is not FREE. */
static bool
is_used(const struct kvt__share *s, uint32_t slot, uint32_t entry)
{
    return entry < s->max_entries && entry < SH_LOAD(&s->header->n_slot_of) &&
           SH_LOAD(&s->slot_of[entry]) == slot + 1 && kvt__table_is_used(s->table, entry);
}

/* A word with the caller's own entry is left from an earlier life of the entry. */
bool
kvt__sh_take(struct kvt__share *s, uint32_t slot, uint32_t entry)
{
    uint64_t word = SH_LOAD(&s->slots[slot].word);
    uint32_t name = (uint32_t)word;

    if (name && name != entry + 1)
        return false;
    SH_STORE(&s->slot_of[entry], slot + 1);
    return SH_SWAP(&s->slots[slot].word, &word, next_word(word, entry + 1));
}

static void
set_has_free(struct kvt__share *s, uint32_t slot)
{
    uint32_t *at = &s->segments[slot / s->segment_slots].has_free;

    if (!SH_LOAD(at))
        SH_STORE(at, 1);
}

void
kvt__sh_release(struct kvt__share *s, uint32_t slot, uint32_t entry)
{
    uint64_t word = SH_LOAD(&s->slots[slot].word);

    if ((uint32_t)word == entry + 1)
        (void)SH_SWAP(&s->slots[slot].word, &word, next_word(word, 0));
    set_has_free(s, slot);
}

void
kvt__sh_sweep_slot(struct kvt__share *s, uint32_t slot)
{
    uint64_t word = SH_LOAD(&s->slots[slot].word);
    uint32_t name = (uint32_t)word;

    if (name && is_used(s, slot, name - 1))
        return;
    if (name)
        (void)SH_SWAP(&s->slots[slot].word, &word, next_word(word, 0));
    set_has_free(s, slot);
}

void
kvt__sh_end_drain(struct kvt__share *s, uint32_t segment)
{
    struct sh_segment *g = &s->segments[segment];
    uint64_t word = SH_LOAD(&g->word);

    if (word & SH_DRAINING && (sh_drainer(word) == s->owner ||
                               !kvt__table_owner_lives(s->table, sh_drainer(word))))
        (void)SH_SWAP(&g->word, &word, sh_segment_word(word, sh_pages(word)));
}

/* A thread of this handle may drain: only an open ends drains of the own number. */
void
kvt__sh_sweep(struct kvt__share *s, uint32_t n)
{
    uint64_t hand = SH_LOAD(&s->header->hand);
    uint32_t segment = (uint32_t)(hand / s->segment_slots) % s->n_segments;
    uint32_t i = (uint32_t)(hand % s->segment_slots);

    for (uint32_t n_segments = 0; n && n_segments <= s->n_segments; n_segments++) {
        uint64_t word = SH_LOAD(&s->segments[segment].word);

        if (!i && word & SH_DRAINING && sh_drainer(word) != s->owner)
            kvt__sh_end_drain(s, segment);
        for (; n && i < sh_n_made(s, segment, word); i++, n--)
            kvt__sh_sweep_slot(s, segment * s->segment_slots + i);
        if (!n)
            break;
        segment = (segment + 1) % s->n_segments;
        i = 0;
    }
    SH_STORE(&s->header->hand, (uint64_t)segment * s->segment_slots + i);
}

bool
kvt__sh_locate(const struct kvt__share *s, uint32_t entry, uint32_t *slot,
               unsigned char **payload)
{
    if (entry >= s->max_entries || entry >= SH_LOAD(&s->header->n_slot_of))
        return false;
    *slot = SH_LOAD(&s->slot_of[entry]) - 1;
    uint32_t segment = *slot / s->segment_slots, i = *slot % s->segment_slots;
    if (segment >= s->n_segments)
        return false;
    uint64_t word = SH_LOAD(&s->segments[segment].word);
    if (i >= sh_n_made(s, segment, word) ||
        (uint32_t)SH_LOAD(&s->slots[*slot].word) != entry + 1)
        return false;
    *payload = s->payload + segment * s->segment_bytes +
               (uint64_t)i * sh_pages(word) * SH_PAGE;
    return SH_LOAD(&s->slots[*slot].bytes) <= (uint64_t)sh_pages(word) * SH_PAGE;
}

static void
note(uint64_t *at, uint64_t now)
{
    if (now - SH_LOAD(at) > (uint64_t)KVT__NS_PER_S)
        SH_STORE(at, now);
}

void
kvt__sh_note_use(struct kvt__share *s, uint32_t segment)
{
    uint64_t now = (uint64_t)kvt__wall_ns();

    note(&s->segments[segment].used_ns, now);
    note(&s->header->used_ns, now);
}
