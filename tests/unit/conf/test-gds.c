/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings for GDS together: the newer switches and the older switches. */
#include "conf-test.h"

static void
switches_that_contradict_each_other_are_named_both(void **state)
{
    static const struct {
        const char *yaml, *variable[2], *why;
    } cases[] = {
        { "use_gds: false\nextra_config: {use_hipfile: true}\n", { NULL },
          "use_hipfile: true (file lmcache.yaml:2) contradicts use_gds: false (file "
          "lmcache.yaml:1): write one of them." },
        { "extra_config: {use_hipfile: true, use_cufile: true}\n", { NULL },
          "use_cufile: true (file lmcache.yaml:1) contradicts use_hipfile: true (file "
          "lmcache.yaml:1): write one of them." },
        { "gds_backend: hipfile\nextra_config: {use_cufile: true}\n", { NULL },
          "use_cufile: true (file lmcache.yaml:2) contradicts gds_backend: hipfile (file "
          "lmcache.yaml:1): write one of them." },
        { "gds_backend: mufile\nextra_config: {use_cufile: true}\n", { NULL },
          "use_cufile: true (file lmcache.yaml:2) contradicts gds_backend: mufile (file "
          "lmcache.yaml:1): write one of them." },
        { "gds_backend: cufile\nextra_config: {use_hipfile: true}\n", { NULL },
          "use_hipfile: true (file lmcache.yaml:2) contradicts gds_backend: cufile (file "
          "lmcache.yaml:1): write one of them." },
        { NULL, { "LMCACHE_USE_GDS=false", "LMCACHE_EXTRA_CONFIG={\"use_hipfile\": true}" },
          "use_hipfile: true (LMCACHE_EXTRA_CONFIG) contradicts use_gds: false "
          "(LMCACHE_USE_GDS): write one of them." },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        conf_refuses(cases[i].yaml, LIST(cases[i].variable[0], cases[i].variable[1]),
                     cases[i].why);
}

static void
not_cufile_but_hipfile_is_no_contradiction(void **state)
{
    struct kvt_config *c =
        conf_open("extra_config: {use_cufile: false, use_hipfile: true}\n", NOTHING);

    (void)state;
    assert_true(c->use_gds);
    assert_false(kvt__config_is_set(c, use_gds));
    assert_string_equal(c->gds_backend, "hipfile");
    kvt_config_free(c);
}

static void
a_higher_source_may_change_a_switch(void **state)
{
    struct kvt_config *c = conf_open("extra_config: {use_hipfile: true}\n",
                                     LIST("LMCACHE_USE_GDS=false"));

    (void)state;
    assert_false(c->use_gds);
    kvt_config_free(c);
    c = conf_open("gds_backend: cufile\n", LIST("LMCACHE_EXTRA_CONFIG={\"use_hipfile\": "
                                                "true}"));
    assert_string_equal(c->gds_backend, "hipfile");
    kvt_config_free(c);
}

static void
mufile_is_reported_as_unsupported(void **state)
{
    (void)state;
    conf_warns("gds_path: /kv\ngds_backend: mufile\n", NOTHING,
               "gds_backend is mufile (file lmcache.yaml:2): kvtier has no mover for MUSA; "
               "files are moved through host memory.\n");
    conf_warns("gds_backend: mufile\n", NOTHING, "");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(switches_that_contradict_each_other_are_named_both),
        cmocka_unit_test(not_cufile_but_hipfile_is_no_contradiction),
        cmocka_unit_test(a_higher_source_may_change_a_switch),
        cmocka_unit_test(mufile_is_reported_as_unsupported),
    };

    return cmocka_run_group_tests(tests, conf_setup, conf_teardown);
}
