/* SPDX-License-Identifier: Apache-2.0
 *
 * The user's directory in a directory shared by all users, after other users took the
 * directory's names. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvt-test.h"
#include "temp-dir.h"

#include "base/error.h"
#include "base/private-dir.h"

/* Path number i of the user's names. */
static const char *
nth(const struct temp_dir *dir, unsigned i)
{
    static char path[512];
    int n = snprintf(path, sizeof path, "%s/kvtier-%lu", dir->path,
                     (unsigned long)geteuid());

    if (i)
        snprintf(path + n, sizeof path - (size_t)n, "-%u", i);
    return path;
}

static bool
is_nth(int fd, const struct temp_dir *dir, unsigned i)
{
    struct stat a, b;

    return !fstat(fd, &a) && !lstat(nth(dir, i), &b) && a.st_ino == b.st_ino &&
           S_ISDIR(b.st_mode) && (b.st_mode & 07777) == 0700;
}

static void
opens_as(const struct temp_dir *dir, unsigned i)
{
    int fd = kvt__private_dir_open(dir->path);

    if (fd < 0)
        fail_msg("%s", kvt__why());
    assert_true(is_nth(fd, dir, i));
    close(fd);
}

static void
the_usual_name_is_made_and_found(void **state)
{
    opens_as(*state, 0);
    opens_as(*state, 0);
    assert_int_equal(chmod(nth(*state, 0), 0755), 0); /* not writable by other users */
    opens_as(*state, 0);
}

static void
a_foreign_name_is_replaced_and_stays_replaced(void **state)
{
    const struct temp_dir *dir = *state;

    assert_int_equal(mkdir(nth(dir, 0), 0700), 0);
    if (geteuid() || chown(nth(dir, 0), 65534, 65534))
        assert_int_equal(chmod(nth(dir, 0), 0777), 0);
    opens_as(dir, 1);
    opens_as(dir, 1);
    assert_int_equal(rmdir(nth(dir, 0)), 0); /* the owner removes the directory */
    opens_as(dir, 1);
}

static void
a_link_is_not_followed(void **state)
{
    const struct temp_dir *dir = *state;
    char target[512];

    snprintf(target, sizeof target, "%s/target", dir->path);
    assert_int_equal(mkdir(target, 0700), 0);
    assert_int_equal(symlink(target, nth(dir, 0)), 0);
    int fd = kvt__private_dir_open_for(dir->path, "x", 1);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(rmdir(target), 0); /* nothing was put there */
    opens_as(dir, 1);
}

static void
only_foreign_names_are_an_error(void **state)
{
    const struct temp_dir *dir = *state;

    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(symlink("nowhere", nth(dir, i)), 0);
    assert_int_equal(kvt__private_dir_open(dir->path), -EACCES);
    assert_non_null(strstr(kvt__why(), nth(dir, 0)));
    assert_non_null(strstr(kvt__why(), "remove them"));
}

static void
a_removed_subdirectory_is_opened_again_under_the_same_descriptor(void **state)
{
    const struct temp_dir *dir = *state;
    int fd = kvt__private_dir_open_for(dir->path, "x", 1);
    char link[64], path[512] = "";
    struct stat before, after;

    assert_int_equal(fstat(fd, &before), 0);
    kvt__private_dir_renew_for(fd, dir->path, "x", 1); /* no effect */
    assert_int_equal(fstat(fd, &after), 0);
    assert_int_equal(after.st_ino, before.st_ino);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    assert_true(readlink(link, path, sizeof path - 1) > 0);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(nth(dir, 0)), 0);
    kvt__private_dir_renew_for(fd, dir->path, "x", 1);
    assert_int_equal(fstat(fd, &after), 0);
    assert_true(after.st_nlink > 0);
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(after.st_ino, before.st_ino);
    close(fd);
    kvt__private_dir_renew_for(-1, dir->path, "x", 1);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, temp_dir_setup, temp_dir_teardown)

/* Other users can put files into the directory. */
static void
a_directory_that_others_may_write_to_is_left_alone(void **state)
{
    const struct temp_dir *dir = *state;
    struct stat open_to_all, st;

    assert_int_equal(mkdir(nth(dir, 0), 0700), 0);
    assert_int_equal(chmod(nth(dir, 0), 0777), 0);
    int fd = kvt__private_dir_open(dir->path);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(stat(nth(dir, 0), &open_to_all), 0);
    assert_true(st.st_ino != open_to_all.st_ino);
    assert_int_equal(open_to_all.st_mode & 0777, 0777);
    close(fd);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_directory_that_others_may_write_to_is_left_alone),
        TEST(the_usual_name_is_made_and_found),
        TEST(a_foreign_name_is_replaced_and_stays_replaced),
        TEST(a_link_is_not_followed),
        TEST(a_removed_subdirectory_is_opened_again_under_the_same_descriptor),
        TEST(only_foreign_names_are_an_error),
    };

    return cmocka_run_group_tests_name("base private dir", tests, NULL, NULL);
}
