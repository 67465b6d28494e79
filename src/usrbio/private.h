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

#include "gpu/pin.h"
#include "mem/extents.h"
#include "mem/pool.h"
#include "usrbio/client.h"

#define KVT__USRBIO_UNIT ((size_t)4096)
#define KVT__USRBIO_MAX_PAIRS 16
#define KVT__USRBIO_WINDOW 64 /* pieces of one transfer */
#define KVT__USRBIO_RUN 4 /* pieces handed over at a time, where there are no groups */

struct kvt__usrbio_session;
struct kvt__usrbio_transfer;

/* One I/O: a piece of a file and its place in the region. */
struct kvt__usrbio_piece {
    struct kvt__usrbio_transfer *transfer;
    struct kvt__usrbio_ring *ring; /* that it was given to */
    unsigned char *at;             /* in the region */
    size_t n_units;                /* taken there; 0: they are the caller's */
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
    struct kvt__lender lender; /* of slots in the region, each a user */
    struct kvt__usrbio_client *client;
    const struct kvt__usrbio_api *api;
    struct kvt__hf3fs_iov iov;
    struct kvt__pin pin; /* of the region */
    uint64_t region_bytes;
    uint32_t entries;   /* of each ring */
    uint32_t group;     /* pieces in a full group; 0: there are none */
    struct kvt__usrbio_ring rings[4 * KVT__USRBIO_MAX_PAIRS];
    uint32_t n_rings;
    char semaphore[256]; /* what submit-ios led to */

    pthread_mutex_t lock; /* guards what follows */
    struct kvt__extents free;
    size_t n_lent;        /* units */
    struct kvt__usrbio_transfer *first; /* of all */
    struct kvt__usrbio_transfer *first_wanting, *last_wanting; /* room */
    uint32_t under_way;   /* I/Os */
    int64_t answered_ns;  /* when the last one was, or the first began */
    bool dead;

    uint32_t users;       /* under the client's lock */
    struct kvt__usrbio_session *next_dead;
};

/* One call that moves an extent, on its caller's stack. */
struct kvt__usrbio_transfer {
    struct kvt__usrbio_session *session;
    int fd;
    bool reads, in_region;
    unsigned char *at; /* in the caller's memory */
    size_t bytes, piece_bytes;
    size_t n_pieces, n_issued, n_taken;
    struct kvt__usrbio_piece pieces[KVT__USRBIO_WINDOW]; /* number i at i modulo the window */
    int err;
    void (*came)(void *ctx, const unsigned char *piece, size_t n);
    void *ctx;

    /* Under the session's lock. */
    pthread_cond_t wake;
    bool awake; /* since it last found no room */
    bool wants_room;
    struct kvt__usrbio_transfer *prev_wanting, *next_wanting;
    struct kvt__usrbio_transfer *prev, *next; /* of all */
};

/* Take units of the region, or give them back.  Under the session's lock. */
static inline unsigned char *
kvt__usrbio_take(struct kvt__usrbio_session *session, size_t n_units)
{
    size_t unit;

    return kvt__extents_take(&session->free, n_units, &unit)
        ? session->iov.base + unit * KVT__USRBIO_UNIT : NULL;
}

static inline void
kvt__usrbio_give(struct kvt__usrbio_session *session, const unsigned char *at,
                 size_t n_units)
{
    kvt__extents_give(&session->free,
                      (size_t)(at - session->iov.base) / KVT__USRBIO_UNIT, n_units);
}

/* Whether memory lies in the region. */
static inline bool
kvt__usrbio_has(const struct kvt__usrbio_session *session, const unsigned char *at)
{
    return at >= session->iov.base && at < session->iov.base + session->region_bytes;
}

/* ---------------------------------------------------------------- session.c */

/* The thread that calls open must call close: what a process leaves behind is found by
 * the thread that made it. */
int kvt__usrbio_session_open(const struct kvt__usrbio_params *params,
                             struct kvt__usrbio_session **out);

/* Dead, and without users. */
void kvt__usrbio_session_close(struct kvt__usrbio_session *session);

/* A slot in the region; the first bytes of what surrounds it are its. */
bool kvt__usrbio_session_lend(struct kvt__usrbio_session *session, enum kvt__prio prio,
                              size_t phase, size_t bytes, struct kvt__slot *out);
void kvt__usrbio_session_take_back(struct kvt__usrbio_session *session,
                                   const struct kvt__slot *slot);

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

/* ------------------------------------------------------------------- wake.c */

/* Mark the session dead: its transfers end with -ESTALE, its waiters end.  Takes the
 * session's lock. */
void kvt__usrbio_session_die(struct kvt__usrbio_session *session);

/* Under the session's lock: a piece of it has ended; there may be room for the first
 * that wants it; all are to look. */
void kvt__usrbio_wake(struct kvt__usrbio_transfer *transfer);
void kvt__usrbio_wake_first(struct kvt__usrbio_session *session);
void kvt__usrbio_wake_all(struct kvt__usrbio_session *session);

#endif
