/* SPDX-License-Identifier: Apache-2.0
 *
 * Find the mount of a path in tables of the test and in the kernel's table. */
#include "kvt-test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "usrbio/own.h"
#include "usrbio/usrbio.h"

/* Contains the directories a, "a/b c" and other, with 3fs-virt in each, and bare, without
 * 3fs-virt. */
static char root[64];
static struct kvt__mount_location place;

static void
make(const char *name)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static int
setup(void **state)
{
    static const char *const names[] = { "a", "a/3fs-virt", "a/b c", "a/b c/3fs-virt",
                                         "bare", "other", "other/3fs-virt" };

    (void)state;
    strcpy(root, "/tmp/kvtier-mounts-XXXXXX");
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        make(names[i]);
    return 0;
}

static int
teardown(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

/* Find a path in a table, in which $ stands for the root. */
static void
find(const char *table, const char *path, bool any_type)
{
    char text[4096], whole[512];
    size_t n = 0;

    for (; *table; table++) {
        if (*table == '$')
            n += (size_t)snprintf(text + n, sizeof text - n, "%s", root);
        else
            text[n++] = *table;
    }
    text[n] = '\0';
    snprintf(whole, sizeof whole, "%s%s", root, path);
    kvt__mount_find(text, whole, any_type, &place);
}

#define ROOT_FS "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
#define A "90 22 0:50 / $/a rw,nosuid - fuse.hf3fs hf3fs.c rw,user_id=0\n"
#define B "91 90 0:51 / $/a/b\\040c rw shared:7 master:2 - fuse.hf3fs hf3fs.d rw\n"
#define BARE "92 22 0:50 /sub $/bare rw - fuse.hf3fs hf3fs.c rw\n"
#define OTHER "93 22 0:60 / $/other rw - fuse.other x rw\n"

static void
check(const char *rings, const char *type)
{
    char want[512] = "";

    if (rings)
        snprintf(want, sizeof want, "%s%s", root, rings);
    assert_string_equal(place.rings_mount_point, want);
    assert_string_equal(place.type, type);
}

static void
the_longest_mount_around_a_path_counts(void **state)
{
    (void)state;
    find(ROOT_FS A B, "/a", false);
    check("/a", "fuse.hf3fs");
    find(ROOT_FS A B, "/a/x/y", false);
    check("/a", "fuse.hf3fs");
    find(ROOT_FS A B, "/a/b c/x", false);
    check("/a/b c", "fuse.hf3fs");
    find(ROOT_FS B A, "/a/b c/x", false);
    check("/a/b c", "fuse.hf3fs");
    find(ROOT_FS A B, "/a/b cd", false);
    check("/a", "fuse.hf3fs");
    find(ROOT_FS A B, "/ab", false);
    check(NULL, "ext4");
    find(ROOT_FS A B, "", false);
    check(NULL, "ext4");
}

static void
other_types_count_only_if_requested(void **state)
{
    (void)state;
    find(ROOT_FS OTHER, "/other/x", false);
    check(NULL, "fuse.other");
    find(ROOT_FS OTHER, "/other/x", true);
    check("/other", "fuse.other");
}

static void
a_mounted_part_of_a_3fs_has_no_rings(void **state)
{
    (void)state;
    find(ROOT_FS BARE, "/bare/x", false);
    check(NULL, "fuse.hf3fs");
    /* With 3fs-virt mounted in the part, the part has rings. */
    make("bare/3fs-virt");
    find(ROOT_FS BARE "94 92 0:50 /3fs-virt $/bare/3fs-virt rw - fuse.hf3fs hf3fs.c rw\n",
         "/bare/x", false);
    check("/bare", "fuse.hf3fs");
    /* Below another mount, the outer mount's rings count. */
    find(ROOT_FS A "95 90 0:52 / $/a/data rw - fuse.hf3fs hf3fs.c rw\n", "/a/data/x",
         false);
    check("/a", "fuse.hf3fs");
}

static void
a_mount_on_top_hides_the_mount_below(void **state)
{
    (void)state;
    find(ROOT_FS A "96 90 0:99 / $/a rw - tmpfs tmpfs rw\n", "/a/x", false);
    assert_string_equal(place.type, "tmpfs");
}

static void
malformed_lines_are_skipped(void **state)
{
    static const char *const lines[] = { "\n", " \n", "1 2 3\n", "1 2 0:1 / $/a rw\n",
                                         "1 2 0:1 / $/a rw -\n", "1 2 0:1 / $/a rw - \n",
                                         "1 2 0:1 / \\04 rw - fuse.hf3fs x\n" };
    char text[1024];

    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        snprintf(text, sizeof text, ROOT_FS "%s" A, lines[i]);
        find(text, "/a/x", false);
        check("/a", "fuse.hf3fs");
        snprintf(text, sizeof text, ROOT_FS "%.*s", (int)strlen(lines[i]) - 1, lines[i]);
        find(text, "/a/x", false);
        check(NULL, "ext4");
    }
    find("", "/a", true);
    check(NULL, "");
}

/* ------------------------------------------------------ the kernel's table */

static void
each_reason_has_a_message(void **state)
{
    char mount[KVT__HF3FS_MAX_MOUNT], path[256];

    (void)state;
    snprintf(path, sizeof path, "%s/none", root);
    assert_int_equal(kvt__usrbio_mount_of(path, mount), -ENOENT);
    assert_string_equal(kvt__why() + strlen(path), ": no such directory.");
    assert_int_equal(kvt__usrbio_mount_of("/proc/self", mount), -ENODEV);
    assert_string_equal(kvt__why(),
                        "/proc/self lies on a file system of another type (proc), not on "
                        "3FS: name a directory in a mount of 3FS (fuse.hf3fs), and "
                        "check that 3FS is mounted.");
}

static void
paths_elsewhere_have_no_mount_point(void **state)
{
    char mount[64] = "";

    (void)state;
    unsetenv("HF3FS_USRBIO_DONT_CHECKFS_FOR_MP");
    assert_int_equal(kvt__usrbio_own.extract_mount_point(mount, 64, NULL), -1);
    assert_int_equal(kvt__usrbio_own.extract_mount_point(mount, 64, "/none/at/all"), -1);
    assert_int_equal(kvt__usrbio_own.extract_mount_point(mount, 64, "/proc"), -1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_mount_around_a_path_counts),
        cmocka_unit_test(other_types_count_only_if_requested),
        cmocka_unit_test(a_mounted_part_of_a_3fs_has_no_rings),
        cmocka_unit_test(a_mount_on_top_hides_the_mount_below),
        cmocka_unit_test(malformed_lines_are_skipped),
        cmocka_unit_test(each_reason_has_a_message),
        cmocka_unit_test(paths_elsewhere_have_no_mount_point),
    };

    return cmocka_run_group_tests_name("usrbio mount", tests, setup, teardown);
}
