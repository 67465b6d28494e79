/* SPDX-License-Identifier: Apache-2.0
 *
 * The tier of fs:///DIRECTORY,DIRECTORY...: files as LMCache's fs connector stores them. */
#include <errno.h>
#include <string.h>

#include "conf/conf.h"
#include "tier/files/files.h"

extern const struct kvt__tier_ops kvt__tier_fs;

static const struct kvt__files_kind fs_kind = { .layout = &kvt__layout_fs };

/* Return the list of directories.  Released versions of LMCache require fs://HOST:PORT/DIRECTORY,
 * so HOST:PORT is ignored. */
static const char *
list_of(const struct kvt__tier_params *params)
{
    return params->rest + strcspn(params->rest, "/");
}

static int
fs_check_url(const struct kvt__tier_params *params)
{
    return kvt__files_check_list(&fs_kind, params->name, list_of(params));
}

static int
fs_open(const struct kvt__tier_params *params, struct kvt__tier **out)
{
    struct kvt__files *t = kvt__files_new(sizeof *t, &kvt__tier_fs, &fs_kind, params);

    if (!t)
        return -ENOMEM;
    return kvt__files_opened(t, kvt__files_open(t, params, list_of(params)), out);
}

static void
fs_check(const struct kvt__tier_params *params, const struct kvt__reporter *to)
{
    kvt__files_check(&kvt__tier_fs, params, params->config->max_remote_size, to);
}

const struct kvt__tier_ops kvt__tier_fs = {
    .name = "fs",
    .open = fs_open,
    .check_url = fs_check_url,
    .check = fs_check,
    .stop = kvt__files_stop,
    .close = kvt__files_close,
    KVT__FILES_OPS,
    .run = kvt__files_run,
};
