/* SPDX-License-Identifier: Apache-2.0
 *
 * Both clients over usrbiod: a real mount and real registration, with crashes, restarts, other
 * users and threads. */
#include "../../servers/usrbiod-server.h"
#include "own-shm.h"
#include "shm-names.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"
#include "usrbio/usrbio.h"

#define MIB ((size_t)1 << 20)
#define N_PIECES 16
#define NOBODY 65534

struct fixture {
    const struct kvt__usrbio_api *api;
    struct usrbiod u;
    struct kvt__hf3fs_iov iov;
    struct kvt__hf3fs_ior r, w;
    int fd;
};

static const char *fake_path;

static void
open_all(struct fixture *f)
{
    char path[400];

    assert_int_equal(kvt__usrbio_alloc_memory(f->api, &f->iov, f->u.mount, N_PIECES * MIB, 0, -1),
                     0);
    assert_int_equal(f->api->iorcreate4(&f->r, f->u.mount, 64, true, -4, 0, -1, 0), 0);
    assert_int_equal(f->api->iorcreate4(&f->w, f->u.mount, 64, false, -4, 0, -1, 0), 0);
    snprintf(path, sizeof path, "%s/file", f->u.mount);
    f->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_true(f->fd >= 0);
    (void)!fchmod(f->fd, 0666); /* for the other user */
    assert_true(f->api->reg_fd(f->fd, 0) < 0);
}

static void
close_all(struct fixture *f)
{
    f->api->dereg_fd(f->fd);
    close(f->fd);
    f->api->iordestroy(&f->r);
    f->api->iordestroy(&f->w);
    f->api->iovdestroy(&f->iov);
}

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    const char *kind = *state;

    if (!strcmp(kind, "library"))
        assert_non_null(dlopen(fake_path, RTLD_NOW | RTLD_LOCAL));
    *state = f;
    assert_int_equal(kvt__usrbio_choose(kind, &f->api), 0);
    assert_true(usrbiod_start(&f->u, NULL));
    open_all(f);
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    close_all(f);
    usrbiod_end(&f->u); /* while the client still has 3fs-virt/iovs open */
    free(f);
    return 0;
}

static struct timespec
in_ms(int64_t ms)
{
    int64_t at = kvt__clock_ns(CLOCK_REALTIME) + ms * KVT__NS_PER_MS;

    return (struct timespec){ at / KVT__NS_PER_S, at % KVT__NS_PER_S };
}

static int
prep(struct fixture *f, struct kvt__hf3fs_ior *ior, uintptr_t piece)
{
    return f->api->prep_io(ior, &f->iov, ior->for_read, f->iov.base + piece * MIB, f->fd,
                           piece * MIB, MIB, (const void *)piece);
}

/* Transfer all pieces at once.  Return the smallest result. */
static int64_t
transfer(struct fixture *f, struct kvt__hf3fs_ior *ior)
{
    struct timespec until = in_ms(30000);
    struct kvt__hf3fs_cqe cqes[N_PIECES];
    int64_t least = INT64_MAX;

    for (uintptr_t i = 0; i < N_PIECES; i++)
        assert_true(prep(f, ior, i) >= 0);
    assert_int_equal(f->api->submit_ios(ior), 0);
    assert_int_equal(f->api->wait_for_ios(ior, cqes, N_PIECES, N_PIECES, &until), N_PIECES);
    for (int i = 0; i < N_PIECES; i++)
        if (cqes[i].result < least)
            least = cqes[i].result;
    return least;
}

static void
fill(struct fixture *f, uint32_t seed)
{
    for (size_t i = 0; i < f->iov.size / 4; i++)
        ((uint32_t *)f->iov.base)[i] = seed = seed * 1664525 + 1013904223;
}

static void
written_bytes_are_read(void **state)
{
    struct fixture *f = *state;
    uint8_t *copy = malloc(f->iov.size);

    fill(f, 1);
    memcpy(copy, f->iov.base, f->iov.size);
    assert_int_equal(transfer(f, &f->w), MIB);
    memset(f->iov.base, 0, f->iov.size);
    assert_int_equal(transfer(f, &f->r), MIB);
    assert_memory_equal(f->iov.base, copy, f->iov.size);
    free(copy);
}

static void
mounts_are_found_and_other_directories_refused(void **state)
{
    struct fixture *f = *state;
    char mount[KVT__HF3FS_MAX_MOUNT], path[400];

    snprintf(path, sizeof path, "%s/sub", f->u.mount);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(kvt__usrbio_mount_of(path, mount), 0);
    assert_string_equal(mount, f->u.mount);
    assert_int_equal(f->api->extract_mount_point(mount, sizeof mount, path),
                     strlen(f->u.mount) + 1);
    assert_string_equal(mount, f->u.mount);
    mount[0] = 'x';
    assert_int_equal(f->api->extract_mount_point(mount, 3, path), strlen(f->u.mount) + 1);
    assert_int_equal(mount[0], 'x');
    assert_int_equal(kvt__usrbio_mount_of(f->u.backing, mount), -ENODEV);
    assert_non_null(strstr(kvt__why(), "not on 3FS"));
    usrbiod_kill(&f->u);
    assert_int_equal(kvt__usrbio_mount_of(path, mount), -ENOTCONN);
    assert_non_null(strstr(kvt__why(), "daemon of this mount has ended"));
    assert_int_equal(kvt__usrbio_mount_of(f->u.mount, mount), -ENOTCONN);
}

static void
only_files_of_the_mount_are_registered(void **state)
{
    struct fixture *f = *state;
    char path[400];

    snprintf(path, sizeof path, "%s/elsewhere", f->u.backing);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_false(f->api->is_hf3fs(fd));
    assert_int_equal(f->api->reg_fd(fd, 0), EBADF);
    assert_true(f->api->is_hf3fs(f->fd));
    close(fd);
}

static void
refusals_of_the_daemon_are_errors(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_ior ior = { 0 };
    struct kvt__hf3fs_iov iov = { 0 };

    assert_int_equal(f->api->iorcreate4(&ior, f->u.mount, 8, true, 9, 0, -1, 0), -EINVAL);
    usrbiod_command(&f->u, "fault symlink result=-EMFILE n=1");
    assert_int_equal(f->api->iovcreate(&iov, f->u.mount, 4096, 0, -1), -EMFILE);
    usrbiod_command(&f->u, "fault symlink result=-EACCES n=1");
    assert_int_equal(f->api->iovcreate(&iov, f->u.mount, 4096, 0, -1), -EACCES);
    assert_int_equal(usrbiod_count(&f->u, "iovs"), 1);
    assert_int_equal(usrbiod_count(&f->u, "rings"), 2);
}

static void
faults_of_ios_are_results(void **state)
{
    struct fixture *f = *state;

    usrbiod_command(&f->u, "fault write result=-ENOSPC n=1");
    assert_int_equal(transfer(f, &f->w), -ENOSPC);
    usrbiod_command(&f->u, "fault write short=1000 n=1");
    assert_int_equal(transfer(f, &f->w), 1000);
    usrbiod_command(&f->u, "fault any reorder");
    assert_int_equal(transfer(f, &f->w), MIB);
    assert_int_equal(transfer(f, &f->r), MIB);
}

static void
stuck_and_silent_ios_are_found_later(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_cqe cqes[N_PIECES];
    struct timespec until = in_ms(50);

    assert_int_equal(transfer(f, &f->w), MIB);
    usrbiod_command(&f->u, "fault read stuck n=4");
    for (uintptr_t i = 0; i < 4; i++)
        assert_true(prep(f, &f->r, i) >= 0);
    f->api->submit_ios(&f->r);
    assert_int_equal(f->api->wait_for_ios(&f->r, cqes, N_PIECES, 1, &until), 0);
    for (int n = 0; n < 4;) {
        usrbiod_command(&f->u, "release"); /* releases only the I/Os that are stuck by now */
        until = in_ms(50);
        n += f->api->wait_for_ios(&f->r, cqes, N_PIECES, 4 - n, &until);
    }

    usrbiod_command(&f->u, "clear");
    usrbiod_command(&f->u, "fault read lost_wakeup");
    assert_true(prep(f, &f->r, 0) >= 0);
    f->api->submit_ios(&f->r);
    for (int n = 0; !n;) { /* found at a deadline after the completion */
        until = in_ms(50);
        n = f->api->wait_for_ios(&f->r, cqes, N_PIECES, 1, &until);
    }
}

static void
after_a_restart_everything_is_made_anew(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_cqe cqe;

    for (int i = 0; i < 3; i++) {
        struct fixture old = *f;
        struct timespec until = in_ms(50);

        fill(f, 2);
        assert_int_equal(transfer(f, &f->w), MIB);
        usrbiod_kill(&f->u);
        assert_true(prep(f, &f->r, 0) >= 0);
        f->api->submit_ios(&f->r);
        assert_int_equal(f->api->wait_for_ios(&f->r, &cqe, 1, 1, &until), 0);
        assert_int_equal(f->api->iovcreate(&f->iov, f->u.mount, 4096, 0, -1), -ENOTCONN);
        assert_true(usrbiod_run(&f->u, NULL));
        if (i % 2) /* close the old handles before or after opening the new handles */
            close_all(&old);
        open_all(f);
        if (!(i % 2))
            close_all(&old);
        assert_int_equal(transfer(f, &f->r), MIB);
        assert_int_equal(usrbiod_count(&f->u, "iovs"), 1);
        assert_int_equal(usrbiod_count(&f->u, "rings"), 2);
    }
}

/* ----------------------------------------------------------------- threads */

static void *
open_in_thread(void *arg)
{
    open_all(arg);
    return NULL;
}

static void *
transfer_in_thread(void *arg)
{
    struct fixture *f = arg;

    for (int i = 0; i < 30; i++) {
        struct kvt__hf3fs_ior ior = { 0 };

        if (f->api->iorcreate4(&ior, f->u.mount, 64, false, -4, 0, -1, 0) ||
            transfer(f, &ior) != (int64_t)MIB)
            abort();
        f->api->iordestroy(&ior);
    }
    return NULL;
}

/* The kernel reports a closed directory to the daemon late: memory that was announced meanwhile
 * must remain. */
static void
rings_are_created_and_destroyed_in_many_threads(void **state)
{
    struct fixture *f = *state;
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, transfer_in_thread, f), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 100; i++) {
        close_all(f);
        open_all(f);
    }
    assert_int_equal(transfer(f, &f->w), MIB);
    assert_int_equal(usrbiod_count(&f->u, "iovs"), 1);
    assert_int_equal(usrbiod_count(&f->u, "rings"), 2);
}

static void
a_crash_leaves_no_resource_of_any_thread(void **state)
{
    struct fixture *f = *state;
    static struct shm_names before;
    int status;

    shm_names_read(&before, NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        struct fixture mine[2] = { { .api = f->api, .u = f->u },
                                   { .api = f->api, .u = f->u } };
        pthread_t thread;

        open_all(&mine[0]);
        if (pthread_create(&thread, NULL, open_in_thread, &mine[1]))
            _exit(1);
        pthread_join(thread, NULL);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    while (usrbiod_count(&f->u, "iovs") > 1 || usrbiod_count(&f->u, "rings") > 2)
        continue; /* the kernel reports the death to the daemon later */
    assert_true(shm_names_disappear(&before));
    assert_int_equal(transfer(f, &f->w), MIB);
}

/* ------------------------------------------------------------- other users */

static void
another_user_has_rings_of_a_daemon_of_root(void **state)
{
    struct fixture *f = *state;
    int status;

    if (geteuid())
        skip();
    assert_int_equal(chmod(f->u.dir.path, 0755) || chmod(f->u.backing, 0777), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        struct fixture mine = { .api = f->api, .u = f->u };

        if (setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY))
            _exit(1);
        open_all(&mine);
        _exit(transfer(&mine, &mine.w) == (int64_t)MIB ? 0 : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

#define OWN(fn) { #fn " (own)", fn, setup, teardown, (void *)"own" }
#define BOTH(fn) OWN(fn), { #fn " (library)", fn, setup, teardown, (void *)"library" }

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        BOTH(written_bytes_are_read),
        BOTH(mounts_are_found_and_other_directories_refused),
        BOTH(only_files_of_the_mount_are_registered),
        BOTH(refusals_of_the_daemon_are_errors),
        BOTH(faults_of_ios_are_results),
        BOTH(stuck_and_silent_ios_are_found_later),
        BOTH(after_a_restart_everything_is_made_anew),
        BOTH(rings_are_created_and_destroyed_in_many_threads),
        OWN(a_crash_leaves_no_resource_of_any_thread),
        OWN(another_user_has_rings_of_a_daemon_of_root),
    };

    (void)own_shm(NULL); /* so that names of other tests do not matter */
    struct usrbiod u;
    const char *missing = argc < 2 ? "needs the path of libhf3fs_api_shared.so"
                                   : usrbiod_try(&u);

    if (missing) {
        printf("skipped: %s\n", missing);
        return 77;
    }
    usrbiod_end(&u);
    fake_path = argv[1];
    return cmocka_run_group_tests_name("usrbio daemon", tests, NULL, NULL);
}
