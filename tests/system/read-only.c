/* SPDX-License-Identifier: Apache-2.0
 *
 * A store on a read-only mount serves the chunks of the file system. */
#include "system/mount-test.h"

static void
a_read_only_store_serves_loads_and_refuses_stores(void **state)
{
    struct heard heard = { .text = "no shared index" };
    struct fixture f;

    (void)state;
    fixture_mount(&f, 8192);
    fixture_open(&f, NULL);
    write_chunks(&f, 0, 6);
    kvt_engine_close(f.engine);
    f.engine = NULL;
    if (mount(NULL, f.dir.path, NULL, MS_REMOUNT | MS_RDONLY, NULL) < 0)
        fail_msg("remount: %s", strerror(errno));
    kvt_set_log(count_line, &heard, KVT_LOG_WARN);
    fixture_open(&f, NULL);
    assert_int_equal(heard.n, 1);
    assert_int_equal(load_prompt(&f).loaded, 6);
    write_chunks(&f, 6, 4);
    assert_int_equal(counter(&f, "store_failed"), 4);
    assert_int_equal(load_prompt(&f).loaded, 6);
    kvt_engine_close(f.engine);
    f.engine = NULL;
    heard = (struct heard){ .text = "the limit of fs:///" };
    fixture_open(&f, NULL);
    assert_int_equal(heard.n, 1);
    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    fixture_unmount(&f);
}

static void
an_empty_read_only_directory_is_refused_with_its_name(void **state)
{
    const struct opening opening = { 0 };
    struct fixture f;

    (void)state;
    fixture_mount(&f, 8192);
    if (mount(NULL, f.dir.path, NULL, MS_REMOUNT | MS_RDONLY, NULL) < 0)
        fail_msg("remount: %s", strerror(errno));
    assert_int_equal(try_open(f.dir.path, &opening, &f.engine), -EROFS);
    assert_null(f.engine);
    assert_non_null(strstr(kvt_last_error(), f.dir.path));
    fixture_unmount(&f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_read_only_store_serves_loads_and_refuses_stores),
        cmocka_unit_test(an_empty_read_only_directory_is_refused_with_its_name),
    };

    if (!may_mount())
        return SKIPPED;
    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
