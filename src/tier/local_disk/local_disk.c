/* SPDX-License-Identifier: Apache-2.0
 *
 * The tier of local_disk://DIRECTORY,DIRECTORY...: files as LMCache's local disk back end stores
 * them. */
#include <errno.h>
#include <string.h>

#include "conf/conf.h"
#include "tier/files/files.h"

extern const struct kvt__tier_ops kvt__tier_local_disk;

static const struct kvt__files_kind local_disk_kind = {
    .layout = &kvt__layout_local_disk,
    .relative = true,
};

static int
local_disk_check_url(const struct kvt__tier_params *params)
{
    return kvt__files_check_list(&local_disk_kind, params->name, params->rest);
}

static int
local_disk_open(const struct kvt__tier_params *params, struct kvt__tier **out)
{
    struct kvt__files *t = kvt__files_new(sizeof *t, &kvt__tier_local_disk,
                                          &local_disk_kind, params);

    if (!t)
        return -ENOMEM;
    t->tier.slash = '-'; /* the name of a file has '-' for each '/' of the key */
    kvt__files_set_sharding(t, "local_disk_path_sharding",
                            params->config->local_disk_path_sharding);
    return kvt__files_opened(t, kvt__files_open(t, params, params->rest), out);
}

static void
local_disk_check(const struct kvt__tier_params *params, const struct kvt__reporter *to)
{
    kvt__files_check(&kvt__tier_local_disk, params, params->config->max_local_disk_size, to);
}

const struct kvt__tier_ops kvt__tier_local_disk = {
    .name = "local_disk",
    .open = local_disk_open,
    .check_url = local_disk_check_url,
    .check = local_disk_check,
    .stop = kvt__files_stop,
    .close = kvt__files_close,
    KVT__FILES_OPS,
    .run = kvt__files_run,
};
