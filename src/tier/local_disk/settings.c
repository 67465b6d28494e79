/* SPDX-License-Identifier: Apache-2.0
 *
 * The check of the settings of local_disk. */
#include <string.h>

#include "conf/read.h"

void
kvt__check_local_disk(struct kvt__reading *r)
{
    struct kvt_config *c = r->config;
    const char *origin = kvt__config_origin(c, local_disk);

    /* LMCache also accepts file://PATH. */
    if (c->local_disk && !strncmp(c->local_disk, "file://", 7) &&
        strchr(c->local_disk + 7, '/'))
        c->local_disk += 7;
    if (c->local_disk && c->max_local_disk_size <= 0)
        kvt__note(r, KVT__WARNING, "local_disk", origin,
                  "local_disk (%s) has no effect: max_local_disk_size is 0.", origin);
}
