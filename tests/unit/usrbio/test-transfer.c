/* SPDX-License-Identifier: Apache-2.0
 *
 * Transfers that wait for each other's memory and ring slots.  The test plays the daemon: each
 * I/O ends when the test completes the I/O. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvt-test.h"
#include "temp-dir.h"

#include "base/error.h"
#include "usrbio/private.h"

#define ENTRIES 4u /* entries of each ring */
#define UNITS ((size_t)32)
#define REGION (UNITS * KVT__USRBIO_UNIT)
#define PIECE (REGION / 8)
#define MAX_PIECES ((size_t)5)
#define N_MOVES ((size_t)4)
#define PATIENCE_NS (60 * KVT__NS_PER_S)

/* --------------------------------------------------------------------- the daemon */

struct io {
    int fd;
    bool reads;
    size_t at, bytes; /* offset and length in the file */
    void *memory;
    const void *userdata;
    int64_t result;
    bool answered, taken;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct io ios[64];
    size_t n;
} daemon_ = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static int
make_memory(struct kvt__hf3fs_iov *iov, const char *mount, size_t size, size_t block_size,
            int numa)
{
    (void)mount;
    (void)block_size;
    (void)numa;
    iov->base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    iov->size = size;
    return iov->base == MAP_FAILED ? -ENOMEM : 0;
}

static void
unlink_memory(struct kvt__hf3fs_iov *iov)
{
    (void)iov;
}

static void
free_memory(struct kvt__hf3fs_iov *iov)
{
    munmap(iov->base, iov->size);
}

static int
make_ring(struct kvt__hf3fs_ior *ior, const char *mount, int entries, bool for_read,
          int io_depth, int timeout, int numa, uint64_t flags)
{
    (void)mount;
    (void)entries;
    (void)io_depth;
    (void)timeout;
    (void)numa;
    (void)flags;
    ior->for_read = for_read;
    return 0;
}

static void
free_ring(struct kvt__hf3fs_ior *ior)
{
    (void)ior;
}

static int
register_file(int fd, uint64_t flags)
{
    (void)flags;
    return -fd;
}

static void
forget_file(int fd)
{
    (void)fd;
}

static int
begin_io(const struct kvt__hf3fs_ior *ior, const struct kvt__hf3fs_iov *iov, bool read,
         void *ptr, int fd, size_t off, uint64_t len, const void *userdata)
{
    (void)ior;
    (void)iov;
    pthread_mutex_lock(&daemon_.lock);
    int slot = (int)daemon_.n++;
    daemon_.ios[slot] = (struct io){ .fd = fd, .reads = read, .at = off, .bytes = len,
                                     .memory = ptr, .userdata = userdata };
    pthread_mutex_unlock(&daemon_.lock);
    return slot;
}

static int
submit(const struct kvt__hf3fs_ior *ior)
{
    (void)ior;
    return 0;
}

/* Take the completions of a ring.  The caller holds the daemon's lock. */
static int
take_answers(bool reads, struct kvt__hf3fs_cqe *cqes, int most)
{
    int n = 0;

    for (size_t i = 0; i < daemon_.n && n < most; i++) {
        struct io *io = &daemon_.ios[i];

        if (io->reads != reads || !io->answered || io->taken)
            continue;
        io->taken = true;
        cqes[n++] = (struct kvt__hf3fs_cqe){ .index = (int32_t)i, .result = io->result,
                                             .userdata = io->userdata };
    }
    return n;
}

static int
wait_for_answers(const struct kvt__hf3fs_ior *ior, struct kvt__hf3fs_cqe *cqes, int cqec,
                 int min_results, const struct timespec *abs_timeout)
{
    int n;

    (void)min_results;
    pthread_mutex_lock(&daemon_.lock);
    while (!(n = take_answers(ior->for_read, cqes, cqec)) &&
           !pthread_cond_timedwait(&daemon_.changed, &daemon_.lock, abs_timeout))
        continue;
    pthread_mutex_unlock(&daemon_.lock);
    return n;
}

static const struct kvt__usrbio_api api = {
    .name = "test", .iovcreate = make_memory, .iovunlink = unlink_memory,
    .iovdestroy = free_memory, .iorcreate4 = make_ring, .iordestroy = free_ring,
    .reg_fd = register_file, .dereg_fd = forget_file, .prep_io = begin_io,
    .submit_ios = submit, .wait_for_ios = wait_for_answers,
};

/* Return true if an I/O at this offset of a file is in flight. */
static bool
is_begun(int fd, size_t at)
{
    bool found = false;

    pthread_mutex_lock(&daemon_.lock);
    for (size_t i = 0; i < daemon_.n; i++) {
        const struct io *io = &daemon_.ios[i];

        found = found || (io->fd == fd && io->at == at && !io->answered);
    }
    pthread_mutex_unlock(&daemon_.lock);
    return found;
}

/* Return the byte of a file at an offset. */
static unsigned char
byte_at(size_t at)
{
    return (unsigned char)(1 + at / 1024);
}

/* Complete the I/O at this offset.  result: bytes, or -errno. */
static void
answer(int fd, size_t at, int64_t result)
{
    pthread_mutex_lock(&daemon_.lock);
    for (size_t i = 0; i < daemon_.n; i++) {
        struct io *io = &daemon_.ios[i];

        if (io->fd != fd || io->at != at || io->answered)
            continue;
        for (int64_t b = 0; io->reads && b < result; b++)
            ((unsigned char *)io->memory)[b] = byte_at(at + (size_t)b);
        io->result = result;
        io->answered = true;
        break;
    }
    pthread_cond_broadcast(&daemon_.changed);
    pthread_mutex_unlock(&daemon_.lock);
}

/* ------------------------------------------------------------------------ transfers */

struct move {
    struct kvt__usrbio_session *session;
    struct kvt__usrbio_extent extent;
    pthread_t thread;
    sem_t arrived, may_go_on; /* for the first piece of a held transfer */
    bool held;
    size_t arrived_bytes;
    int err;
    unsigned char memory[MAX_PIECES * PIECE];
};

struct fixture {
    struct temp_dir dir;
    struct kvt__usrbio_session *session;
    struct move moves[N_MOVES];
};

static void
on_piece(void *ctx, const unsigned char *piece, size_t n)
{
    struct move *m = ctx;

    (void)piece;
    m->arrived_bytes += n;
    if (!m->held)
        return;
    m->held = false;
    sem_post(&m->arrived);
    sem_wait(&m->may_go_on);
}

static void *
move_main(void *arg)
{
    struct move *m = arg;

    m->err = kvt__usrbio_transfer(m->session, &m->extent);
    return NULL;
}

/* Move n pieces from the start of a new file.  at: memory of the region, or NULL. */
static void
start(struct fixture *f, struct move *m, bool reads, size_t n, unsigned char *at)
{
    int fd = memfd_create("file", MFD_CLOEXEC);

    assert_true(fd >= 0);
    m->session = f->session;
    m->extent = (struct kvt__usrbio_extent){ .fd = fd, .reads = reads, .bytes = n * PIECE,
                                             .at = at ? at : m->memory, .on_piece = on_piece,
                                             .ctx = m };
    assert_int_equal(pthread_create(&m->thread, NULL, move_main, m), 0);
}

static void
join(struct move *m)
{
    pthread_join(m->thread, NULL);
    close(m->extent.fd);
}

/* Wait until the I/O has begun. */
static void
wait_for_io(const struct move *m, size_t at)
{
    int64_t end = kvt__now_ns() + PATIENCE_NS;

    while (!is_begun(m->extent.fd, at)) {
        if (kvt__now_ns() >= end)
            fail_msg("no I/O of file %d at %zu begins", m->extent.fd, at);
        sched_yield();
    }
}

static void
end_piece(struct move *m, size_t i)
{
    wait_for_io(m, i * PIECE);
    answer(m->extent.fd, i * PIECE, PIECE);
}

/* Wait until a transfer other than a and b is first or last in the queue for room.  Return the
 * transfer. */
static struct kvt__usrbio_transfer *
wait_for_another(struct kvt__usrbio_session *s, const struct kvt__usrbio_transfer *a,
                 const struct kvt__usrbio_transfer *b)
{
    struct kvt__usrbio_transfer *first, *last;

    do {
        sched_yield();
        pthread_mutex_lock(&s->lock);
        first = s->first_waiting;
        last = s->last_waiting;
        pthread_mutex_unlock(&s->lock);
        if (first == a || first == b)
            first = last;
    } while (!first || first == a || first == b);
    return first;
}

static void
wait_until_idle(struct kvt__usrbio_session *s)
{
    uint32_t n;

    do {
        sched_yield();
        pthread_mutex_lock(&s->lock);
        n = s->n_in_flight;
        pthread_mutex_unlock(&s->lock);
    } while (n);
}

static int
setup(void **state)
{
    static struct fixture f;
    char path[400];

    memset(&f, 0, sizeof f);
    daemon_.n = 0;
    temp_dir_make(&f.dir);
    snprintf(path, sizeof path, "%s/3fs-virt", f.dir.path);
    assert_int_equal(mkdir(path, 0700), 0);
    strcat(path, "/iovs");
    assert_int_equal(mkdir(path, 0700), 0);
    strcat(path, "/submit-ios");
    assert_int_equal(symlink("/dev/shm/none", path), 0);
    struct kvt__usrbio_params params = { .api = &api, .mount_point = f.dir.path,
                                         .iov_bytes = REGION, .entries = ENTRIES,
                                         .node = -1, .n_pairs = 1 };
    if (kvt__usrbio_session_open(&params, &f.session))
        fail_msg("%s", kvt__why());
    for (size_t i = 0; i < N_MOVES; i++) {
        sem_init(&f.moves[i].arrived, 0, 0);
        sem_init(&f.moves[i].may_go_on, 0, 0);
    }
    *state = &f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    kvt__usrbio_session_mark_dead(f->session);
    kvt__usrbio_session_close(f->session);
    temp_dir_remove(&f->dir);
    return 0;
}

/* `first` has the memory that `last` waits for, and needs a slot of the ring: `first` gets the
 * next free slot. `early` takes the memory that `first` has freed before. */
static void
the_rest_of_a_piece_comes_before_waiters_for_memory(void **state)
{
    struct fixture *f = *state;
    struct move *first = &f->moves[0], *busy = &f->moves[1];
    struct move *early = &f->moves[2], *last = &f->moves[3];
    struct kvt__slot slot, rest[UNITS];
    size_t n_rest = 0;

    first->held = true;
    start(f, first, true, 2, NULL);
    end_piece(first, 0);
    sem_wait(&first->arrived);
    wait_for_io(first, PIECE);
    answer(first->extent.fd, PIECE, PIECE / 2);
    wait_until_idle(f->session);
    assert_true(kvt__usrbio_session_acquire_slot(f->session, KVT__PRIO_LOAD, 0, ENTRIES * PIECE,
                                                 &slot));
    while (kvt__usrbio_session_acquire_slot(f->session, KVT__PRIO_LOAD, 0, 1, &rest[n_rest]))
        n_rest++;
    start(f, busy, true, ENTRIES, slot.payload); /* uses all slots of the ring */
    wait_for_io(busy, (ENTRIES - 1) * PIECE);
    start(f, early, false, 1, NULL);
    const struct kvt__usrbio_transfer *t = wait_for_another(f->session, NULL, NULL);
    start(f, last, false, 1, NULL);
    const struct kvt__usrbio_transfer *u = wait_for_another(f->session, t, NULL);
    sem_post(&first->may_go_on);
    wait_for_another(f->session, t, u);
    end_piece(busy, 0);
    wait_for_io(first, PIECE + PIECE / 2);
    answer(first->extent.fd, PIECE + PIECE / 2, PIECE / 2);
    end_piece(early, 0);
    end_piece(last, 0);
    for (size_t i = 1; i < ENTRIES; i++)
        end_piece(busy, i);
    for (size_t i = 0; i < N_MOVES; i++) {
        struct move *m = &f->moves[i];

        join(m);
        assert_int_equal(m->err, 0);
        assert_int_equal(m->arrived_bytes, m->extent.reads ? m->extent.bytes : 0);
        for (size_t b = 0; m->extent.reads && b < m->extent.bytes; b++)
            assert_int_equal(m->extent.at[b], byte_at(b));
    }
    kvt__usrbio_session_release_slot(f->session, &slot);
    while (n_rest)
        kvt__usrbio_session_release_slot(f->session, &rest[--n_rest]);
}

/* A failed transfer submits no more I/Os, and blocks no other transfer while its remaining I/Os
 * are in flight. */
static void
a_failed_transfer_leaves_the_queue(void **state)
{
    struct fixture *f = *state;
    struct move *failing = &f->moves[0], *next = &f->moves[1];

    start(f, failing, true, ENTRIES + 1, NULL);
    wait_for_io(failing, (ENTRIES - 1) * PIECE);
    const struct kvt__usrbio_transfer *t = wait_for_another(f->session, NULL, NULL);
    start(f, next, false, 1, NULL);
    wait_for_another(f->session, t, NULL);
    answer(failing->extent.fd, 0, -EIO);
    end_piece(next, 0);
    join(next);
    assert_int_equal(next->err, 0);
    for (size_t i = 1; i < ENTRIES; i++)
        end_piece(failing, i);
    join(failing);
    assert_int_equal(failing->err, -EIO);
    assert_int_equal(failing->arrived_bytes, 0);
    assert_null(f->session->first_waiting);
    assert_null(f->session->last_waiting);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_rest_of_a_piece_comes_before_waiters_for_memory),
        TEST(a_failed_transfer_leaves_the_queue),
    };

    return cmocka_run_group_tests_name("usrbio transfer", tests, NULL, NULL);
}
