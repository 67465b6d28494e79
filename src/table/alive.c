/* SPDX-License-Identifier: Apache-2.0
 *
 * Which owners live.  A living owner i holds an open-file-description lock of byte i of the
 * file `lock`. */
#include <fcntl.h>
#include <unistd.h>

#include "table/private.h"

static struct flock
range(short type, unsigned owner)
{
    return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = owner,
                           .l_len = 1 };
}

#ifndef TB_OWNER_LIVES
bool
kvt__tb_owner_lives(const struct kvt__table *t, unsigned owner)
{
    struct flock fl = range(F_WRLCK, owner);

    if (owner == t->owner)
        return true;
    if (t->lock_fd < 0)
        return false;
    /* In doubt the owner lives: the claims of the owner then stay a little longer. */
    return fcntl(t->lock_fd, F_OFD_GETLK, &fl) || fl.l_type != F_UNLCK;
}
#endif

bool
kvt__tb_lock_owner(const struct kvt__table *t, unsigned owner)
{
    struct flock fl = range(F_WRLCK, owner);

    return t->lock_fd < 0 || !fcntl(t->lock_fd, F_OFD_SETLK, &fl);
}

void
kvt__tb_unlock_owner(const struct kvt__table *t, unsigned owner)
{
    struct flock fl = range(F_UNLCK, owner);

    if (t->lock_fd >= 0)
        (void)fcntl(t->lock_fd, F_OFD_SETLK, &fl);
}
