/* SPDX-License-Identifier: Apache-2.0
 *
 * The targets of requests: the bucket's target, and the targets of redirects.  A call may use a
 * target until the end of the call, so all targets are kept until the tier closes.  There are few
 * targets, because equal targets are stored once. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tier/s3/s3.h"

#define MAX_PLACES 64

static bool
is_same_place(const struct kvt__s3_address *a, const struct kvt__s3_address *b)
{
    return !strcmp(a->host, b->host) && !strcmp(a->region, b->region) &&
           !strcmp(a->object_path, b->object_path);
}

static int
add_place(struct s3_tier *t, const struct kvt__s3_address *address, struct s3_where **out)
{
    struct s3_where *where = malloc(sizeof *where);

    if (!where)
        return kvt__fail(ENOMEM, "S3: %s", address->host);
    struct kvt__http_target target = {
        .host = address->name, .port = address->port, .tls = address->tls,
        .address = *address->address ? address->address : NULL };
    int err = kvt__http_origin(t->http, &target, &where->origin);
    if (err) {
        free(where);
        return err;
    }
    where->address = *address;
    where->next = t->places;
    t->places = where;
    *out = where;
    return 0;
}

/* Find or add a target; the caller holds the lock. */
static int
find_place(struct s3_tier *t, const struct kvt__s3_address *address, struct s3_where **out)
{
    unsigned n = 0;

    for (struct s3_where *w = t->places; w; w = w->next, n++)
        if (is_same_place(&w->address, address)) {
            *out = w;
            return 0;
        }
    if (n == MAX_PLACES)
        return kvt__fail(EXDEV, "S3: an answer sends to %s, after %d other places.",
                         address->host, MAX_PLACES);
    return add_place(t, address, out);
}

int
kvt__s3_place_set(struct s3_tier *t, const struct kvt__s3_address *address)
{
    struct s3_where *where;
    int err = add_place(t, address, &where);

    if (!err)
        atomic_store(&t->where, where);
    return err;
}

/* Find or add the target of a redirect from `was`. */
static int
follow(struct s3_tier *t, const struct s3_where *was, const char *host, const char *region,
       struct s3_where **out)
{
    struct kvt__s3_address address;
    int err = kvt__s3_readdress(&was->address, host, region, &address);

    if (!err && is_same_place(&address, &was->address))
        err = kvt__fail(EXDEV, "S3: an answer sends elsewhere and does not say where.");
    return err ? err : find_place(t, &address, out);
}

int
kvt__s3_move(struct s3_tier *t, const struct s3_where *was, const char *host,
             const char *region)
{
    struct s3_where *where;
    int err = 0;

    pthread_mutex_lock(&t->where_lock);
    if (atomic_load(&t->where) == was) { /* otherwise another call has already moved the bucket */
        err = follow(t, was, host, region, &where);
        if (!err)
            atomic_store(&t->where, where);
    }
    pthread_mutex_unlock(&t->where_lock);
    return err;
}

int
kvt__s3_visit(struct s3_tier *t, const struct s3_where *was, const char *host,
              const char *region, struct s3_where **out)
{
    pthread_mutex_lock(&t->where_lock);
    int err = follow(t, was, host, region, out);
    pthread_mutex_unlock(&t->where_lock);
    return err;
}

void
kvt__s3_places_free(struct s3_tier *t)
{
    for (struct s3_where *w = t->places, *next; w; w = next) {
        next = w->next;
        free(w);
    }
}
