/* SPDX-License-Identifier: Apache-2.0
 *
 * The time limit of an open while another process makes a table, and of a claim while
 * other processes hold the lock.  The test replaces the clock and the pauses. */
#include "place-test.h"

#include <sys/file.h>

/* Locked by an opener of this version, and by an opener with index version 3. */
static const off_t bytes[] = { TB_OPEN_BYTE, 4096 };
static off_t byte_held;

static int holder = -1;   /* descriptor of the other process: has the lock */
static int64_t held_ns;   /* duration of the holder's work */
static int64_t passed_ns; /* total duration of the pauses */

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);

int
__wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    int err = __real_clock_gettime(clock, out);

    out->tv_sec += passed_ns / KVT__NS_PER_S;
    return err;
}

/* Each pause adds ten seconds to the clock.  The holder ends the work during the pause that
 * reaches held_ns. */
int
__wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)time;
    (void)left;
    passed_ns += 10 * KVT__NS_PER_S;
    if (holder >= 0 && passed_ns >= held_ns) {
        close(holder);
        holder = -1;
    }
    return 0;
}

static struct kvt__table *contended; /* whose lock changes hands during each sleep */
static unsigned n_sleeps;
static bool lock_stays;
static int64_t asked_ns; /* duration of the last sleep, as asked for */

long __wrap_syscall(long number, ...);

/* The only system calls of a claim are sleeps on the lock, and wakes. */
long
__wrap_syscall(long number, ...)
{
    va_list ap;

    va_start(ap, number);
    (void)va_arg(ap, uint32_t *);
    (void)va_arg(ap, int);
    (void)va_arg(ap, uint32_t);
    const struct timespec *time = va_arg(ap, const struct timespec *);
    va_end(ap);
    if (!contended && !lock_stays)
        return 0;
    passed_ns += 10 * KVT__NS_PER_S;
    asked_ns = time->tv_nsec;
    if (lock_stays)
        return 0;
    contended->header->lock += 0x400;
    if (++n_sleeps == 100)
        contended->header->lock &= ~UINT32_C(0x3ff);
    return 0;
}

static void
hold(const struct dir *d, int64_t ns)
{
    struct flock byte = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte_held,
                          .l_len = 1 };

    kvt__table_close(open_writer(d)); /* the open makes the files */
    holder = openat(d->fd, "lock", O_RDWR | O_CLOEXEC);
    assert_int_equal(fcntl(holder, F_OFD_SETLK, &byte), 0);
    passed_ns = 0;
    held_ns = ns;
}

/* A maker allocates memory, and a maker with index version 3 reads a busy disk.  A waiting
 * process must not give up early: without the shared index the process stores nothing until
 * the process ends. */
static void
an_open_waits_for_a_slow_maker(void **state)
{
    const struct dir *d = *state;

    for (int i = 0; i < 2; i++) {
        byte_held = bytes[i];
        hold(d, 40 * KVT__NS_PER_S);
        struct kvt__table *t = open_writer(d);
        assert_int_equal(holder, -1);
        assert_true(kvt__table_is_shared(t));
        kvt__table_close(t);
    }
}

/* A maker of another store is stopped while the maker checks if the table is stale. */
static void
an_open_waits_for_the_flock_of_the_table(void **state)
{
    const struct dir *d = *state;

    store_one_and_close(d);
    for (int i = 0; i < 2; i++) {
        holder = openat(d->shm_fd, shm_file(d), O_RDWR | O_CLOEXEC);
        assert_int_equal(flock(holder, LOCK_EX), 0);
        passed_ns = 0;
        held_ns = i ? INT64_MAX : 40 * KVT__NS_PER_S;
        struct kvt__table *t = open_writer(d);
        assert_int_equal(holder == -1, i == 0);
        assert_true(kvt__table_is_shared(t));
        assert_int_equal(find(t, 1, NULL), i == 0);
        kvt__table_close(t);
    }
    close(holder);
    holder = -1;
}

static void
an_open_does_not_wait_for_ever(void **state)
{
    const struct dir *d = *state;

    for (int i = 0; i < 2; i++) {
        byte_held = bytes[i];
        hold(d, INT64_MAX);
        struct kvt__table *t = open_writer(d);
        assert_false(kvt__table_is_shared(t));
        kvt__table_close(t);
        close(holder);
        holder = -1;
    }
}

/* Other processes take the lock in turn, so the word has another value after each sleep. */
static void
a_claim_does_not_wait_for_ever(void **state)
{
    struct kvt__table *t = open_writer(*state), *other = open_writer(*state);

    t->header->lock += 0x400 + other->owner + 1;
    contended = t;
    assert_int_equal(store(t, 1, 10), -ETIMEDOUT);
    contended = NULL;
    assert_true(n_sleeps < 3);
    t->header->lock &= ~UINT32_C(0x3ff);
    assert_int_equal(store(t, 1, 10), 0);
    kvt__table_close(other);
    kvt__table_close(t);
}

/* The lock of a stopped process, or a garbage word that names a living process. */
static void
a_claim_waits_once_for_a_held_lock(void **state)
{
    struct kvt__table *t = open_writer(*state), *other = open_writer(*state);

    for (uint64_t i = 0; i < 2; i++) {
        t->header->lock = (t->header->lock & ~UINT32_C(0x3ff)) + 0x400 + other->owner + 1;
        lock_stays = true;
        assert_int_equal(store(t, i, 10), -ETIMEDOUT);
        assert_int_equal(asked_ns, KVT__NS_PER_MS);
        assert_int_equal(store(t, i, 10), -ETIMEDOUT);
        assert_int_equal(asked_ns, 1);
        lock_stays = false;
        t->header->lock &= ~UINT32_C(0x3ff);
        assert_int_equal(store(t, i, 10), 0);
    }
    kvt__table_close(other);
    kvt__table_close(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        PLACE_TEST(an_open_waits_for_a_slow_maker),
        PLACE_TEST(an_open_waits_for_the_flock_of_the_table),
        PLACE_TEST(an_open_does_not_wait_for_ever),
        PLACE_TEST(a_claim_does_not_wait_for_ever),
        PLACE_TEST(a_claim_waits_once_for_a_held_lock),
    };

    return cmocka_run_group_tests_name("table wait", tests, NULL, NULL);
}
