/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of a store's index, and how other processes and restarts of the host change
 * them. */
#ifndef KVT_TABLE_FILE_H
#define KVT_TABLE_FILE_H

#include "store-test.h"

#include "table/private.h"

#define TABLE_PATH_MAX (TB_SHM_NAME_MAX + 16)

/* The store's private directory, which has the file `lock`. */
static inline int
private_dir(const struct env *e)
{
    return e->store->levels[0].dirfd;
}

/* The path of the table's file. */
static inline void
table_path(const struct env *e, char out[TABLE_PATH_MAX])
{
    char name[TB_SHM_NAME_MAX];
    struct tb_location place;
    struct stat st;
    int fd = openat(private_dir(e), "lock", O_RDWR | O_CLOEXEC);

    assert_int_equal(fstat(fd, &st), 0);
    assert_true(kvt__tb_get_location(fd, &place));
    close(fd);
    if (place.where != TB_SHM)
        skip(); /* /dev/shm is no tmpfs */
    kvt__tb_shm_name(&st, place.number, name);
    snprintf(out, TABLE_PATH_MAX, "/dev/shm/%s", name);
}

/* Delete the table's file; `lock` still names the table. */
static inline void
delete_table(const struct env *e)
{
    char path[TABLE_PATH_MAX];

    table_path(e, path);
    assert_int_equal(unlink(path), 0);
}

static inline void
delete_lock(const struct env *e)
{
    assert_int_equal(unlinkat(private_dir(e), "lock", 0), 0);
}

/* Close the store.  A restart of the host empties /dev/shm and has another boot id. */
static inline void
close_and_restart_host(struct env *e)
{
    struct tb_location place;
    int fd = openat(private_dir(e), "lock", O_RDWR | O_CLOEXEC);

    delete_table(e);
    kvt__store_close(e->store);
    assert_true(kvt__tb_get_location(fd, &place));
    place.boot_id[0] ^= 1;
    assert_int_equal(kvt__tb_set_location(fd, &place), 0);
    close(fd);
}

#endif
