/* SPDX-License-Identifier: Apache-2.0
 *
 * gds://DIRECTORY,DIRECTORY...: the files of LMCache's GDS back end. */
#include "tier/gds/gds.h"

#include <errno.h>

#include "conf/conf.h"

extern const struct kvt__tier_ops kvt__tier_gds;

#define WEKA "wekafs"

static const struct kvt__files_kind gds_kind = {
    .layout = &kvt__layout_gds,
    .relative = true,
    .move_device = kvt__gds_move_device,
    .sum_device = kvt__gds_sum_device,
};

/* LMCache's file names have another suffix on wekafs. */
static int
choose_suffix(struct kvt__files *t, const char *name)
{
    bool weka = kvt__fs_is(t->dirs[0].fd, WEKA);

    for (size_t i = 1; i < t->n_dirs; i++)
        if (kvt__fs_is(t->dirs[i].fd, WEKA) != weka)
            return kvt__fail(EINVAL, "%s: only one of %s and %s is on " WEKA ", where "
                             "files have other names: use file systems of one kind.",
                             name, t->dirs[0].path, t->dirs[i].path);
    if (weka)
        t->layout = &kvt__layout_gds_weka;
    return 0;
}

static int
gds_check_url(const struct kvt__tier_params *params)
{
    return kvt__files_check_list(&gds_kind, params->name, params->rest);
}

static int
gds_open(const struct kvt__tier_params *params, struct kvt__tier **out)
{
    const struct kvt_config *config = params->config;
    struct gds_tier *t = kvt__files_new(sizeof *t, &kvt__tier_gds, &gds_kind, params);

    if (!t)
        return -ENOMEM;
    struct kvt__files *files = &t->files;
    kvt__gds_read_preference(config, &t->preference);
    if (kvt__config_is_set(config, gds_buffer_size))
        t->buffer_bytes = (size_t)config->gds_buffer_size << 20;
    kvt__files_set_sharding(files, "gds_path_sharding", config->gds_path_sharding);
    int err = kvt__files_open(files, params, params->rest);
    if (!err)
        err = choose_suffix(files, params->name);
    for (size_t i = 0; i < files->n_dirs; i++)
        if (kvt__config_is_set(config, use_direct_io) && !config->use_direct_io)
            files->dirs[i].direct = false;
    return kvt__files_opened(files, err, out);
}

static void
gds_close(struct kvt__tier *tier)
{
    kvt__gds_device_close((struct gds_tier *)tier);
    kvt__files_close(tier);
}

static void
gds_check(const struct kvt__tier_params *params, const struct kvt__reporter *to)
{
    kvt__gds_check(params->config, &KVT__GDS_PROBE_DEFAULTS, params->rest, to);
}

const struct kvt__tier_ops kvt__tier_gds = {
    .name = "gds",
    .open = gds_open,
    .check_url = gds_check_url,
    .check = gds_check,
    .stop = kvt__files_stop,
    .close = gds_close,
    KVT__FILES_OPS,
    .use_gpu = kvt__gds_use_gpu,
    .acquire_slot = kvt__gds_acquire_slot,
    .run = kvt__files_run,
};
