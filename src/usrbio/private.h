/* SPDX-License-Identifier: Apache-2.0
 *
 * Internal parts of the client.
 *
 *     client ──► session ──► rings ──► waiters
 *                    ▲
 *     transfers ─────┘  (a transfer for each call, on the caller's thread)
 *
 * A session lasts for a single run of the daemon.  session.lock guards the marked fields of a
 * session, and is held for a few instructions.  ring.prep serializes the I/Os to a ring; a thread
 * with ring.prep may take session.lock, not the reverse. */
#ifndef KVT_USRBIO_PRIVATE_H
#define KVT_USRBIO_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "gpu/pin.h"
#include "mem/extents.h"
#include "mem/pool.h"
#include "usrbio/client.h"

#define KVT__USRBIO_UNIT ((size_t)4096) /* bytes of a unit, in which the region is allocated */
#define KVT__USRBIO_MAX_PAIRS 16
#define KVT__USRBIO_WINDOW 64 /* pieces in flight of one transfer, at most */
#define KVT__USRBIO_RUN 4 /* pieces submitted at a time, on rings without groups */

struct kvt__usrbio_session;
struct kvt__usrbio_transfer;

/* One I/O: a part of a file and its memory in the region. */
struct kvt__usrbio_piece {
    struct kvt__usrbio_transfer *transfer;
    struct kvt__usrbio_ring *ring; /* the ring of the I/O */
    unsigned char *at;             /* address in the region */
    size_t n_units;                /* units that the piece occupies in the region; 0: the memory
                                    * is the caller's slot */
    uint64_t offset;               /* offset in the file */
    size_t bytes, moved;           /* length, and bytes moved so far */
    int64_t result;                /* guarded by session.lock, as is ended: bytes, or -errno */
    bool ended;
};

struct kvt__usrbio_ring {
    struct kvt__usrbio_session *session;
    struct kvt__hf3fs_ior ior;
    bool reads;
    bool has_groups;       /* the daemon takes full groups only */
    pthread_mutex_t prep;
    pthread_t waiter;
    pthread_cond_t work;      /* with session.lock: n_in_flight is above 0, or the session died */
    pthread_cond_t completed; /* with session.lock: completions have arrived */
    uint32_t n_in_flight;  /* I/Os; guarded by session.lock */
};

/* Region and rings for one run of the daemon. */
struct kvt__usrbio_session {
    struct kvt__slot_source source; /* source of the slots in the region; each slot is a user */
    struct kvt__usrbio_client *client;
    const struct kvt__usrbio_api *api;
    struct kvt__hf3fs_iov iov;
    struct kvt__pin pin; /* pins the region for the GPU */
    uint64_t region_bytes;
    uint32_t entries;   /* I/Os of each ring */
    uint32_t group_size; /* pieces in a full group; 0: rings have no groups */
    struct kvt__usrbio_ring rings[4 * KVT__USRBIO_MAX_PAIRS];
    uint32_t n_rings;
    char semaphore[256]; /* target of the link submit-ios when the session was opened */

    pthread_mutex_t lock; /* guards the fields below, except n_users and next_dead */
    struct kvt__extents free; /* free units of the region */
    size_t n_slot_units;  /* units of the region that slots occupy */
    struct kvt__usrbio_transfer *transfers; /* list of all transfers */
    /* Queue of the transfers that wait for room. */
    struct kvt__usrbio_transfer *first_waiting, *last_waiting;
    uint32_t n_in_flight; /* I/Os, in all rings */
    int64_t last_completion_ns; /* monotonic time of the last completion, or of the first I/O after
                                 * an idle time, the later */
    bool dead;            /* transfers end with -ESTALE, and waiter threads end */

    uint32_t n_users;     /* transfers and slots in use; guarded by the client's lock, as is
                           * next_dead */
    struct kvt__usrbio_session *next_dead;
};

/* One call of kvt__usrbio_move(), on the caller's stack. */
struct kvt__usrbio_transfer {
    struct kvt__usrbio_session *session;
    int fd;
    bool reads, in_region;
    unsigned char *at; /* the caller's memory */
    size_t bytes, piece_bytes;
    size_t n_pieces, n_submitted, n_processed;
    struct kvt__usrbio_piece pieces[KVT__USRBIO_WINDOW]; /* piece i is element i modulo
                                                          * KVT__USRBIO_WINDOW */
    int err;
    void (*on_piece)(void *ctx, const unsigned char *piece, size_t n);
    void *ctx;

    /* Guarded by session.lock. */
    pthread_cond_t wake;
    bool is_woken; /* the transfer was woken after the last failed reservation */
    bool is_queued;
    struct kvt__usrbio_transfer *prev_waiting, *next_waiting;
    struct kvt__usrbio_transfer *prev, *next; /* list of all transfers of the session */
};

/* Allocate units of the region, or free units.  The caller holds session.lock.  NULL: no room. */
static inline unsigned char *
kvt__usrbio_alloc_units(struct kvt__usrbio_session *session, size_t n_units)
{
    size_t unit;

    return kvt__extents_alloc(&session->free, n_units, &unit)
        ? session->iov.base + unit * KVT__USRBIO_UNIT : NULL;
}

static inline void
kvt__usrbio_free_units(struct kvt__usrbio_session *session, const unsigned char *at,
                       size_t n_units)
{
    kvt__extents_free(&session->free,
                      (size_t)(at - session->iov.base) / KVT__USRBIO_UNIT, n_units);
}

/* Return true if an address is in the region. */
static inline bool
kvt__usrbio_is_in_region(const struct kvt__usrbio_session *session, const unsigned char *at)
{
    return at >= session->iov.base && at < session->iov.base + session->region_bytes;
}

/* ---------------------------------------------------------------- session.c */

/* Open a session: region, rings and a waiter thread for each ring.  Returns 0, or -errno with a
 * sentence.  The thread that opens a session must close the session, and must live as long: the
 * daemon associates shared memory with the thread that announced the memory.  Blocks. */
int kvt__usrbio_session_open(const struct kvt__usrbio_params *params,
                             struct kvt__usrbio_session **out);

/* Close and free a session that is dead and has no users.  Blocks until the waiters have ended. */
void kvt__usrbio_session_close(struct kvt__usrbio_session *session);

/* Acquire a slot in the region, as kvt__usrbio_client_acquire().  The margins around the payload
 * belong to the slot. */
bool kvt__usrbio_session_acquire_slot(struct kvt__usrbio_session *session, enum kvt__prio prio,
                                      size_t phase, size_t bytes, struct kvt__slot *out);
void kvt__usrbio_session_release_slot(struct kvt__usrbio_session *session,
                                      const struct kvt__slot *slot);

/* Return true if the run of the daemon that opened the session's rings still serves the mount. */
bool kvt__usrbio_session_is_served(const struct kvt__usrbio_session *session,
                                   const char *mount_point);

/* ------------------------------------------------------------------- ring.c */

/* Reserve n I/Os of the ring with the fewest I/Os in flight; a ring with groups, if n is a full
 * group and such a ring has room.  Return NULL if no ring has room.  The caller holds
 * session.lock. */
struct kvt__usrbio_ring *kvt__usrbio_ring_reserve(struct kvt__usrbio_session *session,
                                                  bool reads, uint32_t n);

/* Submit pieces to the ring that has reserved the I/Os.  fd: registered.  Each piece ends,
 * possibly before the return.  May wait for room in the ring's queue; takes ring.prep and
 * session.lock. */
void kvt__usrbio_ring_submit(struct kvt__usrbio_ring *ring,
                             struct kvt__usrbio_piece *const *pieces, size_t n, int fd);

/* Main function of a ring's waiter thread: process completions until the session is dead.  arg:
 * the ring. */
void *kvt__usrbio_waiter_main(void *arg);

/* --------------------------------------------------------------- transfer.c */

/* Transfer an extent through a session, as kvt__usrbio_move(), but without -ECANCELED. */
int kvt__usrbio_transfer(struct kvt__usrbio_session *session,
                         const struct kvt__usrbio_extent *e);

/* ------------------------------------------------------------------- wake.c */

/* Mark the session dead: transfers end with -ESTALE, and waiter threads end.  Takes
 * session.lock. */
void kvt__usrbio_session_mark_dead(struct kvt__usrbio_session *session);

/* kvt__usrbio_wake(): wake a transfer after the end of a piece; _wake_first(): wake the first
 * transfer that waits for room; _wake_all(): wake all transfers of a session.
 * The caller holds session.lock. */
void kvt__usrbio_wake(struct kvt__usrbio_transfer *transfer);
void kvt__usrbio_wake_first(struct kvt__usrbio_session *session);
void kvt__usrbio_wake_all(struct kvt__usrbio_session *session);

#endif
