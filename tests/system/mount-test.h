/* SPDX-License-Identifier: Apache-2.0
 *
 * Small file systems in memory, seen by this program only. */
#ifndef KVT_MOUNT_TEST_H
#define KVT_MOUNT_TEST_H

#include <sched.h>
#include <sys/mount.h>

#include "system/system-test.h"

/* Enter a new mount namespace.  Return false if mounts are not permitted. */
static inline bool
may_mount(void)
{
    struct temp_dir dir;

    if (unshare(CLONE_NEWNS) < 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
        printf("skipped: mounting needs root (%s)\n", strerror(errno));
        return false;
    }
    temp_dir_make(&dir);
    bool works = !mount("kvtier-test", dir.path, "tmpfs", 0, "size=64k");
    if (works)
        umount(dir.path);
    else
        printf("skipped: cannot mount a tmpfs (%s)\n", strerror(errno));
    temp_dir_remove(&dir);
    return works;
}

/* Make a fixture whose directory is a new file system of `kib` KiB. */
static inline void
fixture_mount(struct fixture *f, unsigned kib)
{
    char options[64];

    fixture_init(f);
    snprintf(options, sizeof options, "size=%uk", kib);
    if (mount("kvtier-test", f->dir.path, "tmpfs", 0, options) < 0)
        fail_msg("mount: %s", strerror(errno));
    f->engine = NULL;
}

static inline void
fixture_unmount(struct fixture *f)
{
    kvt_engine_close(f->engine);
    f->engine = NULL;
    umount2(f->dir.path, MNT_DETACH);
    fixture_fini(f);
}

/* Counts the log messages that contain a text. */
struct heard {
    const char *text;
    unsigned n;
};

static inline void
count_line(void *ctx, enum kvt_log_level level, const char *line)
{
    struct heard *heard = ctx;

    (void)level;
    heard->n += strstr(line, heard->text) != NULL;
}

#endif
