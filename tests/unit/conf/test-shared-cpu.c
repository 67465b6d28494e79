/* SPDX-License-Identifier: Apache-2.0
 *
 * The settings of shared host memory together. */
#include "conf-test.h"

static void
shared_memory_is_off_by_default(void **state)
{
    struct kvt_config *c = conf_open("", NOTHING);

    (void)state;
    assert_false(c->shared_cpu);
    assert_int_equal(c->shared_cpu_ttl, 0);
    kvt_config_free(c);
}

static void
a_size_enables_shared_memory(void **state)
{
    struct kvt_config *c = conf_open("max_shared_cpu_size: 20\n", NOTHING);

    (void)state;
    assert_true(c->shared_cpu);
    assert_float_equal(c->max_shared_cpu_size, 20, 0);
    assert_string_equal(kvt__config_origin(c, shared_cpu), "file lmcache.yaml:1");
    kvt_config_free(c);
    c = conf_open("max_shared_cpu_size: 20\n", LIST("KVTIER_SHARED_CPU=true"));
    assert_true(c->shared_cpu);
    assert_string_equal(kvt__config_origin(c, shared_cpu), "KVTIER_SHARED_CPU");
    kvt_config_free(c);
}

static void
the_default_size_is_max_local_cpu_size(void **state)
{
    struct kvt_config *c = conf_open("shared_cpu: true\n", NOTHING);

    (void)state;
    assert_float_equal(c->max_shared_cpu_size, 5, 0);
    assert_string_equal(kvt__config_origin(c, max_shared_cpu_size),
                        "max_local_cpu_size, default");
    kvt_config_free(c);
    c = conf_open("max_local_cpu_size: 7\n",
                  LIST("LMCACHE_SHARED_CPU=1", "LMCACHE_MAX_SHARED_CPU_SIZE=0"));
    assert_true(c->shared_cpu);
    assert_float_equal(c->max_shared_cpu_size, 7, 0);
    assert_string_equal(kvt__config_origin(c, max_shared_cpu_size),
                        "max_local_cpu_size, file lmcache.yaml:1");
    kvt_config_free(c);
}

static void
all_sources_have_the_keys(void **state)
{
    struct kvt_config *c = conf_open(
        "extra_config: {max_shared_cpu_size: 2, shared_cpu_ttl: 60}\n",
        LIST("LMCACHE_SHARED_CPU_TTL=3600", "LMCACHE_MAX_SHARED_CPU_SIZE=0.0625"));

    (void)state;
    assert_true(c->shared_cpu);
    /* extra_config of the file is older than the variables. */
    assert_float_equal(c->max_shared_cpu_size, 0.0625, 0);
    assert_int_equal(c->shared_cpu_ttl, 3600);
    kvt_config_free(c);
}

static void
settings_without_effect_are_named(void **state)
{
    (void)state;
    conf_warns("shared_cpu: false\nmax_shared_cpu_size: 20\n", NOTHING,
               "max_shared_cpu_size (file lmcache.yaml:2) has no effect: shared_cpu is "
               "false (file lmcache.yaml:1).\n");
    conf_warns("shared_cpu_ttl: 60\n", NOTHING,
               "shared_cpu_ttl (file lmcache.yaml:1) has no effect: shared_cpu is false.\n");
    conf_warns("shared_cpu: true\nmax_shared_cpu_size: 20\nshared_cpu_ttl: 60\n",
               LIST("LMCACHE_SHARED_CPU=false"),
               "max_shared_cpu_size (file lmcache.yaml:2) has no effect: shared_cpu is "
               "false (LMCACHE_SHARED_CPU).\n"
               "shared_cpu_ttl (file lmcache.yaml:3) has no effect: shared_cpu is false "
               "(LMCACHE_SHARED_CPU).\n");
    conf_warns("shared_cpu: false\nshared_cpu_ttl: 0\n", NOTHING, "");
}

static void
wrong_sizes_are_refused(void **state)
{
    (void)state;
    conf_refuses("max_shared_cpu_size: -1\n", NOTHING,
                 "max_shared_cpu_size is '-1' (file lmcache.yaml:1): use a number from 0 to "
                 "16384 GiB.");
    conf_refuses("max_shared_cpu_size: 16385\n", NOTHING,
                 "max_shared_cpu_size is '16385' (file lmcache.yaml:1): use a number from 0 to "
                 "16384 GiB.");
    conf_refuses("shared_cpu: true\nmax_local_cpu_size: 100000\n", NOTHING,
                 "max_local_cpu_size is 100000 GiB (file lmcache.yaml:2), and shared host "
                 "memory has at most 16384 GiB: set max_shared_cpu_size to at most 16384.");
    conf_refuses("shared_cpu_ttl: -1\n", NOTHING,
                 "shared_cpu_ttl is '-1' (file lmcache.yaml:1): use a whole number from 0 to "
                 "1000000000 s.");
    conf_refuses("max_shared_cpu_size: 0.05\n", NOTHING,
                 "max_shared_cpu_size is 0.05 GiB (file lmcache.yaml:1), and shared host "
                 "memory needs at least 0.0625 GiB (64 MiB): set max_shared_cpu_size to at "
                 "least 0.0625.");
    conf_refuses("shared_cpu: true\nmax_local_cpu_size: 0.01\n", NOTHING,
                 "max_local_cpu_size is 0.01 GiB (file lmcache.yaml:2), and shared host "
                 "memory needs at least 0.0625 GiB (64 MiB): set max_shared_cpu_size to at "
                 "least 0.0625.");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_memory_is_off_by_default),
        cmocka_unit_test(a_size_enables_shared_memory),
        cmocka_unit_test(the_default_size_is_max_local_cpu_size),
        cmocka_unit_test(all_sources_have_the_keys),
        cmocka_unit_test(settings_without_effect_are_named),
        cmocka_unit_test(wrong_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, conf_setup, conf_teardown);
}
