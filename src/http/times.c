/* SPDX-License-Identifier: Apache-2.0
 *
 * Timers in a pairing heap. */
#include "http/times.h"

#include <stddef.h>

/* Merge two heaps: the root with the later time becomes the first child of the other root. */
static struct kvt__http_time *
merge(struct kvt__http_time *a, struct kvt__http_time *b)
{
    if (b->at_ns < a->at_ns) {
        struct kvt__http_time *later = a;
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
static struct kvt__http_time *
merge_siblings(struct kvt__http_time *list)
{
    struct kvt__http_time *pairs = NULL, *root = NULL;

    while (list) {
        struct kvt__http_time *a = list, *b = a->next;

        list = b ? b->next : NULL;
        if (b)
            a = merge(a, b);
        a->next = pairs;
        pairs = a;
    }
    while (pairs) {
        struct kvt__http_time *next = pairs->next;

        root = root ? merge(root, pairs) : pairs;
        pairs = next;
    }
    if (root)
        root->next = root->prev = NULL;
    return root;
}

void
kvt__http_time_clear(struct kvt__http_times *times, struct kvt__http_time *time)
{
    struct kvt__http_time *below;

    if (!time->set)
        return;
    below = merge_siblings(time->child);
    if (times->first == time) {
        times->first = below;
    } else {
        if (time->prev->child == time)
            time->prev->child = time->next;
        else
            time->prev->next = time->next;
        if (time->next)
            time->next->prev = time->prev;
        if (below)
            times->first = merge(times->first, below);
    }
    time->child = time->next = time->prev = NULL;
    time->set = false;
}

void
kvt__http_time_set(struct kvt__http_times *times, struct kvt__http_time *time,
                   int64_t at_ns)
{
    kvt__http_time_clear(times, time);
    time->at_ns = at_ns;
    time->child = time->next = time->prev = NULL;
    time->set = true;
    times->first = times->first ? merge(times->first, time) : time;
}
