/* SPDX-License-Identifier: Apache-2.0
 *
 * The mover with io_uring: several pieces of a file are in flight while the thread computes the
 * checksum of the preceding piece.  Each thread that reads has its own small ring, from its first
 * read to the end of the thread.  Blocking calls read the bytes that the ring did not deliver,
 * and then report the error. */
#include <assert.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "tier/mover/mover.h"

#define PIECE ((size_t)512 << 10)
#define DEPTH 8u /* pieces in flight */

/* ------------------------------------------------------------- a thread's ring */

struct ring {
    struct io_uring uring;
    pid_t pid; /* a forked child must not use the parent's ring */
    bool works;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool have_key;

static void
close_ring(struct ring *ring)
{
    if (ring->works)
        io_uring_queue_exit(&ring->uring);
    ring->works = false;
}

static void
free_ring(void *arg)
{
    close_ring(arg);
    free(arg);
}

static void
make_key(void)
{
    have_key = !pthread_key_create(&key, free_ring);
}

/* A thread that outlives the library must not call free_ring() at its end. */
__attribute__((destructor)) static void
drop_key(void)
{
    if (have_key)
        pthread_key_delete(key);
    have_key = false;
}

static void
log_fallback(const char *why)
{
    KVT__LOG_ONCE(KVT_LOG_INFO, "No io_uring (%s): files are read with blocking calls.",
                  why);
}

static void
open_ring(struct ring *ring)
{
    /* The second flags are for kernels before 6.0.  The flags do not include DEFER_TASKRUN, with
     * which completions appear only in io_uring_enter(): a filter of system calls may forbid
     * io_uring_enter() later. */
    static const unsigned flags[] = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN, 0 };
    int err = -EINVAL;

    for (size_t i = 0; err == -EINVAL && i < sizeof flags / sizeof *flags; i++)
        err = io_uring_queue_init(DEPTH, &ring->uring, flags[i]);
    ring->works = !err;
    ring->pid = getpid();
    if (err)
        log_fallback(strerror(-err));
}

/* Return this thread's ring, or NULL if io_uring is not available. */
static struct ring *
thread_ring(void)
{
    pthread_once(&once, make_key);
    struct ring *ring = have_key ? pthread_getspecific(key) : NULL;

    if (!ring) {
        ring = calloc(1, sizeof *ring);
        if (!ring || !have_key || pthread_setspecific(key, ring)) {
            free(ring);
            return NULL;
        }
    }
    if (ring->pid != getpid()) { /* a new ring, or the ring of the parent process */
        close_ring(ring);
        open_ring(ring);
    }
    return ring->works ? ring : NULL;
}

/* ------------------------------------------------------------------ one extent */

struct piece {
    size_t from, bytes;
    size_t got;
    bool completed; /* completed by the kernel */
};

/* Pieces are requested in order, complete in any order, and are processed in order. */
struct stream {
    const struct kvt__file_extent *e;
    struct io_uring *uring;
    struct piece pieces[DEPTH]; /* piece i is element i modulo DEPTH */
    size_t requested_bytes;
    unsigned n_requested, n_completed, n_processed;
};

/* Return the bytes to request for a piece: direct I/O reads whole units. */
static size_t
request_bytes(const struct piece *p)
{
    return kvt__round_up(p->bytes, KVT__DIRECT_ALIGN);
}

/* Request the next pieces, at most DEPTH in flight. */
static void
request_pieces(struct stream *s)
{
    const struct kvt__file_extent *e = s->e;

    while (s->n_requested - s->n_processed < DEPTH && s->requested_bytes < e->bytes) {
        struct piece *p = &s->pieces[s->n_requested % DEPTH];
        struct io_uring_sqe *sqe = io_uring_get_sqe(s->uring);

        assert(sqe); /* the queue is as long as DEPTH */
        *p = (struct piece){ .from = s->requested_bytes,
                             .bytes = kvt__piece_bytes(e->bytes - s->requested_bytes, PIECE) };
        io_uring_prep_read(sqe, e->fd, e->at + p->from, (unsigned)request_bytes(p), p->from);
        io_uring_sqe_set_data(sqe, p);
        assert(p->bytes);
        s->requested_bytes += p->bytes;
        s->n_requested++;
    }
    /* After a failure wait_for_next() submits again. */
    (void)io_uring_submit(s->uring);
}

/* Record the completions that have arrived. */
static void
record_completions(struct stream *s)
{
    struct io_uring_cqe *cqe;

    while (!io_uring_peek_cqe(s->uring, &cqe)) {
        struct piece *p = io_uring_cqe_get_data(cqe);

        assert(!p->completed && s->n_completed < s->n_requested);
        p->got = cqe->res < 0 ? 0 : (size_t)cqe->res;
        p->completed = true;
        s->n_completed++;
        io_uring_cqe_seen(s->uring, cqe);
    }
}

/* Wait for the completion of the next piece in order.  Return false if the kernel accepts no
 * requests and has none in flight. */
static bool
wait_for_next(struct stream *s)
{
    const struct piece *next = &s->pieces[s->n_processed % DEPTH];
    struct io_uring_cqe *cqe;

    while (record_completions(s), !next->completed) {
        (void)io_uring_submit(s->uring);
        if (s->n_requested - s->n_completed == io_uring_sq_ready(s->uring))
            return false;
        /* The kernel may still write to the memory, so the function must not return after an
         * error.  If a filter forbids io_uring_enter(), poll() waits: completions then appear
         * without a system call. */
        int err = io_uring_wait_cqe(s->uring, &cqe);
        struct pollfd completion = { .fd = s->uring->ring_fd, .events = POLLIN };
        if (err && err != -EINTR)
            (void)poll(&completion, 1, -1);
    }
    return true;
}

/* Read the bytes of a piece that the ring did not deliver. */
static int
read_rest(const struct kvt__file_extent *e, const struct piece *p)
{
    size_t got = p->got & ~(KVT__DIRECT_ALIGN - 1);

    if (p->got >= p->bytes)
        return 0;
    return kvt__posix_read(e->fd, e->at + p->from + got, p->bytes - got,
                           request_bytes(p) - got, (off_t)(p->from + got));
}

int
kvt__uring_read_extent(const struct kvt__file_extent *e, struct kvt__sum *sum)
{
    struct ring *ring = kvt__piece_bytes(e->bytes, PIECE) < e->bytes ? thread_ring() : NULL;
    int err = 0;

    if (!ring)
        return -ENOSYS; /* also for a single piece, for which io_uring has no advantage */
    struct stream s = { .e = e, .uring = &ring->uring };
    request_pieces(&s);
    while (s.n_processed != s.n_requested) {
        if (!wait_for_next(&s)) {
            log_fallback("the kernel accepts no requests");
            close_ring(ring); /* discards the requests that the kernel did not accept */
            return -ENOSYS;
        }
        struct piece p = s.pieces[s.n_processed++ % DEPTH];
        assert(p.completed && p.from + p.bytes <= e->bytes);
        if (err)
            continue;
        request_pieces(&s);
        err = read_rest(e, &p);
        if (!err)
            kvt__sum_add(sum, e->at + p.from, p.bytes);
    }
    return err;
}
