/* SPDX-License-Identifier: Apache-2.0
 *
 * The exact messages for invalid and doubtful configurations. */
#include "conf-test.h"

#include <errno.h>

#define CHUNK_RANGE "use a whole number from 1 to 1048576 tokens."

static void
errors_name_key_location_and_allowed_values(void **state)
{
    static const struct {
        const char *yaml, *variable, *why;
    } cases[] = {
        { "local_cpu: true\nchunk_size: 0\n", NULL,
          "chunk_size is '0' (file lmcache.yaml:2): " CHUNK_RANGE },
        { "chunk_size: abc\n", NULL,
          "chunk_size is 'abc' (file lmcache.yaml:1): " CHUNK_RANGE },
        { "chunk_size: 1.5\n", NULL,
          "chunk_size is '1.5' (file lmcache.yaml:1): " CHUNK_RANGE },
        { "chunk_size: 99999999999999999999\n", NULL,
          "chunk_size is '99999999999999999999' (file lmcache.yaml:1): " CHUNK_RANGE },
        { "chunk_size: [1]\n", NULL,
          "chunk_size is a list (file lmcache.yaml:1): " CHUNK_RANGE },
        { NULL, "LMCACHE_CHUNK_SIZE=-5",
          "chunk_size is '-5' (LMCACHE_CHUNK_SIZE): " CHUNK_RANGE },
        { "local_cpu: maybe\n", NULL,
          "local_cpu is 'maybe' (file lmcache.yaml:1): use true or false." },
        { "local_cpu: {a: 1}\n", NULL,
          "local_cpu is a map (file lmcache.yaml:1): use true or false." },
        { NULL, "KVTIER_MAX_LOCAL_CPU_SIZE=inf",
          "max_local_cpu_size is 'inf' (KVTIER_MAX_LOCAL_CPU_SIZE): "
          "use a number from 0 to 1048576 GiB." },
        { NULL, "KVTIER_MAX_LOCAL_CPU_SIZE=nan",
          "max_local_cpu_size is 'nan' (KVTIER_MAX_LOCAL_CPU_SIZE): "
          "use a number from 0 to 1048576 GiB." },
        { "cache_policy: random\n", NULL,
          "cache_policy is 'random' (file lmcache.yaml:1): use LRU, LFU, FIFO or MRU." },
        { "extra_config:\n  hf3fs_io_depth: 129\n", NULL,
          "hf3fs_io_depth is '129' (file lmcache.yaml:2): "
          "use a whole number from -128 to 128." },
        { "extra_config:\n  hf3fs_iov_size: 1\n", NULL,
          "hf3fs_iov_size is '1' (file lmcache.yaml:2): "
          "use a whole number from 104857600 to 2147483648 bytes." },
        { NULL, "LMCACHE_CUFILE_BUFFER_SIZE=x",
          "cufile_buffer_size is 'x' (LMCACHE_CUFILE_BUFFER_SIZE): "
          "use a whole number from 1 to 1048576 MiB." },
        { "p2p_init_ports: [1, b]\n", NULL,
          "p2p_init_ports is a list (file lmcache.yaml:1): use a list of whole numbers." },
        { "remote_url: /mnt/kv\n", NULL,
          "remote_url (file lmcache.yaml:1) is no URL: write fs:///directory, s3://bucket "
          "or hf3fs:///directory." },
        { "remote_url: s4://bucket\n", NULL,
          "remote_url (file lmcache.yaml:1): this kvtier has no tier for 's4://'; write "
          "fs:///directory, s3://bucket or hf3fs:///directory." },
        { "remote_serde: zip\n", NULL,
          "remote_serde is 'zip' (file lmcache.yaml:1): use naive, lossless, cachegen, kv8, kv4, "
          "auto or kivi." },
        { "accept_serde: [lossless, zip]\n", NULL,
          "accept_serde (file lmcache.yaml:1): 'zip' is no encoding; write lossless, cachegen, "
          "kv8 or kv4." },
        { "remote_storage_plugins: [fs.a]\nextra_config: {fs_base_path: /x, "
          "remote_storage_plugin.fs.a.remote_serde: zip}\n", NULL,
          "remote_storage_plugins (file lmcache.yaml:1): remote_storage_plugin.fs.a.remote_serde "
          "is 'zip'; write naive, lossless, cachegen, kv8, kv4 or auto." },
        { "extra_config: 5\n", NULL, "extra_config (file lmcache.yaml:1): use a map." },
        { "extra_config: [a]\n", NULL, "extra_config (file lmcache.yaml:1): use a map." },
        { "extra_config:\n  gpu_to_numa_mapping: [0]\n", NULL,
          "gpu_to_numa_mapping is a list (file lmcache.yaml:2): use a map." },
        { "extra_config:\n  gpu_to_numa_mapping: {0: one}\n", NULL,
          "gpu_to_numa_mapping (file lmcache.yaml:2): use a map from device numbers to "
          "node numbers, for example {0: 0, 1: 1}." },
        { "extra_config:\n  gpu_to_numa_mapping: {cuda: 0}\n", NULL,
          "gpu_to_numa_mapping (file lmcache.yaml:2): use a map from device numbers to "
          "node numbers, for example {0: 0, 1: 1}." },
        { "extra_config:\n  gpu_to_numa_mapping: {0: -1}\n", NULL,
          "gpu_to_numa_mapping (file lmcache.yaml:2): use a map from device numbers to "
          "node numbers, for example {0: 0, 1: 1}." },
        { "numa_mode: manual\n", NULL,
          "numa_mode is manual (file lmcache.yaml:1): gpu_to_numa_mapping is needed in "
          "extra_config, for example {0: 0, 1: 1}." },
        { NULL, "LMCACHE_EXTRA_CONFIG={\"aws_secret_access_key\": \"k\" oops}",
          "extra_config (LMCACHE_EXTRA_CONFIG): not JSON, line 1, column 34." },
        { NULL, "LMCACHE_EXTRA_CONFIG={\"a\": 1, \"a\": 2}",
          "extra_config (LMCACHE_EXTRA_CONFIG): a map has a key twice, line 1, column 12." },
        { "a: [1\n", NULL,
          "file lmcache.yaml:2 is not YAML: did not find expected ',' or ']'." },
        { "- a\n- b\n", NULL,
          "file lmcache.yaml:1: a configuration must be lines of "
          "'key: value'." },
        { "hello\n", NULL,
          "file lmcache.yaml:1: a configuration must be lines of "
          "'key: value'." },
        { "a: 1\n---\nb: 2\n", NULL,
          "file lmcache.yaml:2: a second document begins; use a single "
          "document." },
        { "[a]: 1\n", NULL, "file lmcache.yaml:1: a key must be text." },
        { "storage_backend: 1\n", NULL,
          "storage_backend (file lmcache.yaml:1): use a map with type and connector." },
        { "storage_backend:\n  type: local\n  connector: {type: s3, bucket: b}\n", NULL,
          "storage_backend.type is 'local' (file lmcache.yaml:2): use remote." },
        { "storage_backend:\n  type: remote\n  connector: {type: s3}\n", NULL,
          "storage_backend.connector (file lmcache.yaml:3) needs bucket." },
        { "fs_connector_relative_tmp_dir: a/../../b\n", NULL,
          "fs_connector_relative_tmp_dir (file lmcache.yaml:1): use a relative path "
          "without '..'." },
        { "fs_connector_relative_tmp_dir: /tmp\n", NULL,
          "fs_connector_relative_tmp_dir (file lmcache.yaml:1): use a relative path "
          "without '..'." },
        { NULL, "KVTIER_CHUNK_SIZE=\xff\xc3\xa9\xed\xa0\x80\xc0\x80",
          "chunk_size is '?\xc3\xa9\?\?\?\?\?' (KVTIER_CHUNK_SIZE): " CHUNK_RANGE },
        { "use_hipfile: maybe\n", NULL,
          "use_hipfile (file lmcache.yaml:1): use true or false." },
        { "chunk_size: \"a\\nb\"\n", NULL,
          "chunk_size is 'a?b' (file lmcache.yaml:1): " CHUNK_RANGE },
        { "chunk_size: \"a\\0b\"\n", NULL,
          "file lmcache.yaml:1: a zero byte in a value." },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        conf_refuses(cases[i].yaml, LIST(cases[i].variable), cases[i].why);
}

static void
each_doubtful_setting_is_a_line(void **state)
{
    static const struct {
        const char *yaml, *variable, *lines;
    } cases[] = {
        { "chunck_size: 5\n", NULL,
          "unknown key 'chunck_size' (file lmcache.yaml:1): did you mean chunk_size?\n" },
        { "extra_config:\n  s3_regoin: 5\n", NULL,
          "unknown key 's3_regoin' (file lmcache.yaml:2): did you mean s3_region?\n" },
        { "wholly_unheard_of: 5\n", NULL,
          "unknown key 'wholly_unheard_of' (file lmcache.yaml:1).\n" },
        { "extra_config:\n  chunk_size: 5\n", NULL,
          "chunk_size (file lmcache.yaml:2) does not belong in extra_config: write it "
          "outside.\n" },
        { NULL, "LMCACHE_CHUNKSIZE=5",
          "unknown variable LMCACHE_CHUNKSIZE: did you mean LMCACHE_CHUNK_SIZE?\n" },
        { NULL, "KVTIER_LOGLEVEL=5",
          "unknown variable KVTIER_LOGLEVEL: did you mean KVTIER_LOG_LEVEL?\n" },
        { NULL, "LMCACHE_chunk_size=5",
          "unknown variable LMCACHE_chunk_size: did you mean LMCACHE_CHUNK_SIZE?\n" },
        { NULL, "LMCACHE_=5", "unknown variable LMCACHE_.\n" },
        { NULL, "LMCACHE_SOMETHING_ELSE_ALTOGETHER=5",
          "unknown variable LMCACHE_SOMETHING_ELSE_ALTOGETHER.\n" },
        { NULL, "LMCACHE_TRACK_USAGE=false", "" },
        { NULL, "KVTIER_REPLACE_LMCACHE=1", "" },
        { NULL, "KVTIER_VLLM=0.32.0", "" },
        { NULL, "LMCACHE_LOG_LEVEL=INFO", "" },
        { "cufile_buffer_size: 8\n", NULL,
          "cufile_buffer_size (file lmcache.yaml:1) is an older name: write "
          "gds_buffer_size.\n" },
        { "extra_config: {use_hipfile: true}\n", NULL,
          "use_hipfile (file lmcache.yaml:1) is an older name: write gds_backend: "
          "hipfile.\n" },
        { "extra_config: {use_hipfile: false}\n", NULL,
          "use_hipfile (file lmcache.yaml:1) is an older name: write gds_backend: "
          "hipfile.\n" },
        { "lcoal_cup: 5\n", NULL, /* two swaps */
          "unknown key 'lcoal_cup' (file lmcache.yaml:1): did you mean local_cpu?\n" },
        { "storage_backend:\n  type: remote\n  bogus: 1\n  connector: {type: s3, bucket: b}\n",
          NULL, "unknown key 'storage_backend.bogus' (file lmcache.yaml:3).\n" },
        { "enable_p2p: true\n", NULL,
          "enable_p2p (file lmcache.yaml:1) has no effect: kvtier does not share chunks "
          "between engines peer to peer.\n" },
        { "enable_p2p: false\nmaru_pool_size: 4\n", NULL, "" },
        { "use_layerwise: true\n", NULL,
          "use_layerwise (file lmcache.yaml:1) has no effect: kvtier does not store or "
          "load layer by layer.\n" },
        { "pin_check_interval_sec: 31\n", NULL,
          "pin_check_interval_sec (file lmcache.yaml:1) has no effect in kvtier. Leases "
          "expire without a check.\n" },
        { "nixl_role: sender\n", NULL,
          "nixl_role (file lmcache.yaml:1) is an older name: write pd_role.\n"
          "pd_role (file lmcache.yaml:1) has no effect: kvtier does not push KV to decode "
          "engines, which find the KV in shared storage.\n" },
        { "extra_config:\n  storage_plugin.x.class_name: X\n", NULL,
          "storage_plugin.x.class_name (file lmcache.yaml:2) has no effect: kvtier does "
          "not load Python code.\n" },
        { "extra_config:\n  remote_connector.fs.base_path: /x\n", NULL,
          "remote_connector.fs.base_path (file lmcache.yaml:2) is an older name: write "
          "remote_storage_plugin.fs.base_path.\n" },
        { "ec:\n  chunk_size: 5\nec_local_cpu: false\n", "LMCACHE_EC_LOCAL_CPU=1",
          "ec (file lmcache.yaml:1) and all other ec_ settings have no effect: kvtier "
          "does not keep encoder outputs.\n" },
        { "chunk_size: 5\nchunk_size: 6\n", NULL,
          "chunk_size is set twice (file lmcache.yaml:1 and file lmcache.yaml:2): the "
          "second value is used.\n" },
        { "local_disk: /x\n", NULL,
          "local_disk (file lmcache.yaml:1) has no effect: max_local_disk_size is 0.\n" },
        { "retrieve_locations: [LocalCPUBackend, LocalDiskBackend]\n", NULL,
          "retrieve_locations (file lmcache.yaml:1): LocalDiskBackend is not configured; "
          "nothing will be found there.\n" },
        { "store_location: P2PBackend\n", NULL,
          "store_location (file lmcache.yaml:1): P2PBackend is not configured; nothing is "
          "stored there.\n" },
        { "remote_url: fs:///x\nstore_location: RemoteBackend\n", NULL, "" },
        { "remote_storage_plugins: [fs.a]\nstore_location: RemoteBackend-fs.a\n"
          "extra_config: {fs_base_path: /x}\n", NULL, "" },
        { "local_disk: /x\nmax_local_disk_size: 1\nretrieve_locations: LocalDiskBackend\n",
          NULL, "" },
        { "remote_serde: kivi\nremote_url: fs:///x\n", NULL,
          "remote_serde is kivi (file lmcache.yaml:1): kvtier stores naive chunks, as LMCache "
          "does.\n" },
        { "remote_serde: kivi\n", NULL, "" },
        { "remote_serde: lossless\nremote_url: fs:///x\naccept_serde: [kv8, cachegen]\n", NULL,
          "" },
        { "local_device: cuda\n", NULL,
          "local_device (file lmcache.yaml:1) has no effect: only cpu is known.\n" },
        { "", NULL, "" },
        { "# nothing\n", NULL, "" },
        { "~\n", NULL, "" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        conf_warns(cases[i].yaml, LIST(cases[i].variable), cases[i].lines);
}

static void
a_plugin_without_directory_is_refused(void **state)
{
    (void)state;
    conf_refuses("remote_storage_plugins: [hf3fs.primary]\n"
                 "extra_config: {fs_base_path: /x}\n", NOTHING,
                 "remote_storage_plugins (file lmcache.yaml:1): 'hf3fs.primary' has no "
                 "directory; set extra_config "
                 "remote_storage_plugin.hf3fs.primary.base_path or hf3fs_base_path.");
    conf_refuses("remote_storage_plugins: [fs.a, fs.b]\n"
                 "extra_config: {remote_storage_plugin.fs.a.base_path: /x}\n", NOTHING,
                 "remote_storage_plugins (file lmcache.yaml:1): 'fs.b' has no directory; "
                 "set extra_config remote_storage_plugin.fs.b.base_path or fs_base_path.");
    conf_refuses("remote_storage_plugins: s3.a\n", NOTHING,
                 "remote_storage_plugins (file lmcache.yaml:1): 's3.a' has no place; set "
                 "extra_config remote_storage_plugin.s3.a.base_path.");
}

static void
a_plugin_of_an_unknown_kind_is_refused(void **state)
{
    static const char *const plugins[] = { "mooncake", "mooncake.a" };
    char yaml[160];

    (void)state;
    for (size_t i = 0; i < sizeof plugins / sizeof *plugins; i++) {
        snprintf(yaml, sizeof yaml, "remote_storage_plugins: [%s]\nextra_config: "
                 "{remote_storage_plugin.%s.base_path: /x}\n", plugins[i], plugins[i]);
        conf_refuses(yaml, NOTHING,
                     "remote_storage_plugins (file lmcache.yaml:1): this kvtier has no tier for "
                     "'mooncake'; write fs, s3 or hf3fs, alone or with a name as in fs.a.");
    }
}

static void
an_unknown_location_is_refused_with_all_names(void **state)
{
    (void)state;
    conf_refuses("store_location: LocalDisk\n", NOTHING,
                 "store_location (file lmcache.yaml:1): there is no 'LocalDisk'. The names "
                 "are LocalCPUBackend, LocalDiskBackend, GdsBackend, RemoteBackend.");
    conf_refuses("remote_storage_plugins: [fs.a, fs.b]\n"
                 "retrieve_locations: [LocalCPUBackend, RemoteBackend-fs.c]\n"
                 "extra_config: {fs_base_path: /x}\n", NOTHING,
                 "retrieve_locations (file lmcache.yaml:2): there is no "
                 "'RemoteBackend-fs.c'. The names are LocalCPUBackend, LocalDiskBackend, "
                 "GdsBackend, RemoteBackend, RemoteBackend-fs.a, RemoteBackend-fs.b.");
}

static void
strict_makes_unknown_keys_errors(void **state)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct kvt_config *config;

    (void)state;
    conf_refuses("chunck_size: 5\nstrict_config: true\n", NOTHING,
                 "unknown key 'chunck_size' (file lmcache.yaml:1): did you mean "
                 "chunk_size?");
    conf_refuses(NULL, LIST("KVTIER_STRICT_CONFIG=1", "LMCACHE_NO_SUCH_KEY=1"),
                 "unknown variable LMCACHE_NO_SUCH_KEY.");
    sources.file = conf_file("chunck_size: 5\n");
    sources.environment = NOTHING;
    sources.strict = 1;
    assert_int_equal(kvt_config_open(&sources, &config), -EINVAL);
}

static void
a_failed_open_logs_the_warnings_and_returns_the_first_error(void **state)
{
    (void)state;
    conf_refuses("chunck_size: 5\nchunk_size: 0\nlocal_cpu: 7\n", NOTHING,
                 "chunk_size is '0' (file lmcache.yaml:2): " CHUNK_RANGE);
    assert_int_equal(conf_log.n_lines, 1);
}

static void
arguments_and_engine_json_are_checked(void **state)
{
    static const struct {
        const char *setting, *json, *why;
    } cases[] = {
        { "chunk_size", NULL, "setting 'chunk_size': write key=value." },
        { "chunk_size=0", NULL, "chunk_size is '0' (argument): " CHUNK_RANGE },
        { NULL, "[1]", "kv_connector_extra_config: use a JSON object." },
        { NULL, "{", "kv_connector_extra_config (argument): not JSON, line 1, "
                     "column 1." },
        { NULL, "{\"lmcache.chunk_size\": true}",
          "chunk_size is 'true' (kv_connector_extra_config): " CHUNK_RANGE },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
        struct kvt_config *config;

        sources.environment = NOTHING;
        sources.settings = LIST(cases[i].setting);
        sources.connector_json = cases[i].json;
        assert_int_equal(kvt_config_open(&sources, &config), -EINVAL);
        assert_string_equal(kvt_last_error(), cases[i].why);
    }
}

struct seen {
    unsigned n_errors, n_warnings;
    char keys[256];
};

static void
on_problem(void *ctx, const struct kvt_config_problem *problem)
{
    struct seen *seen = ctx;
    size_t used = strlen(seen->keys);

    if (problem->is_error)
        seen->n_errors++;
    else
        seen->n_warnings++;
    snprintf(seen->keys + used, sizeof seen->keys - used, "%s@%s ", problem->key,
             problem->origin);
}

static void
a_check_returns_all_problems_and_logs_nothing(void **state)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct seen seen = { 0 };

    (void)state;
    memset(&conf_log, 0, sizeof conf_log);
    sources.file = conf_file("a_key: 1\nchunk_size: 0\nuse_layerwise: 1\nlocal_cpu: 3\n");
    sources.environment = NOTHING;
    assert_int_equal(kvt_config_check(&sources, on_problem, &seen), -EINVAL);
    assert_int_equal(seen.n_errors, 3);
    assert_int_equal(seen.n_warnings, 1);
    assert_string_equal(seen.keys,
                        "a_key@file lmcache.yaml:1 chunk_size@file lmcache.yaml:2 "
                        "local_cpu@file lmcache.yaml:4 use_layerwise@file lmcache.yaml:3 ");
    assert_int_equal(conf_log.n_lines, 0);
}

static void
every_setting_is_described(void **state)
{
    struct kvt_param_info info;
    size_t i;

    (void)state;
    for (i = 0; !kvt_param(i, &info); i++) {
        size_t len = strlen(info.text);

        assert_true(len > 0 && info.text[len - 1] == '.');
        assert_true(strlen(info.section) > 0);
        assert_true(strlen(info.allowed) > 0);
        assert_true(strlen(info.allowed) + 1 < sizeof info.allowed);
        assert_int_equal(info.has_effect, !*info.not_done);
    }
    assert_true(i > KVT__N_PARAMS);
    assert_int_equal(kvt_param(i, &info), -ENOENT);
}

/* Files that are too large, nested too deep, or grow exponentially by YAML aliases. */
static void
monstrous_files_are_refused(void **state)
{
    static char text[2 << 20];
    size_t used;

    (void)state;
    memset(text, '#', (1 << 20) + 1);
    conf_refuses(text, NOTHING, "configuration file lmcache.yaml is larger than 1 MiB.");

    snprintf(text, sizeof text, "x: ");
    memset(text + 3, '[', 40);
    memset(text + 43, ']', 40);
    text[83] = 0;
    conf_refuses(text, NOTHING, "file lmcache.yaml:1: nested deeper than 32.");

    snprintf(text, sizeof text, "a0: &a0 [1,1]\n");
    for (int i = 1; i < 20; i++) {
        used = strlen(text);
        snprintf(text + used, 64, "a%d: &a%d [*a%d,*a%d]\n", i, i, i - 1, i - 1);
    }
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct kvt_config *config;
    sources.file = conf_file(text);
    sources.environment = NOTHING;
    assert_int_equal(kvt_config_open(&sources, &config), -EINVAL);
    assert_non_null(strstr(kvt_last_error(), "more than 8192 values"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_name_key_location_and_allowed_values),
        cmocka_unit_test(each_doubtful_setting_is_a_line),
        cmocka_unit_test(a_plugin_without_directory_is_refused),
        cmocka_unit_test(a_plugin_of_an_unknown_kind_is_refused),
        cmocka_unit_test(an_unknown_location_is_refused_with_all_names),
        cmocka_unit_test(strict_makes_unknown_keys_errors),
        cmocka_unit_test(a_failed_open_logs_the_warnings_and_returns_the_first_error),
        cmocka_unit_test(arguments_and_engine_json_are_checked),
        cmocka_unit_test(a_check_returns_all_problems_and_logs_nothing),
        cmocka_unit_test(every_setting_is_described),
        cmocka_unit_test(monstrous_files_are_refused),
    };
    return cmocka_run_group_tests(tests, conf_setup, conf_teardown);
}
