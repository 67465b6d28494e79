/* SPDX-License-Identifier: Apache-2.0
 *
 * The mover over io_uring: several pieces of one file are under way while the checksum
 * of the one before them is made.  A thread that reads has a small ring, made at its
 * first read and ended with the thread; nobody else touches it.  What the ring does not
 * do, or not whole, blocking calls do: they also find out why. */
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
#define DEPTH 8u /* pieces under way */

/* ------------------------------------------------------------- a thread's ring */

struct ring {
    struct io_uring uring;
    pid_t pid; /* a child of fork must not use its parent's */
    bool works;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool have_key;

static void
stop(struct ring *ring)
{
    if (ring->works)
        io_uring_queue_exit(&ring->uring);
    ring->works = false;
}

static void
end_ring(void *arg)
{
    stop(arg);
    free(arg);
}

static void
make_key(void)
{
    have_key = !pthread_key_create(&key, end_ring);
}

/* Threads that outlive the library must not run its code when they end. */
__attribute__((destructor)) static void
drop_key(void)
{
    if (have_key)
        pthread_key_delete(key);
    have_key = false;
}

static void
say(const char *why)
{
    KVT__LOG_ONCE(KVT_LOG_INFO, "No io_uring (%s): files are read with blocking calls.",
                  why);
}

static void
start(struct ring *ring)
{
    /* The second for kernels before 6.0.  Without DEFER_TASKRUN, which makes completions
     * appear in io_uring_enter() only: a filter of system calls may forbid that later. */
    static const unsigned flags[] = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN, 0 };
    int err = -EINVAL;

    for (size_t i = 0; err == -EINVAL && i < sizeof flags / sizeof *flags; i++)
        err = io_uring_queue_init(DEPTH, &ring->uring, flags[i]);
    ring->works = !err;
    ring->pid = getpid();
    if (err)
        say(strerror(-err));
}

/* This thread's ring, or NULL where there can be none. */
static struct ring *
my_ring(void)
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
    if (ring->pid != getpid()) { /* a new ring, or that of a parent */
        stop(ring);
        start(ring);
    }
    return ring->works ? ring : NULL;
}

/* ------------------------------------------------------------------ one extent */

struct piece {
    size_t from, bytes;
    size_t got;
    bool back; /* the kernel is done with it */
};

/* Pieces are asked for, come back in any order, and are taken in order. */
struct stream {
    const struct kvt__file_extent *e;
    struct io_uring *uring;
    struct piece pieces[DEPTH]; /* by number, modulo DEPTH */
    size_t asked_bytes;
    unsigned n_asked, n_back, n_taken;
};

/* What to ask for: direct I/O reads whole units. */
static size_t
room(const struct piece *p)
{
    return kvt__round_up(p->bytes, KVT__DIRECT_ALIGN);
}

static void
ask(struct stream *s)
{
    const struct kvt__file_extent *e = s->e;

    while (s->n_asked - s->n_taken < DEPTH && s->asked_bytes < e->bytes) {
        struct piece *p = &s->pieces[s->n_asked % DEPTH];
        struct io_uring_sqe *sqe = io_uring_get_sqe(s->uring);

        assert(sqe); /* the queue is as long as DEPTH */
        *p = (struct piece){ .from = s->asked_bytes,
                             .bytes = kvt__piece(e->bytes - s->asked_bytes, PIECE) };
        io_uring_prep_read(sqe, e->fd, e->at + p->from, (unsigned)room(p), p->from);
        io_uring_sqe_set_data(sqe, p);
        assert(p->bytes);
        s->asked_bytes += p->bytes;
        s->n_asked++;
    }
    /* If that fails, await() tries again. */
    (void)io_uring_submit(s->uring);
}

/* Take note of what came back. */
static void
note(struct stream *s)
{
    struct io_uring_cqe *cqe;

    while (!io_uring_peek_cqe(s->uring, &cqe)) {
        struct piece *p = io_uring_cqe_get_data(cqe);

        assert(!p->back && s->n_back < s->n_asked);
        p->got = cqe->res < 0 ? 0 : (size_t)cqe->res;
        p->back = true;
        s->n_back++;
        io_uring_cqe_seen(s->uring, cqe);
    }
}

/* Wait for the next piece to be taken.  False: the kernel takes no requests, and has
 * none. */
static bool
await(struct stream *s)
{
    const struct piece *next = &s->pieces[s->n_taken % DEPTH];
    struct io_uring_cqe *cqe;

    while (note(s), !next->back) {
        (void)io_uring_submit(s->uring);
        if (s->n_asked - s->n_back == io_uring_sq_ready(s->uring))
            return false;
        /* The kernel still writes to the memory, so no error allows to leave.  If waiting
         * is forbidden by now, poll() waits: completions then appear without a call. */
        int err = io_uring_wait_cqe(s->uring, &cqe);
        struct pollfd completion = { .fd = s->uring->ring_fd, .events = POLLIN };
        if (err && err != -EINTR)
            (void)poll(&completion, 1, -1);
    }
    return true;
}

/* Read what the ring did not. */
static int
complete(const struct kvt__file_extent *e, const struct piece *p)
{
    size_t got = p->got & ~(KVT__DIRECT_ALIGN - 1);

    if (p->got >= p->bytes)
        return 0;
    return kvt__posix_read(e->fd, e->at + p->from + got, p->bytes - got,
                           room(p) - got, (off_t)(p->from + got));
}

int
kvt__uring_read_extent(const struct kvt__file_extent *e, struct kvt__sum *sum)
{
    struct ring *ring = kvt__piece(e->bytes, PIECE) < e->bytes ? my_ring() : NULL;
    int err = 0;

    if (!ring)
        return -ENOSYS; /* also for a single piece, which gains nothing */
    struct stream s = { .e = e, .uring = &ring->uring };
    ask(&s);
    while (s.n_taken != s.n_asked) {
        if (!await(&s)) {
            say("it takes no requests");
            stop(ring); /* with the requests that were never taken */
            return -ENOSYS;
        }
        struct piece p = s.pieces[s.n_taken++ % DEPTH];
        assert(p.back && p.from + p.bytes <= e->bytes);
        if (err)
            continue;
        ask(&s);
        err = complete(e, &p);
        if (!err)
            kvt__sum_add(sum, e->at + p.from, p.bytes);
    }
    return err;
}
