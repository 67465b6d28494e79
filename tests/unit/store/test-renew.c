/* SPDX-License-Identifier: Apache-2.0
 *
 * Another process replaces the index of an open store: the files counted by the new index,
 * and the files kept. */
#include "store-test.h"

#include "index/layout.h"

static struct kvt__index *
index_of(const struct env *e)
{
    return e->store->levels[0].index;
}

static int
private_dir(const struct env *e)
{
    return e->store->levels[0].index_params.dirfd;
}

/* A file written during the replacement of the index has no entry. */
static void
an_index_that_others_have_scanned_is_scanned_again(void **state)
{
    struct env *e = *state, other = *e;

    assert_int_equal(unlinkat(private_dir(e), "index", 0), 0);
    other.store = open_over(&other, "", small);
    kvt__store_scan(other.store);
    assert_true(kvt__index_scanned(index_of(&other)));
    kvt__store_look_after_indexes(e->store);
    assert_true(kvt__index_is_current(index_of(e)));
    assert_false(kvt__index_scanned(index_of(&other)));
    kvt__store_close(other.store);
}

static void
a_store_that_scans_scans_a_new_index_by_itself(void **state)
{
    struct env *e = *state;

    kvt__store_scan(e->store);
    assert_int_equal(put(e, 1), 0);
    assert_int_equal(unlinkat(private_dir(e), "index", 0), 0);
    assert_int_equal(unlinkat(private_dir(e), "lock", 0), 0);
    kvt__store_look_after_indexes(e->store);
    assert_true(kvt__index_scanned(index_of(e)));
    assert_int_equal(used(e), TAKEN);
}

/* The file appears after the new index was scanned. */
static void
a_put_that_began_under_the_old_index_counts_in_the_new_one(void **state)
{
    char key[KVT__KEY_TEXT_MAX + 1], stored_key[KVT__KEY_TEXT_MAX + 1];
    struct env *e = *state;
    struct kvt__level *level = &e->store->levels[0];
    struct request r;

    request_init(&r, e, KVT__STORE_PUT, 1);
    assert_int_equal(kvt__space_key(e->space.text, &r.req.hash, key, sizeof key), 0);
    struct kvt__object object = { .key = key, .hash = r.req.hash, .whole = true,
                                  .tokens = r.req.tokens, .id = r.req.id,
                                  .shape = r.req.shape };
    kvt__store_scan(e->store);
    r.req.store = e->store;
    assert_int_equal(kvt__level_ask(&r.req, level, &object, stored_key, sizeof stored_key),
                     0);
    assert_int_equal(unlinkat(private_dir(e), "index", 0), 0);
    assert_int_equal(unlinkat(private_dir(e), "lock", 0), 0);
    kvt__store_look_after_indexes(e->store);
    assert_true(kvt__index_scanned(index_of(e)));
    assert_int_equal(kvt__tier_put(level->tier, &object, &r.req.slot, r.req.crc), 0);
    assert_int_equal(kvt__level_answer(&r.req, level, &object, 0), 0);
    assert_true(find(e, 1));
    assert_int_equal(used(e), TAKEN);
    free(r.memory);
}

/* A program that cleans up old files may delete the index every night. */
static void
an_index_may_be_deleted_again_and_again(void **state)
{
    struct env *e = *state;

    for (int i = 0; i < 40; i++) {
        assert_int_equal(unlinkat(private_dir(e), "index", 0), 0);
        assert_int_equal(unlinkat(private_dir(e), "lock", 0), 0);
        kvt__store_look_after_indexes(e->store);
        assert_true(kvt__index_is_current(index_of(e)));
        assert_int_equal(put(e, 1), 0);
        assert_int_equal(probe(e, 1), 0);
    }
}

/* More often than an index has places for writers: the lock file stays. */
static void
a_replaced_index_keeps_no_place_of_a_writer(void **state)
{
    struct env *e = *state, other = *e;

    for (unsigned i = 0; i < IX_N_OWNERS + 2; i++) {
        assert_int_equal(unlinkat(private_dir(e), "index", 0), 0);
        other.store = open_over(&other, "", small);
        kvt__store_look_after_indexes(e->store);
        assert_int_equal(put(e, i), 0);
        kvt__store_close(other.store);
    }
}

/* Replace the index by the first page of another version's index, as the other version
 * does. */
static void
replace_by_version(const struct env *e, uint32_t version)
{
    static const uint32_t replaced = IX_REPLACED;
    struct ix_header header;
    int dir = private_dir(e), old = openat(dir, "index", O_RDWR | O_CLOEXEC);

    assert_true(old >= 0);
    assert_int_equal(pread(old, &header, sizeof header, 0), sizeof header);
    header.version = version;
    assert_int_equal(unlinkat(dir, "index", 0), 0);
    int fd = openat(dir, "index", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, &header, sizeof header), sizeof header);
    assert_int_equal(pwrite(old, &replaced, sizeof replaced,
                            offsetof(struct ix_header, state)), sizeof replaced);
    close(fd);
    close(old);
}

/* Two versions side by side would replace each other's index forever. */
static void
another_versions_index_stays(void **state)
{
    struct ix_header header;
    struct env *e = *state;

    assert_int_equal(put(e, 1), 0);
    replace_by_version(e, IX_VERSION + 1);
    kvt__store_look_after_indexes(e->store);
    int fd = openat(private_dir(e), "index", O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, &header, sizeof header), sizeof header);
    close(fd);
    assert_int_equal(header.version, IX_VERSION + 1);
    assert_int_equal(header.state, IX_IN_USE);
    assert_int_equal(put(e, 2), -EROFS);
    assert_int_equal(probe(e, 1), 0);
    assert_int_equal(get(e, 1), 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup_small, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_index_that_others_have_scanned_is_scanned_again),
        TEST(a_store_that_scans_scans_a_new_index_by_itself),
        TEST(a_put_that_began_under_the_old_index_counts_in_the_new_one),
        TEST(an_index_may_be_deleted_again_and_again),
        TEST(a_replaced_index_keeps_no_place_of_a_writer),
        TEST(another_versions_index_stays),
    };

    return cmocka_run_group_tests_name("store, new index", tests, NULL, NULL);
}
