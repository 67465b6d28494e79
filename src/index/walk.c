/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks over ready entries: those to evict first, each, all of them gone; and totals.
 * Any thread, no lock. */
#include "base/clock.h"
#include "index/table.h"

/* ------------------------------------------------- heap, those that go last first */

struct first {
    const struct kvt__index *ix;
    struct kvt__index_entry *heap;
    size_t n, max;
    int64_t now;
};

static uint64_t
key(const struct first *f, size_t i)
{
    return kvt__ix_policy_key(f->ix->policy, (uint64_t)f->heap[i].recency_ns |
                                             f->heap[i].n_uses);
}

static void
swap(struct first *f, size_t i, size_t j)
{
    struct kvt__index_entry t = f->heap[i];

    f->heap[i] = f->heap[j];
    f->heap[j] = t;
}

static void
sift_down(struct first *f, size_t i, size_t n)
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && key(f, child + 1) > key(f, child))
            child++;
        if (key(f, i) >= key(f, child))
            return;
        swap(f, i, child);
    }
}

static void
sift_up(struct first *f, size_t i)
{
    for (; i && key(f, i) > key(f, (i - 1) / 2); i = (i - 1) / 2)
        swap(f, i, (i - 1) / 2);
}

static void
offer(struct first *f, const struct ix_entry *e)
{
    struct kvt__index_entry entry;
    uint64_t word = IX_LOAD(&e->word);

    if (ix_word_state(word) != IX_READY
        || ix_lease_holds(IX_LOAD(&e->lease), f->now))
        return;
    if (f->n == f->max
        && kvt__ix_policy_key(f->ix->policy, IX_LOAD(&e->recency)) >= key(f, 0))
        return;
    if (!kvt__ix_read(f->ix, e, &word, &entry))
        return;
    if (f->n < f->max) {
        f->heap[f->n] = entry;
        sift_up(f, f->n++);
    } else {
        f->heap[0] = entry;
        sift_down(f, 0, f->n);
    }
}

size_t
kvt__index_first(const struct kvt__index *ix, const struct kvt__id *near,
                 struct kvt__index_entry *out, size_t n)
{
    struct first f = { .ix = ix, .heap = out, .max = n, .now = kvt__now_ns() };
    struct ix_entry *groups[2];
    uint64_t id[2];

    if (!n || !ix_usable(ix))
        return 0;
    if (near) {
        ix_id_words(near, id);
        unsigned n_groups = kvt__ix_groups(ix, id, groups);
        for (unsigned i = 0; i < n_groups * IX_GROUP; i++)
            offer(&f, &groups[i / IX_GROUP][i % IX_GROUP]);
    } else {
        for (uint64_t i = 0; i < ix->n_entries; i++)
            offer(&f, &ix->map->entries[i]);
    }
    for (size_t left = f.n; left > 1; left--) {
        swap(&f, 0, left - 1);
        sift_down(&f, 0, left - 1);
    }
    return f.n;
}

void
kvt__index_each(const struct kvt__index *ix,
                bool (*fn)(void *ctx, const struct kvt__index_entry *entry),
                void *ctx)
{
    struct kvt__index_entry entry;
    uint64_t word;

    for (uint64_t i = 0; ix_usable(ix) && i < ix->n_entries; i++)
        if (kvt__ix_read(ix, &ix->map->entries[i], &word, &entry)
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
    ix_clear_scanned(h);
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
