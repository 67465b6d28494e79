/* SPDX-License-Identifier: Apache-2.0
 *
 * gds://DIRECTORY,DIRECTORY...: the file tier with the layout of LMCache's GDS back end.
 * Files are moved through host memory so far. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
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

/* Why the GPU's memory cannot be moved to files and back. */
static void
what_is_missing(const struct kvt_config *config, char *out, size_t size)
{
    if (!strcmp(config->gds_backend, "mufile"))
        snprintf(out, size, "kvtier has no mover for muFile");
    else if (access("/dev/nvidiactl", F_OK) && access("/dev/kfd", F_OK))
        snprintf(out, size, "there is no GPU here (neither /dev/nvidiactl nor /dev/kfd)");
    else
        snprintf(out, size, "this kvtier has no mover for %s yet",
                 !strcmp(config->gds_backend, "hipfile") ? "hipFile" : "cuFile");
}

static int
choose_mover(const struct kvt__tier_params *params)
{
    const struct kvt_config *config = params->config;
    char missing[128], buffer[80] = "";

    what_is_missing(config, missing, sizeof missing);
    if (config->use_gds && kvt__config_is_set(config, use_gds))
        return kvt__fail(ENODEV, "%s: use_gds is true (%s), but %s; without use_gds, or "
                         "with use_gds: false, files are moved through host memory.",
                         params->name, kvt__config_origin(config, use_gds), missing);
    if (kvt__config_is_set(config, gds_buffer_size))
        snprintf(buffer, sizeof buffer, "; nothing is reserved of the %lld MiB of "
                 "gds_buffer_size", (long long)config->gds_buffer_size);
    kvt__log(KVT_LOG_INFO, "%s: files are moved through host memory: %s%s", params->name,
             config->use_gds ? missing : "use_gds is false", buffer);
    return 0;
}

int
kvt__gds_open(struct file_tier *t, const struct kvt__tier_params *params)
{
    const struct kvt_config *config = params->config;
    int err = choose_suffix(t, params->name);

    if (!err)
        err = choose_mover(params);
    for (size_t i = 0; i < t->n_dirs; i++)
        if (kvt__config_is_set(config, use_direct_io) && !config->use_direct_io)
            t->dirs[i].direct = false;
    return err;
}
