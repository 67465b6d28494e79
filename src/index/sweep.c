/* SPDX-License-Identifier: Apache-2.0
 *
 * Recovery and recount.  Held true by all writers, outside of what they count
 * between ix_begin() and ix_done():
 *
 *     used_bytes = bytes reserved + bytes of claimed, ready, evicting entries
 *     n_ready, n_unread = numbers of such ready entries
 *
 * Writers that die leave the numbers wrong.  A recount adds up what stands in
 * the table and is good when no writer was between the two at its start and
 * none began one until its end.  Runs under the lock. */
#include <errno.h>

#include "base/error.h"
#include "index/table.h"

#define TRIES 4

struct sums {
    uint64_t used_bytes;
    uint64_t n_ready;
    uint64_t n_unread;
    size_t freed;
};

static void
add(uint64_t *sum, uint64_t n)
{
    if (__builtin_add_overflow(*sum, n, sum))
        *sum = UINT64_MAX;
}

bool
kvt__ix_any_dead(const struct kvt__index *ix, uint64_t live)
{
    for (unsigned i = 0; i < IX_N_OWNERS; i++)
        if (!(live >> i & 1) && IX_LOAD(&ix->map->owners[i].incarnation))
            return true;
    return false;
}

void
kvt__ix_free_owner(struct kvt__index *ix, unsigned owner)
{
    struct ix_owner *o = &ix->map->owners[owner];

    IX_STORE(&o->reserved_bytes, 0);
    IX_STORE(&o->limit_bytes, 0);
    IX_STORE(&o->pid, 0);
    IX_STORE(&o->begun, 0);
    IX_STORE(&o->done, 0);
    IX_STORE(&o->incarnation, 0);
}

void
kvt__ix_set_limit(struct kvt__index *ix)
{
    uint64_t least = 0;

    for (unsigned i = 0; i < IX_N_OWNERS; i++) {
        const struct ix_owner *o = &ix->map->owners[i];
        uint64_t limit = IX_LOAD(&o->limit_bytes);
        if (IX_LOAD(&o->incarnation) && limit && (!least || limit < least))
            least = limit;
    }
    IX_STORE(&ix->map->header.limit_bytes, least);
}

/* ------------------------------------------------------------------ recount */

/* Whether no live writer is inside a change; begun: their counts. */
static bool
all_quiet(const struct kvt__index *ix, uint64_t live,
          uint64_t begun[IX_N_OWNERS])
{
    for (unsigned i = 0; i < IX_N_OWNERS; i++) {
        const struct ix_owner *o = &ix->map->owners[i];
        uint64_t done = IX_LOAD_SEQ(&o->done);
        begun[i] = IX_LOAD_SEQ(&o->begun);
        if (live >> i & 1 && begun[i] != done)
            return false;
    }
    return true;
}

static bool
still_quiet(const struct kvt__index *ix, uint64_t live,
            const uint64_t begun[IX_N_OWNERS])
{
    for (unsigned i = 0; i < IX_N_OWNERS; i++)
        if (live >> i & 1
            && IX_LOAD_SEQ(&ix->map->owners[i].begun) != begun[i])
            return false;
    return true;
}

static void
sum_entry(struct kvt__index *ix, struct ix_entry *e, uint64_t live, struct sums *s)
{
    uint64_t word = IX_LOAD(&e->word);
    enum ix_state state = ix_word_state(word);
    unsigned owner = ix_word_owner(word);

    if (state == IX_FREE)
        return;
    uint64_t packed = IX_LOAD(&e->packed);
    bool keep = state == IX_READY
                    ? ix_space_in_range(ix_packed_space(packed))
                    : owner < IX_N_OWNERS && (live >> owner & 1);
    if (!keep) {
        /* The file may exist.  Cleared first: this process may die between the two. */
        if (!ix_is_tentative(state))
            ix_clear_scanned(&ix->map->header);
        if (ix_move(e, word, ix_word_next(word, IX_FREE, 0)))
            s->freed++;
        return;
    }
    if (!ix_is_tentative(state))
        s->used_bytes += ix_packed_bytes(packed);
    if (state == IX_READY) {
        s->n_ready++;
        s->n_unread += ix_is_unread(IX_LOAD(&e->tokens_flags));
    }
}

static void
sum_table(struct kvt__index *ix, uint64_t live, bool void_leases,
          struct sums *s)
{
    s->used_bytes = s->n_ready = s->n_unread = 0;
    for (uint64_t i = 0; i < ix->n_entries; i++) {
        struct ix_entry *e = &ix->map->entries[i];
        if (void_leases && IX_LOAD(&e->lease))
            IX_STORE(&e->lease, 0);
        sum_entry(ix, e, live, s);
    }
    for (unsigned i = 0; i < IX_N_OWNERS; i++)
        if (live >> i & 1)
            add(&s->used_bytes, IX_LOAD(&ix->map->owners[i].reserved_bytes));
}

/* Put a number right, if it is what it was before the recount. */
static bool
correct(uint64_t *at, uint64_t seen, uint64_t right)
{
    return seen == right ? IX_LOAD(at) == seen : ix_swap(at, &seen, right);
}

static bool
recount(struct kvt__index *ix, uint64_t live, bool void_leases, struct sums *s)
{
    struct ix_header *h = &ix->map->header;
    uint64_t begun[IX_N_OWNERS];
    bool quiet = all_quiet(ix, live, begun);
    uint64_t used = IX_LOAD_SEQ(&h->used_bytes);
    uint64_t ready = IX_LOAD_SEQ(&h->n_ready);
    uint64_t unread = IX_LOAD_SEQ(&h->n_unread);

    sum_table(ix, live, void_leases, s);
    if (!quiet || !still_quiet(ix, live, begun))
        return false;
    return correct(&h->used_bytes, used, s->used_bytes)
           && correct(&h->n_ready, ready, s->n_ready)
           && correct(&h->n_unread, unread, s->n_unread);
}

size_t
kvt__ix_sweep(struct kvt__index *ix, uint64_t live, bool void_leases)
{
    struct ix_header *h = &ix->map->header;
    struct sums s = { 0 };
    bool good;

    /* Stands until a recount was good, whoever makes it. */
    IX_STORE(&h->recount, 1);
    good = recount(ix, live, void_leases, &s);
    for (unsigned i = 0; i < IX_N_OWNERS; i++)
        if (!(live >> i & 1))
            kvt__ix_free_owner(ix, i);
    for (int t = 1; !good && t < TRIES; t++)
        good = recount(ix, live, false, &s);
    if (good)
        IX_STORE(&h->recount, 0);
    return s.freed;
}

size_t
kvt__index_recover(struct kvt__index *ix)
{
    size_t freed = 0;

    if (!ix_usable(ix))
        return 0;
    uint64_t live = kvt__ix_live_owners(ix);
    if (!kvt__ix_any_dead(ix, live) && !IX_LOAD(&ix->map->header.recount))
        return 0;
    if (kvt__ix_lock(ix, 0)) /* another does it */
        return 0;
    live = kvt__ix_live_owners(ix);
    if (kvt__ix_any_dead(ix, live) || IX_LOAD(&ix->map->header.recount)) {
        freed = kvt__ix_sweep(ix, live, false);
        kvt__ix_set_limit(ix);
    }
    kvt__ix_unlock(ix);
    return freed;
}
