/* SPDX-License-Identifier: Apache-2.0
 *
 * Which owners live.  A living owner i locks byte TB_OWNER_BYTE + i of the file `lock`. */
#include <fcntl.h>

#include "table/private.h"

#ifndef TB_OWNER_LIVES
bool
kvt__tb_owner_lives(const struct kvt__table *t, unsigned owner)
{
    if (owner == t->owner)
        return true;
    return t->lock_fd >= 0 && kvt__tb_is_locked(t->lock_fd, TB_OWNER_BYTE + owner, 1);
}
#endif

bool
kvt__tb_lock_owner(const struct kvt__table *t, unsigned owner)
{
    return t->lock_fd < 0 || !kvt__tb_lock_byte(t->lock_fd, F_WRLCK, TB_OWNER_BYTE + owner);
}

void
kvt__tb_unlock_owner(const struct kvt__table *t, unsigned owner)
{
    if (t->lock_fd >= 0)
        kvt__tb_unlock_byte(t->lock_fd, TB_OWNER_BYTE + owner);
}
