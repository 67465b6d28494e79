/* SPDX-License-Identifier: Apache-2.0
 *
 * The client of a mount while its daemon is restarted. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "../../servers/usrbiod-server.h"

#include "base/error.h"
#include "usrbio/client.h"

static struct usrbiod usrbiod;
static bool restart; /* before the first ring of each session */

static int
restart_and_make_ring(struct kvt__hf3fs_ior *ior, const char *mount, int entries,
                      bool for_read, int io_depth, int timeout, int numa, uint64_t flags)
{
    if (restart && !for_read) {
        usrbiod_kill(&usrbiod);
        assert_true(usrbiod_run(&usrbiod, NULL));
    }
    return kvt__usrbio_own.iorcreate4(ior, mount, entries, for_read, io_depth, timeout,
                                      numa, flags);
}

/* The daemon restarts between memory and rings: the new daemon knows the rings but not the
 * memory, and fails each I/O.  The client retries until the thread that opens the client has read
 * the first error. */
static void
memory_and_rings_are_of_one_daemon(void **state)
{
    struct kvt__usrbio_api api = kvt__usrbio_own;
    struct kvt__usrbio_params params = { .api = &api, .mount_point = usrbiod.mount,
                                         .iov_bytes = 1 << 20, .entries = 8, .node = -1,
                                         .n_pairs = 1 };
    struct kvt__usrbio_client *client = NULL;

    (void)state;
    api.iorcreate4 = restart_and_make_ring;
    restart = true;
    assert_int_equal(kvt__usrbio_client_open(&params, &client), -ESTALE);
    assert_non_null(strstr(kvt__why(), "was restarted while"));
    restart = false;
    assert_int_equal(kvt__usrbio_client_open(&params, &client), 0);
    assert_int_equal((int)usrbiod_count(&usrbiod, "iovs"), 1);
    kvt__usrbio_client_stop(client);
    kvt__usrbio_client_close(client);
    assert_int_equal((int)usrbiod_count(&usrbiod, "iovs"), 0);
    assert_int_equal((int)usrbiod_count(&usrbiod, "rings"), 0);
}

struct move {
    struct kvt__usrbio_client *client;
    struct kvt__usrbio_extent extent;
    unsigned char bytes[4096];
    int err;
};

static void *
move_main(void *arg)
{
    struct move *m = arg;

    m->err = kvt__usrbio_move(m->client, &m->extent);
    return NULL;
}

/* Leave the I/O without a response, and end daemon and mount. */
static void
lose_the_mount(struct move *m)
{
    pthread_t thread;

    usrbiod_command(&usrbiod, "fault write stuck");
    assert_int_equal(pthread_create(&thread, NULL, move_main, m), 0);
    while (usrbiod_count(&usrbiod, "in_flight") < 1)
        usleep(1000);
    usrbiod_kill(&usrbiod);
    assert_int_equal(umount2(usrbiod.mount, MNT_DETACH), 0);
    pthread_join(thread, NULL);
}

/* Between two daemons nothing is mounted, and the error must not be -ENOENT, which would mean a
 * missing chunk. */
static void
without_a_mount_there_is_no_daemon(void **state)
{
    struct kvt__usrbio_params params = { .api = &kvt__usrbio_own,
                                         .mount_point = usrbiod.mount,
                                         .iov_bytes = 1 << 20, .entries = 8, .node = -1,
                                         .n_pairs = 1 };
    struct move m = { 0 };
    char path[600];

    (void)state;
    assert_int_equal(kvt__usrbio_client_open(&params, &m.client), 0);
    snprintf(path, sizeof path, "%s/file", usrbiod.mount);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    m.extent = (struct kvt__usrbio_extent){ .fd = fd, .at = m.bytes,
                                            .bytes = sizeof m.bytes };
    lose_the_mount(&m);
    assert_int_equal(m.err, -ESTALE);
    assert_int_equal(kvt__usrbio_move(m.client, &m.extent), -ENOTCONN);
    close(fd);
    kvt__usrbio_client_stop(m.client);
    kvt__usrbio_client_close(m.client);
    assert_int_equal(kvt__usrbio_client_open(&params, &m.client), -ENOTCONN);
    assert_non_null(strstr(kvt__why(), usrbiod.mount));
    assert_true(usrbiod_run(&usrbiod, NULL));
}

static atomic_bool is_making, may_make;

static int
make_ring_when_told(struct kvt__hf3fs_ior *ior, const char *mount, int entries,
                    bool for_read, int io_depth, int timeout, int numa, uint64_t flags)
{
    atomic_store(&is_making, true);
    while (!atomic_load(&may_make))
        sched_yield();
    return kvt__usrbio_own.iorcreate4(ior, mount, entries, for_read, io_depth, timeout,
                                      numa, flags);
}

static void *
open_main(void *arg)
{
    struct kvt__usrbio_client **client = arg;
    struct kvt__usrbio_api api = kvt__usrbio_own;
    struct kvt__usrbio_params params = { .api = &api, .mount_point = usrbiod.mount,
                                         .iov_bytes = 1 << 20, .entries = 8, .node = -1,
                                         .n_pairs = 1 };

    api.iorcreate4 = make_ring_when_told;
    if (!kvt__usrbio_client_open(&params, client)) {
        kvt__usrbio_client_stop(*client);
        kvt__usrbio_client_close(*client);
    }
    return NULL;
}

/* The list of clients is locked while a client is opened. */
static void
a_child_opens_clients_that_was_forked_while_one_was_opened(void **state)
{
    struct kvt__usrbio_params nowhere = { .api = &kvt__usrbio_own,
                                          .mount_point = "/nowhere",
                                          .iov_bytes = 1 << 20, .entries = 8, .node = -1,
                                          .n_pairs = 1 };
    struct kvt__usrbio_client *client = NULL;
    pthread_t thread;
    int status;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, open_main, &client), 0);
    while (!atomic_load(&is_making))
        sched_yield();
    pid_t child = fork();
    if (!child) {
        alarm(60); /* ends a child that hangs */
        _exit(kvt__usrbio_client_open(&nowhere, &client) == -ENOTCONN ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    atomic_store(&may_make, true);
    pthread_join(thread, NULL);
    assert_non_null(client);
    assert_int_equal(status, 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_mount_there_is_no_daemon),
        cmocka_unit_test(a_child_opens_clients_that_was_forked_while_one_was_opened),
        cmocka_unit_test(memory_and_rings_are_of_one_daemon),
    };

    return usrbiod_run_tests(&usrbiod, "usrbio client", tests, sizeof tests / sizeof *tests,
                             NULL, NULL);
}
