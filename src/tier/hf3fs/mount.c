/* SPDX-License-Identifier: Apache-2.0
 *
 * Find the 3FS mount of a tier's directories.  A missing directory is in the mount of its nearest
 * existing parent. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conf/conf.h"
#include "tier/hf3fs/hf3fs.h"
#include "usrbio/usrbio.h"

/* Put `name` in front of the sentence of an error. */
static int
prefix_error(const char *name, int err)
{
    char why[400];

    if (!err)
        return 0;
    snprintf(why, sizeof why, "%s", kvt__why());
    return kvt__fail(-err, "%s: %s", name, why);
}

/* Write the mount of a path, or of the nearest existing parent of the path. */
static int
find_mount(const char *path, char mount[KVT__HF3FS_MAX_MOUNT])
{
    char there[PATH_MAX];
    int err;

    if (snprintf(there, sizeof there, "%s", path) >= (int)sizeof there)
        return kvt__fail(ENAMETOOLONG, "%s", path);
    while ((err = kvt__usrbio_mount_of(there, mount)) == -ENOENT && there[1]) {
        char *slash = strrchr(there, '/');

        if (!slash)
            return err;
        slash[slash == there] = '\0';
    }
    return strcmp(there, path) ? prefix_error(path, err) : err;
}

int
kvt__hf3fs_check_in_mount(const char *mount_point, const char *name, const char *path)
{
    char mount[KVT__HF3FS_MAX_MOUNT];
    int err = find_mount(path, mount);

    if (!err && strcmp(mount, mount_point))
        return kvt__fail(EINVAL, "%s: %s is in the 3FS mount %s, not in %s: all "
                         "directories of a store must be in one mount (in "
                         "hf3fs_mount_point, if set).", name, path, mount,
                         mount_point);
    return prefix_error(name, err);
}

int
kvt__hf3fs_mount(const struct kvt_config *config, const char *name, const char *list,
                 char mount_point[KVT__HF3FS_MAX_MOUNT])
{
    const char *set = config->hf3fs_mount_point, *path;
    char first[PATH_MAX], resolved[PATH_MAX];
    size_t n;

    if (set) {
        int err = kvt__usrbio_mount_of(set, mount_point);

        if (err || (realpath(set, resolved) && !strcmp(resolved, mount_point)))
            return prefix_error("hf3fs_mount_point", err);
        return kvt__fail(EINVAL, "hf3fs_mount_point: %s is no mount point; 3FS is mounted "
                         "at %s.", set, mount_point);
    }
    if (!kvt__next_path(&list, &path, &n) || *path != '/')
        return kvt__fail(EINVAL, "%s: '%.*s' is no absolute path.", name, (int)n, path);
    snprintf(first, sizeof first, "%.*s", (int)n, path);
    return prefix_error(name, find_mount(first, mount_point));
}
