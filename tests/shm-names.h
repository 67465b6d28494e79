/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of 3FS's memory in /dev/shm.  Concurrent tests create and remove such names too.  A name
 * without an end is a leak. */
#ifndef KVT_SHM_NAMES_H
#define KVT_SHM_NAMES_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SHM_NAMES 128

struct shm_names {
    char name[SHM_NAMES][300];
    size_t n;
};

static inline bool
shm_names_contain(const struct shm_names *names, const char *name)
{
    for (size_t i = 0; i < names->n; i++)
        if (!strcmp(names->name[i], name))
            return true;
    return false;
}

/* Read the names in /dev/shm, except the names in `others` (NULL: no exceptions). */
static inline void
shm_names_read(struct shm_names *names, const struct shm_names *others)
{
    char path[300];
    DIR *d = opendir("/dev/shm");

    names->n = 0;
    for (struct dirent *e; d && names->n < SHM_NAMES && (e = readdir(d));) {
        snprintf(path, sizeof path, "/dev/shm/%s", e->d_name);
        if (!strncmp(e->d_name, "hf3fs-iov-", 10) &&
            !(others && shm_names_contain(others, path)))
            memcpy(names->name[names->n++], path, sizeof path);
    }
    if (d)
        closedir(d);
}

/* Wait until all names that `before` lacks disappear.  After a minute, unlink a remaining name.
 * Return the number of names unlinked. */
static inline size_t
shm_names_left(const struct shm_names *before)
{
    static struct shm_names now;
    size_t n = 0;

    shm_names_read(&now, before);
    for (size_t i = 0; i < now.n; i++) {
        int ms = 0;

        while (!access(now.name[i], F_OK) && ms++ < 60 * 1000)
            usleep(1000);
        if (ms >= 60 * 1000 && !unlink(now.name[i]))
            n++;
    }
    return n;
}

/* Return true if all names that `before` lacks disappear. */
static inline bool
shm_names_disappear(const struct shm_names *before)
{
    return !shm_names_left(before);
}

#endif
