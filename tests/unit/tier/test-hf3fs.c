/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks in files of 3FS, through the rings of a daemon that makes mistakes, hangs, is
 * killed and comes back. */
#include "hf3fs-test.h"

static void
many_chunks_are_under_way_at_once(void **state)
{
    struct fixture *f = *state;
    struct many *m = calloc(20, sizeof *m);

    assert_non_null(m);
    open_with(f, NULL);
    put_all(f->tier, 20, MIB);
    usrbiod_command(&usrbiod, "fault read stuck");
    start_all(f->tier, m, 20, KVT__TIER_GET, MIB);
    while (usrbiod_count(&usrbiod, "in_flight") < 20)
        usleep(1000);
    usrbiod_command(&usrbiod, "clear");
    usrbiod_command(&usrbiod, "release");
    wait_all(m, 20);
    for (size_t i = 0; i < 20; i++)
        assert_int_equal(m[i].err, 0);
    free_all(m, 20);
    free(m);
}

static void
a_chunk_larger_than_the_region_is_moved_in_parts(void **state)
{
    struct fixture *f = *state;

    open_with(f, NULL);
    put_all(f->tier, 1, 130 * MIB + 4711);
    assert_int_equal(get_all(f->tier, 1, 130 * MIB + 4711), 1);
}

/* Neither 2 nor 9 pieces are full groups of 4. */
static void
nothing_waits_for_a_group_to_fill(void **state)
{
    static const char *const groups[] = { "hf3fs_io_depth=4", NULL };
    struct fixture *f = *state;

    open_with(f, groups);
    put_all(f->tier, 1, 6 * MIB);
    put_all(f->tier, 2, 35 * MIB);
    assert_int_equal(get_all(f->tier, 2, 35 * MIB), 2);
    assert_int_equal((int)usrbiod_count(&usrbiod, "largest_job") >= 4, 1);
}

static void
a_job_has_no_more_than_was_allowed(void **state)
{
    static const char *const two[] = { "hf3fs_io_depth=-2", NULL };
    struct fixture *f = *state;

    open_with(f, two);
    json_decref(usrbiod_request(&usrbiod, "reset"));
    put_all(f->tier, 3, 35 * MIB);
    assert_true(usrbiod_count(&usrbiod, "largest_job") <= 2);
}

static void
a_daemon_without_negative_depths_will_do(void **state)
{
    struct fixture *f = *state;

    usrbiod_command(&usrbiod, "fault symlink result=-EINVAL name=.r-");
    usrbiod_command(&usrbiod, "fault symlink result=-EINVAL name=.w-");
    open_with(f, NULL);
    put_all(f->tier, 2, 9 * MIB);
    assert_int_equal(get_all(f->tier, 2, 9 * MIB), 2);
}

static void
a_short_result_is_continued(void **state)
{
    struct fixture *f = *state;

    open_with(f, NULL);
    usrbiod_command(&usrbiod, "fault any short=1000000 p=0.5");
    put_all(f->tier, 3, 9 * MIB + 5);
    assert_int_equal(get_all(f->tier, 3, 9 * MIB + 5), 3);
}

static void
an_error_result_fails_that_chunk_alone(void **state)
{
    struct fixture *f = *state;

    open_with(f, NULL);
    put_all(f->tier, 4, 9 * MIB);
    usrbiod_command(&usrbiod, "fault read result=-EREMOTEIO n=1");
    assert_int_equal(get_all(f->tier, 4, 9 * MIB), 3);
    assert_int_equal(get_all(f->tier, 4, 9 * MIB), 4);
}

static void
a_write_that_fails_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    struct chunk c;

    open_with(f, NULL);
    chunk_init(&c, "model", 1);
    usrbiod_command(&usrbiod, "fault write result=-ENOSPC");
    assert_int_equal(put_bytes(f->tier, &c.object, 9 * MIB, 1), -ENOSPC);
    assert_int_equal(kvt__tier_probe(f->tier, &c.object, &found), -ENOENT);
}

/* A truncated file is an error, and never a chunk that ends with zeros. */
static void
a_file_that_was_cut_is_an_error(void **state)
{
    struct fixture *f = *state;

    open_with(f, NULL);
    put_all(f->tier, 1, 9 * MIB);
    usrbiod_command(&usrbiod, "fault read short=0 n=1");
    assert_int_equal(get_all(f->tier, 1, 9 * MIB), 0);
}

/* The wake-ups of new I/Os and of completions are lost. */
static void
a_lost_wake_up_stops_no_transfer(void **state)
{
    struct fixture *f = *state;

    open_with(f, NULL);
    usrbiod_command(&usrbiod, "fault submit lost_wakeup n=1");
    put_all(f->tier, 1, MIB);
    usrbiod_command(&usrbiod, "fault submit lost_wakeup n=1");
    assert_int_equal(get_all(f->tier, 1, MIB), 1);
    usrbiod_command(&usrbiod, "fault any lost_wakeup");
    put_all(f->tier, 2, MIB);
    assert_int_equal(get_all(f->tier, 2, MIB), 2);
}

static void
results_may_come_in_any_order(void **state)
{
    struct fixture *f = *state;

    open_with(f, NULL);
    put_all(f->tier, 4, 30 * MIB);
    usrbiod_command(&usrbiod, "fault any reorder");
    assert_int_equal(get_all(f->tier, 4, 30 * MIB), 4);
    put_all(f->tier, 4, 30 * MIB);
}

static void
a_restart_of_the_daemon_is_got_over(void **state)
{
    struct fixture *f = *state;

    open_with(f, NULL);
    put_all(f->tier, 3, 9 * MIB);
    usrbiod_kill(&usrbiod);
    assert_true(usrbiod_run(&usrbiod, NULL));
    assert_int_equal(get_all(f->tier, 3, 9 * MIB), 3);
    put_all(f->tier, 3, 9 * MIB);
    assert_int_equal((int)usrbiod_count(&usrbiod, "iovs"), 1); /* of the new region */
}

static void
a_restart_under_way_is_got_over(void **state)
{
    struct fixture *f = *state;
    struct many *m = calloc(6, sizeof *m);

    assert_non_null(m);
    open_with(f, NULL);
    put_all(f->tier, 6, 20 * MIB);
    usrbiod_command(&usrbiod, "fault read stuck");
    start_all(f->tier, m, 6, KVT__TIER_GET, 20 * MIB);
    while (usrbiod_count(&usrbiod, "in_flight") < 6)
        usleep(1000);
    usrbiod_kill(&usrbiod);
    assert_true(usrbiod_run(&usrbiod, NULL));
    wait_all(m, 6);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(m[i].err, 0);
        assert_true(slot_holds(&m[i].slot, i));
    }
    free_all(m, 6);
    free(m);
    assert_int_equal(get_all(f->tier, 6, 20 * MIB), 6);
}

static void
without_a_daemon_transfers_fail_soon(void **state)
{
    struct fixture *f = *state;

    open_with(f, NULL);
    put_all(f->tier, 1, 9 * MIB);
    usrbiod_kill(&usrbiod);
    kvt__hf3fs_max_wait_ns = KVT__NS_PER_S;
    int64_t begun = kvt__now_ns();
    assert_int_equal(get_all(f->tier, 1, 9 * MIB), 0);
    assert_in_range(kvt__now_ns() - begun, kvt__hf3fs_max_wait_ns, 60 * KVT__NS_PER_S);
    be_patient();
}

/* A close does not wait for a response that never arrives. */
static void
stop_ends_stuck_transfers(void **state)
{
    struct fixture *f = *state;
    struct many m;

    open_with(f, NULL);
    put_all(f->tier, 1, 9 * MIB);
    usrbiod_command(&usrbiod, "fault read stuck");
    start_all(f->tier, &m, 1, KVT__TIER_GET, 9 * MIB);
    while (usrbiod_count(&usrbiod, "in_flight") < 1)
        usleep(1000);
    f->tier->ops->stop(f->tier);
    wait_all(&m, 1);
    assert_int_equal(m.err, -ECANCELED);
    free_all(&m, 1);
    close_tier(f);
}

static void
tiers_of_one_mount_share_a_region(void **state)
{
    struct fixture *f = *state;
    struct fixture other = { 0 };

    snprintf(other.dir, sizeof other.dir, "%s/other", usrbiod.mount);
    open_with(f, NULL);
    open_with(&other, NULL);
    put_all(f->tier, 2, MIB);
    put_all(other.tier, 2, MIB);
    assert_int_equal((int)usrbiod_count(&usrbiod, "iovs"), 1);
    close_tier(&other);
    assert_int_equal(get_all(f->tier, 2, MIB), 2);
    close_tier(f);
    assert_int_equal((int)usrbiod_count(&usrbiod, "iovs"), 0);
    assert_int_equal((int)usrbiod_count(&usrbiod, "rings"), 0);
}

/* ------------------------------------------------------------------------- set-up */

static void
a_directory_outside_3fs_is_reported(void **state)
{
    struct fixture *f = *state;
    struct kvt__tier *tier = NULL;
    struct temp_dir dir;
    char url[600], set[500];
    const char *more[] = { set, NULL };

    temp_dir_make(&dir);
    snprintf(url, sizeof url, "hf3fs://%s/cache", dir.path);
    assert_int_equal(try_open_with(url, NULL, &tier), -ENODEV);
    assert_non_null(strstr(kvt__why(), dir.path));
    snprintf(set, sizeof set, "hf3fs_mount_point=%s", usrbiod.mount);
    assert_int_equal(try_open_with(url, more, &tier), -ENODEV); /* outside of the mount */
    snprintf(set, sizeof set, "hf3fs_mount_point=%s/nowhere", usrbiod.mount);
    snprintf(url, sizeof url, "hf3fs://%s", f->dir);
    assert_int_equal(try_open_with(url, more, &tier), -ENOENT);
    assert_non_null(strstr(kvt__why(), "hf3fs_mount_point: "));
    assert_int_equal(try_open_with("hf3fs://mount/cache", NULL, &tier), -EINVAL);
    assert_string_equal(kvt__why(), "remote_url: 'mount/cache' is no absolute path.");
    snprintf(set, sizeof set, "%s/cache", dir.path);
    assert_int_equal(access(set, F_OK), -1); /* nothing was made */
    temp_dir_remove(&dir);
}

static void
an_unavailable_client_is_reported(void **state)
{
    static const char *const mine[] = { "HF3FS_CLIENT=mine", NULL };
    struct fixture *f = *state;
    struct kvt__tier *tier = NULL;
    char url[512];

    snprintf(url, sizeof url, "hf3fs://%s", f->dir);
    environment = mine;
    assert_int_equal(try_open_with(url, NULL, &tier), -EINVAL);
    assert_non_null(strstr(kvt__why(), "HF3FS_CLIENT"));
    environment = NULL;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(many_chunks_are_under_way_at_once),
        TEST(a_chunk_larger_than_the_region_is_moved_in_parts),
        TEST(nothing_waits_for_a_group_to_fill),
        TEST(a_job_has_no_more_than_was_allowed),
        TEST(a_daemon_without_negative_depths_will_do),
        TEST(a_short_result_is_continued),
        TEST(an_error_result_fails_that_chunk_alone),
        TEST(a_write_that_fails_leaves_nothing),
        TEST(a_file_that_was_cut_is_an_error),
        TEST(a_lost_wake_up_stops_no_transfer),
        TEST(results_may_come_in_any_order),
        TEST(a_restart_of_the_daemon_is_got_over),
        TEST(a_restart_under_way_is_got_over),
        TEST(without_a_daemon_transfers_fail_soon),
        TEST(stop_ends_stuck_transfers),
        TEST(tiers_of_one_mount_share_a_region),
        TEST(a_directory_outside_3fs_is_reported),
        TEST(an_unavailable_client_is_reported),
        cmocka_unit_test(only_the_selected_client_was_used),
    };

    hf3fs_watch_log();
    be_patient();
    return usrbiod_run_tests(&usrbiod, "3FS", tests, sizeof tests / sizeof *tests, NULL,
                             NULL);
}
