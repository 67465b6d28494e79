/* SPDX-License-Identifier: Apache-2.0
 *
 * A temporary directory for one test, deleted with all contents at the end. */
#ifndef KVT_TEMP_DIR_H
#define KVT_TEMP_DIR_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/xattr.h>
#include <unistd.h>

struct temp_dir {
    char path[256];
};

static inline void
temp_dir_make_in(struct temp_dir *dir, const char *base)
{
    snprintf(dir->path, sizeof dir->path, "%s/kvtier-test-XXXXXX", base);
    if (!mkdtemp(dir->path)) {
        perror(dir->path);
        exit(1);
    }
}

static inline void
temp_dir_make(struct temp_dir *dir)
{
    const char *base = getenv("TMPDIR");

    temp_dir_make_in(dir, base && *base ? base : "/var/tmp");
}

/* Make a directory on a tmpfs. */
static inline void
temp_dir_make_in_memory(struct temp_dir *dir)
{
    temp_dir_make_in(dir, "/dev/shm");
}

static inline int
temp_dir_remove_one(const char *path, const struct stat *st, int flag,
                    struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static inline void
temp_dir_remove(struct temp_dir *dir)
{
    nftw(dir->path, temp_dir_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Setup and teardown of a cmocka test; *state is the directory. */
static inline int
temp_dir_setup(void **state)
{
    static struct temp_dir dir;

    temp_dir_make(&dir);
    *state = &dir;
    return 0;
}

static inline int
temp_dir_teardown(void **state)
{
    temp_dir_remove(*state);
    return 0;
}

/* Return 1 if files in the directory can have extended attributes. */
static inline int
temp_dir_has_attributes(const struct temp_dir *dir)
{
    return !setxattr(dir->path, "user.kvtier-test", "x", 1, 0);
}

#endif
