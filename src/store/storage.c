/* SPDX-License-Identifier: Apache-2.0
 *
 * The storage that a configuration names, in search order. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kvtier.h"
#include "store/private.h"

#define GIB ((double)(UINT64_C(1) << 30))

static int
report(const struct kvt__storage *storage, const char *url, kvt__storage_fn fn, void *ctx)
{
    if (strlen(url) >= sizeof storage->url - 1)
        return kvt__fail(ENAMETOOLONG, "%s: the URL is longer than %zu bytes.", storage->name,
                         sizeof storage->url - 2);
    return fn(ctx, storage);
}

/* Report the storage that a setting of a tier names.  Other hosts may share the storage: the tier
 * sets multi_host at open. */
static int
report_setting(const struct kvt__storage_setting *setting, kvt__storage_fn fn, void *ctx)
{
    struct kvt__storage storage = {
        .name = setting->setting, .is_per_worker = setting->is_per_worker,
        .limit_bytes = (uint64_t)(setting->limit_gib * GIB), .serde = setting->serde };

    if (!setting->value)
        return 0;
    snprintf(storage.url, sizeof storage.url, "%s%s", setting->scheme, setting->value);
    snprintf(storage.location, sizeof storage.location, "%s", setting->location);
    return report(&storage, storage.url, fn, ctx);
}

/* Report a row of remote_storage_plugins: "fs" or "fs.<instance>", with a directory of its own. */
static int
report_plugin(const struct kvt_config *config, const char *name, kvt__storage_fn fn, void *ctx)
{
    const char *path = kvt__config_base_path(config, name);
    int kind = (int)strcspn(name, ".");
    struct kvt__storage storage = {
        .name = name, .limit_bytes = (uint64_t)(config->max_remote_size * GIB),
        .serde = kvt__config_plugin_serde(config, name) };

    if (!path)
        return kvt__fail(EINVAL, "remote_storage_plugins: '%s' has no directory; set "
                         "extra_config remote_storage_plugin.%s.base_path or "
                         "%.*s_base_path.", name, name, kind, name);
    snprintf(storage.url, sizeof storage.url, "%.*s://%s", kind, name, path);
    snprintf(storage.location, sizeof storage.location, "RemoteBackend-%s", name);
    return report(&storage, storage.url, fn, ctx);
}

static int
report_remote(const struct kvt_config *config, kvt__storage_fn fn, void *ctx)
{
    struct kvt__storage storage = {
        .name = "remote_url", .location = "RemoteBackend",
        .limit_bytes = (uint64_t)(config->max_remote_size * GIB),
        .serde = config->remote_serde };

    if (!config->remote_url)
        return 0;
    snprintf(storage.url, sizeof storage.url, "%s", config->remote_url);
    return report(&storage, config->remote_url, fn, ctx);
}

int
kvt__each_storage(const struct kvt_config *config, kvt__storage_fn fn, void *ctx)
{
    struct kvt__storage_setting setting;
    int err = 0;

    for (size_t i = 0; !err && kvt__config_storage(config, i, &setting); i++)
        err = report_setting(&setting, fn, ctx);
    for (size_t i = 0; !err && i < config->remote_storage_plugins.n; i++)
        err = report_plugin(config, config->remote_storage_plugins.items[i], fn, ctx);
    return err ? err : report_remote(config, fn, ctx);
}

void
kvt__apply_locations(const struct kvt_config *config, const char *location, bool *no_get,
                     bool *no_put)
{
    const struct kvt__strs *from = &config->retrieve_locations;

    *no_get = from->n > 0;
    for (size_t i = 0; i < from->n; i++)
        if (!strcmp(from->items[i], location))
            *no_get = false;
    *no_put = config->store_location && strcmp(config->store_location, location);
}

/* ------------------------------------------------------------------------- checks */

struct url_checks {
    const struct kvt_config *config;
    kvt_config_problem_fn fn;
    void *ctx;
    int err; /* the first error */
};

static int
check_storage_url(void *ctx, const struct kvt__storage *storage)
{
    struct url_checks *checks = ctx;
    struct kvt__tier_params params = { .config = checks->config, .name = storage->name,
                                       .url = storage->url };
    int err = kvt__tier_check_url(&params);

    if (!err)
        return 0;
    checks->fn(checks->ctx, &(struct kvt_config_problem){ .key = storage->name,
                                                          .text = kvt__why(), .is_error = 1 });
    if (!checks->err)
        checks->err = err;
    return 0;
}

int
kvt_config_check_storage(const struct kvt_config *config, kvt_config_problem_fn fn, void *ctx)
{
    struct url_checks checks = { config, fn, ctx, 0 };
    int err = kvt__each_storage(config, check_storage_url, &checks);

    if (err)
        fn(ctx, &(struct kvt_config_problem){ .text = kvt__why(), .is_error = 1 });
    return err ? err : checks.err;
}

struct checks {
    const struct kvt_config *config;
    struct kvt__reporter to;
    size_t n;
};

static int
check_storage(void *ctx, const struct kvt__storage *storage)
{
    struct checks *l = ctx;
    struct kvt__tier_params params = { .config = l->config, .name = storage->name,
                                       .url = storage->url };

    kvt__tier_check(&params, &l->to);
    l->n++;
    return 0;
}

int
kvt_store_look(const struct kvt_config *config, kvt_look_fn fn, void *ctx)
{
    struct checks checks = { config, { .fn = fn, .ctx = ctx }, 0 };
    int err = kvt__each_storage(config, check_storage, &checks);

    return err || checks.n ? err : kvt__fail(ENOENT, "no storage is configured");
}

/* ------------------------------------------------------------------------- memory */

struct shm_need {
    const struct kvt_config *config;
    uint64_t bytes;
};

/* Tiers of a kind share their memory, so the largest need counts. */
static int
find_shm_need(void *ctx, const struct kvt__storage *storage)
{
    struct shm_need *need = ctx;
    struct kvt__tier_params params = { .config = need->config, .name = storage->name,
                                       .url = storage->url };
    uint64_t bytes = kvt__tier_shm_bytes(&params);

    if (bytes > need->bytes)
        need->bytes = bytes;
    return 0;
}

uint64_t
kvt_config_shm_bytes(const struct kvt_config *config)
{
    struct shm_need need = { config, 0 };

    (void)kvt__each_storage(config, find_shm_need, &need); /* stops at an invalid storage */
    return need.bytes;
}
