/* SPDX-License-Identifier: Apache-2.0
 *
 * The client of a mount while its daemon is restarted. */
#include "../../servers/usrbiod-server.h"

#include "base/error.h"
#include "usrbio/client.h"

static struct usrbiod usrbiod;
static bool restart; /* before the next ring is made */

static int
restart_and_make_ring(struct kvt__hf3fs_ior *ior, const char *mount, int entries,
                      bool for_read, int io_depth, int timeout, int numa, uint64_t flags)
{
    if (restart) {
        restart = false;
        usrbiod_kill(&usrbiod);
        assert_true(usrbiod_run(&usrbiod, NULL));
    }
    return kvt__usrbio_own.iorcreate4(ior, mount, entries, for_read, io_depth, timeout, numa,
                                      flags);
}

/* The next daemon would know the rings and not the memory: it answers, and never well. */
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
    assert_int_equal(kvt__usrbio_client_open(&params, &client), 0);
    assert_int_equal((int)usrbiod_count(&usrbiod, "iovs"), 1);
    kvt__usrbio_client_stop(client);
    kvt__usrbio_client_close(client);
    assert_int_equal((int)usrbiod_count(&usrbiod, "iovs"), 0);
    assert_int_equal((int)usrbiod_count(&usrbiod, "rings"), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_and_rings_are_of_one_daemon),
    };

    return usrbiod_run_tests(&usrbiod, "usrbio client", tests, sizeof tests / sizeof *tests,
                             NULL, NULL);
}
