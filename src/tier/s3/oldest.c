/* SPDX-License-Identifier: Apache-2.0
 *
 * The oldest of many objects, in bounded memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tier/s3/clean.h"

/* Compare by time, then by name: all cleaners then choose equal sets of objects. */
static int
compare_age(const void *a, const void *b)
{
    const struct s3_victim *x = a, *y = b;

    if (x->modified_ns != y->modified_ns)
        return x->modified_ns < y->modified_ns ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void
swap(struct s3_victim *a, struct s3_victim *b)
{
    struct s3_victim t = *a;

    *a = *b;
    *b = t;
}

static void
sift_up(struct s3_oldest *o, size_t i)
{
    for (size_t parent; i; i = parent) {
        parent = (i - 1) / 2;
        if (compare_age(&o->victims[parent], &o->victims[i]) >= 0)
            return;
        swap(&o->victims[parent], &o->victims[i]);
    }
}

static void
sift_down(struct s3_oldest *o)
{
    for (size_t i = 0, child; (child = 2 * i + 1) < o->n; i = child) {
        if (child + 1 < o->n && compare_age(&o->victims[child + 1], &o->victims[child]) > 0)
            child++;
        if (compare_age(&o->victims[i], &o->victims[child]) >= 0)
            return;
        swap(&o->victims[i], &o->victims[child]);
    }
}

static int
grow(struct s3_oldest *o)
{
    size_t room = o->room ? o->room * 2 : 1024;

    if (room > o->max)
        room = o->max;
    struct s3_victim *victims = realloc(o->victims, room * sizeof *victims);
    if (!victims)
        return kvt__fail(ENOMEM, "S3: the list of old chunks");
    o->victims = victims;
    o->room = room;
    return 0;
}

int
kvt__s3_oldest_add(struct s3_oldest *o, const char *name, uint64_t bytes,
                   int64_t modified_ns)
{
    struct s3_victim old = { .name = (char *)name, .bytes = bytes,
                          .modified_ns = modified_ns };
    bool is_full = o->n == o->max;

    if (is_full && compare_age(&old, &o->victims[0]) >= 0)
        return 0;
    if (!is_full && o->n == o->room && grow(o))
        return -ENOMEM;
    old.name = strdup(name);
    if (!old.name)
        return kvt__fail(ENOMEM, "S3: the list of old chunks");
    if (is_full) {
        free(o->victims[0].name);
        o->victims[0] = old;
        sift_down(o);
    } else {
        o->victims[o->n] = old;
        sift_up(o, o->n++);
    }
    return 0;
}

void
kvt__s3_oldest_sort(struct s3_oldest *o)
{
    if (o->n)
        qsort(o->victims, o->n, sizeof *o->victims, compare_age);
}

void
kvt__s3_oldest_free(struct s3_oldest *o)
{
    for (size_t i = 0; i < o->n; i++)
        free(o->victims[i].name);
    free(o->victims);
    *o = (struct s3_oldest){ .max = o->max };
}
