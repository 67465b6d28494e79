/* SPDX-License-Identifier: Apache-2.0
 *
 * The directories of a URL: the directory of a chunk, other files in the directories, a failed
 * open. */
#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>

#include "fs-test.h"
#include "tier/layout/layout.h"

static void
no_temporary_file_stays(void **state)
{
    struct fixture *f = *state;
    struct dirent *e;
    char path[512];
    size_t n = 0;

    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
    f->c.object.key = "x@1@0@1@bfloat16";
    snprintf(path, sizeof path, "%s/x@1@0@1@bfloat16.data", f->dir.path);
    assert_int_equal(mkdir(path, 0700), 0); /* rename over it must fail */
    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), -EISDIR);
    snprintf(path, sizeof path, "%s/.kvtier/tmp", f->dir.path);
    DIR *d = opendir(path);
    assert_non_null(d);
    while ((e = readdir(d)))
        n += e->d_name[0] != '.';
    closedir(d);
    assert_int_equal(n, 0);
}

static void
list_skips_files_that_are_no_chunks(void **state)
{
    static const char *const others[] = { "x.tmp", "README", ".data", "index",
                                          ".kvtier/tmp/a@1@0@1@half.data",
                                          ".kvtier/b@1@0@1@half.data" };
    struct fixture *f = *state;
    char path[512];

    write_others(f, others, sizeof others / sizeof *others);
    snprintf(path, sizeof path, "%s/c@1@0@1@half.data", f->dir.path);
    assert_int_equal(symlink("README", path), 0);
    snprintf(path, sizeof path, "%s/d@1@0@1@half.data", f->dir.path);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_only_listed(f, f->c.key);
}

static void
keys_spread_by_the_magnitude_of_their_hash(void **state)
{
    static const int64_t hashes[] = { 0, 1, 2, 3, -1, -2, -3, INT64_MAX, INT64_MIN };
    static const unsigned dirs[] = { 0, 1, 2, 0, 1, 2, 0, 1, 2 };
    struct temp_dir dir;
    char url[1024], path[1024], name[NAME_MAX + 1];

    (void)state;
    temp_dir_make(&dir);
    snprintf(url, sizeof url, "fs://%1$s/0 , %1$s/1,%1$s/2", dir.path);
    struct kvt__tier *tier = open_tier(url, true);
    for (size_t i = 0; i < sizeof hashes / sizeof *hashes; i++) {
        struct chunk c;

        chunk_init(&c, "m", hashes[i]);
        assert_int_equal(put_bytes(tier, &c.object, 10, i), 0);
        assert_int_equal(kvt__layout_name(&kvt__layout_fs, c.key, NULL, name,
                                          sizeof name), 0);
        snprintf(path, sizeof path, "%s/%u/%s", dir.path, dirs[i], name);
        assert_int_equal(access(path, R_OK), 0);
    }
    tier->ops->close(tier);
    temp_dir_remove(&dir);
}

static void
missing_directories_are_made(void **state)
{
    struct temp_dir dir;
    char url[512], path[512];
    struct stat st;

    (void)state;
    temp_dir_make(&dir);
    snprintf(url, sizeof url, "fs://host:0%s/a/b//c", dir.path);
    struct kvt__tier *tier = open_tier(url, true);
    snprintf(path, sizeof path, "%s/a/b/c/.kvtier/tmp", dir.path);
    assert_int_equal(stat(path, &st), 0);
    assert_true(tier->ops->private_dir(tier) >= 0);
    assert_true(tier->default_limit > 0);
    tier->ops->close(tier);
    temp_dir_remove(&dir);
}

/* Put a chunk of each of three directories, and read the chunk. */
static void
expect_all_usable(struct kvt__tier *tier, bool opaque)
{
    struct kvt__found found;

    for (uint32_t i = 0; i < 3; i++) {
        struct chunk c;

        chunk_init(&c, "m", i);
        c.object.rank = i;
        c.object.opaque = opaque;
        assert_int_equal(put_bytes(tier, &c.object, 100, i), 0);
        assert_int_equal(kvt__tier_probe(tier, &c.object, &found), 0);
    }
}

/* A user deletes a directory, or the files in a directory without the hidden ones. */
static void
a_deleted_directory_is_made_again(void **state)
{
    static const char *const schemes[] = { "fs", "local_disk", "gds" };
    static const char *const deleted[] = { "a", "b", "c", "b/kvtier", "c/.kvtier/tmp" };
    struct kvt__tier *tier = NULL;
    char url[1024], command[600];
    struct temp_dir dir;

    (void)state;
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        temp_dir_make(&dir);
        snprintf(url, sizeof url, "%1$s://%2$s/a,%2$s/b,%2$s/c", schemes[i], dir.path);
        assert_int_equal(try_open_for(url, true, NULL, 3, &tier), 0);
        for (size_t j = 0; j < sizeof deleted / sizeof *deleted; j++) {
            snprintf(command, sizeof command, "rm -r '%s/%s'", dir.path, deleted[j]);
            assert_int_equal(system(command), 0);
            expect_all_usable(tier, j % 2);
            expect_all_usable(tier, !(j % 2));
        }
        tier->ops->close(tier);
        temp_dir_remove(&dir);
    }
}

/* Several workers may share a directory: LMCache gives GPU i the directory i. */
static void
several_paths_may_lead_to_one_directory(void **state)
{
    static const char *const schemes[] = { "fs", "local_disk", "gds" };
    struct kvt__found found;
    char url[2048], link[512];
    struct temp_dir dir;
    struct chunk c;

    (void)state;
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        struct kvt__tier *tier = NULL;
        struct names names = { 0 };

        temp_dir_make(&dir);
        snprintf(link, sizeof link, "%s/link", dir.path);
        assert_int_equal(symlink("b", link), 0);
        snprintf(url, sizeof url, "%1$s://%2$s/a,%2$s/a,%2$s/b,%2$s/link", schemes[i], dir.path);
        assert_int_equal(try_open_for(url, true, NULL, 4, &tier), 0);
        for (uint32_t k = 0; k < 4; k++) {
            chunk_init(&c, "m", k);
            c.object.rank = k;
            assert_int_equal(put_bytes(tier, &c.object, 100, k), 0);
            assert_int_equal(kvt__tier_probe(tier, &c.object, &found), 0);
        }
        assert_int_equal(tier->ops->list(tier, "", take_name, &names), 0);
        assert_int_equal(names.n, 4);
        assert_int_equal(names.bytes, found.stored_bytes);
        assert_true(found.stored_bytes <= tier->ops->stored_bytes(tier, &c.object, 100));
        assert_int_equal(kvt__tier_remove(tier, &c.object), 0);
        assert_int_equal(kvt__tier_probe(tier, &c.object, &found), -ENOENT);
        tier->ops->close(tier);
        temp_dir_remove(&dir);
    }
}

/* The kernel makes a file system read-only after an error of the disk.  Chunks in the other
 * directory can be removed, and evicted. */
static void
a_read_only_directory_keeps_only_its_own_chunks(void **state)
{
    static const char *const schemes[] = { "fs", "gds" };
    struct temp_dir dir;
    char url[1024], b[512];
    struct chunk c[2];

    (void)state;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        skip();
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        struct kvt__tier *tier = NULL;

        temp_dir_make(&dir);
        snprintf(b, sizeof b, "%s/b", dir.path);
        assert_int_equal(mkdir(b, 0700), 0);
        assert_int_equal(mount("kvtier-test", b, "tmpfs", 0, "size=1m"), 0);
        snprintf(url, sizeof url, "%1$s://%2$s/a,%2$s/b", schemes[i], dir.path);
        assert_int_equal(try_open_for(url, true, NULL, 2, &tier), 0);
        for (uint32_t rank = 0; rank < 2; rank++) {
            chunk_init(&c[rank], "m", rank);
            c[rank].object.rank = rank;
            assert_int_equal(put_bytes(tier, &c[rank].object, 100, 1), 0);
        }
        assert_int_equal(mount(NULL, b, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
        assert_int_equal(kvt__tier_remove(tier, &c[0].object), 0);
        assert_int_equal(kvt__tier_remove(tier, &c[0].object), -ENOENT);
        assert_int_equal(kvt__tier_remove(tier, &c[1].object), -EROFS);
        tier->ops->close(tier);
        assert_int_equal(umount2(b, MNT_DETACH), 0);
        temp_dir_remove(&dir);
    }
}

/* A relative path is not opened again, because the working directory may have changed. */
static void
a_deleted_directory_with_a_relative_path_stays_deleted(void **state)
{
    struct kvt__tier *tier = NULL;
    char here[512], command[600];
    struct temp_dir dir;
    struct chunk c;

    (void)state;
    temp_dir_make(&dir);
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(dir.path), 0);
    assert_int_equal(try_open("local_disk://a", true, &tier), 0);
    snprintf(command, sizeof command, "rm -r '%s/a' && mkdir '%s/b'", dir.path, dir.path);
    assert_int_equal(system(command), 0);
    assert_int_equal(chdir("b"), 0);
    chunk_init(&c, "m", 1);
    assert_int_equal(put_bytes(tier, &c.object, 100, 1), -ENOENT);
    assert_int_equal(access("a", F_OK), -1);
    assert_int_equal(chdir(here), 0);
    tier->ops->close(tier);
    temp_dir_remove(&dir);
}

static void
a_failed_open_names_setting_and_path(void **state)
{
    struct temp_dir dir;
    struct kvt__tier *tier = NULL;
    char file[512], url[1024], many[4096] = "fs://";

    (void)state;
    temp_dir_make(&dir);
    snprintf(file, sizeof file, "%s/file", dir.path);
    write_file(file, "x", 1);

    assert_int_equal(try_open("fs://relative", true, &tier), -EINVAL);
    assert_non_null(strstr(kvt__why(), "remote_url: "));
    assert_non_null(strstr(kvt__why(), "no absolute path"));
    snprintf(url, sizeof url, "fs://%s/a,b/c", dir.path);
    assert_int_equal(try_open(url, true, &tier), -EINVAL);
    assert_non_null(strstr(kvt__why(), "remote_url: 'b/c' is no absolute path"));

    snprintf(url, sizeof url, "fs://%s", file);
    assert_int_equal(try_open(url, true, &tier), -ENOTDIR);
    assert_non_null(strstr(kvt__why(), "remote_url: "));
    assert_non_null(strstr(kvt__why(), file));

    snprintf(url, sizeof url, "fs://%s/below", file);
    assert_int_equal(try_open(url, true, &tier), -ENOTDIR);
    assert_non_null(strstr(kvt__why(), "remote_url: make directory"));

    for (size_t i = 0; i < 65; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "%s%s/a",
                 i ? "," : "", dir.path);
    assert_int_equal(try_open(many, true, &tier), -EINVAL);
    assert_non_null(strstr(kvt__why(), "more than 64 directories"));
    assert_null(tier);
    temp_dir_remove(&dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        HEADER(no_temporary_file_stays),
        HEADER(list_skips_files_that_are_no_chunks),
        cmocka_unit_test(keys_spread_by_the_magnitude_of_their_hash),
        cmocka_unit_test(missing_directories_are_made),
        cmocka_unit_test(a_deleted_directory_is_made_again),
        cmocka_unit_test(several_paths_may_lead_to_one_directory),
        cmocka_unit_test(a_read_only_directory_keeps_only_its_own_chunks),
        cmocka_unit_test(a_deleted_directory_with_a_relative_path_stays_deleted),
        cmocka_unit_test(a_failed_open_names_setting_and_path),
    };

    return cmocka_run_group_tests_name("tier file directories", tests, NULL, NULL);
}
