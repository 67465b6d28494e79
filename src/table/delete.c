/* SPDX-License-Identifier: Apache-2.0
 *
 * The deletion of a table of memory.  `lock` keeps the number of the deleted table; the next
 * open finds no file with this number and makes another table. */
#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "table/private.h"

/* The caller holds TB_OPEN_BYTE. */
static int
delete_file(struct kvt__table *t, int dirfd)
{
    if (!kvt__table_is_current(t))
        return -ESTALE;
    if (!kvt__tb_flock_exclusive(t->map_fd))
        return kvt__fail(EBUSY, "index: other processes use the index; end the processes");
    if (unlinkat(dirfd, TB_DIR_NAME, 0) && errno != ENOENT)
        return kvt__fail(errno, "index: delete the table's file");
    TB_STORE(&t->header->use, TB_REPLACED);
    return 0;
}

int
kvt__table_delete(struct kvt__table *t, int dirfd)
{
    if (!tb_is_usable(t))
        return -ESTALE;
    if (t->lock_fd < 0 || !t->of_memory)
        return -EINVAL;
    int err = kvt__tb_lock_byte_wait(t->lock_fd, F_WRLCK, TB_OPEN_BYTE);
    if (err)
        return err;
    err = delete_file(t, dirfd);
    kvt__tb_unlock_byte(t->lock_fd, TB_OPEN_BYTE);
    return err;
}
