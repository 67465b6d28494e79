/* SPDX-License-Identifier: Apache-2.0
 *
 * The precedence of sources, and the origin of each value. */
#include "conf-test.h"

#include <errno.h>
#include <locale.h>

static void
nothing_given_is_the_defaults(void **state)
{
    struct kvt_config *c = conf_open(NULL, NOTHING);

    (void)state;
    assert_int_equal(c->chunk_size, 256);
    assert_true(c->local_cpu);
    assert_float_equal(c->max_local_cpu_size, 5, 0);
    assert_null(c->remote_url);
    assert_string_equal(c->remote_serde, "naive");
    assert_null(c->hash_seed);
    assert_string_equal(c->cache_policy, "LRU");
    assert_int_equal(c->blocking_timeout_secs, 10);
    assert_int_equal(c->remote_storage_plugins.n, 0);
    assert_true(c->save_chunk_meta);
    assert_string_equal(c->blend_special_str, " # # ");
    assert_string_equal(kvt__config_origin(c, chunk_size), "default");
    assert_false(kvt__config_is_set(c, chunk_size));
    assert_string_equal(conf_log.text, "");
    kvt_config_free(c);
}

/* Each source in turn is the last that sets chunk_size. */
static void
a_later_source_wins_and_is_the_origin(void **state)
{
    static const struct {
        const char *yaml, *lmcache, *kvtier, *connector, *setting, *origin;
    } cases[] = {
        { "chunk_size: 17\n", NULL, NULL, NULL, NULL, "file lmcache.yaml:1" },
        { "chunk_size: 1", "LMCACHE_CHUNK_SIZE=17", NULL, NULL, NULL,
          "LMCACHE_CHUNK_SIZE" },
        { "chunk_size: 1", "LMCACHE_CHUNK_SIZE=2", "KVTIER_CHUNK_SIZE=17", NULL, NULL,
          "KVTIER_CHUNK_SIZE" },
        { "chunk_size: 1", "LMCACHE_CHUNK_SIZE=2", "KVTIER_CHUNK_SIZE=3",
          "{\"lmcache.chunk_size\": 17}", NULL, "kv_connector_extra_config" },
        { "chunk_size: 1", "LMCACHE_CHUNK_SIZE=2", "KVTIER_CHUNK_SIZE=3",
          "{\"lmcache.chunk_size\": 4}", "chunk_size=17", "argument" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *environment[] = { cases[i].kvtier ? cases[i].kvtier : "A=b",
                                      cases[i].lmcache ? cases[i].lmcache : "A=b", NULL };
        const char *settings[] = { cases[i].setting, NULL };
        struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);

        sources.file = conf_file(cases[i].yaml);
        sources.environment = environment;
        sources.connector_json = cases[i].connector;
        sources.settings = settings;
        struct kvt_config *c = conf_open_all(&sources);
        assert_int_equal(c->chunk_size, 17);
        assert_string_equal(kvt__config_origin(c, chunk_size), cases[i].origin);
        assert_true(kvt__config_is_set(c, chunk_size));
        kvt_config_free(c);
    }
}

static void
an_environment_is_copied_unless_it_is_the_process_environment(void **state)
{
    char text[] = "https_proxy=http://a:1";
    struct kvt_config *c = conf_open(NULL, LIST("B=", text, "https_proxy=no"));

    (void)state;
    memset(text, 'x', sizeof text - 1);
    assert_string_equal(kvt__variable(c->environment, "https_proxy"), "http://a:1");
    assert_string_equal(kvt__variable(c->environment, "B"), "");
    assert_null(kvt__variable(c->environment, "https"));
    assert_null(kvt__variable(c->environment, "PATH"));
    kvt_config_free(c);
    c = conf_open(NULL, NULL);
    assert_int_equal(setenv("KVT_TEST_VARIABLE", "1", 1), 0);
    assert_string_equal(kvt__variable(c->environment, "KVT_TEST_VARIABLE"), "1");
    unsetenv("KVT_TEST_VARIABLE");
    kvt_config_free(c);
}

static void
the_kvtier_file_variable_wins_over_lmcaches(void **state)
{
    (void)state;
    conf_file("chunk_size: 64\n");
    struct kvt_config *c = conf_open(NULL, LIST("LMCACHE_CONFIG_FILE=/none",
                                                "KVTIER_CONFIG_FILE=lmcache.yaml"));
    assert_int_equal(c->chunk_size, 64);
    kvt_config_free(c);
}

static void
a_missing_file_is_enoent(void **state)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct kvt_config *c;

    (void)state;
    sources.file = "absent.yaml";
    sources.environment = NOTHING;
    assert_int_equal(kvt_config_open(&sources, &c), -ENOENT);
    assert_string_equal(kvt_last_error(),
                        "configuration file absent.yaml: No such file or directory");
    sources.file = ".";
    assert_int_equal(kvt_config_open(&sources, &c), -EISDIR);
}

static void
extra_config_of_the_environment_replaces_the_whole_map(void **state)
{
    static const char yaml[] = "extra_config:\n"
                               "  s3_region: here\n"
                               "  save_chunk_meta: false\n";

    (void)state;
    struct kvt_config *c = conf_open(
        yaml, LIST("LMCACHE_EXTRA_CONFIG={\"s3_region\": \"there\"}"));
    assert_string_equal(c->s3_region, "there");
    assert_string_equal(kvt__config_origin(c, s3_region), "LMCACHE_EXTRA_CONFIG");
    assert_true(c->save_chunk_meta);
    kvt_config_free(c);

    c = conf_open(yaml, LIST("LMCACHE_EXTRA_CONFIG="));
    assert_null(c->s3_region);
    kvt_config_free(c);

    c = conf_open(yaml, LIST("LMCACHE_EXTRA_CONFIG={\"s3_region\": \"there\"}",
                             "KVTIER_EXTRA_CONFIG={\"use_odirect\": true}"));
    assert_null(c->s3_region);
    assert_true(c->use_odirect);
    assert_string_equal(conf_log.text, "");
    kvt_config_free(c);
}

static void
keys_of_extra_config_may_be_at_the_top(void **state)
{
    (void)state;
    struct kvt_config *c = conf_open("s3_region: a\nfsync: yes\n",
                                     LIST("KVTIER_SAVE_CHUNK_META=0"));
    assert_string_equal(c->s3_region, "a");
    assert_true(c->fsync);
    assert_false(c->save_chunk_meta);
    assert_string_equal(conf_log.text, "");
    kvt_config_free(c);
    c = conf_open("extra_config: {fsync: true, model_fingerprint: 12e5}\n", NOTHING);
    assert_true(c->fsync);
    assert_string_equal(c->model_fingerprint, "12e5");
    assert_string_equal(conf_log.text, "");
    kvt_config_free(c);
}

static void
the_engines_keys_may_have_a_prefix(void **state)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);

    (void)state;
    sources.environment = NOTHING;
    sources.connector_json = "{\"kvtier.chunk_size\": 32, \"lmcache.chunk_size\": 64,"
                             " \"chunk_size\": 128, \"local_cpu\": false,"
                             " \"lmcache.extra_config\": {\"s3_region\": \"x\"},"
                             " \"somebody_elses\": 1}";
    struct kvt_config *c = conf_open_all(&sources);
    assert_int_equal(c->chunk_size, 32);
    assert_false(c->local_cpu);
    assert_string_equal(c->s3_region, "x");
    assert_string_equal(conf_log.text,
                        "unknown key 'somebody_elses' (kv_connector_extra_config).\n");
    kvt_config_free(c);
}

static void
the_hash_seed_defaults_to_pythonhashseed(void **state)
{
    (void)state;
    struct kvt_config *c = conf_open(NULL, LIST("PYTHONHASHSEED=42"));
    assert_string_equal(c->hash_seed, "42");
    assert_string_equal(kvt__config_origin(c, hash_seed), "PYTHONHASHSEED");
    assert_false(kvt__config_is_set(c, hash_seed));
    kvt_config_free(c);
    c = conf_open("hash_seed: 7\n", LIST("PYTHONHASHSEED=42"));
    assert_string_equal(c->hash_seed, "7");
    kvt_config_free(c);
}

static void
an_empty_value_is_the_default(void **state)
{
    (void)state;
    struct kvt_config *c =
        conf_open("chunk_size: 64\nremote_url: fs:///a\ncache_policy: ~\n",
                  LIST("LMCACHE_CHUNK_SIZE=", "LMCACHE_REMOTE_URL= "));
    assert_int_equal(c->chunk_size, 256);
    assert_null(c->remote_url);
    assert_string_equal(c->cache_policy, "LRU");
    assert_false(kvt__config_is_set(c, chunk_size));
    kvt_config_free(c);

    c = conf_open("disable_tls:\ns3_max_inflight_reqs: ~\n", NOTHING);
    assert_false(kvt__config_is_set(c, disable_tls));
    char *json = kvt_config_json(c);
    assert_non_null(strstr(json, "\"disable_tls\":{\"value\":null,"));
    assert_non_null(strstr(json, "\"s3_max_inflight_reqs\":{\"value\":null,"));
    kvt_free(json);
    kvt_config_free(c);
}

static void
an_alias_yields_to_the_newer_name_in_the_same_source_only(void **state)
{
    (void)state;
    struct kvt_config *c =
        conf_open("cufile_buffer_size: 1\ngds_buffer_size: 2\n", NOTHING);
    assert_int_equal(c->gds_buffer_size, 2);
    kvt_config_free(c);
    c = conf_open("gds_buffer_size: 2\ncufile_buffer_size: 1\n", NOTHING);
    assert_int_equal(c->gds_buffer_size, 2);
    kvt_config_free(c);
    c = conf_open("gds_buffer_size: 2\n", LIST("LMCACHE_CUFILE_BUFFER_SIZE=3"));
    assert_int_equal(c->gds_buffer_size, 3);
    kvt_config_free(c);
}

static void
credentials_are_not_shown(void **state)
{
    (void)state;
    struct kvt_config *c = conf_open(
        "remote_url: s3://me:pass/word@host/x\n"
        "extra_config:\n"
        "  aws_access_key_id: AKIA1\n"
        "  aws_secret_access_key: topsecret\n"
        "  aws_session_token: token9\n"
        "  s3_headers: ['x-a: hush']\n",
        NOTHING);
    char *json = kvt_config_json(c);

    assert_string_equal(c->aws_secret_access_key, "topsecret");
    assert_non_null(json);
    assert_null(strstr(json, "AKIA1"));
    assert_null(strstr(json, "topsecret"));
    assert_null(strstr(json, "token9"));
    assert_null(strstr(json, "hush"));
    assert_non_null(strstr(json, "\"s3_headers\":{\"value\":\"***\","));
    assert_non_null(strstr(json, "\"aws_secret_access_key\":{\"value\":\"***\","));
    kvt_free(json);
    kvt_config_free(c);

    c = conf_open("remote_url: s3://me:secret@host/x\n", NOTHING);
    json = kvt_config_json(c);
    assert_null(strstr(json, "secret@"));
    assert_non_null(strstr(json, "\"s3://***@host/x\""));
    kvt_free(json);
    kvt_config_free(c);

    c = conf_open("s3_endpoint_url: me:secret@host:80\n"
                  "s3_file_prefix: team@site\n", NOTHING);
    json = kvt_config_json(c);
    assert_null(strstr(json, "secret@"));
    assert_non_null(strstr(json, "\"***@host:80\""));
    assert_non_null(strstr(json, "\"team@site\""));
    kvt_free(json);
    kvt_config_free(c);
}

static void
bytes_that_are_no_utf8_are_kept_and_shown_as_question_marks(void **state)
{
    (void)state;
    struct kvt_config *c = conf_open(
        NULL, LIST("LMCACHE_GDS_PATH=/a\xff\xf0\x9f\x98\x80",
                   "LMCACHE_LOCAL_DISK=/\xe2\x82", "LMCACHE_MAX_LOCAL_DISK_SIZE=1"));
    char *json = kvt_config_json(c);

    assert_string_equal(c->gds_path, "/a\xff\xf0\x9f\x98\x80");
    assert_non_null(json);
    assert_non_null(strstr(json, "\"/a?\xf0\x9f\x98\x80\""));
    assert_non_null(strstr(json, "\"/??\""));
    kvt_free(json);
    kvt_config_free(c);
}

static void
a_temporary_directory_may_be_nested(void **state)
{
    (void)state;
    struct kvt_config *c = conf_open("fs_connector_relative_tmp_dir: a/..b//c\n", NOTHING);
    assert_string_equal(c->fs_connector_relative_tmp_dir, "a/..b//c");
    kvt_config_free(c);
}

static void
numbers_have_a_point_in_every_locale(void **state)
{
    (void)state;
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8"))
        skip();
    struct kvt_config *c = conf_open("max_local_cpu_size: 1.5\n", NOTHING);
    setlocale(LC_NUMERIC, "C");
    assert_float_equal(c->max_local_cpu_size, 1.5, 0);
    kvt_config_free(c);
}

static void
an_older_and_shorter_struct_is_understood(void **state)
{
    struct kvt_config_sources sources = {
        .struct_size = offsetof(struct kvt_config_sources, environment),
        .environment = LIST("LMCACHE_CHUNK_SIZE=nonsense"),
    };

    (void)state;
    unsetenv("LMCACHE_CHUNK_SIZE");
    sources.file = conf_file("chunk_size: 5\n");
    struct kvt_config *c = conf_open_all(&sources);
    assert_int_equal(c->chunk_size, 5);
    kvt_config_free(c);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_given_is_the_defaults),
        cmocka_unit_test(a_later_source_wins_and_is_the_origin),
        cmocka_unit_test(an_environment_is_copied_unless_it_is_the_process_environment),
        cmocka_unit_test(the_kvtier_file_variable_wins_over_lmcaches),
        cmocka_unit_test(a_missing_file_is_enoent),
        cmocka_unit_test(extra_config_of_the_environment_replaces_the_whole_map),
        cmocka_unit_test(keys_of_extra_config_may_be_at_the_top),
        cmocka_unit_test(the_engines_keys_may_have_a_prefix),
        cmocka_unit_test(the_hash_seed_defaults_to_pythonhashseed),
        cmocka_unit_test(an_empty_value_is_the_default),
        cmocka_unit_test(an_alias_yields_to_the_newer_name_in_the_same_source_only),
        cmocka_unit_test(credentials_are_not_shown),
        cmocka_unit_test(bytes_that_are_no_utf8_are_kept_and_shown_as_question_marks),
        cmocka_unit_test(a_temporary_directory_may_be_nested),
        cmocka_unit_test(numbers_have_a_point_in_every_locale),
        cmocka_unit_test(an_older_and_shorter_struct_is_understood),
    };
    return cmocka_run_group_tests(tests, conf_setup, conf_teardown);
}
