/* SPDX-License-Identifier: Apache-2.0
 *
 * The access rights of files and directories, and directories and links of other users. */
#include <fcntl.h>

#include "fs-test.h"

static void
files_are_private_to_the_user(void **state)
{
    struct fixture *f = *state;
    char path[512];
    struct stat st;

    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
    assert_int_equal(stat(f->path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    static const char *const dirs[] = { ".kvtier", ".kvtier/tmp", "kvtier" };
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir.path, dirs[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0700);
    }
}

/* Users of store_mode have access with any umask. */
static void
store_mode_lets_other_users_in(void **state)
{
    static const struct { const char *setting; mode_t dir, file; } modes[] = {
        { "store_mode=group", 0770, 0660 }, { "store_mode=all", 0777, 0666 },
    };
    struct fixture *f = *state;
    char url[512], path[1024];
    struct stat st;
    mode_t mask = umask(077);

    for (size_t i = 0; i < 2; i++) {
        struct kvt__tier *tier = NULL;

        snprintf(url, sizeof url, "fs://%s/mode%zu", f->dir.path, i);
        assert_int_equal(try_open_for(url, true, modes[i].setting, 1, &tier), 0);
        assert_int_equal(put_bytes(tier, &f->c.object, 1000, 1), 0);
        tier->ops->close(tier);
        snprintf(path, sizeof path, "%s/.kvtier", url + 5);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, modes[i].dir);
        snprintf(path, sizeof path, "%s/%s", url + 5, FILE_NAME);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, modes[i].file);
    }
    umask(mask);
}

/* A directory with S_ISGID gives the group to all new files. */
static void
store_mode_keeps_the_group_of_the_directory(void **state)
{
    static const char *const dirs[] = { "kvtier", ".kvtier", ".kvtier/tmp" };
    struct fixture *f = *state;
    struct kvt__tier *tier = NULL;
    char url[512], path[1024];
    struct stat st;

    snprintf(url, sizeof url, "fs://%s/group", f->dir.path);
    assert_int_equal(mkdir(url + 5, 0770), 0);
    assert_int_equal(chmod(url + 5, 02770), 0);
    assert_int_equal(try_open_for(url, true, "store_mode=group", 1, &tier), 0);
    tier->ops->close(tier);
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        snprintf(path, sizeof path, "%s/%s", url + 5, dirs[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 02770);
    }
}

/* A new directory at this path is replaced by another user's link; "": none. */
static char replaced_by[600];

int __real_mkdirat(int dirfd, const char *path, mode_t mode);
int __wrap_mkdirat(int dirfd, const char *path, mode_t mode);

int
__wrap_mkdirat(int dirfd, const char *path, mode_t mode)
{
    int result = __real_mkdirat(dirfd, path, mode);

    if (*replaced_by && !strcmp(path, ".kvtier")) {
        assert_int_equal(unlinkat(dirfd, path, AT_REMOVEDIR), 0);
        assert_int_equal(symlinkat(replaced_by, dirfd, path), 0);
    }
    return result;
}

static void
a_link_in_place_of_a_new_directory_is_not_followed(void **state)
{
    struct fixture *f = *state;
    struct kvt__tier *tier = NULL;
    char url[512];
    struct stat st;

    snprintf(url, sizeof url, "fs://%s/all", f->dir.path);
    snprintf(replaced_by, sizeof replaced_by, "%s/mine", f->dir.path);
    assert_int_equal(mkdir(replaced_by, 0700), 0);
    assert_true(try_open_for(url, true, "store_mode=all", 1, &tier) < 0);
    assert_int_equal(stat(replaced_by, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    *replaced_by = '\0';
}

/* Kubernetes gives all directories of a volume to the group fsGroup at each mount. */
static void
a_private_directory_that_the_group_may_write_to_is_taken_back(void **state)
{
    struct fixture *f = *state;
    struct kvt__tier *tier = NULL;
    char url[512], path[600];
    struct kvt__found found;
    struct stat st;
    bool same;

    snprintf(url, sizeof url, "fs://%s", f->dir.path);
    snprintf(path, sizeof path, "%s/.kvtier", f->dir.path);
    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
    assert_int_equal(chmod(path, 02770), 0);
    assert_int_equal(try_open(url, true, &tier), 0);
    assert_int_equal(get_bytes(tier, &f->c.object, 1000, 1, &found, &same), 0);
    assert_true(same);
    tier->ops->close(tier);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 02700);
}

static void
a_private_directory_of_others_is_refused(void **state)
{
    struct fixture *f = *state;
    struct kvt__tier *tier = NULL;
    char url[512], path[600], kept[600];

    snprintf(url, sizeof url, "fs://%s", f->dir.path);
    snprintf(path, sizeof path, "%s/.kvtier", f->dir.path);
    snprintf(kept, sizeof kept, "%s/elsewhere", f->dir.path);
    assert_int_equal(chmod(path, 0777), 0);
    assert_int_equal(try_open(url, true, &tier), -EACCES);
    assert_int_equal(chmod(path, 0700), 0);
    if (!geteuid()) {
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_int_equal(try_open(url, true, &tier), -EACCES);
        assert_int_equal(chown(path, 0, 0), 0);
    }
    assert_int_equal(rename(path, kept), 0);
    assert_int_equal(symlink(kept, path), 0);
    assert_true(try_open(url, true, &tier) < 0);
}

/* Neither a large read, with O_DIRECT, nor a small read follows a link; the next put replaces the
 * link. */
static void
only_regular_files_are_chunks(void **state)
{
    static const size_t sizes[] = { 10, 300 << 10 };
    struct fixture *f = *state;
    struct kvt__found found;
    bool same;

    for (int kind = 0; kind < 3; kind++) {
        assert_int_equal(kind == 0   ? symlink("/etc/passwd", f->path)
                         : kind == 1 ? mkfifo(f->path, 0600)
                                     : mkdir(f->path, 0700), 0);
        assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), -ENOENT);
        for (int i = 0; i < 2; i++)
            assert_int_equal(get_bytes(f->tier, &f->c.object, sizes[i], 1, &found, &same),
                             -ENOENT);
        if (kind < 2)
            assert_int_equal(put_bytes(f->tier, &f->c.object, 10, 1), 0);
        assert_int_equal(kind < 2 ? unlink(f->path) : rmdir(f->path), 0);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        HEADER(files_are_private_to_the_user),
        HEADER(store_mode_lets_other_users_in),
        HEADER(store_mode_keeps_the_group_of_the_directory),
        HEADER(a_link_in_place_of_a_new_directory_is_not_followed),
        HEADER(a_private_directory_that_the_group_may_write_to_is_taken_back),
        HEADER(a_private_directory_of_others_is_refused),
        HEADER(only_regular_files_are_chunks),
    };

    return cmocka_run_group_tests_name("tier file access", tests, NULL, NULL);
}
