/* SPDX-License-Identifier: Apache-2.0
 *
 * The targets of requests: the bucket's target, and the targets of redirects.  A call may use a
 * target until the end of the call, so all targets are kept until the tier closes.  There are few
 * targets, because equal targets are stored once. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tier/s3/s3.h"

#define MAX_TARGETS 64

static bool
is_same_target(const struct kvt__s3_address *a, const struct kvt__s3_address *b)
{
    return !strcmp(a->host, b->host) && !strcmp(a->region, b->region) &&
           !strcmp(a->object_path, b->object_path);
}

static int
add_target(struct s3_tier *t, const struct kvt__s3_address *address, struct s3_target **out)
{
    struct s3_target *target = malloc(sizeof *target);

    if (!target)
        return kvt__fail(ENOMEM, "S3: %s", address->host);
    struct kvt__http_target to = {
        .host = address->name, .port = address->port, .tls = address->tls,
        .address = *address->address ? address->address : NULL };
    int err = kvt__http_origin(t->http, &to, &target->origin);
    if (err) {
        free(target);
        return err;
    }
    target->address = *address;
    target->next = t->targets;
    t->targets = target;
    *out = target;
    return 0;
}

/* Find or add a target; the caller holds the lock. */
static int
find_target(struct s3_tier *t, const struct kvt__s3_address *address, struct s3_target **out)
{
    unsigned n = 0;

    for (struct s3_target *w = t->targets; w; w = w->next, n++)
        if (is_same_target(&w->address, address)) {
            *out = w;
            return 0;
        }
    if (n == MAX_TARGETS)
        return kvt__fail(EXDEV, "S3: a redirect leads to %s, after %d other targets.",
                         address->host, MAX_TARGETS);
    return add_target(t, address, out);
}

void
kvt__s3_target_text(const struct s3_target *target, char out[KVT__S3_TARGET_TEXT])
{
    const struct kvt__s3_address *a = &target->address;

    snprintf(out, KVT__S3_TARGET_TEXT, "requests go to %s by %s, %s, region %s, prefix '%s'",
             kvt__http_connect_label(target->origin), a->tls ? "https" : "http",
             strlen(a->bucket_path) > 1 ? "path-style" : "virtual-hosted-style", a->region,
             a->prefix);
}

/* Make a target the current target. */
static void
use_target(struct s3_tier *t, struct s3_target *target)
{
    char text[KVT__S3_TARGET_TEXT];

    atomic_store(&t->target, target);
    kvt__s3_target_text(target, text);
    kvt__log(KVT_LOG_DEBUG, "S3: %s", text);
}

int
kvt__s3_target_set(struct s3_tier *t, const struct kvt__s3_address *address)
{
    struct s3_target *target = NULL;
    int err = add_target(t, address, &target);

    if (!err)
        use_target(t, target);
    return err;
}

/* Find or add the target of a redirect from `was`. */
static int
follow(struct s3_tier *t, const struct s3_target *was, const char *host, const char *region,
       struct s3_target **out)
{
    struct kvt__s3_address address;
    int err = kvt__s3_readdress(&was->address, host, region, &address);

    if (!err && is_same_target(&address, &was->address))
        err = kvt__fail(EXDEV, "S3: a redirect has no new host or region.");
    return err ? err : find_target(t, &address, out);
}

int
kvt__s3_target_move(struct s3_tier *t, const struct s3_target *was, const char *host,
                    const char *region)
{
    struct s3_target *target = NULL;
    int err = 0;

    pthread_mutex_lock(&t->targets_lock);
    if (atomic_load(&t->target) == was) { /* otherwise another call has already moved the bucket */
        err = follow(t, was, host, region, &target);
        if (!err)
            use_target(t, target);
    }
    pthread_mutex_unlock(&t->targets_lock);
    return err;
}

int
kvt__s3_target_visit(struct s3_tier *t, const struct s3_target *was, const char *host,
                     const char *region, struct s3_target **out)
{
    pthread_mutex_lock(&t->targets_lock);
    int err = follow(t, was, host, region, out);
    pthread_mutex_unlock(&t->targets_lock);
    return err;
}

void
kvt__s3_targets_free(struct s3_tier *t)
{
    for (struct s3_target *w = t->targets, *next; w; w = next) {
        next = w->next;
        free(w);
    }
}
