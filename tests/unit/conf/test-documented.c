/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier opens the configurations of LMCache's documentation, and of a porting guide for LMCache,
 * without a change. */
#include "conf-test.h"
#include "tier/s3/s3.h"
#include "unit/conf/documented-dir.h"

struct documented {
    const char *file; /* in documented/; NULL: the environment only */
    const char *environment[8];
    size_t n_warnings;
    void (*check)(const struct kvt_config *c);
};

static void
is_first_s3(const struct kvt_config *c)
{
    assert_int_equal(c->chunk_size, 256);
    assert_false(c->local_cpu);
    assert_false(c->save_unfull_chunk);
    assert_string_equal(c->remote_url, "s3://your-bucket-name");
    assert_string_equal(c->remote_serde, "naive");
    assert_int_equal(c->blocking_timeout_secs, 100);
    assert_string_equal(c->s3_region, "us-east-1");
    assert_int_equal(c->s3_max_io_concurrency, 64);
    assert_int_equal(c->s3_max_inflight_reqs, 64);
    assert_int_equal(kvt__s3_max_requests(c), 64);
    assert_false(kvt__config_is_set(c, disable_tls));
}

static void
is_express(const struct kvt_config *c)
{
    assert_string_equal(c->remote_url,
                        "s3://{BUCKET_NAME}.s3express-{AZ_ID}.{REGION}.amazonaws.com");
    assert_string_equal(c->s3_region, "{REGION}");
    assert_true(c->s3_prefer_http2);
    assert_true(c->s3_enable_s3express);
    assert_string_equal(c->s3_addressing, "auto");
    assert_int_equal(kvt__s3_max_requests(c), 64);
}

static void
is_first_express(const struct kvt_config *c)
{
    is_express(c);
    assert_string_equal(c->s3_file_prefix, "{FILE_PREFIX}");
}

static void
is_coreweave(const struct kvt_config *c)
{
    assert_string_equal(c->remote_url, "s3://test-127.cwlota.com");
    assert_string_equal(c->s3_region, "US-WEST-04A");
    assert_true(c->enable_async_loading);
    assert_float_equal(c->max_local_cpu_size, 50, 0);
    assert_false(c->s3_prefer_http2);
    assert_false(c->s3_enable_s3express);
    assert_false(c->save_chunk_meta);
}

static void
is_first_coreweave(const struct kvt_config *c)
{
    is_coreweave(c);
    assert_int_equal(c->s3_max_inflight_reqs, 320);
    assert_int_equal(kvt__s3_max_requests(c), 320);
    assert_int_equal(c->blocking_timeout_secs, 100);
    assert_false(kvt__config_is_set(c, disable_tls));
    assert_string_equal(c->s3_file_prefix, "test-2");
}

static void
is_second_coreweave(const struct kvt_config *c)
{
    is_coreweave(c);
    assert_int_equal(c->s3_num_io_threads, 320);
    assert_int_equal(kvt__s3_max_requests(c), 320);
    assert_true(kvt__config_is_set(c, disable_tls));
    assert_true(c->disable_tls);
    assert_null(c->s3_file_prefix);
    assert_string_equal(c->aws_access_key_id, "your-access-key-id");
    assert_string_equal(c->aws_secret_access_key, "your-secret-access-key");
}

static void
is_second_s3(const struct kvt_config *c)
{
    assert_string_equal(c->remote_url, "s3://your-bucket-name");
    assert_string_equal(c->s3_region, "us-east-1");
    assert_int_equal(c->s3_num_io_threads, 64);
    assert_int_equal(kvt__s3_max_requests(c), 64);
    assert_int_equal(c->blocking_timeout_secs, 10);
    assert_false(c->save_chunk_meta);
}

static void
is_porting_guide(const struct kvt_config *c)
{
    assert_true(c->local_cpu);
    assert_string_equal(c->remote_serde, "cachegen");
    assert_string_equal(c->remote_url, "s3://your-lmcache-bucket");
    assert_string_equal(c->s3_file_prefix, "kv-cache");
    assert_string_equal(c->s3_region, "us-west-2");
    assert_string_equal(c->s3_endpoint_url, "https://s3.custom-endpoint.com");
    assert_string_equal(kvt__config_origin(c, s3_endpoint_url), "AWS_ENDPOINT_URL");
    assert_null(c->aws_access_key_id); /* the chain of credentials finds the key */
    assert_null(strstr(conf_log.text, "your-secret"));
}

static void
has_region(const struct kvt_config *c)
{
    assert_string_equal(c->s3_region, "us-west-2");
    assert_string_equal(kvt__config_origin(c, s3_region), "AWS_DEFAULT_REGION");
}

static void
is_3fs_client(const struct kvt_config *c)
{
    assert_false(c->local_cpu);
    assert_string_equal(c->hf3fs_mount_point, "/3fs/stage");
    assert_int_equal(c->hf3fs_iov_size, 209715200);
    assert_int_equal(c->hf3fs_ior_entries, 256);
    assert_int_equal(c->hf3fs_io_depth, 0);
    assert_int_equal(c->hf3fs_numa_id, -1);
    assert_int_equal(c->hf3fs_io_thread_num, 4);
}

static void
is_3fs_plugin(const struct kvt_config *c)
{
    is_3fs_client(c);
    assert_int_equal(c->remote_storage_plugins.n, 1);
    assert_string_equal(c->remote_storage_plugins.items[0], "hf3fs.primary");
    assert_string_equal(kvt__config_base_path(c, "hf3fs.primary"),
                        "/3fs/stage/dir1,/3fs/stage/dir2");
    assert_null(kvt__config_base_path(c, "hf3fs.other"));
    assert_null(c->remote_url);
}

static void
is_3fs_url(const struct kvt_config *c)
{
    assert_string_equal(c->remote_url, "hf3fs:///3fs/stage/hello, /3fs/stage/world");
}

static void
is_3fs_base_path(const struct kvt_config *c)
{
    assert_string_equal(c->hf3fs_base_path, "/3fs/stage/dir1,/3fs/stage/dir2");
}

static void
is_gds(const struct kvt_config *c)
{
    assert_int_equal(c->chunk_size, 256);
    assert_false(c->local_cpu);
    assert_string_equal(c->gds_path, "/mnt/gds/cache");
    assert_int_equal(c->gds_buffer_size, 8192);
    assert_true(c->use_gds);
}

static void
has_four_gds_paths(const struct kvt_config *c)
{
    assert_string_equal(c->gds_path, "/mnt/nvme0/cache,/mnt/nvme1/cache,"
                                     "/mnt/nvme2/cache,/mnt/nvme3/cache");
}

static void
is_hipfile(const struct kvt_config *c)
{
    assert_string_equal(c->gds_backend, "hipfile");
}

static void
is_posix_gds(const struct kvt_config *c)
{
    assert_false(c->use_gds);
}

static const struct documented all[] = {
    { "s3-first-basic.yaml", { NULL }, 1, is_first_s3 },
    { "s3-first-express.yaml", { NULL }, 2, is_first_express },
    { "s3-first-coreweave.yaml", { NULL }, 2, is_first_coreweave },
    { "s3-second-basic.yaml", { NULL }, 0, is_second_s3 },
    { "s3-second-express.yaml", { NULL }, 1, is_express },
    { "s3-second-coreweave.yaml", { NULL }, 0, is_second_coreweave },
    { "porting-guide.yaml",
      { "AWS_ACCESS_KEY_ID=your-access-key-id",
        "AWS_SECRET_ACCESS_KEY=your-secret-access-key", "AWS_DEFAULT_REGION=us-west-1",
        "AWS_ENDPOINT_URL=https://s3.custom-endpoint.com", "VLLM_USE_V1=1" },
      0, is_porting_guide },
    { NULL, { "AWS_DEFAULT_REGION=us-west-2" }, 0, has_region },
    { "3fs-full.yaml", { NULL }, 0, is_3fs_plugin },
    { "3fs-url.yaml", { NULL }, 1, is_3fs_url },
    { "3fs-url-line.yaml", { NULL }, 1, is_3fs_url },
    { "3fs-base-path-line.yaml", { NULL }, 0, is_3fs_base_path },
    { "3fs-offload.yaml",
      { "VLLM_USE_V1=0", "LMCACHE_USE_EXPERIMENTAL=True", "LMCACHE_LOG_LEVEL=INFO",
        "VLLM_WORKER_MULTIPROC_METHOD=spawn", "VLLM_ENABLE_V1_MULTIPROCESSING=1" },
      0, is_3fs_plugin },
    { NULL,
      { "LMCACHE_CHUNK_SIZE=256", "LMCACHE_GDS_PATH=/mnt/gds/cache",
        "LMCACHE_CUFILE_BUFFER_SIZE=8192", "LMCACHE_LOCAL_CPU=False" },
      1, is_gds },
    { "gds.yaml", { NULL }, 1, is_gds },
    { "gds-backend.yaml", { "HF_TOKEN=none" }, 1, is_gds },
    { "gds-paths-line.yaml", { NULL }, 0, has_four_gds_paths },
    { NULL,
      { "LMCACHE_GDS_PATH=/mnt/nvme0/cache,/mnt/nvme1/cache,/mnt/nvme2/cache,"
        "/mnt/nvme3/cache" },
      0, has_four_gds_paths },
    { NULL, { "LMCACHE_EXTRA_CONFIG={\"use_hipfile\": true}" }, 1, is_hipfile },
    { "hipfile.yaml", { NULL }, 1, is_hipfile },
    { "hipfile-flat.yaml", { NULL }, 1, is_hipfile },
    { NULL, { "LMCACHE_EXTRA_CONFIG={\"use_cufile\": false}" }, 1, is_posix_gds },
};

static void
every_documented_configuration_loads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
        char path[512];

        if (all[i].file) {
            snprintf(path, sizeof path, DOCUMENTED_DIR "/%s", all[i].file);
            sources.file = path;
        }
        sources.environment = all[i].environment;
        struct kvt_config *config = conf_open_all(&sources);
        if (conf_log.n_lines != all[i].n_warnings)
            fail_msg("%zu warnings from %s, %s:\n%s", conf_log.n_lines, all[i].file,
                     all[i].environment[0], conf_log.text);
        all[i].check(config);
        kvt_config_free(config);
    }
}

static void
the_file_is_found_through_lmcache_config_file(void **state)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);

    (void)state;
    sources.environment = LIST("LMCACHE_CONFIG_FILE=" DOCUMENTED_DIR "/gds-backend.yaml");
    struct kvt_config *config = conf_open_all(&sources);
    is_gds(config);
    kvt_config_free(config);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_documented_configuration_loads),
        cmocka_unit_test(the_file_is_found_through_lmcache_config_file),
    };
    return cmocka_run_group_tests(tests, conf_setup, conf_teardown);
}
