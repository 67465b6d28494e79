/* SPDX-License-Identifier: Apache-2.0
 *
 * The user's own directory below one that all users share: others must not be able to
 * put anything there. */
#include "base/private-dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/sha256.h"

int
kvt__private_dir_open(const char *parent)
{
    char path[128];
    struct stat st;

    snprintf(path, sizeof path, "%s/kvtier-%lu", parent, (unsigned long)geteuid());
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return kvt__fail(errno, "make %s", path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return kvt__fail(errno, "open %s", path);
    if (fstat(fd, &st) < 0 || st.st_uid != geteuid() || st.st_mode & 077) {
        close(fd);
        return kvt__fail(EACCES, "%s is not a directory of this user alone; remove it.",
                         path);
    }
    return fd;
}

int
kvt__private_dir_of(const char *parent, const void *thing, size_t n)
{
    uint8_t digest[KVT__SHA256_BYTES];
    struct kvt__sha256 sha;
    uint64_t number;
    char name[32];

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, thing, n);
    kvt__sha256_end(&sha, digest);
    memcpy(&number, digest, sizeof number);
    snprintf(name, sizeof name, "%016llx", (unsigned long long)number);
    int base = kvt__private_dir_open(parent);
    if (base < 0)
        return base;
    if (mkdirat(base, name, 0700) < 0 && errno != EEXIST) {
        close(base);
        return kvt__fail(errno, "make %s in %s", name, parent);
    }
    int dir = openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int err = dir < 0 ? kvt__fail(errno, "open %s in %s", name, parent) : 0;
    close(base);
    return err ? err : dir;
}
