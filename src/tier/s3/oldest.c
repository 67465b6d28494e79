/* SPDX-License-Identifier: Apache-2.0
 *
 * The oldest of many objects, in bounded memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tier/s3/clean.h"

/* Compare by time, then by name: all cleaners then choose equal sets of objects. */
static int
by_age(const void *a, const void *b)
{
    const struct s3_old *x = a, *y = b;

    if (x->modified_ns != y->modified_ns)
        return x->modified_ns < y->modified_ns ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void
swap(struct s3_old *a, struct s3_old *b)
{
    struct s3_old t = *a;

    *a = *b;
    *b = t;
}

static void
sift_up(struct s3_oldest *o, size_t i)
{
    for (size_t parent; i; i = parent) {
        parent = (i - 1) / 2;
        if (by_age(&o->olds[parent], &o->olds[i]) >= 0)
            return;
        swap(&o->olds[parent], &o->olds[i]);
    }
}

static void
sift_down(struct s3_oldest *o)
{
    for (size_t i = 0, child; (child = 2 * i + 1) < o->n; i = child) {
        if (child + 1 < o->n && by_age(&o->olds[child + 1], &o->olds[child]) > 0)
            child++;
        if (by_age(&o->olds[i], &o->olds[child]) >= 0)
            return;
        swap(&o->olds[i], &o->olds[child]);
    }
}

static int
grow(struct s3_oldest *o)
{
    size_t room = o->room ? o->room * 2 : 1024;

    if (room > o->most)
        room = o->most;
    struct s3_old *olds = realloc(o->olds, room * sizeof *olds);
    if (!olds)
        return kvt__fail(ENOMEM, "S3: the list of old chunks");
    o->olds = olds;
    o->room = room;
    return 0;
}

int
kvt__s3_oldest_add(struct s3_oldest *o, const char *name, uint64_t bytes,
                   int64_t modified_ns)
{
    struct s3_old old = { .name = (char *)name, .bytes = bytes,
                          .modified_ns = modified_ns };
    bool is_full = o->n == o->most;

    if (is_full && by_age(&old, &o->olds[0]) >= 0)
        return 0;
    if (!is_full && o->n == o->room && grow(o))
        return -ENOMEM;
    old.name = strdup(name);
    if (!old.name)
        return kvt__fail(ENOMEM, "S3: the list of old chunks");
    if (is_full) {
        free(o->olds[0].name);
        o->olds[0] = old;
        sift_down(o);
    } else {
        o->olds[o->n] = old;
        sift_up(o, o->n++);
    }
    return 0;
}

void
kvt__s3_oldest_sort(struct s3_oldest *o)
{
    if (o->n)
        qsort(o->olds, o->n, sizeof *o->olds, by_age);
}

void
kvt__s3_oldest_free(struct s3_oldest *o)
{
    for (size_t i = 0; i < o->n; i++)
        free(o->olds[i].name);
    free(o->olds);
    *o = (struct s3_oldest){ .most = o->most };
}
