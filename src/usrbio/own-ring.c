/* SPDX-License-Identifier: Apache-2.0
 *
 * A ring.  A queue (sqe) takes I/Os to the daemon, and a second queue (cqe) returns completions.
 * A slot of args belongs to an I/O from prep_io() until wait_for_ios() has returned the
 * completion.  The daemon shares the memory, so all values read from the memory are checked, and
 * values that only this side changes are kept outside the shared memory.
 *
 * One thread prepares I/Os.  Any number of threads wait, and take completions under a lock.  With
 * compare-and-swap alone, a thread that is delayed while other threads advance once around the
 * queue would take an entry that belongs to another I/O. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "usrbio/own.h"

#define WORD_BITS 64

#define YEAR_NS (365 * 24 * 3600 * KVT__NS_PER_S)

struct ring {
    struct kvt__own_shm shm;
    struct kvt__ring_heads *heads;
    struct kvt__ring_args *args;
    volatile struct kvt__ring_cqe *cqes;
    struct kvt__ring_sqe *sqes;
    sem_t *done; /* the daemon posts once for each job; a job is one or more I/Os */
    int32_t n;
    bool for_read;
    int32_t sqe_head; /* used only by the thread that prepares */
    pthread_mutex_t lock; /* guards cqe_tail */
    int32_t cqe_tail;
    /* User data of each slot.  The atomic access orders memory between the thread that prepares
     * an I/O and the thread that takes the completion: the compiler does not know of the daemon
     * between these threads. */
    _Atomic(const void *) *userdata;
    _Atomic uint64_t used[]; /* a bit for each slot: 1 in use */
};

size_t
kvt__own_ior_size(int entries)
{
    return kvt__ring_sem_at((size_t)entries + 1) + sizeof(sem_t) + KVT__RING_SLACK;
}

static struct ring *
ring_of(const struct kvt__hf3fs_ior *ior)
{
    return ior ? ior->iorh : NULL;
}

static bool
is_stale(const struct kvt__own_shm *shm)
{
    return shm->generation != atomic_load_explicit(&kvt__own_generation,
                                                   memory_order_relaxed);
}

static void
free_ring(struct ring *ring)
{
    pthread_mutex_destroy(&ring->lock);
    free(ring->userdata);
    free(ring);
}

static struct ring *
new_ring(int entries, bool for_read)
{
    size_t n_words = ((size_t)entries + WORD_BITS - 1) / WORD_BITS;
    struct ring *ring = calloc(1, sizeof *ring + n_words * sizeof ring->used[0]);

    if (!ring)
        return NULL;
    pthread_mutex_init(&ring->lock, NULL);
    ring->n = entries + 1;
    ring->for_read = for_read;
    if ((size_t)entries % WORD_BITS) /* the bits behind the last slot stay set */
        ring->used[n_words - 1] = UINT64_MAX << (size_t)entries % WORD_BITS;
    ring->userdata = calloc((size_t)entries, sizeof *ring->userdata);
    if (ring->userdata)
        return ring;
    free_ring(ring);
    return NULL;
}

/* Set the pointers into the ring's memory. */
static void
set_pointers(struct ring *ring)
{
    unsigned char *base = ring->shm.base;
    size_t n = (size_t)ring->n;

    ring->heads = (struct kvt__ring_heads *)base;
    ring->args = (struct kvt__ring_args *)(base + KVT__RING_ARGS_AT);
    ring->cqes = (struct kvt__ring_cqe *)(base + kvt__ring_cqe_at(n));
    ring->sqes = (struct kvt__ring_sqe *)(base + kvt__ring_sqe_at(n));
    ring->done = (sem_t *)(base + kvt__ring_sem_at(n));
}

int
kvt__own_iorcreate4(struct kvt__hf3fs_ior *ior, const char *mount, int entries,
                    bool for_read, int io_depth, int timeout, int numa, uint64_t flags)
{
    struct kvt__own_key key = { .direction = for_read ? 'r' : 'w', .io_depth = io_depth,
                                .timeout = timeout, .flags = flags };

    if (!ior || entries <= 0 || entries == INT_MAX || timeout < 0)
        return kvt__fail(EINVAL, "make a ring of %d entries with timeout %d", entries, timeout);
    struct ring *ring = new_ring(entries, for_read);
    if (!ring)
        return kvt__fail(ENOMEM, "make a ring of %d entries", entries);
    int err = kvt__own_shm_open(&ring->shm, mount, kvt__own_ior_size(entries), numa, &key);
    if (err) {
        free_ring(ring);
        return err;
    }
    kvt__own_shm_unlink(&ring->shm);
    set_pointers(ring);
    *ior = (struct kvt__hf3fs_ior){
        .iov = { .base = ring->shm.base, .size = ring->shm.size, .numa = numa },
        .iorh = ring, .for_read = for_read, .io_depth = io_depth, .timeout = timeout,
        .flags = flags };
    memcpy(ior->iov.id, ring->shm.id, sizeof ior->iov.id);
    memcpy(ior->iov.mount_point, mount, strlen(mount) + 1);
    memcpy(ior->mount_point, mount, strlen(mount) + 1);
    return 0;
}

void
kvt__own_iordestroy(struct kvt__hf3fs_ior *ior)
{
    struct ring *ring = ring_of(ior);

    if (!ring)
        return;
    kvt__own_shm_close(&ring->shm);
    free_ring(ring);
    *ior = (struct kvt__hf3fs_ior){ 0 };
}

/* --------------------------------------------------------------- preparing */

/* Allocate the first free slot.  Return its number, or -EAGAIN: all slots are in use. */
static int
alloc_slot(struct ring *ring)
{
    size_t n_words = ((size_t)ring->n - 1 + WORD_BITS - 1) / WORD_BITS;

    for (size_t i = 0; i < n_words; i++) {
        uint64_t used = atomic_load_explicit(&ring->used[i], memory_order_acquire);

        if (used == UINT64_MAX)
            continue;
        int bit = __builtin_ctzll(~used); /* no other thread allocates slots */
        atomic_fetch_or_explicit(&ring->used[i], UINT64_C(1) << bit,
                                 memory_order_relaxed);
        return (int)(i * WORD_BITS) + bit;
    }
    return -EAGAIN;
}

/* Free a slot.  Return false if the slot was not in use. */
static bool
free_slot(struct ring *ring, int slot)
{
    uint64_t bit = UINT64_C(1) << slot % WORD_BITS;

    return atomic_fetch_and_explicit(&ring->used[slot / WORD_BITS], ~bit,
                                     memory_order_acq_rel) & bit;
}

/* Check the arguments of prep_io() and look up the file.  Return 0 or a negative errno. */
static int
check_io(const struct ring *ring, const struct kvt__own_shm *shm, bool read,
         const void *ptr, int fd, uint64_t len, struct kvt__own_file *file)
{
    uintptr_t at = (uintptr_t)ptr - (shm ? (uintptr_t)shm->base : 0);

    if (!ring || !shm)
        return -EINVAL;
    if (is_stale(&ring->shm) || is_stale(shm))
        return -ESTALE;
    if (read != ring->for_read || !len || at >= shm->size || len > shm->size - at)
        return -EINVAL;
    if (!kvt__own_find_file(fd, file))
        return -EBADF;
    return file->access == (read ? O_WRONLY : O_RDONLY) ? -EACCES : 0;
}

int
kvt__own_prep_io(const struct kvt__hf3fs_ior *ior, const struct kvt__hf3fs_iov *iov,
                 bool read, void *ptr, int fd, size_t off, uint64_t len,
                 const void *userdata)
{
    struct ring *ring = ring_of(ior);
    const struct kvt__own_shm *shm = iov ? iov->iovh : NULL;
    struct kvt__own_file file;
    int err = check_io(ring, shm, read, ptr, fd, len, &file);

    if (err)
        return err;
    int32_t next = (ring->sqe_head + 1) % ring->n;
    if (next == atomic_load(&ring->heads->sqe_tail))
        return -EAGAIN;
    int slot = alloc_slot(ring);
    if (slot < 0)
        return slot;
    struct kvt__ring_args *args = &ring->args[slot];
    memcpy(args->buf, shm->id, sizeof args->buf);
    args->buf_off = (uint64_t)((uintptr_t)ptr - (uintptr_t)shm->base);
    args->inode = file.inode;
    args->file_off = off;
    args->bytes = len;
    args->userdata = (uintptr_t)userdata;
    atomic_store_explicit(&ring->userdata[slot], userdata, memory_order_release);
    ring->sqes[ring->sqe_head].index = slot;
    ring->sqes[ring->sqe_head].userdata = (uintptr_t)userdata;
    ring->sqe_head = next;
    atomic_store(&ring->heads->sqe_head, next); /* from now on the daemon may run the I/O */
    return slot;
}

int
kvt__own_submit_ios(const struct kvt__hf3fs_ior *ior)
{
    struct ring *ring = ring_of(ior);

    if (!ring)
        return -EINVAL;
    if (is_stale(&ring->shm))
        return -ESTALE;
    sem_post(ring->shm.mount->submit);
    return 0;
}

/* ----------------------------------------------------------------- waiting */

/* Fill in a completion and free its slot.  Return false if the completion belongs to no I/O in
 * flight. */
static bool
take_completion(struct ring *ring, const volatile struct kvt__ring_cqe *from,
                struct kvt__hf3fs_cqe *cqe)
{
    int32_t slot = from->index;

    if (slot < 0 || slot >= ring->n - 1)
        return false;
    cqe->index = slot;
    cqe->result = from->result;
    cqe->userdata = atomic_load_explicit(&ring->userdata[slot], memory_order_acquire);
    return free_slot(ring, slot);
}

/* Take the completions that have arrived, at most `max`.  Return their number, or -EIO if the
 * head of the queue is invalid.  left: more completions have arrived. */
static int
drain(struct ring *ring, struct kvt__hf3fs_cqe *cqes, int max, bool *left)
{
    int n = 0, taken = 0;

    pthread_mutex_lock(&ring->lock);
    int32_t head = atomic_load(&ring->heads->cqe_head);
    if (head < 0 || head >= ring->n)
        n = -EIO;
    while (n >= 0 && n < max && ring->cqe_tail != head) {
        if (take_completion(ring, &ring->cqes[ring->cqe_tail], &cqes[n]))
            n++;
        else
            KVT__LOG_ONCE(KVT_LOG_WARN, "3FS: the daemon sent a completion of no I/O in "
                          "flight; kvtier ignores the completion");
        ring->cqe_tail = (ring->cqe_tail + 1) % ring->n;
        taken++;
    }
    if (taken)
        atomic_store(&ring->heads->cqe_tail, ring->cqe_tail);
    *left = n >= 0 && ring->cqe_tail != head;
    pthread_mutex_unlock(&ring->lock);
    if (taken)
        sem_post(ring->shm.mount->submit); /* the queue has room again */
    return n;
}

/* Consume the posts that have arrived; the caller then takes the completions.  The limit is the
 * largest number of jobs in flight, so a faulty daemon cannot keep this loop running.  Return
 * true if a post was consumed. */
static bool
consume_posts(struct ring *ring)
{
    int32_t n = 0;

    while (n < ring->n && !sem_trywait(ring->done))
        n++;
    return n > 0;
}

/* Convert the deadline to the monotonic clock, so that a wait does not become longer when the
 * wall clock is set back.  The limit of a year prevents an overflow. */
static struct timespec
monotonic_deadline(const struct timespec *abs_timeout)
{
    int64_t now = kvt__clock_ns(CLOCK_REALTIME), left = YEAR_NS;

    if (abs_timeout->tv_sec < (now + YEAR_NS) / KVT__NS_PER_S)
        left = abs_timeout->tv_sec < 0 ? 0 :
               (int64_t)abs_timeout->tv_sec * KVT__NS_PER_S + abs_timeout->tv_nsec - now;
    return kvt__timespec(kvt__now_ns() + (left > 0 ? left : 0));
}

/* Wait for a post of the daemon until the deadline; until == NULL: no deadline.  Return true if a
 * post was consumed. */
static bool
wait_for_post(struct ring *ring, const struct timespec *until)
{
    int err;

    do
        err = until ? sem_clockwait(ring->done, CLOCK_MONOTONIC, until)
                    : sem_wait(ring->done);
    while (err && errno == EINTR);
    return !err;
}

/* A post may stand for several completions.  A thread that has consumed posts and leaves
 * completions in the queue posts again, so that another waiter wakes up.  Completions without a
 * post are found at the deadline at the latest. */
int
kvt__own_wait_for_ios(const struct kvt__hf3fs_ior *ior, struct kvt__hf3fs_cqe *cqes,
                      int cqec, int min_results, const struct timespec *abs_timeout)
{
    struct ring *ring = ring_of(ior);
    int filled = 0, n;
    bool left;

    if (!ring || !cqes || cqec <= 0 ||
        (abs_timeout && (abs_timeout->tv_nsec < 0 ||
                         abs_timeout->tv_nsec >= KVT__NS_PER_S)))
        return -EINVAL;
    if (is_stale(&ring->shm))
        return -ESTALE;
    if (min_results > cqec)
        min_results = cqec;
    struct timespec until = { 0 };
    if (abs_timeout)
        until = monotonic_deadline(abs_timeout);
    bool posts = consume_posts(ring), in_time = true;
    for (;;) {
        n = drain(ring, cqes + filled, cqec - filled, &left);
        if (n < 0)
            break;
        filled += n;
        if (filled >= min_results || !in_time)
            break;
        in_time = wait_for_post(ring, abs_timeout ? &until : NULL);
        posts |= in_time;
    }
    if (posts && left)
        sem_post(ring->done);
    return n < 0 && !filled ? n : filled;
}
