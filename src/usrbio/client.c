/* SPDX-License-Identifier: Apache-2.0
 *
 * The process's client of a mount.  The client's thread opens and closes the sessions: the daemon
 * forgets the memory that a thread announced when this thread ends.  The thread also detects a
 * restart of the daemon, after which I/Os in flight never complete. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "usrbio/private.h"

/* After this time without a completion, the client checks whether the same daemon serves the
 * mount. */
#define LATE_NS (KVT__NS_PER_S / 2)
/* Interval of retries while no daemon serves the mount. */
#define RETRY_NS (KVT__NS_PER_S / 2)

struct kvt__usrbio_client {
    struct kvt__usrbio_params params;
    char mount_point[KVT__HF3FS_MAX_MOUNT];
    struct kvt__usrbio_client *next; /* list of the process's clients */
    uint32_t refs, n_stopped;        /* guarded by list_lock */
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* signals to the client's thread and from the client's thread */
    struct kvt__usrbio_session *session; /* NULL: no session */
    struct kvt__usrbio_session *dead;    /* list of dead sessions with users */
    int err;         /* why no session exists; 0: the first session is being made */
    char why[256];
    bool stopping;
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kvt__usrbio_client *list;

/* A forked child has none of the clients' threads, so the child begins with an empty list.
 * Another thread of the parent may have held the lock, so the child initializes the lock again.
 * The parent does not hold the lock during a fork: kvt__usrbio_client_open() holds the lock until
 * the daemon has responded. */
static void
after_fork_in_child(void)
{
    list_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    list = NULL;
}

static void
watch_forks(void)
{
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

static void
lock_list(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&list_lock);
}

static void release_slot(struct kvt__slot_source *source, struct kvt__slot *slot);

/* ------------------------------------------------------------ the client's thread */

/* Open a session; the client has none.  The caller holds client.lock; the function unlocks
 * client.lock while the session is opened. */
static void
open_session(struct kvt__usrbio_client *c)
{
    struct kvt__usrbio_session *session = NULL;
    bool first = !c->err;

    pthread_mutex_unlock(&c->lock);
    int err = kvt__usrbio_session_open(&c->params, &session);
    pthread_mutex_lock(&c->lock);
    if (session) {
        session->client = c;
        session->source.release = release_slot;
    }
    c->session = session;
    /* Until the next daemon has mounted, its directories are missing.  The error for a chunk must
     * not be -ENOENT: -ENOENT means that the chunk does not exist. */
    c->err = err == -ENOENT || err == -ENOTDIR ? -ENOTCONN : err;
    snprintf(c->why, sizeof c->why, "%s", err ? kvt__why() : "");
    pthread_cond_broadcast(&c->changed);
    if (err && first)
        kvt__log(KVT_LOG_WARN, "%s (kvtier retries twice a second)", c->why);
}

/* Mark the session dead, which ends its transfers, and move the session to the list of dead
 * sessions. */
static void
retire_session(struct kvt__usrbio_client *c)
{
    kvt__usrbio_session_mark_dead(c->session);
    c->session->next_dead = c->dead;
    c->dead = c->session;
    c->session = NULL;
}

/* Close dead sessions without users.  The caller holds client.lock; the function unlocks
 * client.lock while a session is closed. */
static void
close_unused_sessions(struct kvt__usrbio_client *c)
{
    struct kvt__usrbio_session **at = &c->dead, *s;

    while ((s = *at)) {
        if (s->n_users) {
            at = &s->next_dead;
            continue;
        }
        *at = s->next_dead;
        if (c->err == -ENOSPC)
            c->err = 0; /* the freed memory may suffice now */
        pthread_mutex_unlock(&c->lock);
        kvt__usrbio_session_close(s);
        pthread_mutex_lock(&c->lock);
        at = &c->dead;
    }
}

/* Return true if the run of the daemon of the session is over.  The caller holds client.lock; the
 * function may unlock client.lock for a while. */
static bool
is_session_over(struct kvt__usrbio_client *c)
{
    struct kvt__usrbio_session *s = c->session;

    pthread_mutex_lock(&s->lock);
    bool dead = s->dead;
    bool late = s->n_in_flight && kvt__now_ns() - s->last_completion_ns > LATE_NS;
    pthread_mutex_unlock(&s->lock);
    if (dead || !late)
        return dead;
    s->n_users++; /* keeps the session open without client.lock */
    pthread_mutex_unlock(&c->lock);
    bool served = kvt__usrbio_session_is_served(s, c->mount_point);
    pthread_mutex_lock(&c->lock);
    s->n_users--;
    return !served;
}

/* Wait for a change of the client, at most ns nanoseconds; ns < 0: without a timeout. */
static void
wait_for_change(struct kvt__usrbio_client *c, int64_t ns)
{
    if (ns < 0) {
        pthread_cond_wait(&c->changed, &c->lock);
        return;
    }
    struct timespec until = kvt__timespec(kvt__now_ns() + ns);
    pthread_cond_timedwait(&c->changed, &c->lock, &until);
}

/* Do all pending work of the client's thread.  Return the timeout of the next wait: -1 none, 0 do
 * not wait. */
static int64_t
run_once(struct kvt__usrbio_client *c)
{
    close_unused_sessions(c);
    if (c->session && (c->stopping || is_session_over(c))) {
        if (!c->stopping)
            kvt__log(KVT_LOG_WARN, "3FS: the daemon of %s was restarted; transfers in "
                     "flight fail.", c->mount_point);
        retire_session(c);
        return 0;
    }
    if (c->stopping)
        return c->dead ? -1 : 0;
    if (!c->session) {
        open_session(c);
        return c->session ? 0 : RETRY_NS;
    }
    return c->session->n_users || c->dead ? LATE_NS / 2 : -1;
}

static void *
client_main(void *arg)
{
    struct kvt__usrbio_client *c = arg;

    pthread_mutex_lock(&c->lock);
    while (!c->stopping || c->session || c->dead) {
        int64_t ns = run_once(c);

        if (ns)
            wait_for_change(c, ns);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ------------------------------------------------------------------- transfers */

/* Return the current session in *out and count a user.  Wait while the first session is being
 * made. */
static int
acquire_session(struct kvt__usrbio_client *c, struct kvt__usrbio_session **out)
{
    pthread_mutex_lock(&c->lock);
    while (!c->session && !c->err && !c->stopping)
        pthread_cond_wait(&c->changed, &c->lock);
    int err = c->stopping ? -ECANCELED : c->session ? 0 : c->err;
    if (err == -ENOSPC && c->dead)
        err = -ESTALE; /* closing the dead session frees memory: the caller retries */
    if (!err) {
        *out = c->session;
        if (!c->session->n_users++)
            pthread_cond_broadcast(&c->changed); /* the client's thread now checks the daemon */
    }
    pthread_mutex_unlock(&c->lock);
    return err;
}

/* Give up a session.  Return true if the client is being stopped. */
static bool
release_session(struct kvt__usrbio_client *c, struct kvt__usrbio_session *session)
{
    pthread_mutex_lock(&c->lock);
    if (!--session->n_users)
        pthread_cond_broadcast(&c->changed);
    bool stopping = c->stopping;
    pthread_mutex_unlock(&c->lock);
    return stopping;
}

static void
release_slot(struct kvt__slot_source *source, struct kvt__slot *slot)
{
    struct kvt__usrbio_session *session = (struct kvt__usrbio_session *)source;

    kvt__usrbio_session_release_slot(session, slot);
    (void)release_session(session->client, session);
}

bool
kvt__usrbio_client_acquire(struct kvt__usrbio_client *client, enum kvt__prio prio,
                           size_t phase, size_t bytes, struct kvt__slot *out)
{
    pthread_mutex_lock(&client->lock);
    struct kvt__usrbio_session *session = client->stopping ? NULL : client->session;
    bool is_acquired = session &&
                       kvt__usrbio_session_acquire_slot(session, prio, phase, bytes, out);
    if (is_acquired && !session->n_users++)
        pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
    return is_acquired;
}

int
kvt__usrbio_move(struct kvt__usrbio_client *client, const struct kvt__usrbio_extent *e)
{
    struct kvt__usrbio_session *session;
    int err = acquire_session(client, &session);

    if (err)
        return err;
    err = kvt__usrbio_transfer(session, e);
    return release_session(client, session) && err == -ESTALE ? -ECANCELED : err;
}

/* ------------------------------------------------------- opening and closing */

static void
free_client(struct kvt__usrbio_client *c)
{
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Start the client's thread and wait for the first session. */
static int
start(struct kvt__usrbio_client *c)
{
    int err = kvt__thread_start(&c->thread, "kvt-3fs", client_main, c);

    if (err)
        return err;
    pthread_mutex_lock(&c->lock);
    while (!c->session && !c->err)
        pthread_cond_wait(&c->changed, &c->lock);
    err = c->err;
    if (err)
        c->stopping = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (err) {
        pthread_join(c->thread, NULL);
        kvt__set_why(c->why);
    }
    return err;
}

static int
new_client(const struct kvt__usrbio_params *params, struct kvt__usrbio_client **out)
{
    struct kvt__usrbio_client *c = calloc(1, sizeof *c);

    if (!c)
        return kvt__fail(ENOMEM, "%s: open", params->mount_point);
    c->params = *params;
    snprintf(c->mount_point, sizeof c->mount_point, "%s", params->mount_point);
    c->params.mount_point = c->mount_point;
    c->refs = 1;
    pthread_mutex_init(&c->lock, NULL);
    kvt__cond_init(&c->changed);
    int err = start(c);
    if (err)
        free_client(c);
    else
        *out = c;
    return err;
}

static bool
has_equal_params(const struct kvt__usrbio_params *a, const struct kvt__usrbio_params *b)
{
    return a->api == b->api && a->iov_bytes == b->iov_bytes && a->entries == b->entries &&
           a->io_depth == b->io_depth && a->node == b->node && a->n_pairs == b->n_pairs;
}

int
kvt__usrbio_client_open(const struct kvt__usrbio_params *params,
                        struct kvt__usrbio_client **out)
{
    int err = 0;

    lock_list();
    struct kvt__usrbio_client *c = list;
    while (c && strcmp(c->mount_point, params->mount_point))
        c = c->next;
    if (c) {
        c->refs++;
        if (!has_equal_params(&c->params, params))
            kvt__log(KVT_LOG_WARN, "3FS: %s is already open in this process with other "
                     "hf3fs_ settings; kvtier keeps the first settings.", params->mount_point);
    } else if (!(err = new_client(params, &c))) {
        c->next = list;
        list = c;
    }
    pthread_mutex_unlock(&list_lock);
    if (!err)
        *out = c;
    return err;
}

static void
remove_from_list(struct kvt__usrbio_client *c)
{
    struct kvt__usrbio_client **at = &list;

    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
}

void
kvt__usrbio_client_stop(struct kvt__usrbio_client *client)
{
    lock_list();
    bool last = ++client->n_stopped == client->refs;
    if (last)
        remove_from_list(client);
    pthread_mutex_unlock(&list_lock);
    if (!last)
        return;
    pthread_mutex_lock(&client->lock);
    client->stopping = true;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

void
kvt__usrbio_client_close(struct kvt__usrbio_client *client)
{
    lock_list();
    bool last = !--client->refs;
    client->n_stopped--;
    pthread_mutex_unlock(&list_lock);
    if (!last)
        return;
    pthread_join(client->thread, NULL);
    free_client(client);
}
