/* SPDX-License-Identifier: Apache-2.0
 *
 * Permissions, files and directories are removed while an engine is open, and directories
 * that cannot be used at all.  Root ignores permissions, so the program continues as nobody. */
#include <grp.h>

#include "files.h"
#include "system/system-test.h"

#define NOBODY 65534

static int
setup(void **state)
{
    static struct fixture f;

    fixture_init(&f);
    fixture_open(&f, NULL);
    write_chunks(&f, 0, 5);
    assert_int_equal(counter(&f, "store_chunks"), 5);
    *state = &f;
    return 0;
}

static void
change_mode(const struct fixture *f, const char *below, mode_t mode)
{
    char path[300];

    snprintf(path, sizeof path, "%s/%s", f->dir.path, below);
    if (chmod(path, mode) < 0)
        fail_msg("chmod %s: %s", path, strerror(errno));
}

/* Stores fail, loads go on; afterwards stores work again. */
static void
lose_writing(const struct fixture *f, const char *below)
{
    change_mode(f, below, 0555);
    write_chunks(f, 5, 5);
    assert_int_equal(counter(f, "store_failed"), 5);
    assert_int_equal(load_prompt(f).loaded, 5);
    change_mode(f, below, 0755);
    assert_int_equal(n_temporary_files(f), 0);
    write_chunks(f, 5, 5);
    assert_int_equal(load_prompt(f).loaded, 10);
}

static void
loads_continue_if_files_cannot_be_created(void **state)
{
    lose_writing(*state, ".kvtier/tmp");
}

static void
loads_continue_if_files_cannot_be_renamed(void **state)
{
    lose_writing(*state, "kvtier");
}

static void
files_that_cannot_be_opened_are_not_loaded(void **state)
{
    struct fixture *f = *state;

    change_mode(f, "kvtier", 0);
    struct outcome got = load_prompt(f);
    assert_int_equal(got.promised, 5);
    assert_int_equal(got.loaded, 0);
    change_mode(f, "kvtier", 0755);
    assert_int_equal(load_prompt(f).loaded, 5);
}

/* The chunks are misses at once.  Puts fail until the tier has made the directory again and opened
 * its index there: a thread of the store does that at any time. */
static void
a_removed_directory_is_made_again(void **state)
{
    struct fixture *f = *state;
    uint32_t loaded = 0;

    temp_dir_remove(&f->dir);
    assert_int_equal(load_prompt(f).promised, 0); /* the index was in the directory */
    set_tokens(f, 1);
    for (int i = 0; i < 3000 && loaded < 5; i++) {
        write_chunks(f, 0, 5);
        loaded = load_prompt(f).loaded;
        usleep(10000);
    }
    assert_int_equal(loaded, 5);
}

/* Assert that opening an engine on a directory fails with `err`. */
static void
expect_refusal(const char *dir, int err)
{
    const struct opening opening = { 0 };
    struct kvt_engine *engine;

    assert_int_equal(try_open(dir, &opening, &engine), err);
    assert_null(engine);
    if (!strstr(kvt_last_error(), dir) || !strstr(kvt_last_error(), "remote_url"))
        fail_msg("%s", kvt_last_error());
}

static void
a_directory_that_cannot_be_used_is_named(void **state)
{
    struct fixture *f = *state;
    char path[300];

    snprintf(path, sizeof path, "%s/file", f->dir.path);
    write_file(path, "", 0);
    expect_refusal(path, -ENOTDIR);
    snprintf(path, sizeof path, "%s/file/below", f->dir.path);
    expect_refusal(path, -ENOTDIR);
    snprintf(path, sizeof path, "%s/closed", f->dir.path);
    assert_int_equal(mkdir(path, 0), 0);
    expect_refusal(path, -EACCES);
    assert_int_equal(chmod(path, 0555), 0);
    expect_refusal(path, -EACCES);
    snprintf(path, sizeof path, "%s/closed/below", f->dir.path);
    expect_refusal(path, -EACCES);
}

static bool
become_nobody(void)
{
    return geteuid() || (!setgroups(0, NULL) && !setresgid(NOBODY, NOBODY, NOBODY) &&
                         !setresuid(NOBODY, NOBODY, NOBODY));
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(loads_continue_if_files_cannot_be_created),
        T(loads_continue_if_files_cannot_be_renamed),
        T(files_that_cannot_be_opened_are_not_loaded),
        T(a_removed_directory_is_made_again),
        T(a_directory_that_cannot_be_used_is_named),
    };

    if (!become_nobody()) {
        printf("skipped: cannot give up root (%s)\n", strerror(errno));
        return SKIPPED;
    }
    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
