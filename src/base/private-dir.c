/* SPDX-License-Identifier: Apache-2.0
 *
 * The user's private directory below a directory of all users.  Other users must not be able to
 * create files in the private directory. */
#include "base/private-dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"

#define N_NAMES 16
#define PATH_BYTES 128

/* Return name number i; all processes of the user try equal names in equal order. */
static void
nth_path(const char *parent, unsigned i, char out[PATH_BYTES])
{
    size_t n = (size_t)snprintf(out, PATH_BYTES, "%s/kvtier-%lu", parent,
                                (unsigned long)geteuid());

    if (i && n < PATH_BYTES)
        snprintf(out + n, PATH_BYTES - n, "-%u", i);
}

/* Open a directory of this user without write permission for other users, and remove the
 * other users' read permission.  Return a descriptor; -ENOENT; -EACCES: no directory, another
 * owner or writable by other users; -errno. */
static int
open_own(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return errno == ELOOP || errno == ENOTDIR ? -EACCES : -errno;
    if (!fstat(fd, &st) && st.st_uid == geteuid() && !(st.st_mode & 022) &&
        (!(st.st_mode & 077) || !fchmod(fd, 0700)))
        return fd;
    close(fd);
    return -EACCES;
}

/* Report once that another user owns the usual name. */
static void
report_name(const char *parent, unsigned i)
{
    char usual[PATH_BYTES], path[PATH_BYTES];

    if (!i)
        return;
    nth_path(parent, 0, usual);
    nth_path(parent, i, path);
    KVT__LOG_ONCE(KVT_LOG_WARN, "%s is not a directory of this user alone: %s is used "
                  "instead", usual, path);
}

int
kvt__private_dir_open(const char *parent)
{
    char path[PATH_BYTES];

    /* Prefer an existing directory: another user's directory of a lower number may have been
     * deleted, and running processes still use the existing directory. */
    for (unsigned i = 0; i < N_NAMES; i++) {
        nth_path(parent, i, path);
        int fd = open_own(path);
        if (fd >= 0)
            report_name(parent, i);
        if (fd >= 0 || (fd != -ENOENT && fd != -EACCES))
            return fd >= 0 ? fd : kvt__fail(-fd, "open %s", path);
    }
    for (unsigned i = 0; i < N_NAMES; i++) {
        nth_path(parent, i, path);
        if (mkdir(path, 0700) < 0 && errno != EEXIST)
            return kvt__fail(errno, "make %s", path);
        int fd = open_own(path);
        if (fd >= 0)
            report_name(parent, i);
        if (fd != -EACCES)
            return fd >= 0 ? fd : kvt__fail(-fd, "open %s", path);
    }
    nth_path(parent, 0, path);
    return kvt__fail(EACCES, "%s and the %d names after it are not directories of this "
                     "user alone; remove them.", path, N_NAMES - 1);
}

int
kvt__private_dir_open_for(const char *parent, const void *id, size_t n)
{
    uint8_t digest[KVT__SHA256_BYTES];
    struct kvt__sha256 sha;
    uint64_t number;
    char name[32];

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, id, n);
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

void
kvt__private_dir_renew_for(int fd, const char *parent, const void *id, size_t n)
{
    struct stat st;
    int dir = !fstat(fd, &st) && !st.st_nlink ? kvt__private_dir_open_for(parent, id, n) : -1;

    if (dir < 0)
        return;
    (void)dup3(dir, fd, O_CLOEXEC);
    close(dir);
}
