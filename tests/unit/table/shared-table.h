/* SPDX-License-Identifier: Apache-2.0
 *
 * A table in a file that several handles and processes share, with a file for the locks of
 * owners. */
#ifndef KVT_SHARED_TABLE_H
#define KVT_SHARED_TABLE_H

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "table-test.h"
#include "temp-dir.h"

struct shared {
    struct temp_dir dir;
    int dir_fd;
    int map_fd;
    struct kvt__table_params params;
};

static inline void
shared_make(struct shared *s, const struct kvt__table_params *params)
{
    s->params = *params;
    s->params.writer = true;
    temp_dir_make(&s->dir);
    s->dir_fd = open(s->dir.path, O_RDONLY | O_DIRECTORY);
    assert_true(s->dir_fd >= 0);
    uint64_t max = kvt__tb_max_entries(params);
    s->map_fd = openat(s->dir_fd, "table", O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(s->map_fd >= 0);
    assert_int_equal(ftruncate(s->map_fd, (off_t)tb_parts(max, params->wide_hashes).end), 0);
}

static inline void
shared_remove(struct shared *s)
{
    close(s->map_fd);
    close(s->dir_fd);
    temp_dir_remove(&s->dir);
}

static inline void
lock_byte_4096(int fd, short type)
{
    struct flock fl = { .l_type = type, .l_whence = SEEK_SET, .l_start = 4096, .l_len = 1 };

    if (fcntl(fd, F_OFD_SETLKW, &fl))
        abort();
}

/* Open a handle.  A forked child may call this function, so the function does not use cmocka. */
static inline struct kvt__table *
shared_open(const struct shared *s)
{
    struct kvt__table *t = kvt__tb_new(&s->params);

    t->lock_fd = kvt__lock_file_open(s->dir_fd, "lock", O_RDWR | O_CREAT, 0600);
    t->map_fd = kvt__lock_file_open(s->dir_fd, "table", O_RDWR, 0);
    if (t->lock_fd < 0 || t->map_fd < 0 ||
        kvt__tb_map(t, kvt__tb_max_entries(&s->params), s->params.wide_hashes, 0))
        abort();
    lock_byte_4096(t->lock_fd, F_WRLCK);
    if (memcmp(t->header->magic, TB_MAGIC, sizeof t->header->magic) &&
        kvt__tb_init(t, &s->params, (const uint64_t[2]){ 0, 0 }, ""))
        abort();
    if (kvt__tb_acquire_owner(t, s->params.limit_bytes))
        abort();
    lock_byte_4096(t->lock_fd, F_UNLCK);
    return t;
}

#endif
