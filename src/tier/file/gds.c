/* SPDX-License-Identifier: Apache-2.0
 *
 * gds://DIRECTORY,DIRECTORY...: the file tier with the layout of LMCache's GDS back end. */
#include <errno.h>

#include "conf/conf.h"
#include "tier/file/file.h"

#define WEKA "wekafs"

/* LMCache names files otherwise on wekafs. */
static int
choose_suffix(struct file_tier *t, const char *name)
{
    bool weka = kvt__fs_is(t->dirs[0].fd, WEKA);

    for (size_t i = 1; i < t->n_dirs; i++)
        if (kvt__fs_is(t->dirs[i].fd, WEKA) != weka)
            return kvt__fail(EINVAL, "%s: of %s and %s only one is on " WEKA ", where "
                             "files have other names; take directories of one kind.",
                             name, t->dirs[0].path, t->dirs[i].path);
    if (weka)
        t->layout = &kvt__layout_gds_weka;
    return 0;
}

int
kvt__file_gds_open(struct file_tier *t, const struct kvt__tier_params *params)
{
    const struct kvt_config *config = params->config;
    int err = choose_suffix(t, params->name);

    kvt__gds_wish(config, &t->gds.wish);
    if (kvt__config_is_set(config, gds_buffer_size))
        t->gds.buffer_bytes = (size_t)config->gds_buffer_size << 20;
    for (size_t i = 0; i < t->n_dirs; i++)
        if (kvt__config_is_set(config, use_direct_io) && !config->use_direct_io)
            t->dirs[i].direct = false;
    return err;
}
