/* SPDX-License-Identifier: Apache-2.0
 *
 * Small limits of the process: an engine works under them, or says in a sentence
 * why not. */
#include <sys/resource.h>

#include "system/system-test.h"

/* Open, store, load and close.  Return 0, or the error of the open. */
static int
round_trip(const struct fixture *with)
{
    const struct opening opening = { 0 };
    struct fixture f = *with;
    int err = try_open(f.dir.path, &opening, &f.engine);

    if (err) {
        assert_true(strlen(kvt_last_error()) > 10);
        return err;
    }
    set_view(f.engine, 0, f.memory);
    write_chunks(&f, 0, 4);
    struct outcome got = load_prompt(&f);
    assert_true(got.loaded == got.promised);
    kvt_engine_close(f.engine);
    return got.loaded == 4 ? 0 : -EIO;
}

static void
limit(int what, rlim_t n)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(what, &limit), 0);
    limit.rlim_cur = n;
    assert_int_equal(setrlimit(what, &limit), 0);
}

static void
little_locked_memory_is_enough(void **state)
{
    struct fixture f;

    (void)state;
    fixture_init(&f);
    limit(RLIMIT_MEMLOCK, 64 << 10);
    assert_int_equal(round_trip(&f), 0);
    limit(RLIMIT_MEMLOCK, 0);
    assert_int_equal(round_trip(&f), 0);
    f.engine = NULL;
    fixture_fini(&f);
}

static void
few_descriptors_are_enough_or_an_error(void **state)
{
    struct rlimit before;
    struct fixture f;
    unsigned worked = 0;

    (void)state;
    fixture_init(&f);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (rlim_t n = 4; n <= 32; n++) {
        limit(RLIMIT_NOFILE, n);
        int err = round_trip(&f);
        if (err && err != -EMFILE && err != -EIO)
            fail_msg("%d descriptors: %d, %s", (int)n, err, kvt_last_error());
        if (!err)
            worked++;
        else
            assert_int_equal(worked, 0); /* more are never worse */
    }
    assert_true(worked > 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    f.engine = NULL;
    fixture_fini(&f);
}

static void
a_pool_larger_than_memory_is_refused_with_both_sizes(void **state)
{
    const char *const settings[] = { "max_local_cpu_size=1000000", NULL };
    struct opening opening = { .role = KVT_ROLE_WORKER, .settings = settings };
    struct fixture f;

    (void)state;
    fixture_init(&f);
    assert_int_equal(try_open(f.dir.path, &opening, &f.engine), -ENOMEM);
    assert_non_null(strstr(kvt_last_error(), "max_local_cpu_size"));
    assert_non_null(strstr(kvt_last_error(), "1024000000 MiB"));
    opening.role = KVT_ROLE_SCHEDULER; /* has no pool */
    assert_int_equal(try_open(f.dir.path, &opening, &f.engine), 0);
    fixture_fini(&f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(little_locked_memory_is_enough),
        cmocka_unit_test(few_descriptors_are_enough_or_an_error),
        cmocka_unit_test(a_pool_larger_than_memory_is_refused_with_both_sizes),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
