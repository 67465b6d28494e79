/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines with different encodings on one directory: exact engines never load the chunks of an
 * engine with lossy encodings. */
#include "system/system-test.h"

static const char *const exact[] = { "local_cpu=false", NULL };
static const char *const lossless[] = { "local_cpu=false", "remote_serde=lossless", NULL };
static const char *const kv8[] = { "local_cpu=false", "remote_serde=kv8", NULL };
static const char *const accepts_kv8[] = { "local_cpu=false", "accept_serde=kv8", NULL };

/* The bytes of the chunks are noise, which no codec makes smaller: so each byte can be compared,
 * and only the identities tell lossy chunks from exact chunks. */
static void
a_lossy_engine_loads_exact_chunks_and_not_the_reverse(void **state)
{
    struct fixture *f = *state;

    reopen(f, kv8);
    write_chunks(f, 0, 5);
    assert_int_equal(load_prompt(f).loaded, 5);
    reopen(f, kv8);
    assert_int_equal(load_prompt(f).loaded, 5);
    reopen(f, accepts_kv8);
    assert_int_equal(load_prompt(f).loaded, 5);
    reopen(f, exact);
    assert_int_equal(load_prompt(f).promised, 0);
    reopen(f, lossless);
    assert_int_equal(load_prompt(f).promised, 0);
    write_chunks(f, 0, 5);
    assert_int_equal(load_prompt(f).loaded, 5);
    reopen(f, exact);
    assert_int_equal(load_prompt(f).loaded, 5);
    reopen(f, kv8);
    assert_int_equal(load_prompt(f).loaded, 5);
}

static void
a_changed_setting_keeps_the_naive_chunks(void **state)
{
    struct fixture *f = *state;

    reopen(f, exact);
    write_chunks(f, 0, 5);
    reopen(f, lossless);
    assert_int_equal(load_prompt(f).loaded, 5);
    write_chunks(f, 5, 3);
    assert_int_equal(load_prompt(f).loaded, 8);
    assert_int_equal(counter(f, "store_chunks"), 3);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_lossy_engine_loads_exact_chunks_and_not_the_reverse,
                                        fixture_setup_open, fixture_teardown),
        cmocka_unit_test_setup_teardown(a_changed_setting_keeps_the_naive_chunks,
                                        fixture_setup_open, fixture_teardown),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
