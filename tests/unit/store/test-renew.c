/* SPDX-License-Identifier: Apache-2.0
 *
 * Another process replaces the index of an open store: the files counted by the new index,
 * and the files kept. */
#include "table-file.h"

static struct kvt__table *
index_of(const struct env *e)
{
    return e->store->levels[0].index;
}

/* Another process opens the store after the deletion and lists the files. */
static void
replace_and_list(const struct env *e, struct env *other)
{
    *other = *e;
    other->store = open_over(other, "", small);
    list_all(other->store);
    assert_true(kvt__table_is_listed(index_of(other)));
}

/* A file written during the replacement of the index has no entry. */
static void
an_index_that_others_have_listed_is_listed_again(void **state)
{
    struct env *e = *state, other;

    delete_table(e);
    replace_and_list(e, &other);
    kvt__store_renew_indexes(e->store);
    assert_true(kvt__table_is_current(index_of(e)));
    assert_false(kvt__table_is_listed(index_of(&other)));
    kvt__store_close(other.store);
}

static void
a_listing_during_a_renewal_is_not_the_last(void **state)
{
    struct env *e = *state, other = *e;

    delete_table(e);
    other.store = open_over(&other, "", small);
    assert_int_equal(kvt__table_begin_list(index_of(&other)), 0);
    kvt__store_renew_indexes(e->store);
    kvt__table_end_list(index_of(&other), true);
    assert_false(kvt__table_is_listed(index_of(&other)));
    list_all(e->store);
    assert_true(kvt__table_is_listed(index_of(&other)));
    kvt__store_close(other.store);
}

static void
a_new_index_gets_the_chunks_of_the_old_one(void **state)
{
    struct env *e = *state;

    list_all(e->store);
    assert_int_equal(put(e, 1), 0);
    delete_table(e);
    delete_lock(e);
    kvt__store_renew_indexes(e->store);
    assert_int_equal(used(e), 0);
    list_all(e->store);
    assert_true(kvt__table_is_listed(index_of(e)));
    assert_int_equal(used(e), TAKEN);
}

struct put {
    struct request r;
    char key[KVT__KEY_TEXT_MAX + 1];
};

/* Begin a put: the index has a claim and the tier has no file. */
static void
begin_put(struct env *e, struct put *p, unsigned i)
{
    request_init(&p->r, e, KVT__TIER_PUT, i);
    assert_int_equal(kvt__space_key(e->space.text, &p->r.req.hash, p->key, sizeof p->key), 0);
    p->r.req.object = (struct kvt__object){ .key = p->key, .hash = p->r.req.hash, .is_full = true,
                                      .tokens = p->r.req.tokens, .id = p->r.req.id,
                                      .shape = p->r.req.shape };
    p->r.req.store = e->store;
    assert_int_equal(kvt__level_prepare(&p->r.req, &e->store->levels[0]), 0);
}

static void
end_put(struct env *e, struct put *p)
{
    struct kvt__level *level = &e->store->levels[0];

    assert_int_equal(kvt__tier_put(level->tier, &p->r.req.object, &p->r.req.slot, p->r.req.crc),
                     0);
    assert_int_equal(kvt__level_complete(&p->r.req, level, 0), 0);
    free(p->r.memory);
}

/* The file appears after the new index was listed. */
static void
a_put_that_began_under_the_old_index_counts_in_the_new_one(void **state)
{
    struct env *e = *state;
    struct put p;

    list_all(e->store);
    begin_put(e, &p, 1);
    delete_table(e);
    delete_lock(e);
    kvt__store_renew_indexes(e->store);
    list_all(e->store);
    assert_true(kvt__table_is_listed(index_of(e)));
    end_put(e, &p);
    assert_true(find(e, 1));
    assert_int_equal(used(e), TAKEN);
}

/* No thread of the store sees the replacement before the end of the put. */
static void
a_put_beside_a_replacement_counts_after_the_next_listing(void **state)
{
    struct env *e = *state, other;
    struct put p;

    begin_put(e, &p, 1);
    delete_table(e);
    replace_and_list(e, &other);
    end_put(e, &p);
    kvt__store_renew_indexes(e->store);
    list_all(e->store);
    assert_int_equal(used(e), TAKEN);
    assert_int_equal(used(&other), TAKEN);
    kvt__store_close(other.store);
}

/* A program that cleans up old files may delete the index every night. */
static void
an_index_may_be_deleted_again_and_again(void **state)
{
    struct env *e = *state;

    for (int i = 0; i < 10; i++) {
        delete_table(e);
        delete_lock(e);
        kvt__store_renew_indexes(e->store);
        assert_true(kvt__table_is_current(index_of(e)));
        assert_int_equal(put(e, 1), 0);
        assert_int_equal(probe(e, 1), 0);
    }
}

/* A user empties the directory to clear the cache. */
static void
a_directory_may_be_emptied(void **state)
{
    struct env *e = *state;
    char command[1200];

    assert_int_equal(put(e, 1), 0);
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s'", e->dir.path, e->dir.path);
    assert_int_equal(system(command), 0);
    kvt__store_renew_indexes(e->store);
    assert_int_equal(probe(e, 1), -ENOENT);
    assert_int_equal(put(e, 1), 0);
    assert_int_equal(probe(e, 1), 0);
}

/* While `lock` cannot be made, the index is private, and nothing is stored because of the limit. */
static void
a_shared_index_is_opened_when_that_is_possible_again(void **state)
{
    struct env *e = *state;
    struct kvt__level *level = &e->store->levels[0];

    assert_int_equal(put(e, 1), 0);
    delete_table(e);
    delete_lock(e);
    assert_int_equal(mkdirat(private_dir(e), "lock", 0700), 0);
    for (int i = 0; i < 3; i++) { /* a further private index does not replace the first */
        kvt__store_renew_indexes(e->store);
        assert_false(kvt__table_is_shared(index_of(e)));
        assert_int_equal(put(e, 2), -EROFS);
        assert_int_equal(i ? get(e, 1) : probe(e, 1), 0);
        level->renew_from_ns = 0;
    }
    assert_int_equal(unlinkat(private_dir(e), "lock", AT_REMOVEDIR), 0);
    kvt__store_renew_indexes(e->store);
    assert_true(kvt__table_is_shared(index_of(e)));
    assert_int_equal(put(e, 2), 0);
    list_all(e->store);
    assert_int_equal(used(e), 2 * TAKEN);
}

#define N_FREE 8 /* numbers of writers */

/* More often than an index has free numbers for writers: the lock file stays. */
static void
a_replaced_index_keeps_no_number_of_a_writer(void **state)
{
    struct env *e = *state, other = *e;
    int lock = openat(private_dir(e), "lock", O_RDWR | O_CLOEXEC);

    for (off_t i = N_FREE; i < TB_N_OWNERS; i++) /* other writers */
        assert_int_equal(kvt__tb_lock_byte(lock, F_WRLCK, TB_OWNER_BYTE + i), 0);
    for (unsigned i = 0; i < 2 * N_FREE; i++) {
        delete_table(e);
        other.store = open_over(&other, "", small);
        kvt__store_renew_indexes(e->store);
        assert_int_equal(put(e, i), 0);
        kvt__store_close(other.store);
    }
    close(lock);
}

/* Replace the index by the first page of another version's index, as the other version
 * does. */
static void
replace_by_version(const struct env *e, uint32_t version)
{
    char path[TABLE_PATH_MAX];
    struct tb_header header;
    struct tb_location place;
    int lock = openat(private_dir(e), "lock", O_RDWR | O_CLOEXEC);

    table_path(e, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(fd, &header, sizeof header, 0), sizeof header);
    close(fd);
    delete_table(e);
    assert_true(kvt__tb_get_location(lock, &place));
    place.number[0]++;
    assert_int_equal(kvt__tb_set_location(lock, &place), 0);
    close(lock);
    header.version = version;
    header.number[0]++;
    table_path(e, path);
    write_file(path, &header, sizeof header);
    assert_int_equal(chmod(path, 0600), 0);
}

/* Two versions side by side would replace each other's index forever. */
static void
another_versions_index_stays(void **state)
{
    char path[TABLE_PATH_MAX];
    struct tb_header header;
    struct env *e = *state;

    assert_int_equal(put(e, 1), 0);
    replace_by_version(e, TB_VERSION + 1);
    kvt__store_renew_indexes(e->store);
    table_path(e, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, &header, sizeof header), sizeof header);
    close(fd);
    assert_int_equal(header.version, TB_VERSION + 1);
    assert_int_equal(header.use, TB_IN_USE);
    assert_int_equal(put(e, 2), -EROFS);
    assert_int_equal(probe(e, 1), 0);
    assert_int_equal(get(e, 1), 0);
    assert_int_equal(unlink(path), 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup_small, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_index_that_others_have_listed_is_listed_again),
        TEST(a_listing_during_a_renewal_is_not_the_last),
        TEST(a_new_index_gets_the_chunks_of_the_old_one),
        TEST(a_put_that_began_under_the_old_index_counts_in_the_new_one),
        TEST(a_put_beside_a_replacement_counts_after_the_next_listing),
        TEST(an_index_may_be_deleted_again_and_again),
        TEST(a_directory_may_be_emptied),
        TEST(a_shared_index_is_opened_when_that_is_possible_again),
        TEST(a_replaced_index_keeps_no_number_of_a_writer),
        TEST(another_versions_index_stays),
    };

    return cmocka_run_group_tests_name("store, new index", tests, NULL, NULL);
}
