/* SPDX-License-Identifier: Apache-2.0
 *
 * A slot for a claimed entry: a free slot, then more memory, then an eviction. */
#include <errno.h>

#include "base/error.h"
#include "share/private.h"

#define TRIES 8
#define SWEPT 64 /* slots that a search in full memory sweeps */

/* Take a free slot of a segment.  The segment's word is read again after the slot is taken:
 * a process that drains the segment changes the word and then looks at the slots. */
static bool
take_in(struct kvt__share *s, uint32_t segment, uint64_t word, uint32_t entry,
        uint32_t *slot)
{
    struct sh_segment *g = &s->segments[segment];
    uint32_t n = sh_n_made(s, segment, word), hand = SH_LOAD(&g->hand);

    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = (uint32_t)(((uint64_t)hand + k) % n);

        *slot = segment * s->segment_slots + i;
        if (!kvt__sh_take(s, *slot, entry))
            continue;
        if (SH_LOAD(&g->word) == word) {
            SH_STORE(&g->hand, i + 1);
            return true;
        }
        kvt__sh_release(s, *slot, entry);
        return false;
    }
    return false;
}

static bool
has_size(uint64_t word, uint32_t pages)
{
    return sh_pages(word) == pages && !(word & SH_DRAINING);
}

/* The flag is cleared before the search, so a slot that becomes free meanwhile sets it. */
static bool
take_free(struct kvt__share *s, uint32_t entry, uint32_t pages, uint32_t *slot)
{
    for (uint32_t i = 0; i < s->n_segments; i++) {
        struct sh_segment *g = &s->segments[i];
        uint64_t word = SH_LOAD(&g->word);

        if (!has_size(word, pages) || !SH_LOAD(&g->has_free))
            continue;
        SH_STORE(&g->has_free, 0);
        if (!take_in(s, i, word, entry, slot))
            continue;
        SH_STORE(&g->has_free, 1);
        return true;
    }
    return false;
}

/* Give the size more memory.  0, or an error with a sentence. */
static int
grow(struct kvt__share *s, uint32_t pages)
{
    for (uint32_t i = 0; i < s->n_segments; i++) {
        uint64_t word = SH_LOAD(&s->segments[i].word);

        if (has_size(word, pages) &&
            sh_n_made(s, i, word) < sh_n_slots(word, s->segment_bytes))
            return kvt__sh_extend(s, i);
    }
    int segment = kvt__sh_new_segment(s, pages);
    return segment < 0 ? segment : kvt__sh_extend(s, (uint32_t)segment);
}

int
kvt__sh_alloc(struct kvt__share *s, uint32_t entry, uint32_t pages, uint32_t *slot)
{
    for (int i = 0; i < TRIES; i++) {
        if (take_free(s, entry, pages, slot))
            return 0;
        if (!grow(s, pages))
            continue;
        (void)kvt__table_recover_next(s->table);
        kvt__sh_sweep(s, SWEPT);
        if (take_free(s, entry, pages, slot))
            return 0;
        if (kvt__sh_make_room(s, pages))
            break;
    }
    return kvt__fail(ENOSPC, "%s: shared memory has no chunk to evict now", s->key);
}
