/* SPDX-License-Identifier: Apache-2.0
 *
 * A ring: take entries of the client in jobs, and return results.  The memory is not trusted:
 * entries are copied before use. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "usrbiod.h"

struct args {
    uint8_t buffer_id[16];
    uint64_t buffer_at, file, file_at, bytes, userdata;
};

struct sqe {
    int32_t index, pad;
    uint64_t userdata;
};

struct cqe {
    int32_t index, pad;
    int64_t result;
    uint64_t userdata;
};

enum { HEAD_BYTES = 16, SEM_BYTES = 32, SLACK_BYTES = 4096, SLOT_BYTES = 96 };
_Static_assert(sizeof(struct args) + sizeof(struct cqe) + sizeof(struct sqe) == SLOT_BYTES,
               "the ring's layout");
_Static_assert(sizeof(sem_t) == SEM_BYTES, "the ring's layout");

struct ring {
    struct reg *reg;
    _Atomic int32_t *sqe_head, *sqe_tail, *cqe_head, *cqe_tail;
    const struct args *args;
    struct cqe *cqes;
    const struct sqe *sqes;
    sem_t *sem;
    int slots; /* one slot stays empty */

    pthread_mutex_t lock;
    bool withdrawn;
    int next_sqe;   /* next entry to take */
    int next_cqe;   /* next completion to write */
    int processing; /* I/Os taken without a result */
    struct job *first, *last; /* jobs whose entries the client may not reuse yet */
};

static void
lay_out(struct ring *ring, uint8_t *base)
{
    size_t n = (size_t)ring->slots;
    _Atomic int32_t *heads = (_Atomic int32_t *)(void *)base;

    ring->sqe_head = heads;
    ring->sqe_tail = heads + 1;
    ring->cqe_head = heads + 2;
    ring->cqe_tail = heads + 3;
    base += HEAD_BYTES;
    ring->args = (const struct args *)(void *)base;
    base += n * sizeof(struct args);
    ring->cqes = (struct cqe *)(void *)base;
    base += n * sizeof(struct cqe);
    ring->sqes = (const struct sqe *)(void *)base;
    base += n * sizeof(struct sqe);
    ring->sem = (sem_t *)(void *)base;
}

static bool
in_ring(const struct ring *ring, int32_t at)
{
    return at >= 0 && at < ring->slots;
}

int
ring_open(struct reg *reg, struct ring **out)
{
    size_t rest = SLACK_BYTES + HEAD_BYTES + SEM_BYTES;
    size_t slots = reg->bytes < rest ? 0 : (reg->bytes - rest) / SLOT_BYTES;
    struct ring *ring;

    if (slots < 2 || slots > INT32_MAX / 2 || reg->key.depth > (int)slots - 1)
        return EINVAL;
    ring = calloc(1, sizeof *ring);
    if (!ring)
        return ENOMEM;
    ring->reg = reg;
    ring->slots = (int)slots;
    lay_out(ring, reg->base);
    ring->next_sqe = atomic_load(ring->sqe_tail);
    ring->next_cqe = atomic_load(ring->cqe_head);
    if (!in_ring(ring, ring->next_sqe) || !in_ring(ring, ring->next_cqe) ||
        sem_init(ring->sem, 1, 0) < 0) {
        free(ring);
        return EINVAL;
    }
    pthread_mutex_init(&ring->lock, NULL);
    *out = ring;
    return 0;
}

void
ring_free(struct ring *ring)
{
    if (!ring)
        return;
    pthread_mutex_destroy(&ring->lock);
    free(ring);
}

int
ring_priority(const struct ring *ring)
{
    return ring->reg->key.priority;
}

struct reg *
ring_reg(struct ring *ring)
{
    return ring->reg;
}

void
ring_withdraw(struct ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    ring->withdrawn = true;
    pthread_mutex_unlock(&ring->lock);
}

/* ------------------------------------------------------------------------- taking */

static int
distance(const struct ring *ring, int from, int to)
{
    return (to - from + ring->slots) % ring->slots;
}

/* Return the number of entries of the next job; 0: no job yet. */
static int
next_job_locked(const struct ring *ring)
{
    int head = atomic_load(ring->sqe_head), tail = atomic_load(ring->cqe_tail);
    int depth = ring->reg->key.depth;

    if (!in_ring(ring, head) || !in_ring(ring, tail))
        return 0;
    int there = distance(ring, ring->next_sqe, head);
    int room = ring->slots - 1 - ring->processing - distance(ring, tail, ring->next_cqe);
    if (depth > 0)
        return there < depth || room < depth ? 0 : depth;
    int n = there < room ? there : room;
    if (depth == 0 || n < 0)
        return n < 0 ? 0 : n;
    /* With a timeout, the real daemon executes full groups only. */
    if (n < -depth)
        return ring->reg->key.timeout_ms ? 0 : n;
    return -depth;
}

static void
copy_entry(const struct ring *ring, int at, struct io *io)
{
    struct sqe sqe = ring->sqes[at];
    struct args args;

    io->index = sqe.index;
    io->userdata = sqe.userdata;
    if (!in_ring(ring, sqe.index)) {
        io->fixed = true;
        io->result = -EINVAL;
        return;
    }
    args = ring->args[sqe.index];
    memcpy(io->buffer_id, args.buffer_id, 16);
    io->buffer_at = args.buffer_at;
    io->file = args.file;
    io->file_at = args.file_at;
    io->bytes = args.bytes;
}

static struct job *
take_locked(struct ring *ring, int n)
{
    struct job *job = calloc(1, sizeof *job + (size_t)n * sizeof job->io[0]);

    if (!job)
        return NULL;
    job->ring = ring;
    job->n = (size_t)n;
    for (int i = 0; i < n; i++)
        copy_entry(ring, (ring->next_sqe + i) % ring->slots, &job->io[i]);
    job->taken_ns = now_ns();
    ring->next_sqe = job->end = (ring->next_sqe + n) % ring->slots;
    ring->processing += n;
    if (ring->last)
        ring->last->later = job;
    else
        ring->first = job;
    ring->last = job;
    return job;
}

struct job *
ring_take(struct ring *ring)
{
    struct job *job = NULL;

    pthread_mutex_lock(&ring->lock);
    int n = ring->withdrawn ? 0 : next_job_locked(ring);
    if (n)
        job = take_locked(ring, n);
    pthread_mutex_unlock(&ring->lock);
    if (job) {
        reg_hold(ring->reg);
        count_taken(job);
    }
    return job;
}

/* --------------------------------------------------------------------- completing */

/* Return the entries of finished jobs in the order of the ring: a finished job waits for the jobs
 * before it. */
static void
give_entries_back_locked(struct ring *ring)
{
    struct job *job;

    while ((job = ring->first) && job->done) {
        atomic_store(ring->sqe_tail, job->end);
        ring->first = job->later;
        if (!ring->first)
            ring->last = NULL;
        free(job);
    }
}

static void
write_results_locked(struct ring *ring, const struct job *job)
{
    for (size_t i = 0; i < job->n; i++) {
        const struct io *io = &job->io[job->reverse ? job->n - 1 - i : i];
        struct cqe *cqe = &ring->cqes[ring->next_cqe];

        cqe->index = io->index;
        cqe->result = io->result;
        cqe->userdata = io->userdata;
        ring->next_cqe = (ring->next_cqe + 1) % ring->slots;
        atomic_store(ring->cqe_head, ring->next_cqe);
    }
    ring->processing -= (int)job->n;
}

void
ring_complete(struct job *job)
{
    struct ring *ring = job->ring;
    bool silent = job->silent;

    count_done(job, ring->reg->key.for_read);
    pthread_mutex_lock(&ring->lock);
    write_results_locked(ring, job);
    job->done = true;
    give_entries_back_locked(ring);
    pthread_mutex_unlock(&ring->lock);
    if (!silent)
        sem_post(ring->sem);
}
