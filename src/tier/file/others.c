/* SPDX-License-Identifier: Apache-2.0
 *
 * Files among those of chunks that belong to none: a copy of a header whose chunk a crash
 * took away, and what an LMCache that ended was writing.  Any thread; whoever writes such
 * files does not see it, so only those that nobody can be writing any more go. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tier/file/file.h"

#define BESIDE_AGE_S 60 /* its chunk may be there and not be seen yet, on a shared mount */
#define UNFINISHED_AGE_S 3600

static bool
is_older(const struct stat *st, time_t seconds)
{
    return S_ISREG(st->st_mode) && time(NULL) - st->st_mtime > seconds;
}

/* file: name behind what is above it. */
static void
remove_other(const struct kvt__layout *layout, int dirfd, const char *name,
             const char *file)
{
    char chunk[KVT__FILE_NAME_BYTES];
    enum kvt__other other = kvt__layout_other(layout, name, chunk);
    struct stat st, of_chunk;

    if (other == KVT__NEITHER || fstatat(dirfd, file, &st, AT_SYMLINK_NOFOLLOW))
        return;
    if (other == KVT__UNFINISHED ? is_older(&st, UNFINISHED_AGE_S)
                                 : is_older(&st, BESIDE_AGE_S) &&
                                   fstatat(dirfd, chunk + (file - name), &of_chunk,
                                           AT_SYMLINK_NOFOLLOW) && errno == ENOENT)
        (void)unlinkat(dirfd, file, 0);
}

void
kvt__remove_others(const struct kvt__layout *layout, DIR *d, const char *above)
{
    char name[KVT__SPREAD_BYTES + NAME_MAX];
    size_t n = strlen(above);
    struct dirent *e;

    memcpy(name, above, n);
    rewinddir(d);
    while ((e = readdir(d))) {
        size_t len = strlen(e->d_name);

        if (n + len >= sizeof name)
            continue;
        memcpy(name + n, e->d_name, len + 1);
        remove_other(layout, dirfd(d), name, name + n);
    }
}
