/* SPDX-License-Identifier: Apache-2.0
 *
 * Transfer of one extent.  As many pieces of the extent are in flight as region and rings have
 * room for, while the calling thread copies other pieces.  If the caller's memory is a slot of
 * the region, pieces are transferred in place.  Pieces of a read are processed in the order of
 * the file. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "usrbio/private.h"

#define PIECE ((size_t)4 << 20)
#define MAX_FILE_CHUNK ((size_t)64 << 20)

static size_t
min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Return piece i of a transfer. */
static struct kvt__usrbio_piece *
piece_at(struct kvt__usrbio_transfer *t, size_t i)
{
    return &t->pieces[i % KVT__USRBIO_WINDOW];
}

/* ------------------------------------------- waiting for room, with session.lock */

/* Remove a transfer from the queue for room. */
static void
leave_queue(struct kvt__usrbio_transfer *t)
{
    struct kvt__usrbio_session *s = t->session;

    t->is_queued = false;
    *(t->prev_waiting ? &t->prev_waiting->next_waiting : &s->first_waiting) =
        t->next_waiting;
    *(t->next_waiting ? &t->next_waiting->prev_waiting : &s->last_waiting) =
        t->prev_waiting;
}

/* Queue a transfer for room.  A transfer that needs only room in a ring (ring_only) is queued
 * first: the transfer may hold memory that other transfers wait for, and only the first transfer
 * of the queue is woken. */
static void
queue_for_room(struct kvt__usrbio_transfer *t, bool ring_only)
{
    struct kvt__usrbio_session *s = t->session;

    t->is_woken = false;
    if (t->is_queued && !ring_only)
        return;
    if (t->is_queued)
        leave_queue(t);
    t->is_queued = true;
    t->next_waiting = ring_only ? s->first_waiting : NULL;
    t->prev_waiting = ring_only ? NULL : s->last_waiting;
    *(t->prev_waiting ? &t->prev_waiting->next_waiting : &s->first_waiting) = t;
    *(t->next_waiting ? &t->next_waiting->prev_waiting : &s->last_waiting) = t;
}

/* Remove a transfer that found room from the queue, and wake the next transfer for the remaining
 * room. */
static void
end_wait(struct kvt__usrbio_transfer *t)
{
    if (!t->is_queued)
        return;
    leave_queue(t);
    kvt__usrbio_wake_first(t->session);
}

/* Free the memory of a piece in the region. */
static void
free_piece(struct kvt__usrbio_piece *piece)
{
    if (piece->n_units)
        kvt__usrbio_free_units(piece->transfer->session, piece->at, piece->n_units);
    piece->n_units = 0;
}

/* Set up the next pieces, at most n, and allocate their memory in the region.  Return the number
 * of pieces with memory. */
static size_t
set_up_pieces(struct kvt__usrbio_transfer *t, size_t n)
{
    size_t k;

    for (k = 0; k < n; k++) {
        struct kvt__usrbio_piece *p = piece_at(t, t->n_submitted + k);
        size_t offset = (t->n_submitted + k) * t->piece_bytes;

        *p = (struct kvt__usrbio_piece){ .transfer = t, .offset = offset,
                                         .bytes = min(t->piece_bytes, t->bytes - offset) };
        if (t->in_region) {
            p->at = t->at + offset;
            continue;
        }
        p->n_units = (p->bytes + KVT__USRBIO_UNIT - 1) / KVT__USRBIO_UNIT;
        if (!(p->at = kvt__usrbio_alloc_units(t->session, p->n_units)))
            break;
    }
    return k;
}

/* Reserve memory and a ring for some of the next n pieces.  Return the number of pieces, 0: no
 * room, or other transfers come first. */
static size_t
reserve(struct kvt__usrbio_transfer *t, size_t n, struct kvt__usrbio_ring **ring)
{
    struct kvt__usrbio_session *s = t->session;

    if (s->first_waiting && s->first_waiting != t && !t->in_region)
        return 0; /* otherwise small pieces could starve a large piece */
    n = set_up_pieces(t, min(n, s->group_size ? s->group_size : KVT__USRBIO_RUN));
    *ring = n ? kvt__usrbio_ring_reserve(s, t->reads, (uint32_t)n) : NULL;
    for (size_t i = 0; i < n; i++) {
        piece_at(t, t->n_submitted + i)->ring = *ring;
        if (!*ring)
            free_piece(piece_at(t, t->n_submitted + i));
    }
    return *ring ? n : 0;
}

/* ------------------------------------------------------------------- submitting */

/* Copy the caller's bytes of n pieces into the region. */
static void
copy_in(struct kvt__usrbio_transfer *t, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct kvt__usrbio_piece *p = piece_at(t, t->n_submitted + i);

        memcpy(p->at, t->at + p->offset, p->bytes);
    }
}

/* Submit some of the next pieces.  Return false if no piece was submitted. */
static bool
submit_next(struct kvt__usrbio_transfer *t)
{
    struct kvt__usrbio_session *s = t->session;
    struct kvt__usrbio_piece *pieces[KVT__USRBIO_WINDOW];
    struct kvt__usrbio_ring *ring;
    size_t n = min(t->n_pieces - t->n_submitted,
                   KVT__USRBIO_WINDOW - (t->n_submitted - t->n_processed));

    if (!n)
        return false;
    pthread_mutex_lock(&s->lock);
    if (s->dead)
        n = 0;
    else if ((n = reserve(t, n, &ring)))
        end_wait(t);
    else
        queue_for_room(t, t->in_region);
    pthread_mutex_unlock(&s->lock);
    if (!n)
        return false;
    if (!t->reads && !t->in_region)
        copy_in(t, n);
    for (size_t i = 0; i < n; i++)
        pieces[i] = piece_at(t, t->n_submitted + i);
    t->n_submitted += n;
    kvt__usrbio_ring_submit(ring, pieces, n, t->fd);
    return true;
}

/* Submit the rest of a piece that was transferred partly, at a hole in the file or on a full file
 * system.  Wait for room in a ring. */
static void
submit_rest(struct kvt__usrbio_transfer *t, struct kvt__usrbio_piece *p)
{
    struct kvt__usrbio_session *s = t->session;

    pthread_mutex_lock(&s->lock);
    while (!s->dead && !(p->ring = kvt__usrbio_ring_reserve(s, t->reads, 1))) {
        queue_for_room(t, true);
        pthread_cond_wait(&t->wake, &s->lock);
    }
    bool dead = s->dead;
    if (!dead) {
        p->ended = false;
        end_wait(t);
    }
    pthread_mutex_unlock(&s->lock);
    if (!dead)
        kvt__usrbio_ring_submit(p->ring, &p, 1, t->fd);
}

/* ------------------------------------------------------------------- completing */

/* Wait until the next piece in order has ended, or there may be room for another piece.  Return
 * the ended piece, or NULL. */
static struct kvt__usrbio_piece *
wait_for_next(struct kvt__usrbio_transfer *t)
{
    struct kvt__usrbio_session *s = t->session;
    bool any = t->n_processed < t->n_submitted;
    struct kvt__usrbio_piece *p = any ? piece_at(t, t->n_processed) : NULL;

    pthread_mutex_lock(&s->lock);
    while (!s->dead && !(p && p->ended) && !(t->is_queued && t->is_woken))
        pthread_cond_wait(&t->wake, &s->lock);
    if (s->dead)
        t->err = -ESTALE;
    bool ended = p && p->ended && !s->dead;
    pthread_mutex_unlock(&s->lock);
    return ended ? p : NULL;
}

/* Process an ended piece: submit the rest, or copy the bytes and free the memory. */
static void
process_piece(struct kvt__usrbio_transfer *t, struct kvt__usrbio_piece *p)
{
    struct kvt__usrbio_session *s = t->session;

    if (p->result > 0 && (uint64_t)p->result <= p->bytes - p->moved)
        p->moved += (size_t)p->result;
    else if (!t->err)
        t->err = p->result < 0 && p->result >= -4095 ? (int)p->result : -EIO;
    if (!t->err && p->moved < p->bytes) {
        submit_rest(t, p);
        return;
    }
    if (!t->err && t->reads) {
        unsigned char *to = t->at + p->offset;

        if (!t->in_region)
            memcpy(to, p->at, p->bytes);
        t->on_piece(t->ctx, to, p->bytes);
    }
    t->n_processed++;
    pthread_mutex_lock(&s->lock);
    free_piece(p);
    if (t->err && t->is_queued)
        leave_queue(t); /* no more pieces are submitted */
    kvt__usrbio_wake_first(s);
    pthread_mutex_unlock(&s->lock);
}

/* Transfer all pieces.  After an error, wait for the pieces in flight: the daemon owns their
 * memory until their completion. */
static void
run_transfer(struct kvt__usrbio_transfer *t)
{
    struct kvt__usrbio_piece *p;

    while (t->err != -ESTALE && t->n_processed < (t->err ? t->n_submitted : t->n_pieces)) {
        while (!t->err && submit_next(t))
            ;
        if (t->err != -ESTALE && (p = wait_for_next(t)))
            process_piece(t, p);
    }
}

/* Add the transfer to the session's list. */
static void
add_transfer(struct kvt__usrbio_transfer *t)
{
    struct kvt__usrbio_session *s = t->session;

    pthread_cond_init(&t->wake, NULL);
    pthread_mutex_lock(&s->lock);
    t->next = s->transfers;
    if (t->next)
        t->next->prev = t;
    s->transfers = t;
    pthread_mutex_unlock(&s->lock);
}

/* Remove the transfer from the session's list. */
static void
remove_transfer(struct kvt__usrbio_transfer *t)
{
    struct kvt__usrbio_session *s = t->session;

    pthread_mutex_lock(&s->lock);
    end_wait(t);
    *(t->prev ? &t->prev->next : &s->transfers) = t->next;
    if (t->next)
        t->next->prev = t->prev;
    pthread_mutex_unlock(&s->lock);
    pthread_cond_destroy(&t->wake);
}

/* Return the length of the pieces.  Pieces end at boundaries of the file's own chunks in 3FS; the
 * file system reports the size of these chunks as st_blksize. */
static size_t
piece_bytes(const struct kvt__usrbio_session *s, int fd)
{
    size_t most = s->region_bytes / 8 / KVT__USRBIO_UNIT * KVT__USRBIO_UNIT;
    struct stat st;

    if (fstat(fd, &st) < 0 || st.st_blksize <= 0 ||
        (size_t)st.st_blksize > MAX_FILE_CHUNK)
        return min(PIECE, most);
    size_t chunk = (size_t)st.st_blksize;
    size_t bytes = (PIECE + chunk - 1) / chunk * chunk;
    return bytes <= most ? bytes : most;
}

int
kvt__usrbio_transfer(struct kvt__usrbio_session *session,
                     const struct kvt__usrbio_extent *e)
{
    struct kvt__usrbio_transfer t = {
        .session = session, .fd = e->fd, .reads = e->reads, .at = e->at,
        .in_region = kvt__usrbio_is_in_region(session, e->at), .bytes = e->bytes,
        .on_piece = e->on_piece, .ctx = e->ctx };
    int err = session->api->reg_fd(e->fd, 0);

    if (err > 0)
        return -err;
    t.piece_bytes = piece_bytes(session, e->fd);
    t.n_pieces = (e->bytes + t.piece_bytes - 1) / t.piece_bytes;
    add_transfer(&t);
    run_transfer(&t);
    remove_transfer(&t);
    session->api->dereg_fd(e->fd);
    if (!t.err && e->counters) {
        kvt__count(e->counters, KVT__N_hf3fs_bytes, e->bytes);
        kvt__count(e->counters, KVT__N_hf3fs_copied_bytes, t.in_region ? 0 : e->bytes);
    }
    return t.err;
}
