/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of the table: creation, reuse, refusal and replacement; private tables. */
#include "place-test.h"

#include <sys/resource.h>

#include "base/crc32c.h"

static void
entries_survive_close(void **state)
{
    const struct dir *d = *state;
    struct stat st;

    store_one_and_close(d);
    struct kvt__table *t = open_writer(d);
    assert_true(find(t, 1, NULL));
    assert_true(kvt__table_is_current(t));
    recount(t);
    assert_int_equal(fstatat(d->shm_fd, shm_file(d), &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_size, t->map_bytes);
    /* The file has memory for the first step only. */
    assert_true(st.st_blocks * 512 < st.st_size);
    kvt__table_close(t);
    assert_int_equal(n_warnings, 0);
}

static void
two_handles_share_a_table(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *a = open_writer(d), *b = open_writer(d), *r = open_reader(d);

    assert_int_not_equal(a->owner, b->owner);
    assert_int_equal(store(a, 1, 10), 0);
    assert_int_equal(store(b, 2, 10), 0);
    assert_int_equal(store(b, 1, 10), -EEXIST);
    assert_true(find(a, 2, NULL) && find(r, 1, NULL) && find(r, 2, NULL));
    assert_int_equal(store(r, 3, 10), -EINVAL);
    recount(a);
    kvt__table_close(r);
    kvt__table_close(a);
    assert_true(find(b, 1, NULL));
    kvt__table_close(b);
}

static void
table_keeps_the_size_it_was_made_with(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *a = open_writer(d);
    struct kvt__table_params params = params_of(d);

    params.max_entries = 1000000;
    struct kvt__table *b = open_with(d, &params);
    assert_int_equal(a->max_entries, 200000);
    assert_int_equal(b->max_entries, 200000);
    assert_int_equal(store(b, 1, 10), 0);
    assert_true(find(a, 1, NULL));
    kvt__table_close(a);
    kvt__table_close(b);
}

static void
table_grows_for_all_processes(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *a = open_writer(d), *b = open_writer(d);

    for (uint64_t i = 0; i < 150000; i++)
        assert_int_equal(store(i & 1 ? a : b, i, 1), 0);
    for (uint64_t i = 0; i < 150000; i++)
        assert_true(find(i & 1 ? b : a, i, NULL));
    assert_int_equal(a->header->n_made, 3 * TB_STEP_ENTRIES);
    recount(a);
    pthread_mutex_lock(&a->mutex);
    assert_int_equal(kvt__tb_grow(a, a->header->n_made), 0);
    pthread_mutex_unlock(&a->mutex);
    assert_int_equal(store(b, 150000, 1), 0); /* a has unlocked the table */
    for (uint64_t i = 150001; i < 200000; i++)
        assert_int_equal(store(a, i, 1), 0);
    assert_int_equal(store(a, 200000, 1), -ENOSPC);
    recount(b);
    kvt__table_close(a);
    kvt__table_close(b);
    struct kvt__table *c = open_writer(d);
    assert_true(find(c, 199999, NULL));
    kvt__table_close(c);
}

/* A daemon may have closed its standard input: then a descriptor can be 0. */
static void
descriptor_0_is_as_good_as_any(void **state)
{
    const struct dir *d = *state;
    int input = dup(0);

    close(0);
    struct kvt__table *t = open_writer(d);
    assert_int_equal(t->lock_fd, 0);
    assert_int_equal(store(t, 1, 10), 0);
    struct kvt__table *other = open_writer(d);
    assert_true(find(other, 1, NULL));
    unsigned owner = t->owner;
    assert_true(kvt__tb_owner_lives(other, owner));
    assert_true(kvt__tb_owner_lives(t, other->owner));
    kvt__table_close(t);
    assert_false(kvt__tb_owner_lives(other, owner));
    kvt__table_close(other);
    assert_int_equal(fcntl(0, F_GETFD), -1); /* closed again */
    if (input >= 0) {
        assert_int_equal(dup2(input, 0), 0);
        close(input);
    }
}

static void
truncated_or_longer_file_is_replaced(void **state)
{
    const struct dir *d = *state;
    const off_t size = (off_t)tb_parts(200000, false).end;
    const off_t sizes[] = { 0, 1, 4095, 4096, size - 1, size + 1, 2 * size };

    for (unsigned i = 0; i < 7; i++) {
        store_one_and_close(d);
        int fd = openat(d->shm_fd, shm_file(d), O_RDWR | O_CLOEXEC);
        assert_int_equal(ftruncate(fd, sizes[i]), 0);
        close(fd);
        expect_new(d);
        empty(d->shm);
    }
    assert_int_equal(n_warnings, 0);
}

static void
damaged_header_is_replaced(void **state)
{
#define AT(field) offsetof(struct tb_header, field)
    static const struct {
        off_t at;
        uint32_t v;
    } damage[] = {
        { 0, 0x31313131 }, { AT(version), 3 }, { AT(version), 5 }, { AT(version), 0 },
        { AT(use), TB_MAKING }, { AT(use), TB_REPLACED }, { AT(use), 77 },
        { AT(max_entries), 0 }, { AT(max_entries), 1023 }, { AT(max_entries), 300000 },
        { AT(max_entries) + 4, 1 }, { AT(wide_hashes), 1 }, { AT(wide_hashes), 2 },
        { AT(of_memory), 1 }, { AT(number), 0 }, { AT(n_made), 200001 },
        { AT(n_heads), 0 }, { AT(n_heads), 200001 }, { AT(n_fresh), 0xffffffff },
    };

    for (unsigned i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        store_one_and_close(*state);
        overwrite_bytes(*state, damage[i].at, &damage[i].v, 4);
        expect_new(*state);
        empty(((struct dir *)*state)->shm);
    }
#undef AT
}

static void
wide_hashes_replace_a_table_without_room(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = params_of(d);

    store_one_and_close(d);
    params.wide_hashes = true;
    struct kvt__table *t = open_with(d, &params);
    assert_non_null(t->wide);
    assert_false(find(t, 1, NULL));
    assert_int_equal(store(t, 1, 10), 0);
    struct kvt__table *narrow = open_writer(d); /* a table with room does for all */
    assert_true(find(narrow, 1, NULL));
    kvt__table_close(t);
    kvt__table_close(narrow);
}

static void
replaced_table_finds_nothing_and_is_estale(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *old = open_writer(d);
    struct kvt__record seen;
    struct kvt__claim claim;

    assert_int_equal(store(old, 1, 10), 0);
    assert_true(find(old, 1, &seen));
    overwrite_bytes(d, offsetof(struct tb_header, version), &(uint32_t){ 99 }, 4);
    struct kvt__table *t = open_writer(d);
    assert_true(kvt__table_is_shared(t));
    assert_false(kvt__table_is_current(old));
    assert_false(find(old, 1, NULL));
    assert_int_equal(store(old, 2, 10), -ESTALE);
    assert_int_equal(kvt__table_evict(old, &seen, true, &claim), -ESTALE);
    assert_int_equal(kvt__table_recover(old), 0);
    assert_int_equal(store(t, 1, 10), 0);
    kvt__table_retire(old);
    kvt__table_close(old);
    assert_true(find(t, 1, NULL));
    recount(t);
    kvt__table_close(t);
}

/* Cleaners of temporary directories delete the old file `lock`; logind and administrators
 * delete files in /dev/shm. */
static void
a_deleted_file_is_noticed(void **state)
{
    const struct dir *d = *state;

    for (int deleted = 1; deleted <= 3; deleted++) {
        struct kvt__table *a = open_writer(d);
        struct kvt__claim of_a, of_b;

        assert_int_equal(store(a, 1, 10), 0);
        assert_int_equal(claim_n(a, 2, 2, 10, &of_a), 0);
        if (deleted & 1)
            unlinkat(d->fd, "lock", 0);
        if (deleted & 2)
            empty(d->shm);
        struct kvt__table *b = open_writer(d);
        assert_true(kvt__table_is_shared(b));
        assert_true(kvt__table_is_current(b));
        assert_false(find(b, 1, NULL));
        assert_int_equal(claim_n(b, 2, 2, 10, &of_b), 0);
        assert_false(kvt__table_is_current(a));
        assert_false(find(a, 1, NULL));
        assert_int_equal(store(a, 3, 10), -ESTALE);
        assert_false(kvt__table_publish(a, &of_a)); /* in a deleted table */
        assert_false(kvt__table_publish(b, &of_a)); /* another handle's */
        assert_true(kvt__table_publish(b, &of_b));
        struct kvt__table *again = open_writer(d);
        assert_true(find(again, 2, NULL));
        recount(b);
        kvt__table_close(a);
        kvt__table_close(again);
        kvt__table_close(b);
        empty(d->shm);
        unlinkat(d->fd, "lock", 0);
    }
}

/* Two versions side by side would replace each other's table forever. */
static void
another_versions_table_can_be_kept(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = params_of(d);

    params.keep_version = true;
    store_one_and_close(d);
    overwrite_bytes(d, offsetof(struct tb_header, version), &(uint32_t){ 99 }, 4);
    struct kvt__table *t = open_with(d, &params);
    assert_false(kvt__table_is_shared(t));
    kvt__table_close(t);
    overwrite_bytes(d, offsetof(struct tb_header, version), &(uint32_t){ TB_VERSION }, 4);
    t = open_with(d, &params);
    assert_true(kvt__table_is_shared(t));
    /* The record in `lock`, which names the table, is valid in every version. */
    struct tb_location place;
    assert_true(kvt__tb_get_location(t->lock_fd, &place));
    assert_int_equal(place.crc, kvt__crc32c(0, &place, offsetof(struct tb_location, crc)));
    assert_true(find(t, 1, NULL));
    kvt__table_close(t);
}

static void
symbolic_links_and_open_modes_are_refused(void **state)
{
    const struct dir *d = *state;
    char name[256];
    struct stat st;

    store_one_and_close(d);
    snprintf(name, sizeof name, "%s", shm_file(d));
    assert_int_equal(fchmodat(d->shm_fd, name, 0666, 0), 0);
    expect_new(d);
    snprintf(name, sizeof name, "%s", shm_file(d));
    assert_int_equal(renameat(d->shm_fd, name, d->fd, "target"), -1); /* other device */
    assert_int_equal(unlinkat(d->shm_fd, name, 0), 0);
    assert_int_equal(symlinkat("/dev/zero", d->shm_fd, name), 0);
    struct kvt__table *t = open_writer(d);
    assert_true(kvt__table_is_shared(t));
    assert_int_equal(fstatat(d->shm_fd, name, &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_true(S_ISLNK(st.st_mode));
    kvt__table_close(t);
}

static void
without_a_lock_the_table_is_private_and_warns_once(void **state)
{
    const struct dir *d = *state;

    assert_int_equal(mkdirat(d->fd, "lock", 0700), 0);
    struct kvt__table *a = open_writer(d);
    assert_int_equal(n_warnings, 1);
    struct kvt__table *b = open_writer(d);
    assert_int_equal(n_warnings, 2);
    assert_false(kvt__table_is_shared(a));
    assert_true(kvt__table_is_current(a));
    assert_int_equal(store(a, 1, 10), 0);
    assert_true(find(a, 1, NULL));
    assert_false(find(b, 1, NULL));
    assert_int_equal(kvt__table_recover(a), 0);
    recount(a);
    kvt__table_close(a);
    kvt__table_close(b);
}

static int
open_with_a_file_limit(const struct dir *d)
{
    struct rlimit limit = { 65536, 65536 };

    setrlimit(RLIMIT_FSIZE, &limit);
    struct kvt__table *t = open_writer(d);
    bool ok = !kvt__table_is_shared(t) && !store(t, 1, 10) && find(t, 1, NULL) &&
              !*shm_file(d) && faccessat(d->fd, "table", F_OK, 0) &&
              faccessat(d->fd, "table.new", F_OK, 0);
    kvt__table_close(t);
    return ok ? 0 : 1;
}

/* SIGXFSZ would end the process. */
static void
a_file_limit_leaves_no_file_and_a_private_table(void **state)
{
    succeed_in_child(*state, open_with_a_file_limit);
}

static void
the_257th_writer_has_a_private_table(void **state)
{
    const struct dir *d = *state;
    static struct kvt__table *t[TB_N_OWNERS + 1];

    for (unsigned i = 0; i <= TB_N_OWNERS; i++) {
        t[i] = open_writer(d);
        assert_int_equal(kvt__table_is_shared(t[i]), i < TB_N_OWNERS);
    }
    assert_int_equal(n_warnings, 1);
    struct kvt__table *r = open_reader(d);
    assert_true(kvt__table_is_shared(r));
    assert_int_equal(store(t[255], 1, 10), 0);
    assert_true(find(r, 1, NULL));
    assert_false(find(t[256], 1, NULL));
    kvt__table_close(r);
    kvt__table_close(t[10]);
    t[10] = open_writer(d);
    assert_true(kvt__table_is_shared(t[10]));
    recount(t[0]);
    for (unsigned i = 0; i <= TB_N_OWNERS; i++)
        kvt__table_close(t[i]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        PLACE_TEST(entries_survive_close),
        PLACE_TEST(two_handles_share_a_table),
        PLACE_TEST(table_keeps_the_size_it_was_made_with),
        PLACE_TEST(table_grows_for_all_processes),
        PLACE_TEST(descriptor_0_is_as_good_as_any),
        PLACE_TEST(truncated_or_longer_file_is_replaced),
        PLACE_TEST(damaged_header_is_replaced),
        PLACE_TEST(wide_hashes_replace_a_table_without_room),
        PLACE_TEST(replaced_table_finds_nothing_and_is_estale),
        PLACE_TEST(a_deleted_file_is_noticed),
        PLACE_TEST(another_versions_table_can_be_kept),
        PLACE_TEST(symbolic_links_and_open_modes_are_refused),
        PLACE_TEST(without_a_lock_the_table_is_private_and_warns_once),
        PLACE_TEST(a_file_limit_leaves_no_file_and_a_private_table),
        PLACE_TEST(the_257th_writer_has_a_private_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
