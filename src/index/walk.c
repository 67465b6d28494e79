/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks over ready entries: the oldest, each, all of them gone; and totals.
 * Any thread, no lock. */
#include "base/clock.h"
#include "index/table.h"

/* --------------------------------------------------------- heap, newest first */

static void
swap(struct kvt__index_entry *a, struct kvt__index_entry *b)
{
    struct kvt__index_entry t = *a;

    *a = *b;
    *b = t;
}

static void
sift_down(struct kvt__index_entry *heap, size_t i, size_t n)
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n
            && heap[child + 1].recency_ns > heap[child].recency_ns)
            child++;
        if (heap[i].recency_ns >= heap[child].recency_ns)
            return;
        swap(&heap[i], &heap[child]);
    }
}

static void
sift_up(struct kvt__index_entry *heap, size_t i)
{
    for (; i && heap[i].recency_ns > heap[(i - 1) / 2].recency_ns;
         i = (i - 1) / 2)
        swap(&heap[i], &heap[(i - 1) / 2]);
}

struct oldest {
    struct kvt__index_entry *heap;
    size_t n, max;
    int64_t now;
};

static void
offer(struct oldest *o, const struct ix_entry *e)
{
    struct kvt__index_entry entry;
    uint64_t word = IX_LOAD(&e->word);

    if (ix_word_state(word) != IX_READY
        || ix_lease_holds(IX_LOAD(&e->lease), o->now))
        return;
    if (o->n == o->max
        && (int64_t)IX_LOAD(&e->recency) >= o->heap[0].recency_ns)
        return;
    if (!kvt__ix_read(e, &word, &entry))
        return;
    if (o->n < o->max) {
        o->heap[o->n] = entry;
        sift_up(o->heap, o->n++);
    } else if (entry.recency_ns < o->heap[0].recency_ns) {
        o->heap[0] = entry;
        sift_down(o->heap, 0, o->n);
    }
}

size_t
kvt__index_oldest(const struct kvt__index *ix, const struct kvt__id *near,
                  struct kvt__index_entry *out, size_t n)
{
    struct oldest o = { .heap = out, .max = n, .now = kvt__now_ns() };
    struct ix_entry *groups[2];
    uint64_t id[2];

    if (!n || !ix_usable(ix))
        return 0;
    if (near) {
        ix_id_words(near, id);
        unsigned n_groups = kvt__ix_groups(ix, id, groups);
        for (unsigned i = 0; i < n_groups * IX_GROUP; i++)
            offer(&o, &groups[i / IX_GROUP][i % IX_GROUP]);
    } else {
        for (uint64_t i = 0; i < ix->n_entries; i++)
            offer(&o, &ix->map->entries[i]);
    }
    for (size_t left = o.n; left > 1; left--) {
        swap(&out[0], &out[left - 1]);
        sift_down(out, 0, left - 1);
    }
    return o.n;
}

void
kvt__index_each(const struct kvt__index *ix,
                bool (*fn)(void *ctx, const struct kvt__index_entry *entry),
                void *ctx)
{
    struct kvt__index_entry entry;
    uint64_t word;

    for (uint64_t i = 0; ix_usable(ix) && i < ix->n_entries; i++)
        if (kvt__ix_read(&ix->map->entries[i], &word, &entry)
            && !fn(ctx, &entry))
            return;
}

void
kvt__index_clear(struct kvt__index *ix)
{
    if (!ix_usable(ix) || ix->owner < 0)
        return;
    struct ix_header *h = &ix->map->header;
    ix_begin(ix);
    IX_STORE(&h->scanned, 0);
    for (uint64_t i = 0; i < ix->n_entries; i++) {
        struct ix_entry *e = &ix->map->entries[i];
        uint64_t word = IX_LOAD(&e->word);
        if (ix_word_state(word) != IX_READY)
            continue;
        uint64_t bytes = ix_packed_bytes(IX_LOAD(&e->packed));
        uint64_t unread = ix_is_unread(IX_LOAD(&e->tokens_flags));
        if (!ix_move(e, word, ix_word_next(word, IX_FREE, 0)))
            continue;
        ix_sub(&h->n_ready, 1);
        ix_sub(&h->n_unread, unread);
        ix_sub(&h->used_bytes, bytes);
    }
    ix_done(ix);
}

void
kvt__index_get_totals(const struct kvt__index *ix,
                      struct kvt__index_totals *out)
{
    memset(out, 0, sizeof *out);
    if (!ix_usable(ix))
        return;
    const struct ix_header *h = &ix->map->header;
    out->n_entries = ix->n_entries;
    out->n_ready = IX_LOAD(&h->n_ready);
    out->n_unread = IX_LOAD(&h->n_unread);
    out->used_bytes = IX_LOAD(&h->used_bytes);
    out->limit_bytes = IX_LOAD(&h->limit_bytes);
    if (out->n_ready > out->n_entries)
        out->n_ready = out->n_entries;
    if (out->n_unread > out->n_ready)
        out->n_unread = out->n_ready;
}
