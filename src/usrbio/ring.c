/* SPDX-License-Identifier: Apache-2.0
 *
 * Submit I/Os to rings, and process completions. */
#include <errno.h>
#include <time.h>

#include "base/clock.h"
#include "usrbio/private.h"

#define MAX_COMPLETIONS 64
/* A waiter checks at this interval whether its session is dead. */
#define CHECK_NS (KVT__NS_PER_S / 4)

/* Return a deadline on the wall clock, as the functions of struct kvt__usrbio_api need. */
static struct timespec
deadline_in(int64_t from_now_ns)
{
    return kvt__timespec(kvt__clock_ns(CLOCK_REALTIME) + from_now_ns);
}

/* ------------------------------------------------------------------- choosing */

/* Return the ring with the fewest I/Os in flight among the rings of this direction and kind that
 * have room for n I/Os, or NULL. */
static struct kvt__usrbio_ring *
choose_ring(struct kvt__usrbio_session *s, bool reads, bool groups, uint32_t n)
{
    struct kvt__usrbio_ring *best = NULL;

    for (uint32_t i = 0; i < s->n_rings; i++) {
        struct kvt__usrbio_ring *ring = &s->rings[i];

        if (ring->reads == reads && ring->has_groups == groups &&
            ring->n_in_flight + n <= s->entries &&
            (!best || ring->n_in_flight < best->n_in_flight))
            best = ring;
    }
    return best;
}

struct kvt__usrbio_ring *
kvt__usrbio_ring_reserve(struct kvt__usrbio_session *session, bool reads, uint32_t n)
{
    struct kvt__usrbio_ring *ring =
        n == session->group_size ? choose_ring(session, reads, true, n) : NULL;

    if (!ring)
        ring = choose_ring(session, reads, false, n);
    if (!ring)
        return NULL;
    if (!session->n_in_flight)
        session->last_completion_ns = kvt__now_ns();
    if (!ring->n_in_flight)
        pthread_cond_signal(&ring->work);
    ring->n_in_flight += n;
    session->n_in_flight += n;
    return ring;
}

/* ------------------------------------------------------------------- submitting */

/* Record the end of a piece and wake the transfer.  The caller holds session.lock. */
static void
end_piece(struct kvt__usrbio_piece *piece, int64_t result)
{
    struct kvt__usrbio_ring *ring = piece->ring;

    ring->n_in_flight--;
    ring->session->n_in_flight--;
    piece->result = result;
    piece->ended = true;
    kvt__usrbio_wake(piece->transfer);
}

/* Wait for a completion of the ring, at most CHECK_NS.  Return false if the session is dead.
 *
 * The daemon frees the slots of a ring's queue in order, so a single slow I/O can block all
 * slots. */
static bool
wait_for_completion(struct kvt__usrbio_ring *ring)
{
    struct kvt__usrbio_session *s = ring->session;
    struct timespec until = kvt__timespec(kvt__now_ns() + CHECK_NS);

    s->api->submit_ios(&ring->ior);
    pthread_mutex_lock(&s->lock);
    if (!s->dead)
        pthread_cond_timedwait(&ring->completed, &s->lock, &until);
    bool dead = s->dead;
    pthread_mutex_unlock(&s->lock);
    return !dead;
}

/* Prepare the I/O of a piece; wait while the ring's queue is full.  Return 0 or -errno.  After 0
 * the daemon may already have completed the I/O. */
static int
prepare_piece(struct kvt__usrbio_ring *ring, struct kvt__usrbio_piece *piece, int fd)
{
    struct kvt__usrbio_session *s = ring->session;
    int slot;

    while ((slot = s->api->prep_io(&ring->ior, &s->iov, ring->reads,
                                   piece->at + piece->moved, fd,
                                   piece->offset + piece->moved,
                                   piece->bytes - piece->moved, piece)) == -EAGAIN)
        if (!wait_for_completion(ring))
            return -ESTALE;
    return slot < 0 ? slot : 0;
}

void
kvt__usrbio_ring_submit(struct kvt__usrbio_ring *ring,
                        struct kvt__usrbio_piece *const *pieces, size_t n, int fd)
{
    struct kvt__usrbio_session *s = ring->session;

    pthread_mutex_lock(&ring->prep);
    for (size_t i = 0; i < n; i++) {
        int err = prepare_piece(ring, pieces[i], fd);

        if (!err)
            continue;
        pthread_mutex_lock(&s->lock);
        end_piece(pieces[i], err);
        pthread_mutex_unlock(&s->lock);
        if (ring->has_groups)
            kvt__usrbio_session_mark_dead(s); /* the daemon would wait for a full group forever */
    }
    s->api->submit_ios(&ring->ior);
    pthread_mutex_unlock(&ring->prep);
}

/* ----------------------------------------------------------------- completions */

/* Wait until the ring has an I/O in flight.  Return false if the session is dead. */
static bool
wait_for_work(struct kvt__usrbio_ring *ring)
{
    struct kvt__usrbio_session *s = ring->session;

    pthread_mutex_lock(&s->lock);
    while (!s->dead && !ring->n_in_flight)
        pthread_cond_wait(&ring->work, &s->lock);
    bool dead = s->dead;
    pthread_mutex_unlock(&s->lock);
    return !dead;
}

/* Record completions.  In a dead session the pieces belong to their transfers again and may be
 * freed, so the completions are ignored. */
static void
process_completions(struct kvt__usrbio_ring *ring, const struct kvt__hf3fs_cqe *completions, int n)
{
    struct kvt__usrbio_session *s = ring->session;

    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n && !s->dead; i++) {
        union { const void *from; struct kvt__usrbio_piece *piece; } u = {
            completions[i].userdata };
        end_piece(u.piece, completions[i].result);
    }
    s->last_completion_ns = kvt__now_ns();
    pthread_cond_broadcast(&ring->completed);
    kvt__usrbio_wake_first(s);
    pthread_mutex_unlock(&s->lock);
}

void *
kvt__usrbio_waiter_main(void *arg)
{
    struct kvt__usrbio_ring *ring = arg;
    struct kvt__usrbio_session *s = ring->session;
    struct kvt__hf3fs_cqe completions[MAX_COMPLETIONS];

    while (wait_for_work(ring)) {
        struct timespec until = deadline_in(CHECK_NS);
        int n = s->api->wait_for_ios(&ring->ior, completions, MAX_COMPLETIONS, 1, &until);

        if (n < 0)
            kvt__usrbio_session_mark_dead(s);
        else if (n)
            process_completions(ring, completions, n);
        else /* repeat the submission, in case the daemon missed the first */
            s->api->submit_ios(&ring->ior);
    }
    return NULL;
}
