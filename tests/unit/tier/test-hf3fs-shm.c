/* SPDX-License-Identifier: Apache-2.0
 *
 * A tier on 3FS in a container where /dev/shm has room for one region and not for two regions. */
#include "hf3fs-test.h"
#include "own-shm.h"

static void
a_restart_waits_for_the_memory_of_the_last_run(void **state)
{
    struct fixture *f = *state;

    open_with(f, NULL);
    put_all(f->tier, 3, 9 * MIB);
    for (int i = 0; i < 5; i++) {
        usrbiod_kill(&usrbiod);
        assert_true(usrbiod_run(&usrbiod, NULL));
        assert_int_equal(get_all(f->tier, 3, 9 * MIB), 3);
        put_all(f->tier, 3, 9 * MIB);
    }
    assert_int_equal((int)usrbiod_count(&usrbiod, "iovs"), 1);
}

static void
missing_space_is_reported(void **state)
{
    static const char *const larger[] = { "hf3fs_iov_size=209715200", NULL };
    struct fixture *f = *state;
    struct kvt__tier *tier = NULL;
    char url[512];

    snprintf(url, sizeof url, "hf3fs://%s", f->dir);
    assert_int_equal(try_open_with(url, larger, &tier), -ENOSPC);
    assert_non_null(strstr(kvt__why(), "/dev/shm has no room for 200 MiB"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_restart_waits_for_the_memory_of_the_last_run),
        TEST(missing_space_is_reported),
        cmocka_unit_test(only_the_selected_client_was_used),
    };

    if (!own_shm("size=150m")) {
        printf("skipped: mounting needs root (%s)\n", strerror(errno));
        return 77;
    }
    hf3fs_watch_log();
    be_patient();
    return usrbiod_run_tests(&usrbiod, "3FS with little shared memory", tests,
                             sizeof tests / sizeof *tests, NULL, NULL);
}
