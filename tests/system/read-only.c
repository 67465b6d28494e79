/* SPDX-License-Identifier: Apache-2.0
 *
 * A store on a file system that is mounted read-only serves what it holds. */
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
    kvt_set_log(hear, &heard, KVT_LOG_WARN);
    fixture_open(&f, NULL);
    assert_int_equal(heard.n, 1);
    assert_int_equal(load_prompt(&f).loaded, 6);
    write_chunks(&f, 6, 4);
    assert_int_equal(counter(&f, "store_failed"), 4);
    assert_int_equal(load_prompt(&f).loaded, 6);
    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    fixture_unmount(&f);
}

static void
an_empty_read_only_directory_is_refused_with_its_name(void **state)
{
    struct kvt_engine_params params = KVT_INIT(struct kvt_engine_params);
    struct kvt_model model = KVT_INIT(struct kvt_model);
    struct kvt_group group = opaque_group();
    struct kvt_engine *engine = NULL;
    struct fixture f;

    (void)state;
    fixture_mount(&f, 8192);
    if (mount(NULL, f.dir.path, NULL, MS_REMOUNT | MS_RDONLY, NULL) < 0)
        fail_msg("remount: %s", strerror(errno));
    model.name = "test/model";
    model.kv_dtype = "bfloat16";
    model.world_size = 1;
    params.config = open_config(f.dir.path, NULL);
    params.role = KVT_ROLE_BOTH;
    params.n_groups = 1;
    params.groups = &group;
    params.model = &model;
    assert_int_equal(kvt_engine_open(&params, &engine), -EROFS);
    assert_null(engine);
    assert_non_null(strstr(kvt_last_error(), f.dir.path));
    kvt_config_free((struct kvt_config *)params.config);
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
