/* SPDX-License-Identifier: Apache-2.0
 *
 * Waits for completions: deadlines; late, lost and surplus posts; several waiters; forks. */
#include "usrbio-test.h"

#include <semaphore.h>
#include <sys/wait.h>

/* Simulate a wall clock that is set back again and again: a wait by that clock never ends. */
int
sem_timedwait(sem_t *sem, const struct timespec *abs_timeout)
{
    (void)abs_timeout;
    return sem_wait(sem);
}

#define N_WAITERS 4
#define N_IOS 3000

static void
prep_n(const struct fixture *f, int n)
{
    for (int i = 0; i < n; i++)
        assert_true(prep(f, &f->w, 0, 1, 0, (uintptr_t)i) >= 0);
    assert_int_equal(f->api->submit_ios(&f->w), 0);
}

static void
wait_until_done(const struct fixture *f, int n)
{
    while (f->c.rings[1].done < n)
        sched_yield();
}

static bool
is_past(const struct timespec *t)
{
    return kvt__clock_ns(CLOCK_REALTIME) >=
           (int64_t)t->tv_sec * KVT__NS_PER_S + t->tv_nsec;
}

static void
a_deadline_that_comes_is_no_error(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_cqe cqes[4];
    struct timespec until = in_ms(30);

    counterpart_idle(&f->c, true);
    prep_n(f, 2);
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 4, 1, &until), 0);
    assert_true(is_past(&until));
    until = in_ms(-1000); /* in the past */
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 4, 1, &until), 0);
    until = (struct timespec){ -5, 0 };
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 4, 1, &until), 0);
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 4, 0, NULL), 0); /* a poll */

    counterpart_idle(&f->c, false); /* late completions are not lost */
    assert_int_equal(f->api->submit_ios(&f->w), 0);
    until = far();
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 4, 2, &until), 2);
}

static void
at_the_deadline_available_completions_are_returned(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_cqe cqes[8];
    struct timespec until;

    f->c.job_size = 1;
    prep_n(f, 3);
    wait_until_done(f, 3);
    until = in_ms(30);
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 8, 5, &until), 3);
    assert_true(is_past(&until));
    /* min_results is limited to the array's length. */
    prep_n(f, 4);
    until = far();
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 3, 100, &until), 3);
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 3, 1, &until), 1);
}

static void
an_invalid_timespec_is_einval(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_cqe cqe;

    assert_int_equal(f->api->wait_for_ios(&f->w, &cqe, 1, 1,
                                          &(struct timespec){ 0, 1000000000 }), -EINVAL);
    assert_int_equal(f->api->wait_for_ios(&f->w, &cqe, 1, 1,
                                          &(struct timespec){ 0, -1 }), -EINVAL);
}

static void
one_post_may_report_many_completions(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_cqe cqes[ENTRIES];

    f->c.job_size = ENTRIES;
    for (int i = 0; i < 50; i++) {
        struct timespec until = far();

        prep_n(f, ENTRIES);
        for (int n = 0; n < ENTRIES; n++)
            assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 1, 1, &until), 1);
    }
}

static void
completions_without_a_post_are_found(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_cqe cqes[4];
    struct timespec until;

    f->c.silent = true;
    f->c.job_size = 2;
    prep_n(f, 2);
    wait_until_done(f, 2);
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 4, 0, NULL), 2);
    prep_n(f, 2);
    wait_until_done(f, 4);
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 4, 2, NULL), 2);
    prep_n(f, 2);
    for (int n = 0; n < 2;) { /* completions that arrive during the wait are found at the
                               * deadline */
        until = in_ms(30);
        n += f->api->wait_for_ios(&f->w, cqes, 4, 3, &until);
    }
}

static void
posts_without_completions_end_no_wait(void **state)
{
    struct fixture *f = *state;
    sem_t *done = (sem_t *)(f->w.iov.base + 16 + 96 * (ENTRIES + 1));
    struct kvt__hf3fs_cqe cqe;
    struct timespec until = in_ms(30);

    for (int i = 0; i < 1000; i++)
        sem_post(done);
    assert_int_equal(f->api->wait_for_ios(&f->w, &cqe, 1, 1, &until), 0);
    assert_true(is_past(&until));
}

/* The daemon then has room for more completions. */
static void
to_take_completions_wakes_the_daemon(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_cqe cqes[4];
    struct timespec until = far();

    f->c.job_size = 1;
    prep_n(f, 2);
    wait_until_done(f, 2);
    assert_true(prep(f, &f->w, 0, 1, 0, 2) >= 0); /* not submitted */
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 1, 1, &until), 1);
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 4, 2, &until), 2);
}

/* --------------------------------------------------------- several waiters */

struct crowd {
    struct fixture *f;
    int at_once;
    atomic_int taken, wanted;
    atomic_int seen[N_IOS];
};

static void *
waiter_main(void *arg)
{
    struct crowd *crowd = arg;
    struct kvt__hf3fs_cqe cqes[4];

    while (crowd->taken < crowd->wanted) {
        struct timespec until = in_ms(50); /* for the last waiters, which get no completion */
        int n = crowd->f->api->wait_for_ios(&crowd->f->w, cqes, crowd->at_once, 1, &until);

        for (int i = 0; i < n; i++) {
            if (cqes[i].result != 1)
                abort();
            crowd->seen[(uintptr_t)cqes[i].userdata]++;
        }
        if (n > 0)
            crowd->taken += n;
    }
    return NULL;
}

static void
several_waiters_take_each_completion_once(void **state)
{
    struct fixture *f = *state;

    for (int at_once = 1; at_once <= 4; at_once += 3) {
        struct crowd *crowd = calloc(1, sizeof *crowd);
        pthread_t threads[N_WAITERS];

        crowd->f = f;
        crowd->at_once = at_once;
        crowd->wanted = N_IOS;
        f->c.shuffled = true;
        for (int i = 0; i < N_WAITERS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, waiter_main, crowd), 0);
        for (uintptr_t i = 0; i < N_IOS;) {
            int slot = prep(f, &f->w, 0, 1, 0, i);

            assert_true(slot >= 0 || slot == -EAGAIN);
            if (slot >= 0)
                i++;
            if (slot < 0 || i % 5 == 0 || i == N_IOS)
                f->api->submit_ios(&f->w);
            if (slot < 0)
                sched_yield();
        }
        for (int i = 0; i < N_WAITERS; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < N_IOS; i++)
            assert_int_equal(crowd->seen[i], 1);
        free(crowd);
    }
}

struct sleeper {
    struct fixture *f;
    int result;
};

static void *
sleeper_main(void *arg)
{
    struct sleeper *s = arg;
    struct kvt__hf3fs_cqe cqe;

    s->result = s->f->api->wait_for_ios(&s->f->w, &cqe, 1, 1, NULL); /* no timeout */
    return NULL;
}

/* One job, one post: the waiter that takes the post wakes the next waiter, or this test never
 * ends. */
static void
no_waiter_sleeps_while_a_completion_is_available(void **state)
{
    struct fixture *f = *state;

    f->c.job_size = N_WAITERS;
    for (int round = 0; round < 100; round++) {
        struct sleeper sleepers[N_WAITERS];
        pthread_t threads[N_WAITERS];

        for (int i = 0; i < N_WAITERS; i++) {
            sleepers[i] = (struct sleeper){ f, 0 };
            assert_int_equal(pthread_create(&threads[i], NULL, sleeper_main, &sleepers[i]),
                             0);
        }
        prep_n(f, N_WAITERS);
        for (int i = 0; i < N_WAITERS; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(sleepers[i].result, 1);
        }
    }
}

/* ------------------------------------------------------------------- forks */

static int
in_a_child(struct fixture *f)
{
    struct kvt__hf3fs_cqe cqe;
    struct timespec until = in_ms(0);

    if (f->api->wait_for_ios(&f->w, &cqe, 1, 1, &until) != -ESTALE)
        return 1;
    if (prep(f, &f->w, 0, 1, 0, 0) != -ESTALE)
        return 2;
    if (f->api->submit_ios(&f->w) != -ESTALE)
        return 3;
    f->api->iordestroy(&f->w);
    f->api->iordestroy(&f->r);
    f->api->iovdestroy(&f->iov);
    if (f->api->reg_fd(f->fd, 0) >= 0) /* the child has a new table */
        return 4;
    f->api->dereg_fd(f->fd);
    if (f->api->iovcreate(&f->iov, f->c.path, 4096, 0, -1))
        return 5;
    f->api->iovdestroy(&f->iov);
    return 0;
}

static void
a_forked_child_gets_estale_and_spoils_nothing(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_cqe cqe;
    struct timespec until = far();
    char name[256];
    int status;

    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        _exit(in_a_child(f));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(counterpart_links(&f->c, name), 3);
    prep_n(f, 1);
    assert_int_equal(f->api->wait_for_ios(&f->w, &cqe, 1, 1, &until), 1);
}

/* ----------------------------------------------------------------- restart */

static size_t
open_descriptors(void)
{
    size_t n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void
after_a_restart_new_rings_work_and_old_rings_end(void **state)
{
    struct fixture *f = *state;
    size_t before = open_descriptors();
    struct kvt__hf3fs_cqe cqe;

    for (int i = 0; i < 5; i++) {
        struct kvt__hf3fs_ior old = f->w;
        struct timespec until = in_ms(20);

        counterpart_idle(&f->c, true);
        prep_n(f, 2);
        counterpart_restart(&f->c);
        assert_int_equal(f->api->wait_for_ios(&old, &cqe, 1, 1, &until), 0);
        counterpart_idle(&f->c, false);
        open_ring(f, &f->w, ENTRIES, false);
        f->api->iordestroy(&old);
        close_ring(f, &f->r);
        open_ring(f, &f->r, ENTRIES, true);
        f->api->iovdestroy(&f->iov);
        assert_int_equal(kvt__usrbio_alloc_memory(f->api, &f->iov, f->c.path, MEMORY, 0, -1), 0);
        prep_n(f, 1);
        until = far();
        assert_int_equal(f->api->wait_for_ios(&f->w, &cqe, 1, 1, &until), 1);
        assert_int_equal(cqe.result, 1);
        assert_int_equal(open_descriptors(), before);
    }
}

static void *
make_and_end(void *arg)
{
    struct fixture *f = arg;
    struct kvt__hf3fs_iov iov;

    for (int i = 0; i < 20; i++) {
        if (f->api->iovcreate(&iov, f->c.path, 4096, 0, -1))
            abort();
        f->api->iovdestroy(&iov);
    }
    return NULL;
}

static void
threads_that_end_leave_no_descriptor(void **state)
{
    struct fixture *f = *state;
    size_t before = open_descriptors();
    struct kvt__hf3fs_iov iov;

    for (int round = 0; round < 10; round++) {
        pthread_t threads[N_WAITERS];

        for (int i = 0; i < N_WAITERS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, make_and_end, f), 0);
        for (int i = 0; i < N_WAITERS; i++)
            pthread_join(threads[i], NULL);
    }
    /* To the kernel, a joined thread may exist a little longer. */
    for (int i = 0; i < 60000; i++) {
        assert_int_equal(f->api->iovcreate(&iov, f->c.path, 4096, 0, -1), 0);
        f->api->iovdestroy(&iov);
        if (open_descriptors() == before)
            return;
        usleep(1000);
    }
    assert_int_equal(open_descriptors(), before);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        BOTH(a_deadline_that_comes_is_no_error),
        BOTH(at_the_deadline_available_completions_are_returned),
        OWN(an_invalid_timespec_is_einval),
        BOTH(one_post_may_report_many_completions),
        BOTH(completions_without_a_post_are_found),
        BOTH(posts_without_completions_end_no_wait),
        BOTH(to_take_completions_wakes_the_daemon),
        BOTH(several_waiters_take_each_completion_once),
        OWN(no_waiter_sleeps_while_a_completion_is_available),
        OWN(a_forked_child_gets_estale_and_spoils_nothing),
        BOTH(after_a_restart_new_rings_work_and_old_rings_end),
        OWN(threads_that_end_leave_no_descriptor),
    };

    return RUN("usrbio wait");
}
