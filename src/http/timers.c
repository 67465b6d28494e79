/* SPDX-License-Identifier: Apache-2.0
 *
 * Timers in a pairing heap. */
#include "http/timers.h"

#include <stddef.h>

/* Merge two heaps: the root with the later time becomes the first child of the other root. */
static struct kvt__http_timer *
merge(struct kvt__http_timer *a, struct kvt__http_timer *b)
{
    if (b->at_ns < a->at_ns) {
        struct kvt__http_timer *later = a;
        a = b;
        b = later;
    }
    b->prev = a;
    b->next = a->child;
    if (a->child)
        a->child->prev = b;
    a->child = b;
    return a;
}

/* Merge a list of siblings into one heap: merge pairs, then all pairs.  Return the root. */
static struct kvt__http_timer *
merge_siblings(struct kvt__http_timer *list)
{
    struct kvt__http_timer *pairs = NULL, *root = NULL;

    while (list) {
        struct kvt__http_timer *a = list, *b = a->next;

        list = b ? b->next : NULL;
        if (b)
            a = merge(a, b);
        a->next = pairs;
        pairs = a;
    }
    while (pairs) {
        struct kvt__http_timer *next = pairs->next;

        root = root ? merge(root, pairs) : pairs;
        pairs = next;
    }
    if (root)
        root->next = root->prev = NULL;
    return root;
}

void
kvt__http_timer_clear(struct kvt__http_timers *timers, struct kvt__http_timer *timer)
{
    struct kvt__http_timer *below;

    if (!timer->set)
        return;
    below = merge_siblings(timer->child);
    if (timers->first == timer) {
        timers->first = below;
    } else {
        if (timer->prev->child == timer)
            timer->prev->child = timer->next;
        else
            timer->prev->next = timer->next;
        if (timer->next)
            timer->next->prev = timer->prev;
        if (below)
            timers->first = merge(timers->first, below);
    }
    timer->child = timer->next = timer->prev = NULL;
    timer->set = false;
}

void
kvt__http_timer_set(struct kvt__http_timers *timers, struct kvt__http_timer *timer,
                    int64_t at_ns)
{
    kvt__http_timer_clear(timers, timer);
    timer->at_ns = at_ns;
    timer->child = timer->next = timer->prev = NULL;
    timer->set = true;
    timers->first = timers->first ? merge(timers->first, timer) : timer;
}
