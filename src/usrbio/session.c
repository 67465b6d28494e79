/* SPDX-License-Identifier: Apache-2.0
 *
 * A session: the region and rings for one run of the daemon, and the threads that wait for
 * completions. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "usrbio/private.h"

/* I/Os that the daemon takes at a time from a ring without groups.  The daemon reports the
 * completions of these I/Os together, so the number must be small; each report costs the daemon a
 * wake-up, so the number must not be 1. */
#define DEFAULT_DEPTH (-8)

/* ---------------------------------------------------------------- the daemon */

/* Read the target of a mount's link submit-ios: each run of the daemon has its own semaphore.
 * Return 0 or -errno. */
static int
read_semaphore(const char *mount_point, char *out, size_t size)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/3fs-virt/iovs/submit-ios", mount_point);
    ssize_t n = readlink(path, out, size - 1);
    if (n < 0)
        return -errno;
    out[n] = '\0';
    return 0;
}

bool
kvt__usrbio_session_is_served(const struct kvt__usrbio_session *session,
                              const char *mount_point)
{
    char now[sizeof session->semaphore];

    return !read_semaphore(mount_point, now, sizeof now) &&
           !strcmp(now, session->semaphore);
}

/* --------------------------------------------------------------------- opening */

static int
open_region(struct kvt__usrbio_session *s, const struct kvt__usrbio_params *params)
{
    int err = read_semaphore(params->mount_point, s->semaphore, sizeof s->semaphore);

    if (err)
        return kvt__fail(-err, "%s/3fs-virt/iovs: the mount's daemon does not respond; "
                         "is 3FS's FUSE client running there?", params->mount_point);
    err = kvt__usrbio_alloc_memory(s->api, &s->iov, params->mount_point, params->iov_bytes, 0,
                                   params->node);
    if (err)
        return err;
    s->region_bytes = params->iov_bytes;
    (void)kvt__pin(&s->pin, s->iov.base, s->region_bytes);
    return kvt__extents_init(&s->free, params->iov_bytes / KVT__USRBIO_UNIT);
}

static int
open_ring(struct kvt__usrbio_session *s, const struct kvt__usrbio_params *params,
          bool reads, int depth)
{
    struct kvt__usrbio_ring *ring = &s->rings[s->n_rings];

    *ring = (struct kvt__usrbio_ring){ .session = s, .reads = reads,
                                       .has_groups = depth > 0 };
    int err = s->api->iorcreate4(&ring->ior, params->mount_point, (int)params->entries,
                                 reads, depth, 0, params->node, 0);
    if (err == -EINVAL && depth < 0) /* some daemons support no negative depth */
        err = s->api->iorcreate4(&ring->ior, params->mount_point, (int)params->entries,
                                 reads, 0, 0, params->node, 0);
    if (err)
        return kvt__fail(-err, "hf3fs_ior_entries: make a ring of %u entries at %s",
                         params->entries, params->mount_point);
    pthread_mutex_init(&ring->prep, NULL);
    pthread_cond_init(&ring->work, NULL);
    kvt__cond_init(&ring->completed); /* waits with a timeout */
    err = kvt__thread_start(&ring->waiter, reads ? "kvt-3fs-read" : "kvt-3fs-write",
                            kvt__usrbio_waiter_main, ring);
    if (err) {
        s->api->iordestroy(&ring->ior);
        pthread_cond_destroy(&ring->completed);
        pthread_cond_destroy(&ring->work);
        pthread_mutex_destroy(&ring->prep);
        return err;
    }
    s->n_rings++;
    return 0;
}

/* Open all pairs of rings.  If the daemon takes full groups, open a second ring for each ring,
 * for the pieces that fill no group. */
static int
open_rings(struct kvt__usrbio_session *s, const struct kvt__usrbio_params *params)
{
    int err = 0;

    for (uint32_t i = 0; !err && i < 2 * params->n_pairs; i++) {
        if (params->io_depth > 0)
            err = open_ring(s, params, i % 2, params->io_depth);
        if (!err)
            err = open_ring(s, params, i % 2,
                            params->io_depth < 0 ? params->io_depth : DEFAULT_DEPTH);
    }
    return err;
}

int
kvt__usrbio_session_open(const struct kvt__usrbio_params *params,
                         struct kvt__usrbio_session **out)
{
    struct kvt__usrbio_session *s = calloc(1, sizeof *s);

    if (!s)
        return kvt__fail(ENOMEM, "%s: make rings", params->mount_point);
    s->api = params->api;
    s->entries = params->entries;
    s->group_size = params->io_depth > 0 ? (uint32_t)params->io_depth : 0;
    pthread_mutex_init(&s->lock, NULL);
    int err = open_region(s, params);
    if (!err) {
        kvt__extents_free(&s->free, 0, params->iov_bytes / KVT__USRBIO_UNIT);
        err = open_rings(s, params);
    }
    if (!err && !kvt__usrbio_session_is_served(s, params->mount_point))
        err = kvt__fail(ESTALE, "%s: the daemon was restarted while kvtier announced "
                        "shared memory", params->mount_point);
    if (err) {
        kvt__usrbio_session_mark_dead(s);
        kvt__usrbio_session_close(s);
        return err;
    }
    *out = s;
    return 0;
}

/* --------------------------------------------------------------------- lending */

bool
kvt__usrbio_session_acquire_slot(struct kvt__usrbio_session *session, enum kvt__prio prio,
                                 size_t phase, size_t bytes, struct kvt__slot *out)
{
    size_t most = session->region_bytes / KVT__USRBIO_UNIT;
    unsigned char *at = NULL;

    if (bytes > session->region_bytes)
        return false;
    if (prio == KVT__PRIO_STORE)
        most /= 2;
    size_t n = kvt__slot_footprint(phase, bytes) / KVT__USRBIO_UNIT;
    pthread_mutex_lock(&session->lock);
    if (!session->dead && !session->first_waiting && session->n_slot_units + n <= most)
        at = kvt__usrbio_alloc_units(session, n);
    if (at)
        session->n_slot_units += n;
    pthread_mutex_unlock(&session->lock);
    if (at)
        *out = (struct kvt__slot){ at + KVT__SLOT_MARGIN + phase, bytes, &session->source };
    return at != NULL;
}

void
kvt__usrbio_session_release_slot(struct kvt__usrbio_session *session,
                                 const struct kvt__slot *slot)
{
    size_t phase = (size_t)(slot->payload - session->iov.base) % KVT__USRBIO_UNIT;
    size_t n = kvt__slot_footprint(phase, slot->bytes) / KVT__USRBIO_UNIT;

    pthread_mutex_lock(&session->lock);
    kvt__usrbio_free_units(session, slot->payload - phase - KVT__SLOT_MARGIN, n);
    session->n_slot_units -= n;
    kvt__usrbio_wake_first(session);
    pthread_mutex_unlock(&session->lock);
}

/* --------------------------------------------------------------------- ending */

void
kvt__usrbio_session_close(struct kvt__usrbio_session *s)
{
    for (uint32_t i = 0; i < s->n_rings; i++) {
        struct kvt__usrbio_ring *ring = &s->rings[i];

        pthread_join(ring->waiter, NULL);
        s->api->iordestroy(&ring->ior);
        pthread_cond_destroy(&ring->completed);
        pthread_cond_destroy(&ring->work);
        pthread_mutex_destroy(&ring->prep);
    }
    kvt__unpin(&s->pin);
    if (s->iov.base)
        s->api->iovdestroy(&s->iov);
    kvt__extents_fini(&s->free);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
