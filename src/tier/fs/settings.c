/* SPDX-License-Identifier: Apache-2.0
 *
 * The check of the settings of fs. */
#include <string.h>

#include "conf/read.h"

/* Return true if the path is relative and without "..": the path cannot lead out of the
 * directory. */
static bool
stays_inside(const char *path)
{
    if (*path == '/')
        return false;
    for (const char *part = path; *part; part += strspn(part, "/")) {
        size_t len = strcspn(part, "/");

        if (len == 2 && !strncmp(part, "..", 2))
            return false;
        part += len;
    }
    return true;
}

void
kvt__check_fs(struct kvt__reading *r)
{
    const struct kvt_config *c = r->config;
    const char *origin = kvt__config_origin(c, fs_connector_relative_tmp_dir);

    if (c->fs_connector_relative_tmp_dir && !stays_inside(c->fs_connector_relative_tmp_dir))
        kvt__note(r, KVT__ERROR, "fs_connector_relative_tmp_dir", origin,
                  "fs_connector_relative_tmp_dir (%s): use a relative path without '..'.",
                  origin);
}
