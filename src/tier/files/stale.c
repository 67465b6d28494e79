/* SPDX-License-Identifier: Apache-2.0
 *
 * Files among those of chunks that belong to none: a copy of a header whose chunk a crash
 * took away, and what an LMCache that ended was writing.  Any thread; whoever writes such
 * files does not see it, so only those that nobody can be writing any more go. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tier/files/files.h"

#define BESIDE_AGE_S 60 /* its chunk may be there and not be seen yet, on a shared mount */
#define UNFINISHED_AGE_S 3600

static bool
is_older(const struct stat *st, time_t seconds)
{
    return S_ISREG(st->st_mode) && time(NULL) - st->st_mtime > seconds;
}

void
kvt__remove_other(int dirfd, const char *name, enum kvt__other other, const char *chunk)
{
    struct stat st, of_chunk;

    if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW))
        return;
    if (other == KVT__UNFINISHED ? is_older(&st, UNFINISHED_AGE_S)
                                 : is_older(&st, BESIDE_AGE_S) &&
                                   fstatat(dirfd, chunk, &of_chunk, AT_SYMLINK_NOFOLLOW) &&
                                   errno == ENOENT)
        (void)unlinkat(dirfd, name, 0);
}
