/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_to_numa_mapping: {"0": 0, "1": 1}, numbers of devices and of memory nodes. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "conf/read.h"

#define MOST 1023 /* devices and nodes */

static bool
is_mapping(json_t *map)
{
    const char *device;
    json_t *node;

    json_object_foreach(map, device, node) {
        if (!*device || strspn(device, "0123456789") != strlen(device) ||
            !json_is_integer(node) || json_integer_value(node) < 0 ||
            json_integer_value(node) > MOST)
            return false;
    }
    return json_object_size(map) > 0;
}

void
kvt__check_numa(struct kvt__reading *r)
{
    const struct kvt_config *c = r->config;
    const char *origin = kvt__config_origin(c, gpu_to_numa_mapping);

    if (c->gpu_to_numa_mapping) {
        json_t *map = json_loads(c->gpu_to_numa_mapping, 0, NULL);

        if (!is_mapping(map))
            kvt__note(r, KVT__ERROR, "gpu_to_numa_mapping", origin,
                      "gpu_to_numa_mapping (%s): use a map from device numbers to node "
                      "numbers, for example {0: 0, 1: 1}.", origin);
        json_decref(map);
    } else if (c->numa_mode && !strcmp(c->numa_mode, "manual")) {
        origin = kvt__config_origin(c, numa_mode);
        kvt__note(r, KVT__ERROR, "numa_mode", origin,
                  "numa_mode is manual (%s): gpu_to_numa_mapping is needed in "
                  "extra_config, for example {0: 0, 1: 1}.", origin);
    }
}

int
kvt__config_numa_node(const struct kvt_config *config, uint32_t device, int *node)
{
    char name[16];
    json_t *map = json_loads(config->gpu_to_numa_mapping, 0, NULL);

    snprintf(name, sizeof name, "%u", device);
    json_t *found = json_object_get(map, name);
    *node = (int)json_integer_value(found);
    bool missing = !found;
    json_decref(map);
    return missing ? kvt__fail(EINVAL, "gpu_to_numa_mapping (%s) has no device %u, which "
                               "this worker is.",
                               kvt__config_origin(config, gpu_to_numa_mapping), device)
                   : 0;
}
