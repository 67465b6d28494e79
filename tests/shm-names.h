/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of 3FS's memory in /dev/shm, which other tests make too at the same time, for a
 * moment: what stays is left behind. */
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
shm_names_have(const struct shm_names *names, const char *name)
{
    for (size_t i = 0; i < names->n; i++)
        if (!strcmp(names->name[i], name))
            return true;
    return false;
}

/* Those that are there and not in others (NULL: none). */
static inline void
shm_names_take(struct shm_names *names, const struct shm_names *others)
{
    char path[300];
    DIR *d = opendir("/dev/shm");

    names->n = 0;
    for (struct dirent *e; d && names->n < SHM_NAMES && (e = readdir(d));) {
        snprintf(path, sizeof path, "/dev/shm/%s", e->d_name);
        if (!strncmp(e->d_name, "hf3fs-iov-", 10) &&
            !(others && shm_names_have(others, path)))
            memcpy(names->name[names->n++], path, sizeof path);
    }
    if (d)
        closedir(d);
}

/* How many that are new since before do not go away; they are removed. */
static inline size_t
shm_names_stay(const struct shm_names *before)
{
    static struct shm_names now;
    size_t n = 0;

    shm_names_take(&now, before);
    for (size_t i = 0; i < now.n; i++) {
        int ms = 0;

        while (!access(now.name[i], F_OK) && ms++ < 60 * 1000)
            usleep(1000);
        if (ms >= 60 * 1000 && !unlink(now.name[i]))
            n++;
    }
    return n;
}

static inline bool
shm_names_go(const struct shm_names *before)
{
    return !shm_names_stay(before);
}

#endif
