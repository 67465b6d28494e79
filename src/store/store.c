/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening the tiers and their indexes, and what is asked of all levels at once. */
#include "store/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "conf/conf.h"
#include "store/private.h"

#define GIB ((double)(UINT64_C(1) << 30))
#define MIN_ENTRIES (UINT64_C(1) << 14)
#define MAX_ENTRIES (UINT64_C(1) << 20)

/* Twice what fits, so that a full store is a half-full table. */
static uint64_t
n_entries_for(uint64_t limit, uint64_t object_bytes)
{
    uint64_t n = limit / (object_bytes ? object_bytes : 1) * 2;

    if (n < MIN_ENTRIES)
        return MIN_ENTRIES;
    return n < MAX_ENTRIES ? n : MAX_ENTRIES;
}

void
kvt__level_set_location(struct kvt__level *level, const struct kvt_config *config,
                        const char *location)
{
    const struct kvt__strs *from = &config->retrieve_locations;

    level->no_get = from->n > 0;
    for (size_t i = 0; i < from->n; i++)
        if (!strcmp(from->items[i], location))
            level->no_get = false;
    level->no_put = config->store_location && strcmp(config->store_location, location);
}

/* location: LMCache's name for it; limit: 0: what the tier takes by default. */
static int
open_level(struct kvt__store *store, const struct kvt__store_params *params,
           const char *name, const char *url, const char *location, uint64_t limit)
{
    struct kvt__level *level = &store->levels[store->n_levels];
    int err;

    if (store->n_levels == KVT__MAX_LEVELS)
        return kvt__fail(EINVAL, "%s: more than %d tiers.", name, KVT__MAX_LEVELS);
    struct kvt__tier_params tier = { .config = params->config, .name = name, .url = url,
                                     .local_ranks = params->local_ranks };
    err = kvt__tier_open(&tier, &level->tier);
    if (err)
        return err;
    limit = limit ? limit : level->tier->ops->default_limit(level->tier);
    struct kvt__index_params index = {
        .dirfd = level->tier->ops->private_dir(level->tier),
        .n_entries = n_entries_for(limit, params->object_bytes),
        .limit_bytes = limit, .writer = true };
    err = kvt__index_open(&index, &level->index);
    if (err) {
        level->tier->ops->close(level->tier);
        return err;
    }
    store->n_levels++;
    level->url = strdup(url);
    if (!level->url)
        return kvt__fail(ENOMEM, "%s: open", name);
    kvt__level_set_location(level, params->config, location);
    kvt__index_recover(level->index);
    return 0;
}

/* local_disk: every worker of the host adds its part to one limit.  Where their number
 * is not known (the command line) the limit of those that have it open is to hold. */
static int
open_local_disk(struct kvt__store *store, const struct kvt__store_params *params)
{
    const struct kvt_config *config = params->config;
    double limit = config->max_local_disk_size * GIB * params->local_ranks;
    char url[4096 + 32];

    if (!config->local_disk || config->max_local_disk_size <= 0)
        return 0; /* the configuration has told it */
    if (snprintf(url, sizeof url, "local_disk://%s", config->local_disk) >=
        (int)sizeof url)
        return kvt__fail(ENAMETOOLONG, "local_disk: %s", config->local_disk);
    if (params->local_ranks > 1)
        kvt__log(KVT_LOG_INFO, "local_disk: at most %.1f GiB for all %u workers of this "
                 "host", limit / GIB, params->local_ranks);
    return open_level(store, params, "local_disk", url, "LocalDiskBackend",
                      (uint64_t)limit);
}

static uint64_t
remote_limit(const struct kvt_config *config)
{
    return (uint64_t)(config->max_remote_size * GIB);
}

/* remote_storage_plugins: "fs" or "fs.<instance>", each with its base_path. */
static int
open_plugins(struct kvt__store *store, const struct kvt__store_params *params)
{
    const struct kvt_config *config = params->config;

    for (size_t i = 0; i < config->remote_storage_plugins.n; i++) {
        const char *plugin = config->remote_storage_plugins.items[i];
        const char *path = kvt__config_base_path(config, plugin);
        char url[4096 + 32], location[256];
        int kind = (int)strcspn(plugin, ".");

        if (!path && !strncmp(plugin, "fs", (size_t)kind))
            path = config->fs_base_path;

        if (!path)
            return kvt__fail(EINVAL, "remote_storage_plugins: '%s' has no directory; "
                             "set extra_config remote_storage_plugin.%s.base_path or "
                             "%.*s_base_path.", plugin, plugin, kind, plugin);
        if (snprintf(url, sizeof url, "%.*s://%s", kind, plugin, path) >=
            (int)sizeof url)
            return kvt__fail(ENAMETOOLONG, "remote_storage_plugins: %s", plugin);
        snprintf(location, sizeof location, "RemoteBackend-%s", plugin);
        int err = open_level(store, params, plugin, url, location,
                             remote_limit(config));
        if (err)
            return err;
    }
    return 0;
}

/* Say of every tier the configuration asks for and this version lacks that it is
 * not there. */
static void
tell_missing(const struct kvt_config *config)
{
    if (config->gds_path)
        kvt__log(KVT_LOG_WARN, "gds_path: this version has no GDS tier yet; nothing is "
                 "stored in %s", config->gds_path);
}

int
kvt__store_open(const struct kvt__store_params *params, struct kvt__store **out)
{
    struct kvt__store *store = calloc(1, sizeof *store);
    int err = 0;

    if (!store)
        return kvt__fail(ENOMEM, "store: open");
    store->exec = params->exec;
    store->counters = params->counters;
    store->refuse_unverified = params->config->refuse_unverified;
    tell_missing(params->config);
    err = open_local_disk(store, params);
    if (!err)
        err = open_plugins(store, params);
    if (!err && params->config->remote_url)
        err = open_level(store, params, "remote_url", params->config->remote_url,
                         "RemoteBackend", remote_limit(params->config));
    if (!err && !store->n_levels)
        err = kvt__fail(EINVAL, "no tier is configured; set remote_url (for example "
                        "fs:///var/cache/kvtier), remote_storage_plugins, or local_disk "
                        "with max_local_disk_size.");
    if (err) {
        kvt__store_close(store);
        return err;
    }
    *out = store;
    return 0;
}

void
kvt__store_close(struct kvt__store *store)
{
    if (!store)
        return;
    for (size_t i = 0; i < store->n_levels; i++) {
        kvt__index_close(store->levels[i].index);
        store->levels[i].tier->ops->close(store->levels[i].tier);
        free(store->levels[i].url);
    }
    free(store);
}

size_t
kvt__store_phase(const struct kvt__store *store)
{
    return store->levels[0].tier->ops->phase(store->levels[0].tier);
}

int
kvt__store_add_space(struct kvt__store *store, struct kvt__space *space)
{
    char text[KVT__KEY_TEXT_MAX + 1];

    for (size_t i = 0; i < store->n_levels; i++) {
        kvt__level_listed_key(&store->levels[i], space->text, text);
        int number = kvt__index_space(store->levels[i].index, text);

        if (number < 0)
            return number;
        space->number[i] = (uint32_t)number;
    }
    return 0;
}

uint64_t
kvt__store_epoch(const struct kvt__store *store, const struct kvt__space *space)
{
    return kvt__index_epoch(store->levels[0].index, space->number[0]);
}

void
kvt__store_next_epoch(struct kvt__store *store, const struct kvt__space *space)
{
    kvt__index_next_epoch(store->levels[0].index, space->number[0]);
}

void
kvt__store_prefetch(const struct kvt__store *store, const struct kvt__id *id)
{
    for (size_t i = 0; i < store->n_levels; i++)
        kvt__index_prefetch(store->levels[i].index, id);
}

bool
kvt__store_find(const struct kvt__store *store, const struct kvt__id *id)
{
    for (size_t i = 0; i < store->n_levels; i++)
        if (!store->levels[i].no_get &&
            kvt__index_find(store->levels[i].index, id, NULL))
            return true;
    return false;
}

bool
kvt__store_touch(struct kvt__store *store, const struct kvt__id *id)
{
    bool there = false;

    for (size_t i = 0; i < store->n_levels; i++) {
        if (!kvt__index_find(store->levels[i].index, id, NULL))
            continue;
        kvt__index_touch(store->levels[i].index, id);
        there = there || !store->levels[i].no_put;
    }
    return there;
}

int
kvt__store_lease(struct kvt__store *store, const struct kvt__id *id, int64_t until_ns)
{
    for (size_t i = 0; i < store->n_levels; i++)
        if (!store->levels[i].no_get &&
            kvt__index_lease(store->levels[i].index, id, until_ns, NULL))
            return (int)i;
    return -1;
}

void
kvt__store_unlease(struct kvt__store *store, int level, const struct kvt__id *id)
{
    kvt__index_unlease(store->levels[level].index, id);
}
