/* SPDX-License-Identifier: Apache-2.0
 *
 * Registered files: errors, reused descriptor numbers, and the duplicates' lifetime. */
#include "usrbio-test.h"

#include <sys/resource.h>

static size_t
open_descriptors(void)
{
    size_t n = 0;

    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static int
prep_on(const struct fixture *f, int fd)
{
    return f->api->prep_io(&f->w, &f->iov, false, f->iov.base, fd, 0, 1, NULL);
}

/* Write a byte through fd while only the inode of `served` exists.  Return the result. */
static int64_t
write_byte(struct fixture *f, int fd, int served)
{
    struct kvt__hf3fs_cqe cqe;
    struct timespec until = far();

    serve_file(f, served);
    assert_true(prep_on(f, fd) >= 0);
    f->api->submit_ios(&f->w);
    assert_int_equal(f->api->wait_for_ios(&f->w, &cqe, 1, 1, &until), 1);
    serve_file(f, f->fd);
    return cqe.result;
}

static void
files_of_other_file_systems_are_ebadf(void **state)
{
    struct fixture *f = *state;
    int fd = open_file(O_RDWR);

    assert_true(f->api->is_hf3fs(fd));
    any_fs = false;
    if (f->set_traps)
        f->set_traps("");
    assert_false(f->api->is_hf3fs(fd));
    assert_int_equal(f->api->reg_fd(fd, 0), EBADF);
    assert_int_equal(f->api->reg_fd(-1, 0), EBADF);
    close(fd);
    any_fs = true;
    if (f->set_traps)
        f->set_traps("any_fs=1");
    assert_false(f->api->is_hf3fs(fd));
    assert_int_equal(f->api->reg_fd(fd, 0), EBADF);
}

static void
a_second_registration_is_einval(void **state)
{
    struct fixture *f = *state;
    size_t before = open_descriptors();

    assert_int_equal(f->api->reg_fd(f->fd, 0), EINVAL);
    assert_int_equal(open_descriptors(), before);
    assert_int_equal(write_byte(f, f->fd, f->fd), 1);
}

static void
deregistered_files_are_ebadf_and_closed(void **state)
{
    struct fixture *f = *state;
    size_t before = open_descriptors();
    int fds[300];

    for (int i = 0; i < 300; i++) {
        fds[i] = open_file(O_RDWR);
        assert_int_equal(prep_on(f, fds[i]), -EBADF);
        assert_true(f->api->reg_fd(fds[i], 0) < 0);
    }
    for (int i = 0; i < 300; i++) {
        f->api->dereg_fd(fds[i]);
        assert_int_equal(prep_on(f, fds[i]), -EBADF);
        f->api->dereg_fd(fds[i]); /* does nothing */
        close(fds[i]);
    }
    assert_int_equal(open_descriptors(), before);
    assert_int_equal(write_byte(f, f->fd, f->fd), 1);
}

static void
registration_fails_without_free_descriptors(void **state)
{
    struct fixture *f = *state;
    struct rlimit old, low;
    int fd = open_file(O_RDWR), result;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = old;
    low.rlim_cur = (rlim_t)fd + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    result = f->api->reg_fd(fd, 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(result, EMFILE);
    assert_int_equal(prep_on(f, fd), -EBADF);
    close(fd);
}

/* ------------------------------------------------- closed and not deregistered */

static void
a_stale_number_is_registered_anew(void **state)
{
    struct fixture *f = *state;
    size_t before = open_descriptors();
    int fd = open_file(O_RDWR);

    assert_true(f->api->reg_fd(fd, 0) < 0);
    close(fd);
    int again = open_file(O_RDWR);
    assert_int_equal(again, fd);
    assert_true(f->api->reg_fd(again, 0) < 0);
    assert_int_equal(write_byte(f, again, again), 1);
    f->api->dereg_fd(again);
    close(again);
    assert_int_equal(open_descriptors(), before); /* the duplicate of the first file is closed
                                                   * too */
}

static void
open_and_register(struct fixture *f, int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fds[i] = open_file(O_RDWR);
        assert_true(f->api->reg_fd(fds[i], 0) < 0);
        assert_int_equal(write_byte(f, fds[i], fds[i]), 1);
    }
}

/* The library itself refuses numbers of stale files and of stale duplicates. */
static void
numbers_deregistered_too_late_are_registered_anew(void **state)
{
    struct fixture *f = *state;
    size_t before = open_descriptors();
    int fds[60];

    for (int round = 0; round < 3; round++) {
        open_and_register(f, fds, 20);
        for (int i = 0; i < 20; i++) {
            close(fds[i]);
            f->api->dereg_fd(fds[i]);
        }
    }
    open_and_register(f, fds, 60);
    for (int i = 0; i < 60; i++) {
        f->api->dereg_fd(fds[i]);
        close(fds[i]);
    }
    assert_int_equal(open_descriptors(), before); /* duplicates of late deregistrations are closed
                                                   * too */
}

static void
deregistration_after_close_frees_the_copy(void **state)
{
    struct fixture *f = *state;
    size_t before = open_descriptors();
    int fd = open_file(O_RDWR);

    assert_true(f->api->reg_fd(fd, 0) < 0);
    close(fd);
    f->api->dereg_fd(fd);
    assert_int_equal(open_descriptors(), before);
}

static void
a_copy_that_gets_a_stale_number_takes_its_place(void **state)
{
    struct fixture *f = *state;
    size_t before = open_descriptors();
    int stale = open_file(O_RDWR), fd = open_file(O_RDWR);

    assert_true(f->api->reg_fd(stale, 0) < 0);
    close(stale);
    assert_int_equal(f->api->reg_fd(fd, 0), -stale); /* the lowest free descriptor */
    assert_int_equal(write_byte(f, stale, fd), 1);
    f->api->dereg_fd(fd);
    close(fd);
    assert_int_equal(open_descriptors(), before);
}

static void
a_copy_closed_by_others_is_not_closed_again(void **state)
{
    struct fixture *f = *state;
    int first = open_file(O_RDWR), copy = -f->api->reg_fd(first, 0);

    assert_true(copy > 0);
    close(copy);
    int fd = open_file(O_RDWR);
    assert_int_equal(fd, copy);
    assert_true(f->api->reg_fd(fd, 0) < 0); /* removes the registration of the first file */
    assert_int_equal(prep_on(f, first), -EBADF);
    assert_true(fcntl(fd, F_GETFD) >= 0);
    f->api->dereg_fd(fd);
    close(fd);
    close(first);
}

/* ----------------------------------------------------------------- threads */

static void *
register_main(void *arg)
{
    struct fixture *f = arg;

    for (int i = 0; i < 300; i++) {
        int fd = open("/tmp", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
        int copy = f->api->reg_fd(fd, 0);

        if (copy >= 0)
            abort();
        f->api->dereg_fd(fd);
        close(fd);
    }
    return NULL;
}

static void
threads_register_side_by_side(void **state)
{
    struct fixture *f = *state;
    size_t before = open_descriptors();
    pthread_t threads[4];

    int probe = open("/tmp", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (probe < 0)
        skip();
    close(probe);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, register_main, f), 0);
    for (int i = 0; i < 500; i++)
        assert_int_equal(write_byte(f, f->fd, f->fd), 1);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(open_descriptors(), before);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        BOTH(files_of_other_file_systems_are_ebadf),
        OWN(a_second_registration_is_einval),
        BOTH(deregistered_files_are_ebadf_and_closed),
        BOTH(registration_fails_without_free_descriptors),
        BOTH(a_stale_number_is_registered_anew),
        BOTH(numbers_deregistered_too_late_are_registered_anew),
        OWN(deregistration_after_close_frees_the_copy),
        BOTH(a_copy_that_gets_a_stale_number_takes_its_place),
        OWN(a_copy_closed_by_others_is_not_closed_again),
        BOTH(threads_register_side_by_side),
    };

    return RUN("usrbio files");
}
