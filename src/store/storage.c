/* SPDX-License-Identifier: Apache-2.0
 *
 * The storage that a configuration names, in the order in which it is asked. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kvtier.h"
#include "store/private.h"

#define GIB ((double)(UINT64_C(1) << 30))

static int
tell(const struct kvt__storage *storage, const char *url, kvt__storage_fn fn, void *ctx)
{
    if (strlen(url) >= sizeof storage->url - 1)
        return kvt__fail(ENAMETOOLONG, "%s", storage->name);
    return fn(ctx, storage);
}

static int
local_disk(const struct kvt_config *config, kvt__storage_fn fn, void *ctx)
{
    struct kvt__storage storage = {
        .name = "local_disk", .location = "LocalDiskBackend", .of_host = true,
        .of_each = true,
        .limit_bytes = (uint64_t)(config->max_local_disk_size * GIB) };

    if (!config->local_disk || config->max_local_disk_size <= 0)
        return 0; /* the configuration has told it */
    snprintf(storage.url, sizeof storage.url, "local_disk://%s", config->local_disk);
    return tell(&storage, storage.url, fn, ctx);
}

/* Its directories may be of this host, or of many: who opens them sees that. */
static int
gds(const struct kvt_config *config, kvt__storage_fn fn, void *ctx)
{
    struct kvt__storage storage = {
        .name = "gds_path", .location = "GdsBackend", .of_host = true,
        .limit_bytes = (uint64_t)(config->max_gds_size * GIB) };

    if (!config->gds_path)
        return 0;
    snprintf(storage.url, sizeof storage.url, "gds://%s", config->gds_path);
    return tell(&storage, storage.url, fn, ctx);
}

/* "fs" or "fs.<instance>", each with its directory. */
static int
plugin(const struct kvt_config *config, const char *name, kvt__storage_fn fn, void *ctx)
{
    const char *path = kvt__config_base_path(config, name);
    int kind = (int)strcspn(name, ".");
    struct kvt__storage storage = {
        .name = name, .limit_bytes = (uint64_t)(config->max_remote_size * GIB) };

    if (!path)
        return kvt__fail(EINVAL, "remote_storage_plugins: '%s' has no directory; set "
                         "extra_config remote_storage_plugin.%s.base_path or "
                         "%.*s_base_path.", name, name, kind, name);
    snprintf(storage.url, sizeof storage.url, "%.*s://%s", kind, name, path);
    snprintf(storage.location, sizeof storage.location, "RemoteBackend-%s", name);
    return tell(&storage, storage.url, fn, ctx);
}

static int
remote(const struct kvt_config *config, kvt__storage_fn fn, void *ctx)
{
    struct kvt__storage storage = {
        .name = "remote_url", .location = "RemoteBackend",
        .limit_bytes = (uint64_t)(config->max_remote_size * GIB) };

    if (!config->remote_url)
        return 0;
    snprintf(storage.url, sizeof storage.url, "%s", config->remote_url);
    return tell(&storage, config->remote_url, fn, ctx);
}

int
kvt__each_storage(const struct kvt_config *config, kvt__storage_fn fn, void *ctx)
{
    int err = local_disk(config, fn, ctx);

    if (!err)
        err = gds(config, fn, ctx);
    for (size_t i = 0; !err && i < config->remote_storage_plugins.n; i++)
        err = plugin(config, config->remote_storage_plugins.items[i], fn, ctx);
    return err ? err : remote(config, fn, ctx);
}

/* ------------------------------------------------------------------------- looking */

struct looking {
    const struct kvt_config *config;
    kvt_look_fn fn;
    void *ctx;
};

static int
look(void *ctx, const struct kvt__storage *storage)
{
    const struct looking *l = ctx;
    struct kvt__tier_params params = { .config = l->config, .name = storage->name,
                                       .url = storage->url };

    kvt__tier_look(&params, l->fn, l->ctx);
    return 0;
}

int
kvt_store_look(const struct kvt_config *config, kvt_look_fn fn, void *ctx)
{
    struct looking looking = { config, fn, ctx };

    return kvt__each_storage(config, look, &looking);
}
