/* SPDX-License-Identifier: Apache-2.0
 *
 * The settings for S3: their messages, the precedence of older and newer settings, and the AWS
 * variables that replace defaults. */
#include "conf-test.h"
#include "tier/s3/s3.h"

#define URL "remote_url: s3://bucket\n"
#define EXPRESS                              \
    "remote_url: s3://kv--use1-az4--x-s3."   \
    "s3express-use1-az4.us-east-1.amazonaws.com\n"
#define IN_LOTA                                                                     \
    "disable_tls is not set: plain HTTP is used, as the host is under cwlota.com. " \
    "Set it to true to say so, to false for TLS.\n"
#define NO_SHM                                                                    \
    "s3_max_inflight_reqs (file lmcache.yaml:2) makes no buffers in /dev/shm: "   \
    "requests use the memory of max_local_cpu_size.\n"
#define NO_KEY(a, b) a " (file lmcache.yaml:2) has no effect without " b ".\n"
#define PATH_EXPRESS                                                             \
    "s3_addressing is path (file lmcache.yaml:2): S3 Express takes the bucket in " \
    "the host's name only; use auto."
#define NEEDS_KMS "s3_sse_kms_key_id (file lmcache.yaml:2) needs s3_sse: aws:kms."

static void
the_least_of_three_limits_counts(void **state)
{
    static const struct {
        const char *yaml;
        int64_t requests;
    } cases[] = {
        { "", 64 },
        { "s3_num_io_threads: 8\n", 8 },
        { "s3_num_io_threads: 320\n", 320 },
        { "s3_max_io_concurrency: 320\ns3_max_inflight_reqs: 300\n", 300 },
        { "s3_max_io_concurrency: 320\ns3_num_io_threads: 321\n", 320 },
        { "s3_max_io_concurrency: 3\ns3_max_inflight_reqs: 2\ns3_num_io_threads: 1\n", 1 },
        { "s3_max_inflight_reqs: 128\ns3_num_io_threads: ~\n", 128 },
        { "extra_config: {s3_num_io_threads: '16', s3_max_inflight_reqs: 17}\n", 16 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kvt_config *c = conf_open(cases[i].yaml, NOTHING);

        assert_int_equal(kvt__s3_max_requests(c), cases[i].requests);
        kvt_config_free(c);
    }
}

static void
settings_without_effect_on_s3_are_reported(void **state)
{
    static const struct {
        const char *yaml, *lines;
    } cases[] = {
        { URL "s3_prefer_http2: true\n",
          "s3_prefer_http2 (file lmcache.yaml:2) has no effect: kvtier speaks HTTP/1.1, as "
          "AWS S3 does.\n" },
        { URL "s3_prefer_http2: false\n", "" },
        { URL "s3_max_inflight_reqs: 64\n", NO_SHM },
        { URL "save_chunk_meta: true\n",
          "save_chunk_meta (file lmcache.yaml:2) has no effect on S3: objects there never "
          "have LMCache's header.\n" },
        { URL "save_chunk_meta: false\n", "" },
        { URL "save_unfull_chunk: true\n", "" },
        { URL "s3_part_size: 1\n", "" },
        { URL, "" },
        { "remote_storage_plugins: [fs.a, s3.b]\n"
          "extra_config: {fs_base_path: /x, s3_max_inflight_reqs: 64, "
          "remote_storage_plugin.s3.b.base_path: bucket}\n", NO_SHM },
        { "remote_url: fs:///x\ns3_max_inflight_reqs: 64\nsave_chunk_meta: true\n"
          "s3_prefer_http2: true\naws_access_key_id: a\ns3_sse_kms_key_id: b\n", "" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        conf_warns(cases[i].yaml, NOTHING, cases[i].lines);
}

static void
plain_http_to_lota_is_reported_unless_configured(void **state)
{
    static const struct {
        const char *yaml, *lines;
    } cases[] = {
        { "remote_url: s3://test-127.cwlota.com\n", IN_LOTA },
        { "remote_url: s3://test-127.CWLota.com:80/base\n", IN_LOTA },
        { "remote_url: s3://a\nremote_storage_plugins: [s3.x, s3.y]\n"
          "remote_storage_plugin.s3.x.base_path: b.cwlota.com\n"
          "remote_storage_plugin.s3.y.base_path: c.cwlota.com\n", IN_LOTA },
        { URL "s3_endpoint_url: cwlota.com\n", IN_LOTA },
        { URL "s3_endpoint_url: http://cwlota.com\n", "" },
        { URL "s3_endpoint_url: https://cwlota.com\n", "" },
        { "remote_url: s3://test-127.cwlota.com\ndisable_tls: true\n", "" },
        { "remote_url: s3://test-127.cwlota.com\ndisable_tls: false\n", "" },
        { "remote_url: s3://test-127.cwlota.com\ndisable_tls:\n", IN_LOTA },
        { "remote_url: s3://test-127.notcwlota.com\n", "" },
        { "remote_url: s3://test-127.cwlota.com.example\n", "" },
        { "remote_url: s3://test-127.cwobject.com/cwlota.com\n", "" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        conf_warns(cases[i].yaml, NOTHING, cases[i].lines);
}

static void
an_incomplete_pair_of_keys_is_reported_without_the_key(void **state)
{
    (void)state;
    conf_warns(URL "aws_access_key_id: AKIA1\n", NOTHING,
               NO_KEY("aws_access_key_id", "aws_secret_access_key"));
    conf_warns(URL "aws_secret_access_key: topsecret\n", NOTHING,
               NO_KEY("aws_secret_access_key", "aws_access_key_id"));
    conf_warns(URL "aws_session_token: token9\n", NOTHING,
               NO_KEY("aws_session_token", "aws_access_key_id and aws_secret_access_key"));
    conf_warns(URL "aws_session_token: t\naws_access_key_id: a\naws_secret_access_key: b\n",
               NOTHING, "");
}

static void
impossible_combinations_are_refused(void **state)
{
    (void)state;
    conf_refuses(EXPRESS "s3_addressing: path\n", NOTHING, PATH_EXPRESS);
    conf_refuses("remote_url: s3://kv--use1-az4--x-s3\ns3_addressing: path\n", NOTHING,
                 PATH_EXPRESS);
    conf_refuses(URL "s3_addressing: path\ns3_enable_s3express: true\n", NOTHING,
                 PATH_EXPRESS);
    conf_warns(EXPRESS "s3_addressing: virtual\n", NOTHING, "");
    conf_warns("remote_url: s3://kv--x-s3-not\ns3_addressing: path\n", NOTHING, "");
    conf_warns("remote_url: s3://host/kv--x-s3\ns3_addressing: path\n", NOTHING, "");

    conf_refuses(URL "s3_sse_kms_key_id: k\n", NOTHING, NEEDS_KMS);
    conf_refuses(URL "s3_sse_kms_key_id: k\ns3_sse: AES256\n", NOTHING, NEEDS_KMS);
    conf_warns(URL "s3_sse_kms_key_id: k\ns3_sse: aws:kms\n", NOTHING, "");

    conf_refuses(URL "s3_client_key: k\n", NOTHING,
                 "s3_client_key (file lmcache.yaml:2) needs s3_client_cert.");
    conf_warns(URL "s3_client_key: k\ns3_client_cert: c\n", NOTHING, "");
    conf_warns(URL "s3_client_cert: c\n", NOTHING, "");
}

static void
variables_of_aws_are_defaults(void **state)
{
    (void)state;
    struct kvt_config *c = conf_open(
        NULL, LIST("AWS_REGION=near", "AWS_DEFAULT_REGION=far",
                   "AWS_ENDPOINT_URL_S3=http://s3", "AWS_ENDPOINT_URL=http://all",
                   "AWS_CA_BUNDLE=/ca.pem"));
    assert_string_equal(c->s3_region, "near");
    assert_string_equal(kvt__config_origin(c, s3_region), "AWS_REGION");
    assert_string_equal(c->s3_endpoint_url, "http://s3");
    assert_string_equal(kvt__config_origin(c, s3_endpoint_url), "AWS_ENDPOINT_URL_S3");
    assert_string_equal(c->s3_ca_file, "/ca.pem");
    assert_false(kvt__config_is_set(c, s3_region));
    assert_string_equal(conf_log.text, "");
    kvt_config_free(c);

    c = conf_open("s3_region: mine\ns3_endpoint_url: https://mine\ns3_ca_file: mine.pem\n",
                  LIST("AWS_REGION=", "AWS_DEFAULT_REGION=far",
                       "AWS_ENDPOINT_URL=http://all", "AWS_CA_BUNDLE=/ca.pem"));
    assert_string_equal(c->s3_region, "mine");
    assert_string_equal(c->s3_endpoint_url, "https://mine");
    assert_string_equal(c->s3_ca_file, "mine.pem");
    kvt_config_free(c);

    c = conf_open(NULL, LIST("AWS_REGION=", "AWS_DEFAULT_REGION=far"));
    assert_string_equal(c->s3_region, "far");
    kvt_config_free(c);
}

/* The nested form has no members for region and endpoint. */
static void
the_nested_form_takes_region_and_endpoint_from_the_environment(void **state)
{
    (void)state;
    struct kvt_config *c = conf_open(
        "local_device: cpu\n"
        "storage_backend:\n"
        "  type: remote\n"
        "  connector: {type: s3, bucket: b, prefix: /kv-cache//}\n",
        LIST("AWS_DEFAULT_REGION=far", "AWS_ENDPOINT_URL=http://127.0.0.1:9000"));
    assert_string_equal(c->remote_url, "s3://b");
    assert_string_equal(c->s3_file_prefix, "kv-cache");
    assert_string_equal(c->s3_region, "far");
    assert_string_equal(c->s3_endpoint_url, "http://127.0.0.1:9000");
    assert_true(c->local_cpu);
    assert_string_equal(conf_log.text, "");
    kvt_config_free(c);
}

static void
the_rest_has_its_defaults_and_forms(void **state)
{
    (void)state;
    struct kvt_config *c = conf_open(NULL, NOTHING);
    assert_string_equal(c->s3_addressing, "auto");
    assert_true(c->s3_verify_tls);
    assert_false(c->s3_unsigned);
    assert_false(c->s3_request_payer);
    assert_int_equal(c->s3_part_size, 64 << 20);
    assert_null(c->s3_sse);
    assert_null(c->s3_profile);
    kvt_config_free(c);

    c = conf_open("s3_resolve: h:80:127.0.0.1\n"
                  "extra_config: {s3_sse: aes256, s3_verify_tls: 'false', s3_unsigned: yes,"
                  " s3_storage_class: ONEZONE_IA, s3_profile: me, s3_request_payer: on}\n",
                  NOTHING);
    assert_string_equal(c->s3_resolve, "h:80:127.0.0.1");
    assert_string_equal(c->s3_sse, "AES256");
    assert_string_equal(c->s3_storage_class, "ONEZONE_IA");
    assert_string_equal(c->s3_profile, "me");
    assert_false(c->s3_verify_tls);
    assert_true(c->s3_unsigned && c->s3_request_payer);
    assert_string_equal(conf_log.text, "");
    kvt_config_free(c);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_of_three_limits_counts),
        cmocka_unit_test(settings_without_effect_on_s3_are_reported),
        cmocka_unit_test(plain_http_to_lota_is_reported_unless_configured),
        cmocka_unit_test(an_incomplete_pair_of_keys_is_reported_without_the_key),
        cmocka_unit_test(impossible_combinations_are_refused),
        cmocka_unit_test(variables_of_aws_are_defaults),
        cmocka_unit_test(the_nested_form_takes_region_and_endpoint_from_the_environment),
        cmocka_unit_test(the_rest_has_its_defaults_and_forms),
    };
    return cmocka_run_group_tests(tests, conf_setup, conf_teardown);
}
