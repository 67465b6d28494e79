/* SPDX-License-Identifier: Apache-2.0
 *
 * The main loop of a thread: take submitted requests from the inbox, start requests from the
 * queues, and sleep until a socket, a timer or the inbox wakes the thread. */
#include "http/private.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define MAX_EVENTS 64

/* Take the submitted requests from the inbox.  Return false if the client is closing and no
 * request is left. */
static bool
take_inbox(struct kvt__http_thread *t, bool *stopped)
{
    struct kvt__http_request *req;

    pthread_mutex_lock(&t->lock);
    req = t->inbox.first;
    t->inbox.first = t->inbox.last = NULL;
    bool closing = t->closing;
    *stopped = t->stopped;
    pthread_mutex_unlock(&t->lock);

    for (struct kvt__http_request *next; req; req = next) {
        next = req->own.next;
        kvt__http_enqueue(t, req);
    }
    return !closing || atomic_load(&t->n_requests);
}

static void
cancel_all(struct kvt__http_list *list)
{
    while (list->first)
        kvt__http_finish(list->first, kvt__fail(ECANCELED, "%s: the client was stopped.",
                                                list->first->origin->label));
}

static void
cancel_requests(struct kvt__http_thread *t)
{
    cancel_all(&t->waiting);
    for (int i = 0; i < KVT__N_PRIOS; i++)
        cancel_all(&t->queues[i]);
    cancel_all(&t->under_way);
}

static void
serve_queues(struct kvt__http_thread *t)
{
    for (int i = 0; i < KVT__N_PRIOS; i++)
        while (t->queues[i].first && t->n_under_way < t->max)
            kvt__http_start(t, t->queues[i].first);
}

static void
run_timers(struct kvt__http_thread *t)
{
    int64_t now = kvt__now_ns();

    while (t->timers.first && t->timers.first->at_ns <= now) {
        struct kvt__http_timer *timer = t->timers.first;

        kvt__http_timer_clear(&t->timers, timer);
        timer->run(timer);
    }
}

static int
wait_ms(const struct kvt__http_thread *t)
{
    int64_t left;

    if (!t->timers.first)
        return -1;
    left = t->timers.first->at_ns - kvt__now_ns();
    if (left <= 0)
        return 0;
    return left > 3600 * KVT__NS_PER_S
               ? 3600000
               : (int)((left + KVT__NS_PER_MS - 1) / KVT__NS_PER_MS);
}

/* Run a connection.  Return the next connection of the list.  The run may close the next
 * connection, if both belong to one request; then start again with the first. */
static struct kvt__http_conn *
run_one(struct kvt__http_thread *t, struct kvt__http_conn *conn)
{
    struct kvt__http_conn *next = conn->next;

    kvt__http_conn_run(conn);
    return next && next->state == KVT__HTTP_CLOSED ? t->busy.first : next;
}

/* Run the connections that wait for a name: a lookup may have ended. */
static void
retry_resolving(struct kvt__http_thread *t)
{
    for (struct kvt__http_conn *c = t->busy.first; c && t->n_resolving;)
        c = c->state == KVT__HTTP_RESOLVE ? run_one(t, c) : c->next;
}

static void
handle(struct kvt__http_thread *t, const struct epoll_event *event)
{
    struct kvt__http_conn *conn = event->data.ptr;
    uint64_t count;

    if (!conn) {
        ssize_t n = read(t->event, &count, sizeof count);
        (void)n;
        retry_resolving(t);
    } else if (conn->state != KVT__HTTP_CLOSED) {
        if (event->events & ~(uint32_t)EPOLLOUT)
            conn->readable = true;
        kvt__http_conn_run(conn);
    }
}

/* Run the connections that stopped at the end of their turn.  No event of a socket reports bytes
 * that TLS has read already. */
static void
run_unread(struct kvt__http_thread *t)
{
    t->has_unread = false;
    for (struct kvt__http_conn *c = t->busy.first; c;) {
        bool again = c->has_unread;

        c->has_unread = false;
        c = again ? run_one(t, c) : c->next;
    }
}

/* Free closed connections.  Called between two epoll_wait() calls: no event in hand points to a
 * closed connection then. */
static void
free_dead(struct kvt__http_thread *t)
{
    for (struct kvt__http_conn *c = t->dead.first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    t->dead.first = t->dead.last = NULL;
}

static void
close_all(struct kvt__http_thread *t)
{
    while (t->idle.first)
        kvt__http_conn_close(t->idle.first);
    while (t->busy.first) /* connections in DRAIN */
        kvt__http_conn_close(t->busy.first);
    free_dead(t);
}

void *
kvt__http_thread_main(void *arg)
{
    struct kvt__http_thread *t = arg;
    struct epoll_event events[MAX_EVENTS];
    bool stopped;

    while (take_inbox(t, &stopped)) {
        if (stopped)
            cancel_requests(t);
        run_timers(t);
        serve_queues(t);
        free_dead(t);
        int n = epoll_wait(t->epoll, events, MAX_EVENTS, t->has_unread ? 0 : wait_ms(t));
        for (int i = 0; i < n; i++)
            handle(t, &events[i]);
        if (t->has_unread)
            run_unread(t);
    }
    close_all(t);
    return NULL;
}
