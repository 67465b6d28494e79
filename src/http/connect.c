/* SPDX-License-Identifier: Apache-2.0
 *
 * Connect to an origin: addresses and a socket.  Addresses are tried as in
 * RFC 8305 (Happy Eyeballs): each attempt starts a short delay after the previous attempt,
 * and earlier attempts continue.  The first connected socket is used; all other sockets
 * are closed. */
#include "http/private.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

/* Attempts under way at a time.  If no address accepts, each of the client's connections uses at
 * most this number of descriptors. */
#define MAX_OPEN 4

struct attempt {
    int fd; /* -1: the attempt failed */
    int64_t due_ns;
};

struct kvt__http_race {
    size_t n, n_begun, n_open;
    int64_t next_ns; /* when the next attempt begins */
    int err;         /* of the last failed attempt */
    struct kvt__http_address addresses[KVT__HTTP_MAX_ADDRESSES];
    struct attempt attempts[KVT__HTTP_MAX_ADDRESSES];
};

/* ------------------------------------------------------------------ attempts */

static int
open_socket(const struct kvt__http_address *a, int *out)
{
    bool in4 = a->to.sa.sa_family == AF_INET;
    int on = 1;
    int fd = socket(a->to.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return errno;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, &a->to.sa, in4 ? sizeof a->to.in4 : sizeof a->to.in6) < 0 &&
        errno != EINPROGRESS && errno != EINTR) {
        int err = errno;

        close(fd);
        return err;
    }
    *out = fd;
    return 0;
}

static int
begin_attempt(struct kvt__http_conn *conn, size_t i)
{
    struct epoll_event e = { .events = EPOLLOUT, .data.ptr = conn };
    struct attempt *attempt = &conn->race->attempts[i];
    int err = open_socket(&conn->race->addresses[i], &attempt->fd);

    if (!err && epoll_ctl(conn->thread->epoll, EPOLL_CTL_ADD, attempt->fd, &e) < 0) {
        err = errno;
        close(attempt->fd);
    }
    if (err)
        attempt->fd = -1;
    attempt->due_ns = kvt__now_ns() + conn->origin->http->connect_ns;
    return err;
}

/* Return the attempt's result: 0, connected; EINPROGRESS; or the error. */
static int
attempt_result(const struct attempt *attempt, int64_t now)
{
    struct kvt__http_address peer;
    socklen_t size = sizeof peer.to, err_size = sizeof(int);
    int err = 0;

    if (getsockopt(attempt->fd, SOL_SOCKET, SO_ERROR, &err, &err_size) < 0)
        return errno;
    if (err || !getpeername(attempt->fd, &peer.to.sa, &size))
        return err;
    return now >= attempt->due_ns ? ETIMEDOUT : EINPROGRESS;
}

/* Note a failed attempt and let the next attempt start at once. */
static void
fail_attempt(struct kvt__http_conn *conn, size_t i, int err)
{
    struct kvt__http_race *race = conn->race;
    struct attempt *attempt = &race->attempts[i];

    if (attempt->fd >= 0) {
        kvt__http_close_fd(conn->thread, attempt->fd);
        attempt->fd = -1;
        race->n_open--;
    }
    race->err = err;
    race->next_ns = 0;
    kvt__http_bad_address(conn->origin, &race->addresses[i]);
}

/* ------------------------------------------------------------------ the race */

int64_t
kvt__http_race_due_ns(const struct kvt__http_conn *conn)
{
    const struct kvt__http_race *race = conn->race;
    int64_t due = INT64_MAX;

    if (!race)
        return 0;
    if (race->n_begun < race->n && race->n_open < MAX_OPEN)
        due = race->next_ns;
    for (size_t i = 0; i < race->n_begun; i++)
        if (race->attempts[i].fd >= 0 && race->attempts[i].due_ns < due)
            due = race->attempts[i].due_ns;
    return due;
}

void
kvt__http_race_end(struct kvt__http_conn *conn)
{
    struct kvt__http_race *race = conn->race;

    for (size_t i = 0; race && i < race->n_begun; i++)
        if (race->attempts[i].fd >= 0)
            kvt__http_close_fd(conn->thread, race->attempts[i].fd);
    free(race);
    conn->race = NULL;
}

/* Use the winner.  An address overtaken by a later address is slower by at least the delay:
 * the next connections begin with other addresses. */
static void
win(struct kvt__http_conn *conn, size_t winner)
{
    struct kvt__http_race *race = conn->race;

    for (size_t i = 0; i < winner; i++)
        if (race->attempts[i].fd >= 0)
            kvt__http_bad_address(conn->origin, &race->addresses[i]);
    conn->fd = race->attempts[winner].fd;
    conn->events = EPOLLOUT;
    conn->lowat = 1;
    race->attempts[winner].fd = -1;
    kvt__http_race_end(conn);
}

/* Take the first connected attempt.  Return false if no attempt has connected. */
static bool
take_winner(struct kvt__http_conn *conn, int64_t now)
{
    struct kvt__http_race *race = conn->race;

    for (size_t i = 0; i < race->n_begun; i++) {
        int err = race->attempts[i].fd < 0 ? EINPROGRESS
                                           : attempt_result(&race->attempts[i], now);

        if (!err) {
            win(conn, i);
            return true;
        }
        if (err != EINPROGRESS)
            fail_attempt(conn, i, err);
    }
    return false;
}

static void
begin_next(struct kvt__http_conn *conn, int64_t now)
{
    struct kvt__http_race *race = conn->race;

    while (race->n_begun < race->n && race->n_open < MAX_OPEN && now >= race->next_ns) {
        size_t i = race->n_begun++;
        int err = begin_attempt(conn, i);

        if (err) {
            fail_attempt(conn, i, err);
            continue;
        }
        race->n_open++;
        race->next_ns = now + KVT__HTTP_STAGGER_NS;
    }
}

/* Handle the result of an attempt, or start the next attempt when due. */
int
kvt__http_connect(struct kvt__http_conn *conn)
{
    struct kvt__http_race *race = conn->race;
    int64_t now = kvt__now_ns();

    if (take_winner(conn, now))
        return KVT__HTTP_DONE;
    begin_next(conn, now);
    if (race->n_open)
        return KVT__HTTP_WAITS;
    return kvt__fail(race->err, "connect to %s", conn->origin->connect_label);
}

/* Prepare the attempts if the origin's addresses are known. */
int
kvt__http_resolve(struct kvt__http_conn *conn)
{
    struct kvt__http_race *race = calloc(1, sizeof *race);

    if (!race)
        return kvt__fail(ENOMEM, "connect to %s", conn->origin->connect_label);
    int n = kvt__http_pick(conn, race->addresses);
    if (n <= 0) {
        free(race);
        return n < 0 ? n : KVT__HTTP_WAITS;
    }
    race->n = (size_t)n;
    conn->race = race;
    return KVT__HTTP_DONE;
}
