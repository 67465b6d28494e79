/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes files as other programs do, and damages files. */
#ifndef KVT_FILES_H
#define KVT_FILES_H

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "kvt-test.h"

static inline void
write_file(const char *path, const void *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    close(fd);
}

/* Delete the index and the snapshot of a closed store: the next process begins with an empty
 * index. */
static inline void
lose_index(const char *store)
{
    char path[600];

    snprintf(path, sizeof path, "%s/.kvtier/snapshot", store);
    (void)unlink(path);
    snprintf(path, sizeof path, "%s/.kvtier/lock", store);
    assert_int_equal(unlink(path), 0);
}

static inline void
flip_byte(const char *path, off_t at)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

#endif
