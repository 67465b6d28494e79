/* SPDX-License-Identifier: Apache-2.0
 *
 * The client's own parts.
 *
 *      client ──► session (one generation) ──► rings ──► waiters
 *                     ▲
 *      transfers ─────┘  (one a call, on its caller's thread)
 *
 * session.lock guards everything in a session that says so; it is held for a few
 * instructions.  ring.prep is held while I/Os are handed to that ring, and may be held
 * when session.lock is taken. */
#ifndef KVT_USRBIO_PRIVATE_H
#define KVT_USRBIO_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "mem/extents.h"
#include "usrbio/client.h"

#define KVT__USRBIO_UNIT ((size_t)4096)
#define KVT__USRBIO_MAX_PAIRS 16
#define KVT__USRBIO_RUN 4 /* pieces handed over at a time, where there are no groups */

struct kvt__usrbio_session;
struct kvt__usrbio_transfer;

/* One I/O: a piece of a file and its place in the region. */
struct kvt__usrbio_piece {
    struct kvt__usrbio_transfer *transfer;
    struct kvt__usrbio_ring *ring; /* that it was given to */
    size_t unit, n_units;          /* of the region */
    uint64_t offset;               /* in the file */
    size_t bytes, moved;           /* of it, and so far */
    int64_t result;                /* under the session's lock, as ended */
    bool ended;
};

struct kvt__usrbio_ring {
    struct kvt__usrbio_session *session;
    struct kvt__hf3fs_ior ior;
    bool reads;
    bool groups;         /* takes full ones only */
    pthread_mutex_t prep;
    pthread_t waiter;
    pthread_cond_t work, answered; /* with the session's lock */
    uint32_t under_way;  /* under the session's lock */
};

/* Region and rings of one run of the daemon. */
struct kvt__usrbio_session {
    const struct kvt__usrbio_api *api;
    struct kvt__hf3fs_iov iov;
    uint64_t region_bytes;
    uint32_t entries;   /* of each ring */
    uint32_t group;     /* pieces in a full group; 0: there are none */
    struct kvt__usrbio_ring rings[4 * KVT__USRBIO_MAX_PAIRS];
    uint32_t n_rings;
    char semaphore[256]; /* what submit-ios led to */

    pthread_mutex_t lock; /* guards what follows */
    struct kvt__extents free;
    struct kvt__usrbio_transfer *first; /* of all */
    struct kvt__usrbio_transfer *first_wanting, *last_wanting; /* room */
    uint32_t under_way;   /* I/Os */
    int64_t answered_ns;  /* when the last one was, or the first began */
    bool dead;

    uint32_t users;       /* under the client's lock */
    struct kvt__usrbio_session *next_dead;
};

static inline unsigned char *
kvt__usrbio_place(const struct kvt__usrbio_session *session,
                  const struct kvt__usrbio_piece *piece)
{
    return session->iov.base + piece->unit * KVT__USRBIO_UNIT;
}

/* ---------------------------------------------------------------- session.c */

/* The thread that calls open must call close: what a process leaves behind is found by
 * the thread that made it. */
int kvt__usrbio_session_open(const struct kvt__usrbio_params *params,
                             struct kvt__usrbio_session **out);

/* Nothing of it is heard of any more; transfers end with -ESTALE. */
void kvt__usrbio_session_die(struct kvt__usrbio_session *session);

/* Dead, and without users. */
void kvt__usrbio_session_close(struct kvt__usrbio_session *session);

/* Whether the daemon that it was made with still serves the mount. */
bool kvt__usrbio_session_is_served(const struct kvt__usrbio_session *session,
                                   const char *mount_point);

/* ------------------------------------------------------------------- ring.c */

/* The ring with the least to do that has room for n more, which is taken; a full group's
 * if n makes one.  NULL: none.  Under the session's lock. */
struct kvt__usrbio_ring *kvt__usrbio_ring_reserve(struct kvt__usrbio_session *session,
                                                  bool reads, uint32_t n);

/* Hand pieces to the ring that was reserved for them.  fd is registered.  Each ends,
 * perhaps before this returns. */
void kvt__usrbio_ring_hand_over(struct kvt__usrbio_ring *ring,
                                struct kvt__usrbio_piece *const *pieces, size_t n, int fd);

/* A thread for each ring takes what ended there.  arg: the ring. */
void *kvt__usrbio_waiter_main(void *arg);

/* --------------------------------------------------------------- transfer.c */

/* Move an extent through a session.  As kvt__usrbio_move(). */
int kvt__usrbio_transfer(struct kvt__usrbio_session *session,
                         const struct kvt__usrbio_extent *e);

/* Under the session's lock: a piece of it has ended; there may be room for the first
 * that wants it; all are to look. */
void kvt__usrbio_wake(struct kvt__usrbio_transfer *transfer);
void kvt__usrbio_wake_first(struct kvt__usrbio_session *session);
void kvt__usrbio_wake_all(struct kvt__usrbio_session *session);

#endif
