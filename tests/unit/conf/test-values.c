/* SPDX-License-Identifier: Apache-2.0
 *
 * The conversion of text to a value of each type. */
#include "conf-test.h"

#include <math.h>

static struct kvt_config *
open_with_value(const char *key, const char *value)
{
    char yaml[256];

    snprintf(yaml, sizeof yaml, "%s: %s\n", key, value);
    return conf_open(yaml, NOTHING);
}

static void
truth_has_eight_words_in_any_case(void **state)
{
    static const struct {
        const char *word;
        bool truth;
    } cases[] = {
        { "true", true },   { "false", false }, { "True", true },  { "FALSE", false },
        { "1", true },      { "0", false },     { "yes", true },   { "No", false },
        { "on", true },     { "OFF", false },   { "\"false\"", false },
        { "'1'", true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kvt_config *c = open_with_value("save_unfull_chunk", cases[i].word);
        assert_int_equal(c->save_unfull_chunk, cases[i].truth);
        kvt_config_free(c);
        c = open_with_value("local_cpu", cases[i].word);
        assert_int_equal(c->local_cpu, cases[i].truth);
        kvt_config_free(c);
    }
}

static void
extra_config_is_typed_too(void **state)
{
    (void)state;
    struct kvt_config *c =
        conf_open("extra_config:\n  save_chunk_meta: 'false'\n  use_odirect: \"true\"\n",
                  NOTHING);
    assert_false(c->save_chunk_meta);
    assert_true(c->use_odirect);
    kvt_config_free(c);
}

static void
whole_numbers(void **state)
{
    static const struct {
        const char *text;
        int64_t value;
    } cases[] = {
        { "1", 1 }, { "'256'", 256 }, { "1_024", 1024 }, { "256.0", 256 }, { "1e3", 1000 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kvt_config *c = open_with_value("chunk_size", cases[i].text);
        assert_int_equal(c->chunk_size, cases[i].value);
        kvt_config_free(c);
    }
}

static void
numbers_with_a_fraction(void **state)
{
    (void)state;
    struct kvt_config *c = open_with_value("max_local_cpu_size", "0.25");
    assert_float_equal(c->max_local_cpu_size, 0.25, 0);
    kvt_config_free(c);
    c = open_with_value("max_local_cpu_size", "60");
    assert_float_equal(c->max_local_cpu_size, 60, 0);
    kvt_config_free(c);
    c = open_with_value("pd_allocation_timeout_sec", ".inf");
    assert_true(isinf(c->pd_allocation_timeout_sec));
    assert_string_equal(conf_log.text, "");
    kvt_config_free(c);
}

static void
text_stays_as_it_is_written(void **state)
{
    (void)state;
    struct kvt_config *c = open_with_value("model_fingerprint", "0012");
    assert_string_equal(c->model_fingerprint, "0012");
    kvt_config_free(c);
    c = open_with_value("model_fingerprint", "'null'");
    assert_string_equal(c->model_fingerprint, "null");
    kvt_config_free(c);
    c = open_with_value("cache_policy", "lru");
    assert_string_equal(c->cache_policy, "LRU");
    kvt_config_free(c);
}

static void
lists_in_every_form(void **state)
{
    static const char *const forms[] = {
        "[one, two.a]", "'one, two.a'", "\n- one\n- two.a", "one,two.a ,",
        "'[\"one\", \"two.a\"]'",
    };

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct kvt_config *c = open_with_value("storage_plugins", forms[i]);
        assert_int_equal(c->storage_plugins.n, 2);
        assert_string_equal(c->storage_plugins.items[0], "one");
        assert_string_equal(c->storage_plugins.items[1], "two.a");
        char *json = kvt_config_json(c);
        assert_non_null(strstr(json, "\"storage_plugins\":{\"value\":[\"one\",\"two.a\"],"));
        kvt_free(json);
        kvt_config_free(c);
    }
    struct kvt_config *c = open_with_value("lookup_server_worker_ids", "3");
    assert_int_equal(c->lookup_server_worker_ids.n, 1);
    assert_int_equal(c->lookup_server_worker_ids.items[0], 3);
    kvt_config_free(c);
    c = open_with_value("blend_thresholds", "[0.5, 1]");
    assert_int_equal(c->blend_thresholds.n, 2);
    assert_float_equal(c->blend_thresholds.items[0], 0.5, 0);
    kvt_config_free(c);
    c = open_with_value("retrieve_locations", "[]");
    assert_int_equal(c->retrieve_locations.n, 0);
    kvt_config_free(c);
}

static void
maps_become_json(void **state)
{
    (void)state;
    struct kvt_config *c =
        conf_open("extra_config:\n  gpu_to_numa_mapping: {0: 0, 1: 1}\n", NOTHING);
    assert_string_equal(c->gpu_to_numa_mapping, "{\"0\":0,\"1\":1}");
    kvt_config_free(c);
}

static void
environment_text_loses_blanks_and_one_pair_of_quotes(void **state)
{
    static const struct {
        const char *variable, *value;
    } cases[] = {
        { "KVTIER_MODEL_FINGERPRINT=  a b ", "a b" },
        { "KVTIER_MODEL_FINGERPRINT='a'", "a" },
        { "KVTIER_MODEL_FINGERPRINT=\" a \"", " a " },
        { "KVTIER_MODEL_FINGERPRINT=\"a'", "\"a'" },
        { "KVTIER_MODEL_FINGERPRINT='a\\tb\\x41\\''", "a\tbA'" },
        { "KVTIER_MODEL_FINGERPRINT='a'b\\t'", "a'b\\t" },
        { "KVTIER_MODEL_FINGERPRINT='\\d'", "\\d" },
        { "KVTIER_MODEL_FINGERPRINT='", "'" },
        { "KVTIER_MODEL_FINGERPRINT='a\\'", "a\\" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kvt_config *c = conf_open(NULL, LIST(cases[i].variable));
        assert_string_equal(c->model_fingerprint, cases[i].value);
        kvt_config_free(c);
    }
    /* In a file, the YAML parser has removed the quotes already. */
    struct kvt_config *c = open_with_value("model_fingerprint", "\"'a'\"");
    assert_string_equal(c->model_fingerprint, "'a'");
    kvt_config_free(c);
}

static void
local_disk_may_be_a_file_url(void **state)
{
    static const char *const cases[][2] = {
        { "file:///mnt/nvme", "/mnt/nvme" },
        { "file://local_disk/", "local_disk/" },
        { "file://nothing", "file://nothing" },
        { "/mnt/nvme", "/mnt/nvme" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char yaml[128];

        snprintf(yaml, sizeof yaml, "local_disk: %s\nmax_local_disk_size: 1\n",
                 cases[i][0]);
        struct kvt_config *c = conf_open(yaml, NOTHING);
        assert_string_equal(c->local_disk, cases[i][1]);
        kvt_config_free(c);
    }
}

static void
the_older_spelling_of_plugins_is_the_newer(void **state)
{
    (void)state;
    struct kvt_config *c = conf_open(
        "extra_config:\n  remote_connector.fs.a.base_path: /x\n", NOTHING);
    assert_string_equal(kvt__config_base_path(c, "fs.a"), "/x");
    assert_null(kvt__config_base_path(c, "fs"));
    kvt_config_free(c);
}

static void
anchors_are_followed(void **state)
{
    (void)state;
    struct kvt_config *c = conf_open("local_cpu: &a no\nsave_decode_cache: *a\n", NOTHING);
    assert_false(c->local_cpu);
    assert_false(c->save_decode_cache);
    kvt_config_free(c);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(truth_has_eight_words_in_any_case),
        cmocka_unit_test(extra_config_is_typed_too),
        cmocka_unit_test(whole_numbers),
        cmocka_unit_test(numbers_with_a_fraction),
        cmocka_unit_test(text_stays_as_it_is_written),
        cmocka_unit_test(lists_in_every_form),
        cmocka_unit_test(maps_become_json),
        cmocka_unit_test(environment_text_loses_blanks_and_one_pair_of_quotes),
        cmocka_unit_test(local_disk_may_be_a_file_url),
        cmocka_unit_test(the_older_spelling_of_plugins_is_the_newer),
        cmocka_unit_test(anchors_are_followed),
    };
    return cmocka_run_group_tests(tests, conf_setup, conf_teardown);
}
