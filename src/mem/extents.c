/* SPDX-License-Identifier: Apache-2.0
 *
 * Free ranges in a sorted array.  Chunks have few sizes, so there are few free ranges, and the
 * first fit is near the front; a tree would not be faster. */
#include "mem/extents.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

int
kvt__extents_init(struct kvt__extents *e, size_t n_units)
{
    /* Free ranges are not adjacent, so at most every second unit starts a range.  Pages of calloc
     * that are never written use no memory. */
    *e = (struct kvt__extents){ .max_free = n_units / 2 + 1 };
    e->free = calloc(e->max_free, sizeof *e->free);
    if (!e->free)
        return kvt__fail(ENOMEM, "pool: list of %zu free ranges", e->max_free);
    return 0;
}

void
kvt__extents_fini(struct kvt__extents *e)
{
    free(e->free);
    *e = (struct kvt__extents){ 0 };
}

bool
kvt__extents_alloc(struct kvt__extents *e, size_t n, size_t *at)
{
    assert(n);
    for (size_t i = 0; i < e->n_free; i++) {
        struct kvt__extent *x = &e->free[i];

        if (x->n < n)
            continue;
        *at = x->at;
        x->at += n;
        x->n -= n;
        if (!x->n) {
            e->n_free--;
            memmove(x, x + 1, (e->n_free - i) * sizeof *x);
        }
        return true;
    }
    return false;
}

/* Return the number of ranges that start below at. */
static size_t
position(const struct kvt__extents *e, size_t at)
{
    size_t low = 0, high = e->n_free;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (e->free[mid].at < at)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

void
kvt__extents_free(struct kvt__extents *e, size_t at, size_t n)
{
    size_t i = position(e, at);
    struct kvt__extent *x = &e->free[i];
    bool joins_left = i && x[-1].at + x[-1].n == at;
    bool joins_right = i < e->n_free && at + n == x->at;

    assert(n);
    assert(!i || x[-1].at + x[-1].n <= at);
    assert(i == e->n_free || at + n <= x->at);
    if (joins_left && joins_right) {
        x[-1].n += n + x->n;
        e->n_free--;
        memmove(x, x + 1, (e->n_free - i) * sizeof *x);
    } else if (joins_left) {
        x[-1].n += n;
    } else if (joins_right) {
        x->at = at;
        x->n += n;
    } else {
        assert(e->n_free < e->max_free);
        memmove(x + 1, x, (e->n_free - i) * sizeof *x);
        *x = (struct kvt__extent){ at, n };
        e->n_free++;
    }
}
