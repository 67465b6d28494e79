/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks across the settings of hf3fs. */
#include <string.h>

#include "conf/read.h"

void
kvt__check_hf3fs(struct kvt__reading *r)
{
    const struct kvt_config *c = r->config;
    const char *origin = kvt__config_origin(c, remote_url);

    if (c->remote_url && !strncmp(c->remote_url, "hf3fs:", strlen("hf3fs:")))
        kvt__note(r, KVT__WARNING, "remote_url", origin,
                  "remote_url (%s): a URL for 3FS is deprecated; write "
                  "remote_storage_plugins: [\"hf3fs.primary\"] and in extra_config "
                  "remote_storage_plugin.hf3fs.primary.base_path.", origin);
}
