/* SPDX-License-Identifier: Apache-2.0
 *
 * retrieve_locations and store_location.  Their values are LMCache's names of backends, which
 * stand for kvtier's tiers. */
#include <stdio.h>
#include <string.h>

#include "conf/read.h"

/* Backends of LMCache that kvtier does not support. */
static const char *const unsupported_backends[] = { "PDBackend", "P2PBackend", "NixlStorageBackend",
                                      "MaruBackend" };

bool
kvt__config_storage(const struct kvt_config *config, size_t i,
                    struct kvt__storage_setting *out)
{
    const struct kvt__storage_setting all[] = {
#define KVT_STORAGE(kind, setting, location, limit, is_per_worker, serde)        \
        { #kind "://", #setting, location,                                 \
          is_per_worker && config->limit <= 0 ? NULL : config->setting,          \
          config->limit, is_per_worker, serde },
#include "conf/params.def"
    };

    if (i >= sizeof all / sizeof *all)
        return false;
    *out = all[i];
    return true;
}

static bool
is_among(const char *word, const struct kvt__strs *words)
{
    for (size_t i = 0; i < words->n; i++)
        if (!strcmp(word, words->items[i]))
            return true;
    return false;
}

enum location { UNKNOWN, ABSENT, PRESENT };

static enum location
location_of(const struct kvt_config *c, const char *name)
{
    static const char plugin[] = "RemoteBackend-";
    const struct {
        const char *name;
        bool present;
    } backends[] = {
        { "LocalCPUBackend", c->local_cpu || c->shared_cpu },
        { "RemoteBackend", c->remote_url != NULL },
    };

    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (!strcmp(name, backends[i].name))
            return backends[i].present ? PRESENT : ABSENT;
    struct kvt__storage_setting s;
    for (size_t i = 0; kvt__config_storage(c, i, &s); i++)
        if (!strcmp(name, s.location))
            return s.value ? PRESENT : ABSENT;
    if (!strncmp(name, plugin, sizeof plugin - 1) &&
        is_among(name + sizeof plugin - 1, &c->remote_storage_plugins))
        return PRESENT;
    for (size_t i = 0; i < sizeof unsupported_backends / sizeof *unsupported_backends; i++)
        if (!strcmp(name, unsupported_backends[i]))
            return ABSENT;
    return is_among(name, &c->storage_plugins) ? ABSENT : UNKNOWN;
}

/* Write all valid names: "LocalCPUBackend, ..., RemoteBackend-NAME". */
static void
all_locations(const struct kvt_config *c, char *out, size_t size)
{
    struct kvt__storage_setting s;
    size_t used = 0;

    for (size_t i = 0; kvt__config_storage(c, i, &s) && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "", s.location);
    if (used < size)
        used += (size_t)snprintf(out + used, size - used, ", RemoteBackend");
    for (size_t i = 0; i < c->remote_storage_plugins.n && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, ", RemoteBackend-%s",
                                 c->remote_storage_plugins.items[i]);
}

static void
check_location(struct kvt__reading *r, const char *key, const char *origin,
               const char *name)
{
    enum location where = location_of(r->config, name);
    char names[640];

    if (where == UNKNOWN) {
        all_locations(r->config, names, sizeof names);
        kvt__note(r, KVT__ERROR, key, origin,
                  "%s (%s): there is no '%s'. The names are %s.", key, origin, name,
                  names);
    } else if (where == ABSENT) {
        kvt__note(r, KVT__WARNING, key, origin,
                  "%s (%s): %s is not configured; nothing %s there.", key, origin, name,
                  !strcmp(key, "store_location") ? "is stored" : "will be found");
    }
}

void
kvt__check_locations(struct kvt__reading *r)
{
    const struct kvt_config *c = r->config;

    for (size_t i = 0; i < c->retrieve_locations.n; i++)
        check_location(r, "retrieve_locations",
                       kvt__config_origin(c, retrieve_locations),
                       c->retrieve_locations.items[i]);
    if (c->store_location)
        check_location(r, "store_location", kvt__config_origin(c, store_location),
                       c->store_location);
}
