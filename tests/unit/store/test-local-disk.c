/* SPDX-License-Identifier: Apache-2.0
 *
 * A store over local_disk: orphans of LMCache count for the limit and are evicted; file names
 * without the slashes of their keys belong to the right entries; cases in which LMCache returns
 * wrong results. */
#include "store-test.h"

/* Room for 13 chunks of TAKEN bytes for each worker. */
#define LIMIT ((uint64_t)(0.0001 * (1 << 30)))
#define N_FIT ((unsigned)(LIMIT / TAKEN))

static const char *const small_disk[] = { "max_local_disk_size=0.0001", NULL };
static const char *const large[] = { "max_local_disk_size=0.03", NULL };

static void
open_disk(struct env *e, const char *const *settings)
{
    char setting[300];

    snprintf(setting, sizeof setting, "local_disk=%s", e->dir.path);
    e->store = open_store(e, setting, NULL, settings);
}

static void
reopen(struct env *e, const char *const *settings, bool with_index)
{
    if (with_index)
        kvt__store_close(e->store);
    else
        close_and_lose_index(e);
    open_disk(e, settings);
}

static int
setup(void **state)
{
    static struct env e;

    env_init(&e);
    e.local_ranks = 1;
    open_disk(&e, small_disk);
    *state = &e;
    return 0;
}

static void
disk_path(const struct env *e, unsigned i, char *out, size_t size)
{
    snprintf(out, size, "%s/test-model@1@0@%x@bfloat16.pt", e->dir.path, i);
}

static bool
on_disk(const struct env *e, unsigned i)
{
    char path[600];

    disk_path(e, i, path, sizeof path);
    return !access(path, F_OK);
}

/* Write a file as LMCache does. */
static void
write_orphan(const struct env *e, unsigned i, size_t bytes)
{
    unsigned char file[BYTES];
    char path[600];

    fill(file, i);
    disk_path(e, i, path, sizeof path);
    write_file(path, file, bytes);
}

/* Set the time of the last write of a file.  The file system's own times can be equal for two files
 * although the clock has ticked in between: the kernel uses a tick later than processes see the
 * tick. */
static void
set_age(const struct env *e, unsigned i, time_t seconds)
{
    struct timespec times[2];
    char path[600];

    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_sec -= seconds;
    times[1] = times[0];
    disk_path(e, i, path, sizeof path);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* ----------------------------------------------------------------- put and get */

static void
a_chunk_is_stored_under_lmcaches_name_and_read(void **state)
{
    struct env *e = *state;

    assert_int_equal(put(e, 1), 0);
    assert_true(on_disk(e, 1));
    assert_int_equal(get(e, 1), 0);
    assert_int_equal(get(e, 2), -ENOENT);
    assert_int_equal(n_warnings, 0);
}

static void
a_restart_keeps_index_and_recency(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < N_FIT; i++) {
        assert_int_equal(put(e, i), 0);
        wait_for_tick();
    }
    assert_int_equal(get(e, 0), 0); /* used again */
    reopen(e, small_disk, true);
    for (unsigned i = 0; i < N_FIT; i++)
        assert_true(find(e, i));
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(put(e, 100 + i), 0);
    for (unsigned i = 0; i < N_FIT; i++)
        assert_int_equal(on_disk(e, i), i == 0 || i > 5);
    assert_in_range(disk_bytes(e), 0, LIMIT);
}

/* --------------------------------------------------------------------- orphans */

static void
orphans_of_lmcache_are_found_and_counted(void **state)
{
    struct env *e = *state;
    bool verified;

    for (unsigned i = 0; i < 10; i++)
        write_orphan(e, i, BYTES);
    list_all(e->store);
    assert_int_equal(totals_of(e).n_entries, 10);
    assert_int_equal(used(e), disk_bytes(e));
    for (unsigned i = 0; i < 10; i++) { /* a probe completes the listed entry */
        assert_int_equal(probe(e, i), 0);
        assert_int_equal(get_verified(e, i, &verified), 0);
        assert_false(verified);
    }
    assert_int_equal(totals_of(e).n_entries, 10);
    assert_int_equal(totals_of(e).n_unread, 0);
    assert_int_equal(used(e), disk_bytes(e));
}

static void
orphans_are_evicted_oldest_first_and_nothing_else(void **state)
{
    static const char *const others[] = { "model.pt", "checkpoint@1@0.pt", "notes.txt" };
    struct env *e = *state;
    char path[600];

    for (unsigned i = 0; i < N_FIT; i++) {
        write_orphan(e, i, BYTES);
        set_age(e, i, N_FIT - i);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(path, sizeof path, "%s/%s", e->dir.path, others[i]);
        write_file(path, "", 0);
    }
    list_all(e->store);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(put(e, 100 + i), 0);
        assert_in_range(disk_bytes(e), 0, LIMIT);
    }
    for (unsigned i = 0; i < N_FIT; i++)
        assert_int_equal(on_disk(e, i), i >= 4);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(path, sizeof path, "%s/%s", e->dir.path, others[i]);
        assert_int_equal(access(path, F_OK), 0);
    }
}

static void
a_start_over_more_files_than_fit_counts_all_and_makes_room(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < 2000; i++)
        write_orphan(e, i, 1);
    reopen(e, large, false);
    list_all(e->store);
    assert_int_equal(totals_of(e).n_entries, 2000);
    assert_int_equal(used(e), disk_bytes(e));
    reopen(e, small_disk, false);
    list_all(e->store);
    assert_in_range(disk_bytes(e), 1, LIMIT);
    assert_int_equal(used(e), disk_bytes(e));
}

static void
a_put_over_an_orphan_counts_once(void **state)
{
    struct env *e = *state;

    write_orphan(e, 1, BYTES);
    list_all(e->store);
    assert_int_equal(put(e, 1), 0);
    assert_int_equal(totals_of(e).n_entries, 1);
    assert_int_equal(used(e), TAKEN);
    assert_int_equal(get(e, 1), 0);
}

/* The index calls the model test/model, the files test-model. */
static void
a_listing_of_indexed_files_enters_nothing_twice(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(put(e, i), 0);
    write_orphan(e, 7, BYTES);
    list_all(e->store);
    assert_int_equal(totals_of(e).n_entries, 6);
    assert_int_equal(totals_of(e).n_unread, 1);
    reopen(e, small_disk, false);
    list_all(e->store);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(probe(e, i), 0);
        assert_int_equal(get(e, i), 0);
    }
    assert_int_equal(totals_of(e).n_entries, 6);
    assert_int_equal(totals_of(e).n_unread, 1);
    assert_int_equal(used(e), disk_bytes(e));
}

/* ---------------------------------------------------------------------- damage */

static void
check_removed(struct env *e, unsigned i)
{
    assert_int_equal(get(e, i), -EBADMSG);
    assert_int_equal(n_warnings, 1);
    n_warnings = 0;
    assert_false(on_disk(e, i));
    assert_false(find(e, i));
    assert_int_equal(used(e), 0);
    assert_int_equal(put(e, i), 0);
    assert_int_equal(get(e, i), 0);
}

static void
a_file_cut_off_is_a_miss_and_removed(void **state)
{
    static const off_t sizes[] = { 0, 1, BYTES / 2, BYTES - 1, BYTES + 28, BYTES + 63 };
    struct env *e = *state;
    char path[600];

    disk_path(e, 1, path, sizeof path);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        (void)put(e, 1);
        assert_int_equal(truncate(path, sizes[i]), 0);
        check_removed(e, 1);
    }
    kvt__store_close(e->store); /* the first half of a file of LMCache */
    write_orphan(e, 2, BYTES / 2);
    open_disk(e, small_disk);
    assert_int_equal(probe(e, 2), -ENOENT);
    assert_false(find(e, 2));
}

static void
a_file_of_lmcache_cut_under_the_index_is_a_miss_and_removed(void **state)
{
    struct env *e = *state;
    char path[600];

    write_orphan(e, 1, BYTES);
    assert_int_equal(probe(e, 1), 0);
    disk_path(e, 1, path, sizeof path);
    assert_int_equal(truncate(path, BYTES / 2), 0);
    check_removed(e, 1);
}

static void
a_flipped_byte_is_a_miss_and_removed(void **state)
{
    static const off_t places[] = { 0, BYTES / 2, BYTES - 1, BYTES, BYTES + 63 };
    struct env *e = *state;
    char path[600];

    disk_path(e, 1, path, sizeof path);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        (void)put(e, 1);
        flip_byte(path, places[i]);
        check_removed(e, 1);
    }
}

static void
a_file_deleted_under_the_index_is_a_miss(void **state)
{
    struct env *e = *state;
    char path[600];

    assert_int_equal(put(e, 1), 0);
    disk_path(e, 1, path, sizeof path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(get(e, 1), -ENOENT);
    assert_false(find(e, 1));
    assert_int_equal(used(e), 0);
    assert_int_equal(n_warnings, 0);
}

/* ---------------------------------------------------------------------- limits */

static void
the_limit_is_that_of_all_workers_of_the_host(void **state)
{
    struct env *e = *state, other = *e;

    kvt__store_close(e->store);
    e->local_ranks = 3;
    open_disk(e, small_disk);
    assert_in_range(totals_of(e).limit_bytes, 3 * LIMIT, 3 * LIMIT + 3);
    other.local_ranks = 0; /* the command line does not lower the limit */
    open_disk(&other, small_disk);
    assert_in_range(totals_of(e).limit_bytes, 3 * LIMIT, 3 * LIMIT + 3);
    kvt__store_close(other.store);
}

static void
without_a_size_local_disk_is_off(void **state)
{
    static const char *const off[] = { "max_local_disk_size=0", NULL };
    struct env *e = *state;
    char setting[600], url[600];
    const char *more[] = { setting, off[0], NULL };

    kvt__store_close(e->store);
    snprintf(setting, sizeof setting, "local_disk=%s", e->dir.path);
    snprintf(url, sizeof url, "remote_url=fs://%s/fs", e->dir.path);
    e->store = open_store(e, url, NULL, more);
    assert_int_equal(n_warnings, 1);
    assert_int_equal(e->store->n_levels, 1);
    assert_string_equal(e->store->levels[0].tier->ops->name, "fs");
}

/* ------------------------------------------------------------------- locations */

static void
open_both(struct env *e, const char *one, const char *two)
{
    char disk[300], url[300];
    const char *more[] = { "max_local_disk_size=0.03", url, one, two, NULL };

    kvt__store_close(e->store);
    snprintf(disk, sizeof disk, "local_disk=%s/disk", e->dir.path);
    snprintf(url, sizeof url, "remote_url=fs://%s/fs", e->dir.path);
    e->store = open_store(e, disk, NULL, more);
    assert_int_equal(e->store->n_levels, 2);
}

static bool
file_exists(const struct env *e, const char *name)
{
    char path[600];

    snprintf(path, sizeof path, "%s/%s", e->dir.path, name);
    return !access(path, F_OK);
}

#define IN_DISK "disk/test-model@1@0@1@bfloat16.pt"
#define IN_FS "fs/test-SEP-model@1@0@1@bfloat16.data"

static void
local_disk_comes_before_remote_stores_and_both_are_written(void **state)
{
    struct env *e = *state;

    open_both(e, NULL, NULL);
    assert_string_equal(e->store->levels[0].tier->ops->name, "local_disk");
    assert_int_equal(put(e, 1), 0);
    assert_true(file_exists(e, IN_DISK) && file_exists(e, IN_FS));
}

static void
store_location_is_the_only_one_that_is_written(void **state)
{
    struct env *e = *state;
    struct kvt__chunk_key key;

    open_both(e, "store_location=RemoteBackend", NULL);
    assert_int_equal(put(e, 1), 0);
    assert_true(!file_exists(e, IN_DISK) && file_exists(e, IN_FS));
    assert_int_equal(get(e, 1), 0);
    key = key_of(e, 1);
    assert_true(kvt__store_touch(e->store, &key, 0));
    open_both(e, "store_location=LocalDiskBackend", NULL);
    /* The storage that takes PUTs does not have the chunk. */
    key = key_of(e, 1);
    assert_false(kvt__store_touch(e->store, &key, 0));
    assert_int_equal(put(e, 1), 0);
    assert_true(file_exists(e, IN_DISK));
    open_both(e, "store_location=LocalCPUBackend", NULL);
    assert_int_equal(put(e, 2), -EEXIST);
    assert_false(find(e, 2));
}

static void
only_retrieve_locations_are_probed(void **state)
{
    struct env *e = *state;

    open_both(e, "store_location=RemoteBackend",
              "retrieve_locations=LocalCPUBackend,LocalDiskBackend");
    assert_int_equal(put(e, 1), 0);
    assert_false(find(e, 1));
    assert_false(lease(e, 1));
    assert_int_equal(get(e, 1), -ENOENT);
    assert_int_equal(probe(e, 1), -ENOENT);
    open_both(e, "retrieve_locations=RemoteBackend", NULL);
    assert_true(find(e, 1));
    assert_int_equal(get(e, 1), 0);
    assert_int_equal(probe(e, 1), 0);
}

static void
a_plugin_is_named_with_its_instance(void **state)
{
    struct env *e = *state;
    char path[400], disk[300];
    const char *more[] = { "max_local_disk_size=0.03", "remote_storage_plugins=fs.a", path,
                           "store_location=RemoteBackend-fs.a", NULL };

    kvt__store_close(e->store);
    snprintf(disk, sizeof disk, "local_disk=%s/disk", e->dir.path);
    snprintf(path, sizeof path, "remote_storage_plugin.fs.a.base_path=%s/fs",
             e->dir.path);
    e->store = open_store(e, disk, NULL, more);
    assert_int_equal(put(e, 1), 0);
    assert_true(!file_exists(e, IN_DISK) && file_exists(e, IN_FS));
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_chunk_is_stored_under_lmcaches_name_and_read),
        TEST(a_restart_keeps_index_and_recency),
        TEST(orphans_of_lmcache_are_found_and_counted),
        TEST(orphans_are_evicted_oldest_first_and_nothing_else),
        TEST(a_start_over_more_files_than_fit_counts_all_and_makes_room),
        TEST(a_put_over_an_orphan_counts_once),
        TEST(a_listing_of_indexed_files_enters_nothing_twice),
        TEST(a_file_cut_off_is_a_miss_and_removed),
        TEST(a_file_of_lmcache_cut_under_the_index_is_a_miss_and_removed),
        TEST(a_flipped_byte_is_a_miss_and_removed),
        TEST(a_file_deleted_under_the_index_is_a_miss),
        TEST(the_limit_is_that_of_all_workers_of_the_host),
        TEST(without_a_size_local_disk_is_off),
        TEST(local_disk_comes_before_remote_stores_and_both_are_written),
        TEST(store_location_is_the_only_one_that_is_written),
        TEST(only_retrieve_locations_are_probed),
        TEST(a_plugin_is_named_with_its_instance),
    };

    return cmocka_run_group_tests_name("store local_disk", tests, NULL, NULL);
}
