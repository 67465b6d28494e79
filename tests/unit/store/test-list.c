/* SPDX-License-Identifier: Apache-2.0
 *
 * A new index after a restart of the host: chunks of the snapshot are found at once, and
 * other objects count, are found by a probe and are evicted. */
#include <sched.h>

#include "table-file.h"

/* Room for 13 chunks of TAKEN bytes. */
#define N_FIT 13u

static struct kvt__table *
index_of(const struct env *e)
{
    return e->store->levels[0].index;
}

static void
save(const struct env *e)
{
    assert_int_equal(kvt__table_write_snapshot(index_of(e), private_dir(e), 0), 0);
}

/* ------------------------------------------------------------------- snapshots */

static void
check_order_survives(struct env *e, void (*lose)(struct env *e))
{
    for (unsigned i = 0; i < N_FIT; i++) {
        assert_int_equal(put(e, i), 0);
        wait_for_tick();
    }
    assert_int_equal(get(e, 0), 0); /* used again */
    save(e);
    lose(e);
    e->store = open_over(e, "", small);
    assert_int_equal(used(e), 0);
    list_all(e->store);
    assert_true(kvt__table_is_listed(index_of(e)));
    check_counted(e, N_FIT, 0);
    for (unsigned i = 0; i < N_FIT; i++)
        assert_true(find(e, i));
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(put(e, 100 + i), 0);
    for (unsigned i = 0; i < N_FIT; i++) {
        assert_int_equal(find(e, i), i == 0 || i > 5);
        assert_int_equal(file_there(e, i), i == 0 || i > 5);
    }
    assert_int_equal(get(e, 0), 0);
}

static void
a_restart_of_the_host_keeps_chunks_and_their_order(void **state)
{
    check_order_survives(*state, close_and_restart_host);
}

static void
a_snapshot_survives_the_deletion_of_the_lock_file(void **state)
{
    check_order_survives(*state, close_and_lose_index);
}

static void
chunks_after_the_snapshot_are_listed_by_name(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < 8; i++) {
        if (i == 5)
            save(e);
        assert_int_equal(put(e, i), 0);
    }
    close_and_restart_host(e);
    e->store = open_over(e, "", small);
    list_all(e->store);
    check_counted(e, 8, 3);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(find(e, i), i < 5);
        assert_int_equal(probe(e, i), 0);
        assert_int_equal(get(e, i), 0);
    }
    check_counted(e, 8, 0);
}

static void
a_chunk_deleted_after_the_snapshot_is_a_miss(void **state)
{
    struct env *e = *state;
    char path[600];

    assert_int_equal(put(e, 1), 0);
    save(e);
    path_of(e, 1, path, sizeof path);
    assert_int_equal(unlink(path), 0);
    close_and_restart_host(e);
    e->store = open_over(e, "", small);
    list_all(e->store);
    assert_int_equal(get(e, 1), -ENOENT);
    check_counted(e, 0, 0);
    assert_int_equal(put(e, 1), 0);
    assert_int_equal(get(e, 1), 0);
}

/* Let the chunk have a file of another size, written an hour ago. */
static void
replace_file(const struct env *e, unsigned i, size_t bytes)
{
    struct timespec times[2] = { { time(NULL) - 3600, 0 }, { time(NULL) - 3600, 0 } };
    char *file = calloc(1, bytes);
    char path[600];

    assert_non_null(file);
    path_of(e, i, path, sizeof path);
    assert_int_equal(unlink(path), 0);
    write_file(path, file, bytes);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    free(file);
}

/* Another program replaced files after the snapshot. */
static void
a_listing_corrects_the_bytes_of_the_snapshot(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(put(e, i), 0);
    save(e);
    replace_file(e, 0, 3 * TAKEN);
    replace_file(e, 1, 100);
    close_and_restart_host(e);
    e->store = open_over(e, "", small);
    list_all(e->store);
    check_counted(e, 3, 0);
}

static void
a_corrupt_snapshot_leaves_a_listing_by_name(void **state)
{
    struct env *e = *state;
    char path[300];

    assert_int_equal(put(e, 1), 0);
    save(e);
    close_and_restart_host(e);
    snprintf(path, sizeof path, "%s/.kvtier/snapshot", e->dir.path);
    flip_byte(path, 100);
    e->store = open_over(e, "", small);
    list_all(e->store);
    assert_true(kvt__table_is_listed(index_of(e)));
    assert_false(find(e, 1));
    check_counted(e, 1, 1);
    assert_int_equal(probe(e, 1), 0);
    assert_int_equal(get(e, 1), 0);
}

/* Without a limit nothing is evicted, so the upkeep lists no names. */
static void
without_limit_only_the_snapshot_is_read(void **state)
{
    static const char *const none[] = { NULL };
    struct env *e = *state;

    reopen_over(e, "fault://shared=1/", none);
    assert_int_equal(totals_of(e).limit_bytes, 0);
    assert_int_equal(put(e, 1), 0);
    save(e);
    assert_int_equal(put(e, 2), 0);
    close_and_restart_host(e);
    e->store = open_over(e, "fault://shared=1/", none);
    list_all(e->store);
    assert_true(kvt__table_is_listed(index_of(e)));
    assert_true(find(e, 1));
    assert_false(find(e, 2));
    assert_int_equal(totals_of(e).n_entries, 1);
}

/* --------------------------------------------------------------- unread objects */

/* Store chunks, lose the index and the snapshot, and list the files. */
static void
put_and_list(struct env *e, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct timespec times[2] = { { .tv_sec = 1000 + i }, { .tv_sec = 1000 + i } };
        char path[600];

        assert_int_equal(put(e, i), 0);
        path_of(e, i, path, sizeof path);
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    }
    close_and_restart_host(e);
    e->store = open_over(e, "", small);
    list_all(e->store);
    check_counted(e, n, n);
}

static void
a_probe_finds_an_unread_chunk(void **state)
{
    struct env *e = *state;

    put_and_list(e, 3);
    assert_false(find(e, 1));
    assert_false(lease(e, 1));
    assert_int_equal(get(e, 1), -ENOENT);
    assert_int_equal(probe(e, 1), 0);
    assert_true(find(e, 1));
    assert_int_equal(get(e, 1), 0);
    check_counted(e, 3, 2);
}

static void
unread_chunks_are_evicted_with_their_files_oldest_first(void **state)
{
    struct env *e = *state;

    put_and_list(e, N_FIT);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(put(e, 100 + i), 0);
    for (unsigned i = 0; i < N_FIT; i++)
        assert_int_equal(file_there(e, i), i >= 4);
    check_counted(e, N_FIT, N_FIT - 4);
    assert_int_equal(e->counters.value[KVT__N_evicted_chunks], 4);
}

static void
a_put_over_an_unread_chunk_counts_once(void **state)
{
    struct env *e = *state;

    put_and_list(e, 3);
    assert_int_equal(put(e, 1), 0);
    check_counted(e, 3, 2);
    assert_int_equal(get(e, 1), 0);
}

/* No request takes the file, and the file still takes bytes of the limit. */
static void
a_file_of_another_geometry_stays_counted_until_its_eviction(void **state)
{
    static const struct kvt__shape other = { 1, 3, { 1, 1, 1, BYTES / 2 } };
    struct env *e = *state;

    write_foreign(e, 1, &other, BYTES);
    list_all(e->store);
    check_counted(e, 1, 1);
    assert_int_equal(probe(e, 1), -ENOENT);
    assert_false(find(e, 1));
    check_counted(e, 1, 1);
    for (unsigned i = 0; i < 2 * N_FIT; i++) {
        wait_for_tick();
        assert_int_equal(put(e, 100 + i), 0);
        assert_int_equal(used(e), disk_bytes(e));
    }
    assert_false(file_there(e, 1));
}

static void
a_listing_that_gave_up_is_done_again(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(put(e, i), 0);
    close_and_restart_host(e);
    e->store = open_over(e, "", small);
    kvt__store_stop(e->store);
    list_all(e->store);
    assert_false(kvt__table_is_listed(index_of(e)));
    reopen_over(e, "", small);
    list_all(e->store);
    assert_true(kvt__table_is_listed(index_of(e)));
    check_counted(e, 3, 3);
}

/* ---------------------------------------------------------------------- upkeep */

/* Reopen the store with an executor of one thread. */
static struct kvt__exec *
open_with_executor(struct env *e)
{
    struct kvt__exec *exec = NULL;
    char url[600];

    kvt__store_close(e->store);
    assert_int_equal(kvt__exec_open(1, &exec), 0);
    snprintf(url, sizeof url, "remote_url=fs://%s", e->dir.path);
    e->store = open_store(e, url, exec, small);
    return exec;
}

/* The same, and begin the upkeep. */
static struct kvt__exec *
keep(struct env *e)
{
    struct kvt__exec *exec = open_with_executor(e);

    kvt__store_start_upkeep(e->store);
    return exec;
}

static void
end_upkeep(struct env *e, struct kvt__exec *exec)
{
    kvt__store_stop(e->store);
    kvt__exec_close(exec);
}

static bool
has_snapshot(const struct env *e)
{
    return !faccessat(private_dir(e), "snapshot", F_OK, 0);
}

static void
upkeep_lists_and_saves(void **state)
{
    struct env *e = *state;

    assert_int_equal(put(e, 1), 0);
    struct kvt__exec *exec = keep(e);
    while (!kvt__table_is_listed(index_of(e)) || !has_snapshot(e))
        sched_yield();
    end_upkeep(e, exec);
    close_and_restart_host(e);
    e->store = open_over(e, "", small);
    list_all(e->store);
    assert_true(find(e, 1));
    check_counted(e, 1, 0);
}

static void
upkeep_opens_and_lists_an_index_that_was_deleted(void **state)
{
    struct env *e = *state;

    assert_int_equal(put(e, 1), 0);
    struct kvt__exec *exec = keep(e);
    while (!kvt__table_is_listed(index_of(e)))
        sched_yield();
    struct kvt__table *old = index_of(e);
    delete_lock(e);
    while (index_of(e) == old || !kvt__table_is_listed(index_of(e)))
        sched_yield();
    assert_true(kvt__table_is_current(index_of(e)));
    assert_int_equal(used(e), TAKEN);
    end_upkeep(e, exec);
}

static sem_t list_begun, list_may_end;

static int
list_slowly(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn, void *ctx)
{
    (void)tier, (void)prefix, (void)fn, (void)ctx;
    sem_post(&list_begun);
    sem_wait(&list_may_end);
    return 0;
}

/* A listing of a million files takes a minute, and longer on a network. */
static void
requests_do_not_wait_for_a_listing(void **state)
{
    static struct kvt__tier_ops ops;
    struct timespec limit = { .tv_sec = time(NULL) + 60 };
    struct env *e = *state;
    struct request r;
    sem_t done;

    assert_int_equal(put(e, 1), 0);
    close_and_lose_index(e);
    e->store = open_over(e, "", small);
    struct kvt__exec *exec = open_with_executor(e);
    struct kvt__tier *tier = e->store->levels[0].tier;
    ops = *tier->ops;
    ops.list = list_slowly;
    tier->ops = &ops;
    sem_init(&list_begun, 0, 0);
    sem_init(&list_may_end, 0, 0);
    sem_init(&done, 0, 0);
    kvt__store_start_upkeep(e->store);
    sem_wait(&list_begun);
    request_init(&r, e, KVT__TIER_PROBE, 1);
    r.done = &done;
    r.req.on_done = post_done;
    kvt__store_submit(e->store, &r.req);
    bool ended = !sem_timedwait(&done, &limit);
    sem_post(&list_may_end);
    end_upkeep(e, exec);
    assert_true(ended);
    assert_int_equal(r.req.error.code, 0);
    free(r.memory);
    sem_destroy(&done);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup_small, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_restart_of_the_host_keeps_chunks_and_their_order),
        TEST(a_snapshot_survives_the_deletion_of_the_lock_file),
        TEST(chunks_after_the_snapshot_are_listed_by_name),
        TEST(a_chunk_deleted_after_the_snapshot_is_a_miss),
        TEST(a_listing_corrects_the_bytes_of_the_snapshot),
        TEST(a_corrupt_snapshot_leaves_a_listing_by_name),
        TEST(without_limit_only_the_snapshot_is_read),
        TEST(a_probe_finds_an_unread_chunk),
        TEST(unread_chunks_are_evicted_with_their_files_oldest_first),
        TEST(a_put_over_an_unread_chunk_counts_once),
        TEST(a_file_of_another_geometry_stays_counted_until_its_eviction),
        TEST(a_listing_that_gave_up_is_done_again),
        TEST(upkeep_lists_and_saves),
        TEST(upkeep_opens_and_lists_an_index_that_was_deleted),
        TEST(requests_do_not_wait_for_a_listing),
    };

    return cmocka_run_group_tests_name("store, listing", tests, NULL, NULL);
}
