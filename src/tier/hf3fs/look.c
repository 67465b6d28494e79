/* SPDX-License-Identifier: Apache-2.0
 *
 * What the directories of a 3FS tier need of this machine, looked at one by one, also
 * where something is missing: opening the tier tells only the first thing. */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "conf/conf.h"
#include "mem/numa.h"
#include "tier/hf3fs/hf3fs.h"
#include "usrbio/usrbio.h"

struct look {
    const struct kvt__tier_params *params;
    kvt__tier_look_fn fn;
    void *ctx;
};

static void tell(const struct look *look, const char *about, int status, const char *fmt,
                 ...) __attribute__((format(printf, 4, 5)));

static void
tell(const struct look *look, const char *about, int status, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    look->fn(look->ctx, about, status, text);
}

static void
look_at_daemon(const struct look *look, const char *mount_point)
{
    int err = kvt__usrbio_daemon(mount_point);
    if (err)
        tell(look, "3fs daemon", err, "%s", kvt__why());
    else
        tell(look, "3fs daemon", 0, "the one of %s answers, serves rings, and lets this "
             "user open its semaphore", mount_point);
}

static void
look_at_directories(const struct look *look)
{
    const char *name = look->params->name, *list = look->params->rest;
    char mount_point[KVT__HF3FS_MAX_MOUNT], dir[PATH_MAX];
    const char *path;
    size_t n;
    int err = kvt__hf3fs_mount(look->params->config, name, list, mount_point);

    if (err) {
        tell(look, "3fs mount", err, "%s", kvt__why());
        return;
    }
    while (kvt__next_path(&list, &path, &n)) {
        snprintf(dir, sizeof dir, "%.*s", (int)n, path);
        err = kvt__hf3fs_lies_in(mount_point, name, dir);
        if (err)
            tell(look, "3fs mount", err, "%s", kvt__why());
        else
            tell(look, "3fs mount", 0, "%s: %s lies in the 3FS at %s (%s)", name, dir,
                 mount_point, kvt__usrbio_any_type()
                     ? "of whatever type: HF3FS_USRBIO_DONT_CHECKFS_FOR_MP" : "fuse.hf3fs");
    }
    look_at_daemon(look, mount_point);
}

static void
look_at_library(const struct look *look)
{
    const char *wanted = kvt__variable(look->params->config->environment, "HF3FS_CLIENT");
    const struct kvt__usrbio_api *api;
    int err = kvt__usrbio_choose(wanted, &api);

    if (err)
        tell(look, "3fs library", err, "%s", kvt__why());
    else if (api != &kvt__usrbio_own)
        tell(look, "3fs library", 0, "the site's libhf3fs_api_shared.so is used");
    else if (wanted && *wanted)
        tell(look, "3fs library", 0, "kvtier's own client is used (HF3FS_CLIENT is %s)",
             wanted);
    else
        tell(look, "3fs library", 0, "kvtier's own client is used; %s", kvt__why());
}

static void
look_at_node(const struct look *look)
{
    int node = (int)look->params->config->hf3fs_numa_id;
    int err = node < 0 ? 0 : kvt__numa_check(node, "hf3fs_numa_id");

    if (err)
        tell(look, "3fs numa", err, "%s", kvt__why());
    else if (node >= 0)
        tell(look, "3fs numa", 0, "shared memory comes from node %d (hf3fs_numa_id)", node);
    else
        tell(look, "3fs numa", 0, "shared memory comes from the node of the CPU on which "
             "an engine opens it, here %d (hf3fs_numa_id is -1)", kvt__numa_here());
}

void
kvt__hf3fs_look(const struct kvt__tier_params *params, kvt__tier_look_fn fn, void *ctx)
{
    struct look look = { params, fn, ctx };

    look_at_directories(&look);
    look_at_library(&look);
    look_at_node(&look);
}
