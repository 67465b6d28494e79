/* SPDX-License-Identifier: Apache-2.0
 *
 * The S3 tier, s3://BUCKET or s3://HOST.  Each chunk is an object with the name and content that
 * LMCache's connector uses.  docs/s3.md. */
#include "tier/s3/s3.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/private-dir.h"
#include "conf/conf.h"

extern const struct kvt__tier_ops kvt__tier_s3;

#define MAX_THREADS 8
#define MIN_RANGE ((uint64_t)5 << 20)
#define WRITE_TIMES 10 /* time limit of a store, as a multiple of a load's limit */

/* -------------------------------------------------------------------------- opening */

/* Return the setting, or the value of key in AWS's profile, copied to out.  NULL: both are
 * unset. */
static const char *
setting_or_profile(const struct kvt_config *c, const char *setting, const char *key, char *out,
                   size_t room)
{
    struct kvt__s3_chain_params params = { .environment = c->environment,
                                           .profile = c->s3_profile };

    if (setting && *setting)
        return setting;
    return kvt__s3_profile_text(&params, key, out, room) ? NULL : out;
}

static int
find_address(const struct kvt__tier_params *params, struct kvt__s3_address *out)
{
    const struct kvt_config *c = params->config;
    char region[64], endpoint[512];
    struct kvt__s3_address_params settings = {
        .rest = params->rest,
        .endpoint_url = setting_or_profile(c, c->s3_endpoint_url, "endpoint_url", endpoint,
                                           sizeof endpoint),
        .region = setting_or_profile(c, c->s3_region, "region", region, sizeof region),
        .file_prefix = c->s3_file_prefix,
        .resolve = c->s3_resolve, .express = c->s3_enable_s3express,
        .style = !strcmp(c->s3_addressing, "path") ? KVT__S3_PATH :
                 !strcmp(c->s3_addressing, "virtual") ? KVT__S3_VIRTUAL : KVT__S3_AUTO,
        .tls = !kvt__config_is_set(c, disable_tls) ? KVT__S3_TLS_AUTO :
               c->disable_tls ? KVT__S3_TLS_OFF : KVT__S3_TLS_ON };

    struct kvt__s3_chain_params profile = { .environment = c->environment,
                                            .profile = c->s3_profile };
    int err = kvt__s3_use_fips(&profile, &settings.fips);
    if (!err)
        err = kvt__s3_use_dualstack(&profile, &settings.dualstack);
    return err ? err : kvt__s3_address(params->name, &settings, out);
}

static int
open_http(struct s3_tier *t, const struct kvt_config *c)
{
    cpu_set_t cpus;
    int n = sched_getaffinity(0, sizeof cpus, &cpus) ? 1 : CPU_COUNT(&cpus) / 4;
    struct kvt__http_params params = {
        .n_threads = (unsigned)(n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n),
        .max_requests = (unsigned)kvt__s3_max_requests(c),
        .no_verify = !c->s3_verify_tls, .ca_file = c->s3_ca_file,
        .cert_file = c->s3_client_cert, .key_file = c->s3_client_key,
        .stall_ns = c->s3_stall_timeout_ms * KVT__NS_PER_MS,
        .connect_ns = c->s3_connect_timeout_ms * KVT__NS_PER_MS };

    kvt__s3_read_proxies(c->environment, &params);
    return kvt__http_open(&params, &t->http);
}

static char *
copy(const char *text)
{
    return text && *text ? strdup(text) : NULL;
}

static void
copy_settings(struct s3_tier *t, const struct kvt_config *c)
{
    t->read_ns = c->blocking_timeout_secs * KVT__NS_PER_S;
    t->write_ns = WRITE_TIMES * t->read_ns;
    t->range_bytes = (uint64_t)c->s3_part_size > MIN_RANGE ? (uint64_t)c->s3_part_size
                                                           : MIN_RANGE;
    t->is_unsigned = c->s3_unsigned;
    t->request_payer = c->s3_request_payer;
    t->sse = copy(c->s3_sse);
    t->sse_key = copy(c->s3_sse_kms_key_id);
    t->storage_class = copy(c->s3_storage_class);
}

/* Open the directory of the index.  All processes of this host share the index of a bucket and
 * prefix. */
static int
open_index_dir(struct s3_tier *t)
{
    const struct kvt__s3_address *a = kvt__s3_address_of(t);

    if (asprintf(&t->index_of, "s3://%s%s", a->host, a->object_path) < 0) {
        t->index_of = NULL;
        return kvt__fail(ENOMEM, "S3: open");
    }
    t->index_fd = kvt__private_dir_open_for(KVT__LOCAL_DIR, t->index_of, strlen(t->index_of));
    return t->index_fd < 0 ? t->index_fd : 0;
}

static void
s3_stop(struct kvt__tier *tier)
{
    struct s3_tier *t = (struct s3_tier *)tier;

    atomic_store(&t->stopping, true);
    kvt__s3_cleaner_stop(t);
    kvt__s3_keyring_stop(t);
    kvt__http_stop(t->http);
}

static void
s3_close(struct kvt__tier *tier)
{
    struct s3_tier *t = (struct s3_tier *)tier;

    if (t->http)
        s3_stop(tier);
    kvt__s3_cleaner_close(t);
    kvt__s3_keyring_close(t);
    if (t->http)
        kvt__http_close(t->http);
    kvt__s3_targets_free(t);
    kvt__s3_pace_fini(&t->pace);
    pthread_mutex_destroy(&t->corrupt.lock);
    pthread_mutex_destroy(&t->targets_lock);
    if (t->index_fd >= 0)
        close(t->index_fd);
    free(t->sse);
    free(t->sse_key);
    free(t->storage_class);
    free(t->index_of);
    kvt__s3_headers_close(t);
    free(t);
}

static int
s3_check_url(const struct kvt__tier_params *params)
{
    struct kvt__s3_address address;
    int err = find_address(params, &address);

    if (err)
        return err;
    struct s3_tier *t = calloc(1, sizeof *t);
    if (!t)
        return kvt__fail(ENOMEM, "%s: check", params->name);
    err = kvt__s3_headers_open(t, params->config);
    kvt__s3_headers_close(t);
    free(t);
    return err;
}

static int
s3_open(const struct kvt__tier_params *params, struct kvt__tier **out)
{
    struct kvt__s3_address address;
    int err = find_address(params, &address);

    if (err)
        return err;
    struct s3_tier *t = calloc(1, sizeof *t);
    if (!t)
        return kvt__fail(ENOMEM, "%s: open", params->name);
    t->tier = (struct kvt__tier){ .ops = &kvt__tier_s3, .multi_host = true,
                                  .keeps_corrupt = true,
                                  .any_memory = true, .any_name = true,
                                  .enforces_limit = true, .slash = '_' };
    t->counters = params->counters;
    t->index_fd = -1;
    t->expect_continue = true;
    pthread_mutex_init(&t->targets_lock, NULL);
    pthread_mutex_init(&t->corrupt.lock, NULL);
    kvt__s3_pace_init(&t->pace, (unsigned)kvt__s3_max_requests(params->config));
    copy_settings(t, params->config);
    t->caller_reports = params->caller_reports;
    err = kvt__s3_headers_open(t, params->config);
    if (!err)
        err = open_http(t, params->config);
    if (!err)
        err = kvt__s3_target_set(t, &address);
    if (!err)
        err = open_index_dir(t);
    if (!err)
        err = kvt__s3_keyring_open(t, params->config);
    if (!err)
        err = kvt__s3_cleaner_open(t, params->config);
    if (err) {
        s3_close(&t->tier);
        return err;
    }
    *out = &t->tier;
    return 0;
}

/* ----------------------------------------------------------------- operations table */

static int
s3_private_dir(const struct kvt__tier *tier)
{
    const struct s3_tier *t = (const struct s3_tier *)tier;

    kvt__private_dir_renew_for(t->index_fd, KVT__LOCAL_DIR, t->index_of, strlen(t->index_of));
    return t->index_fd;
}

static void
s3_check(const struct kvt__tier_params *params, const struct kvt__reporter *to)
{
    kvt__s3_check(&kvt__tier_s3, params, to);
}

const struct kvt__tier_ops kvt__tier_s3 = {
    .name = "s3",
    .open = s3_open,
    .check_url = s3_check_url,
    .check = s3_check,
    .stop = s3_stop,
    .close = s3_close,
    .private_dir = s3_private_dir,
    .submit = kvt__s3_submit,
    .list = kvt__s3_list,
};
