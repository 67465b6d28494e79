/* SPDX-License-Identifier: Apache-2.0
 *
 * The place of the table after another boot, with another tmpfs, without a tmpfs; tables
 * without users; processes with index version 3; makers and growers that are killed. */
#include "place-test.h"

#include <stdarg.h>
#include <sys/file.h>
#include <sys/ptrace.h>
#include <sys/vfs.h>

static const struct dir *deleting; /* the next flock finds the file deleted */
static int allocate_err;           /* of a file system without fallocate() */
static off_t allocated;            /* bytes since the test set it to 0 */
static off_t allocate_max;         /* larger calls are interrupted by a signal; 0: none */
static uint64_t free_bytes = UINT64_MAX; /* of the tmpfs; UINT64_MAX: as it is */
static const char *shortage_at;    /* an open of this path has no descriptor left */

int __real_flock(int fd, int how);
int __wrap_flock(int fd, int how);
int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);

int __real_fallocate64(int fd, int mode, off_t at, off_t bytes);
int __wrap_fallocate64(int fd, int mode, off_t at, off_t bytes);

int
__wrap_fallocate64(int fd, int mode, off_t at, off_t bytes)
{
    allocated += bytes;
    errno = allocate_err ? allocate_err : EINTR;
    return allocate_err || (allocate_max && bytes > allocate_max)
        ? -1 : __real_fallocate64(fd, mode, at, bytes);
}

int __real_fstatfs64(int fd, struct statfs64 *out);
int __wrap_fstatfs64(int fd, struct statfs64 *out);

int
__wrap_fstatfs64(int fd, struct statfs64 *out)
{
    int err = __real_fstatfs64(fd, out);

    if (free_bytes != UINT64_MAX) {
        out->f_blocks = UINT64_C(1) << 40;
        out->f_bavail = free_bytes / (uint64_t)out->f_bsize;
    }
    return err;
}

int
__wrap_flock(int fd, int how)
{
    if (deleting)
        empty(deleting->shm);
    deleting = NULL;
    return __real_flock(fd, how);
}

int
__wrap_open64(const char *path, int flags, ...)
{
    va_list args;

    if (shortage_at && !strcmp(path, shortage_at)) {
        errno = EMFILE;
        return -1;
    }
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return __real_open64(path, flags, mode);
}

static void
another_boot(struct tb_location *place)
{
    place->boot_id[0] ^= 1;
}

static void
another_tmpfs(struct tb_location *place)
{
    place->device ^= 1;
}

static bool
has_file(const struct dir *d, const char *name)
{
    return !faccessat(d->fd, name, F_OK, AT_SYMLINK_NOFOLLOW);
}

/* The tmpfs is empty after a boot. */
static void
another_boot_makes_a_new_table(void **state)
{
    store_one_and_close(*state);
    edit_place(*state, another_boot);
    empty(((struct dir *)*state)->shm);
    expect_new(*state);
    assert_int_equal(n_warnings, 0);
}

/* The host stopped without a writeback of the file. */
static void
a_file_of_the_directory_is_not_used_after_a_boot(void **state)
{
    struct dir *d = *state;
    struct kvt__table_params params = params_of(d);

    params.shm = d->path;
    struct kvt__table *t = open_with(d, &params);
    assert_int_equal(store(t, 1, 10), 0);
    kvt__table_close(t);
    assert_true(has_file(d, "table"));
    edit_place(d, another_boot);
    expect_new(d);
    assert_true(*shm_file(d));
    assert_false(has_file(d, "table"));
}

static void
another_tmpfs_without_owners_makes_a_new_table(void **state)
{
    const struct dir *d = *state;

    store_one_and_close(d);
    edit_place(d, another_tmpfs);
    expect_new(d);
    assert_true(*shm_file(d)); /* and the stale table is deleted: only one file */
    assert_int_equal(n_warnings, 0);
}

/* Containers share the store and not the tmpfs. */
static void
another_tmpfs_with_owners_shares_a_table_in_the_directory(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *a = open_writer(d);

    assert_int_equal(store(a, 1, 10), 0);
    edit_place(d, another_tmpfs);
    struct kvt__table *b = open_writer(d);
    assert_int_equal(n_warnings, 1);
    assert_true(kvt__table_is_shared(b));
    assert_true(has_file(d, "table"));
    assert_false(has_file(d, "table.new"));
    assert_int_equal(store(b, 2, 10), 0);
    assert_false(kvt__table_is_current(a));
    struct kvt__table *again = open_writer(d);
    assert_true(find(again, 2, NULL));
    assert_true(kvt__table_is_current(b));
    recount(again);
    kvt__table_retire(a);
    kvt__table_close(a);
    kvt__table_close(again);
    kvt__table_close(b);
    /* The table stays until the next boot. */
    struct kvt__table *c = open_writer(d);
    assert_true(find(c, 2, NULL));
    kvt__table_close(c);
}

/* A user who removes the directory of the memory also removes the table. */
static void
a_table_of_memory_is_in_its_directory(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = params_of(d);

    params.of_memory = true;
    struct kvt__table *a = open_with(d, &params);
    assert_int_equal(n_warnings, 0);
    assert_true(kvt__table_is_shared(a));
    assert_true(has_file(d, "table"));
    assert_string_equal(shm_file(d), "");
    assert_int_equal(store(a, 1, 10), 0);
    struct kvt__table *b = open_with(d, &params);
    assert_true(find(b, 1, NULL));
    assert_int_equal(n_warnings, 0);
    kvt__table_close(a);
    kvt__table_close(b);
}

/* Containers whose /dev/shm are two directories of one tmpfs. */
static void
another_directory_of_the_tmpfs_is_another_tmpfs(void **state)
{
    const struct dir *d = *state;
    struct dir other = *d;
    void *made = NULL;

    assert_int_equal(make_dirs(&made), 0);
    memcpy(other.shm, ((struct dir *)made)->shm, sizeof other.shm);
    struct kvt__table *a = open_writer(d), *b = open_writer(&other);
    assert_false(kvt__table_is_current(a));
    assert_true(kvt__table_is_current(b));
    struct kvt__table *again = open_writer(d);
    assert_true(kvt__table_is_current(b));
    assert_int_equal(store(b, 1, 10), 0);
    assert_true(find(again, 1, NULL));
    kvt__table_close(a);
    kvt__table_close(b);
    kvt__table_close(again);
    remove_dirs(&made);
}

static void
without_a_tmpfs_the_table_is_in_the_directory(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = params_of(d);

    params.shm = "/proc";
    struct kvt__table *a = open_with(d, &params);
    assert_int_equal(n_warnings, 1);
    assert_true(kvt__table_is_shared(a));
    assert_int_equal(store(a, 1, 10), 0);
    struct kvt__table *b = open_with(d, &params);
    assert_true(find(b, 1, NULL));
    assert_int_equal(n_warnings, 1); /* only the maker reports */
    kvt__table_close(a);
    kvt__table_close(b);
    params.shm = "/nonexistent";
    a = open_with(d, &params);
    assert_true(find(a, 1, NULL));
    kvt__table_close(a);
}

static void
a_deleted_file_of_the_directory_is_made_again(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = params_of(d);

    params.shm = "/proc";
    struct kvt__table *a = open_with(d, &params);
    unlinkat(d->fd, "table", 0);
    struct kvt__table *b = open_with(d, &params);
    assert_true(kvt__table_is_current(b));
    assert_false(kvt__table_is_current(a));
    kvt__table_close(a);
    kvt__table_close(b);
}

static void
tables_without_users_are_deleted(void **state)
{
    const struct dir *d = *state;
    struct dir *other;
    void *made = NULL;
    char kept[256], gone[256];

    assert_int_equal(make_dirs(&made), 0);
    other = made;
    struct dir beside = { .fd = other->fd, .shm_fd = d->shm_fd };
    memcpy(beside.shm, d->shm, sizeof beside.shm);

    /* Another store's table stays as long as the store names the table. */
    store_one_and_close(&beside);
    snprintf(kept, sizeof kept, "%s", shm_file(d));
    struct kvt__table *a = open_writer(d);
    assert_int_equal(faccessat(d->shm_fd, kept, F_OK, 0), 0);
    kvt__table_close(a);
    /* The store is deleted: the next maker deletes the table, unless a process uses it. */
    struct kvt__table *user = open_writer(&beside);
    remove_dirs(&made);
    unlinkat(d->fd, "lock", 0);
    kvt__table_close(open_writer(d));
    assert_int_equal(faccessat(d->shm_fd, kept, F_OK, 0), 0);
    kvt__table_close(user);
    unlinkat(d->fd, "lock", 0);
    kvt__table_close(open_writer(d));
    assert_int_equal(faccessat(d->shm_fd, kept, F_OK, 0), -1);
    /* A maker also deletes the older tables of the maker's store. */
    snprintf(gone, sizeof gone, "%s", shm_file(d));
    assert_true(*gone);
}

static struct tb_location of_original;

static void
as_original(struct tb_location *place)
{
    *place = of_original;
}

/* A copy of a store's directory has the number of the original in `lock`. */
static void
a_copied_directory_has_its_own_table(void **state)
{
    const struct dir *d = *state;
    void *made = NULL;

    assert_int_equal(make_dirs(&made), 0);
    struct dir copy = *(struct dir *)made;
    memcpy(copy.shm, d->shm, sizeof copy.shm);
    copy.shm_fd = d->shm_fd;
    kvt__table_close(open_writer(&copy));
    struct kvt__table *a = open_writer(d);
    assert_int_equal(store(a, 1, 10), 0);
    assert_true(kvt__tb_get_location(a->lock_fd, &of_original));
    edit_place(&copy, as_original);
    struct kvt__table *b = open_writer(&copy);
    assert_false(find(b, 1, NULL));
    assert_true(kvt__table_is_current(a));
    assert_true(kvt__table_is_current(b));
    kvt__table_close(a);
    kvt__table_close(b);
    remove_dirs(&made);
}

/* A maker of another table finds the new file before the maker's flock. */
static void
a_new_file_that_another_maker_deletes_is_made_again(void **state)
{
    const struct dir *d = *state;

    deleting = d;
    store_one_and_close(d);
    assert_true(*shm_file(d));
    assert_int_equal(n_warnings, 0);
}

/* A process without free descriptors cannot read the boot id or open the tmpfs.  The process must
 * not conclude that the host was restarted or lacks a tmpfs, and must not replace the table. */
static void
without_descriptors_the_table_stays(void **state)
{
    const struct dir *d = *state;
    const char *paths[] = { "/proc/sys/kernel/random/boot_id", d->shm };

    store_one_and_close(d);
    for (int i = 0; i < 2; i++) {
        shortage_at = paths[i];
        struct kvt__table *t = open_writer(d);
        shortage_at = NULL;
        assert_false(kvt__table_is_shared(t));
        kvt__table_close(t);
        t = open_writer(d);
        assert_true(find(t, 1, NULL));
        kvt__table_close(t);
    }
}

/* PyTorch and NCCL need the other half. */
static void
a_table_takes_at_most_half_of_the_free_memory(void **state)
{
    const struct dir *d = *state;
    struct stat st;
    struct kvt__table *t = open_writer(d);
    uint64_t base = (uint64_t)((char *)t->heads - (char *)t->header) + TB_MIN_HEADS * 4;
    uint64_t step = TB_STEP_ENTRIES * (sizeof *t->heads + sizeof *t->hot + sizeof *t->cold);

    assert_int_equal(fstat(t->map_fd, &st), 0);
    uint64_t own = (uint64_t)st.st_blocks * 512;
    free_bytes = own + 2 * step - TB_PAGE;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(store(t, 1, 10), -ENOSPC);
        assert_int_equal(n_warnings, 1);
    }
    assert_non_null(strstr(last_warning, d->shm));
    assert_non_null(strstr(last_warning, "room for 0 chunks"));
    free_bytes += TB_PAGE;
    assert_int_equal(store(t, 1, 10), 0);
    kvt__table_close(t);
    assert_int_equal(n_warnings, 1);
    n_warnings = 0;
    for (int i = 0; i < 2; i++) {
        empty(d->shm);
        free_bytes = 2 * base - (i ? 0 : TB_PAGE);
        kvt__table_close(open_writer(d));
        assert_int_equal(*shm_file(d) != 0, i);
        assert_int_equal(n_warnings, 1);
        unlinkat(d->fd, "lock", 0);
    }
    free_bytes = UINT64_MAX;
}

/* A page without memory is a SIGBUS in a full tmpfs. */
static void
a_step_has_memory_for_all_parts(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = params_of(d);

    params.wide_hashes = true;
    struct kvt__table *t = open_with(d, &params);
    allocated = 0;
    assert_int_equal(store(t, 1, 10), 0);
    assert_int_equal(allocated, TB_STEP_ENTRIES * (sizeof *t->heads + sizeof *t->hot +
                                                   sizeof *t->cold + sizeof *t->wide));
    kvt__table_close(t);
}

/* Writes of zeros instead would race with other processes. */
static void
a_file_system_without_fallocate_has_no_table(void **state)
{
    const struct dir *d = *state;

    allocate_err = EOPNOTSUPP;
    struct kvt__table *t = open_writer(d);
    allocate_err = 0;
    assert_false(kvt__table_is_shared(t));
    assert_string_equal(shm_file(d), "");
    kvt__table_close(t);
}

/* A profiler sends a signal every millisecond. */
static void
an_allocation_ends_in_spite_of_signals(void **state)
{
    allocate_max = (off_t)2 << 20;
    expect_new(*state);
    allocate_max = 0;
    assert_int_equal(n_warnings, 0);
}

/* An administrator runs a command as root before the engines start. */
static void
the_owner_of_the_store_owns_the_table_of_root(void **state)
{
    const struct dir *d = *state;
    struct stat st;

    if (geteuid())
        skip();
    store_one_and_close(d);
    empty(d->shm);
    assert_int_equal(fchownat(d->fd, "lock", 12345, 12345, 0), 0);
    store_one_and_close(d);
    assert_int_equal(fstatat(d->shm_fd, shm_file(d), &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(st.st_uid, 12345);
    struct kvt__table *t = open_writer(d);
    assert_true(find(t, 1, NULL));
    kvt__table_close(t);
}

/* ---------------------------------------------------------------- version 3 */

static void
hold(int fd, short type, off_t byte)
{
    struct flock fl = { .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };

    assert_int_equal(fcntl(fd, F_OFD_SETLK, &fl), 0);
}

static void
a_version_3_writer_makes_the_table_private_until_its_end(void **state)
{
    const struct dir *d = *state;
    int v3 = openat(d->fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    hold(v3, F_WRLCK, 7);
    struct kvt__table *t = open_writer(d);
    assert_false(kvt__table_is_shared(t));
    assert_int_equal(n_warnings, 1);
    assert_true(kvt__table_is_current(t));
    assert_false(*shm_file(d));
    hold(v3, F_WRLCK, 4096); /* the waiting process does not keep version 3 out */
    close(v3);
    assert_false(kvt__table_is_current(t));
    struct kvt__table *shared = open_writer(d);
    assert_true(kvt__table_is_shared(shared));
    kvt__table_close(t);
    kvt__table_close(shared);
}

/* A process with version 3 makes or opens an index only with a write lock of byte 4096. */
static void
handles_keep_version_3_out(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *a = open_writer(d), *b = open_reader(d);
    int v3 = openat(d->fd, "lock", O_RDWR | O_CLOEXEC);
    struct flock fl = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 4096,
                        .l_len = 1 };

    kvt__table_close(a);
    assert_int_equal(fcntl(v3, F_OFD_SETLK, &fl), -1);
    kvt__table_close(b);
    assert_int_equal(fcntl(v3, F_OFD_SETLK, &fl), 0);
    close(v3);
}

/* Version 3 writes the number of its index to the same place. */
static void
a_number_of_version_3_names_no_table(void **state)
{
    static const uint64_t number[2] = { 1, 2 };
    const struct dir *d = *state;

    store_one_and_close(d);
    int fd = openat(d->fd, "lock", O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, number, sizeof number, 8192), sizeof number);
    close(fd);
    expect_new(d);
}

/* ------------------------------------------------------------------- kills */

static void
open_and_store(const struct dir *d)
{
    struct kvt__table *t = open_writer(d);

    (void)store(t, 1, 10);
    kvt__table_close(t);
}

/* After each kill the next opener has a table that works, and at the end one file. */
static void
a_killed_maker_leaves_a_store_that_opens(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = params_of(d);
    int n = 1;

    for (; kill_at(d, open_and_store, n); n++) {
        expect_usable(d, &params, 2);
        unlinkat(d->fd, "lock", 0); /* the next child makes a table again */
    }
    assert_true(n > 20);
    kvt__table_close(open_writer(d));
    assert_true(*shm_file(d)); /* also fails if there are several */
    assert_int_equal(n_warnings, 0);
}

static const char *no_tmpfs = "/proc";

static void
open_in_dir_and_store(const struct dir *d)
{
    struct kvt__table_params params = params_of(d);

    params.shm = no_tmpfs;
    struct kvt__table *t = open_with(d, &params);
    (void)store(t, 1, 10);
    kvt__table_close(t);
}

static void
a_killed_maker_in_the_directory_leaves_a_store_that_opens(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = params_of(d);

    params.shm = no_tmpfs;
    for (int n = 1; kill_at(d, open_in_dir_and_store, n); n++) {
        expect_usable(d, &params, 2);
        unlinkat(d->fd, "lock", 0);
    }
    assert_false(has_file(d, "table.new"));
}

static uint64_t n_stored;

static void
fill_a_step(const struct dir *d)
{
    struct kvt__table *t = open_writer(d);

    for (uint64_t i = 0; i <= n_stored; i++)
        (void)store(t, i, 1);
    kvt__table_close(t);
}

/* If a process is killed at any system call of a growth, at most memory beyond the recorded size
 * stays. */
static void
a_killed_grower_leaves_a_table_that_grows(void **state)
{
    const struct dir *d = *state;

    n_stored = 0;
    for (int n = 1; kill_at(d, fill_a_step, n); n++) {
        struct kvt__table *t = open_writer(d);
        uint64_t made = t->header->n_made;

        assert_true(kvt__table_is_shared(t));
        assert_true(made == 0 || made == TB_STEP_ENTRIES);
        recount(t);
        assert_int_equal(store(t, 77, 1), 0);
        assert_int_equal(t->header->n_made, TB_STEP_ENTRIES);
        recount(t);
        kvt__table_close(t);
        empty(d->shm);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        PLACE_TEST(another_boot_makes_a_new_table),
        PLACE_TEST(a_file_of_the_directory_is_not_used_after_a_boot),
        PLACE_TEST(another_tmpfs_without_owners_makes_a_new_table),
        PLACE_TEST(another_tmpfs_with_owners_shares_a_table_in_the_directory),
        PLACE_TEST(a_table_of_memory_is_in_its_directory),
        PLACE_TEST(another_directory_of_the_tmpfs_is_another_tmpfs),
        PLACE_TEST(without_a_tmpfs_the_table_is_in_the_directory),
        PLACE_TEST(a_deleted_file_of_the_directory_is_made_again),
        PLACE_TEST(tables_without_users_are_deleted),
        PLACE_TEST(a_copied_directory_has_its_own_table),
        PLACE_TEST(a_new_file_that_another_maker_deletes_is_made_again),
        PLACE_TEST(without_descriptors_the_table_stays),
        PLACE_TEST(a_table_takes_at_most_half_of_the_free_memory),
        PLACE_TEST(a_step_has_memory_for_all_parts),
        PLACE_TEST(a_file_system_without_fallocate_has_no_table),
        PLACE_TEST(an_allocation_ends_in_spite_of_signals),
        PLACE_TEST(the_owner_of_the_store_owns_the_table_of_root),
        PLACE_TEST(a_version_3_writer_makes_the_table_private_until_its_end),
        PLACE_TEST(handles_keep_version_3_out),
        PLACE_TEST(a_number_of_version_3_names_no_table),
        PLACE_TEST(a_killed_maker_leaves_a_store_that_opens),
        PLACE_TEST(a_killed_maker_in_the_directory_leaves_a_store_that_opens),
        PLACE_TEST(a_killed_grower_leaves_a_table_that_grows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
