/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of the index: created, kept, refused or replaced; private tables. */
#include "index-test.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Opens shared, without what was stored, and works. */
static void
expect_new(const struct dir *d)
{
    struct kvt__index *ix = open_writer(d);
    struct kvt__id id = id_of(1);

    assert_true(kvt__index_is_shared(ix));
    assert_false(kvt__index_scanned(ix));
    assert_false(kvt__index_find(ix, &id, NULL));
    assert_int_equal(put(ix, &id), 0);
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

static void
entries_survive_close(void **state)
{
    struct kvt__id id = id_of(1);
    struct stat st;

    put_one_and_close(*state);
    struct kvt__index *ix = open_writer(*state);
    assert_true(kvt__index_find(ix, &id, NULL));
    assert_true(kvt__index_scanned(ix));
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
    assert_int_equal(fstatat(((struct dir *)*state)->fd, "index", &st, 0), 0);
    assert_int_equal(st.st_size, FILE_BYTES);
    assert_true(st.st_blocks * 512 >= st.st_size);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(n_warnings, 0);
}

static void
bytes_of_an_entry_are_those_of_the_page(void **state)
{
    static const uint8_t want[48] = {
        0x02, 0, 4, 0, 0, 0, 0, 0, /* ready; four moves */
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
        0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0x55, 0x44, 0x33, 0x22, 0x11, 0x02, 0x01, 0x85,
        0x88, 0x77, 0x66, 0x55, 2, 0, 0, 0,
    };
    struct dir *d = *state;
    struct kvt__index *ix = open_writer(d);
    struct kvt__index_entry e = {
        .id = { { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 } },
        .hash = { { (uint64_t)-2 }, KVT__HASH_UNSIGNED }, .bytes = 0x1122334455,
        .space = 0x102, .path = 5, .tokens = 0x55667788,
        .flags = KVT__INDEX_FOREIGN, .recency_ns = 0x0102030405060000,
    };
    struct kvt__index_claim c;
    uint8_t got[64];

    assert_int_equal(kvt__index_reserve(ix, e.bytes), 0);
    assert_int_equal(kvt__index_claim(ix, &e, NULL, &c), 0);
    kvt__index_publish(ix, &c);
    int fd = openat(d->fd, "index", O_RDONLY);
    /* n is 128: group 0x0807060504030201 mod 128 */
    off_t at = 4096 + 64 * 64 + 4096 * 512 + 1 * 8 * 64;
    assert_int_equal(pread(fd, got, sizeof got, at), sizeof got);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(got[50], 6);
    assert_int_equal(got[55], 1);
    assert_int_equal(pread(fd, got, 8, 72), 8);
    assert_memory_equal(got, "\x55\x44\x33\x22\x11\0\0\0", 8);
    close(fd);
    kvt__index_close(ix);
}

static void
file_keeps_the_size_it_was_made_with(void **state)
{
    struct dir *d = *state;
    struct kvt__index_params p = { .dirfd = d->fd, .n_entries = 5000 };
    struct kvt__index_totals t;
    struct kvt__index *a, *b;

    assert_int_equal(kvt__index_open(&p, &a), 0);
    kvt__index_get_totals(a, &t);
    assert_int_equal(t.n_entries, 8192);
    b = open_writer(d);
    kvt__index_get_totals(b, &t);
    assert_int_equal(t.n_entries, 8192);
    kvt__index_close(a);
    kvt__index_close(b);
}

/* A daemon may have closed its standard input: then a descriptor can be 0. */
static void
descriptor_0_is_as_good_as_any(void **state)
{
    const struct dir *d = *state;
    struct kvt__id id = id_of(1);
    int input = dup(0);

    close(0);
    struct kvt__index *ix = open_writer(d);
    assert_non_null(ix);
    assert_int_equal(ix->lock_fd, 0);
    assert_int_equal(put(ix, &id), 0);
    struct kvt__index *other = open_writer(d);
    assert_true(kvt__index_find(other, &id, NULL));
    assert_true(kvt__ix_owner_lives(other, (unsigned)ix->owner));
    kvt__index_close(ix);
    assert_false(kvt__ix_owner_lives(other, 0));
    kvt__index_close(other);
    assert_int_equal(fcntl(0, F_GETFD), -1); /* closed again */
    if (input >= 0) {
        assert_int_equal(dup2(input, 0), 0);
        close(input);
    }
}

static void
truncated_or_longer_file_is_replaced(void **state)
{
    struct dir *d = *state;
    const off_t sizes[] = { 0, 1, 4095, 4096, FILE_BYTES - 1, FILE_BYTES + 1,
                            2 * FILE_BYTES };

    for (unsigned i = 0; i < 7; i++) {
        put_one_and_close(d);
        int fd = openat(d->fd, "index", O_RDWR);
        assert_int_equal(ftruncate(fd, sizes[i]), 0);
        close(fd);
        expect_new(d);
        unlinkat(d->fd, "index", 0);
    }
    assert_int_equal(n_warnings, 0);
}

static void
damaged_header_is_replaced(void **state)
{
    static const struct {
        off_t at;
        uint32_t v;
    } damage[] = {
        { 0, 0x31313131 }, { 8, 2 }, { 8, 4 }, { 8, 0 }, { 12, 8192 }, { 16, 0 },
        { 16, 1000 }, { 16, 512 }, { 16, 2048 }, { 20, 1 }, { 20, 0x80000000 },
        { 24, 65 }, { 28, 0 }, { 48, 0 }, { 48, 2 }, { 48, 77 },
    };

    for (unsigned i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        put_one_and_close(*state);
        poke(*state, damage[i].at, &damage[i].v, 4);
        expect_new(*state);
        unlinkat(((struct dir *)*state)->fd, "index", 0);
    }
}

static void
replaced_table_finds_nothing_and_is_estale(void **state)
{
    struct kvt__index *old = open_writer(*state);
    struct kvt__id id = id_of(1);
    struct kvt__index_claim c;
    ino_t ino = inode(*state);

    assert_int_equal(put(old, &id), 0);
    poke(*state, 8, &(uint32_t){ 99 }, 4);
    struct kvt__index *ix = open_writer(*state);
    assert_true(kvt__index_is_shared(ix));
    assert_true(inode(*state) != ino);
    assert_false(kvt__index_is_current(old));
    assert_false(kvt__index_find(old, &id, NULL));
    assert_int_equal(kvt__index_reserve(old, 1), -ESTALE);
    assert_int_equal(kvt__index_evict(old, &id, true, NULL, &c), -ESTALE);
    assert_int_equal(kvt__ix_space(old, "m"), -ESTALE);
    assert_int_equal(put(ix, &id), 0);
    kvt__index_close(old);
    assert_true(kvt__index_find(ix, &id, NULL));
    assert_true(adds_up(ix, 0));
    struct kvt__index *again = open_writer(*state);
    assert_true(kvt__index_is_current(again));
    assert_true(kvt__index_find(again, &id, NULL)); /* the engine opened the index again */
    kvt__index_close(again);
    kvt__index_close(ix);
}

/* Cleaners of temporary directories delete the old file `lock` and leave `index`.  A new
 * process then does not see the locks of processes with an open index. */
static void
a_deleted_file_is_noticed(void **state)
{
    static const char *const deleted[][2] = {
        { "lock", "lock" }, { "index", "index" }, { "lock", "index" } };
    const struct dir *d = *state;
    struct kvt__id ready = id_of(1), id = id_of(2);
    struct kvt__index_claim of_a, of_b;

    for (size_t i = 0; i < 3; i++) {
        struct kvt__index *a = open_writer(d);
        assert_int_equal(put(a, &ready), 0);
        assert_int_equal(claim(a, &id, &of_a), 0);
        assert_true(kvt__index_is_current(a));
        unlinkat(d->fd, deleted[i][0], 0);
        unlinkat(d->fd, deleted[i][1], 0);
        struct kvt__index *b = open_writer(d);
        assert_true(kvt__index_is_shared(b));
        assert_true(kvt__index_is_current(b));
        /* b has no entry of a's table. */
        assert_false(kvt__index_find(b, &ready, NULL));
        assert_int_equal(claim(b, &id, &of_b), 0);
        assert_false(kvt__index_is_current(a));
        assert_false(kvt__index_find(a, &ready, NULL));
        assert_int_equal(kvt__index_reserve(a, 1), -ESTALE);
        kvt__index_publish(a, &of_a); /* in a deleted table */
        kvt__index_publish(b, &of_a); /* another handle's */
        assert_false(kvt__index_find(b, &id, NULL));
        /* Opened again, both handles share a table. */
        struct kvt__index *again = open_writer(d);
        assert_true(kvt__index_is_current(b));
        kvt__index_publish(b, &of_b);
        assert_true(kvt__index_find(again, &id, NULL));
        assert_int_equal(drop(again, &id), 0);
        assert_true(adds_up(b, 0));
        kvt__index_close(a);
        kvt__index_close(again);
        kvt__index_close(b);
    }
}

/* A process that makes an index writes the new id to `lock` before the rename.  If it dies
 * between the two, the old file stays, and every process that runs leaves it. */
static void
an_index_whose_maker_died_before_the_rename_is_made_again(void **state)
{
    static const uint64_t id[2] = { 1, 2 };
    const struct dir *d = *state;

    put_one_and_close(d);
    int fd = openat(d->fd, "lock", O_RDWR | O_CLOEXEC);
    assert_int_equal(kvt__ix_lock_set_id(fd, id), 0);
    close(fd);
    expect_new(d);
    struct kvt__index *ix = open_writer(d);
    assert_true(kvt__index_is_current(ix));
    kvt__index_close(ix);
}

/* Two versions side by side would replace each other's index forever. */
static void
another_versions_file_can_be_kept(void **state)
{
    const struct dir *d = *state;
    struct kvt__index_params params = { .dirfd = d->fd, .n_entries = 1024, .writer = true,
                                        .keep_version = true };
    struct kvt__index *ix;

    kvt__index_close(open_writer(d));
    ino_t ino = inode(d);
    poke(d, 8, &(uint32_t){ 99 }, 4);
    assert_int_equal(kvt__index_open(&params, &ix), 0);
    assert_false(kvt__index_is_shared(ix));
    assert_true(inode(d) == ino);
    kvt__index_close(ix);
    poke(d, 8, &(uint32_t){ IX_VERSION }, 4);
    assert_int_equal(kvt__index_open(&params, &ix), 0);
    assert_true(kvt__index_is_shared(ix));
    kvt__index_close(ix);
}

static void
symbolic_link_is_not_followed(void **state)
{
    struct dir *d = *state;
    struct stat st;

    assert_int_equal(symlinkat("/dev/zero", d->fd, "index"), 0);
    expect_new(d);
    assert_int_equal(fstatat(d->fd, "index", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_true(S_ISREG(st.st_mode));
}

static void
without_a_file_the_table_is_private_and_says_so_once(void **state)
{
    struct dir *d = *state;
    struct kvt__id id = id_of(1);

    assert_int_equal(mkdirat(d->fd, "index", 0700), 0);
    struct kvt__index *a = open_writer(d);
    assert_int_equal(n_warnings, 1);
    struct kvt__index *b = open_writer(d);
    assert_int_equal(n_warnings, 2);
    assert_false(kvt__index_is_shared(a));
    assert_int_equal(put(a, &id), 0);
    assert_true(kvt__index_find(a, &id, NULL));
    assert_false(kvt__index_find(b, &id, NULL));
    assert_int_equal(drop(a, &id), 0);
    assert_int_equal(kvt__index_recover(a), 0);
    assert_true(adds_up(a, 0));
    kvt__index_close(a);
    kvt__index_close(b);
}

static int
open_on_a_full_disk(const struct dir *d)
{
    struct rlimit limit = { 65536, 65536 };
    struct kvt__id id = id_of(1);

    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    struct kvt__index *ix = open_writer(d);
    bool ok = !kvt__index_is_shared(ix) && n_warnings == 1 && !put(ix, &id)
              && kvt__index_find(ix, &id, NULL)
              && faccessat(d->fd, "index", F_OK, 0)
              && faccessat(d->fd, "index.new", F_OK, 0);
    kvt__index_close(ix);
    return ok ? 0 : 1;
}

static void
failed_allocation_leaves_no_file_and_a_private_table(void **state)
{
    int status;
    pid_t pid = fork();

    if (!pid)
        _exit(open_on_a_full_disk(*state));
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

static void
no_directory_is_a_private_table_without_a_word(void **state)
{
    struct kvt__index *ix = open_with(NULL, 100, true);
    struct kvt__id id = id_of(1);

    (void)state;
    assert_false(kvt__index_is_shared(ix));
    assert_int_equal(n_warnings, 0);
    assert_int_equal(kvt__index_reserve(ix, 101), -ENOSPC);
    assert_true(kvt__ix_space(ix, "m") >= 0);
    struct kvt__index_entry e = { .id = id, .bytes = 50 };
    struct kvt__index_claim c;
    assert_int_equal(kvt__index_reserve(ix, 50), 0);
    assert_int_equal(kvt__index_claim(ix, &e, NULL, &c), 0);
    assert_int_equal(kvt__index_claim(ix, &e, NULL, &c), -EEXIST);
    kvt__index_close(ix);
}

static void
sixty_fifth_writer_has_a_private_table(void **state)
{
    struct kvt__index *ix[65], *r;

    for (unsigned i = 0; i < 65; i++) {
        ix[i] = open_writer(*state);
        assert_int_equal(kvt__index_is_shared(ix[i]), i < 64);
    }
    r = open_with(*state, 0, false);
    assert_true(kvt__index_is_shared(r));
    struct kvt__id id = id_of(1);
    assert_int_equal(put(ix[63], &id), 0);
    assert_true(kvt__index_find(r, &id, NULL));
    assert_false(kvt__index_find(ix[64], &id, NULL));
    assert_true(adds_up(ix[0], 0));
    kvt__index_close(r);
    kvt__index_close(ix[10]);
    ix[10] = open_writer(*state);
    assert_true(kvt__index_is_shared(ix[10]));
    for (unsigned i = 0; i < 65; i++)
        kvt__index_close(ix[i]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        INDEX_TEST(entries_survive_close),
        INDEX_TEST(bytes_of_an_entry_are_those_of_the_page),
        INDEX_TEST(file_keeps_the_size_it_was_made_with),
        INDEX_TEST(descriptor_0_is_as_good_as_any),
        INDEX_TEST(truncated_or_longer_file_is_replaced),
        INDEX_TEST(damaged_header_is_replaced),
        INDEX_TEST(replaced_table_finds_nothing_and_is_estale),
        INDEX_TEST(a_deleted_file_is_noticed),
        INDEX_TEST(an_index_whose_maker_died_before_the_rename_is_made_again),
        INDEX_TEST(another_versions_file_can_be_kept),
        INDEX_TEST(symbolic_link_is_not_followed),
        INDEX_TEST(without_a_file_the_table_is_private_and_says_so_once),
        INDEX_TEST(failed_allocation_leaves_no_file_and_a_private_table),
        INDEX_TEST(no_directory_is_a_private_table_without_a_word),
        INDEX_TEST(sixty_fifth_writer_has_a_private_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
