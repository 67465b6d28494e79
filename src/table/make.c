/* SPDX-License-Identifier: Apache-2.0
 *
 * The creation of tables, and the deletion of stale tables.  If a maker is killed at any step, a
 * file stays that no `lock` names; the next maker deletes the file. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"
#include "table/private.h"

void
kvt__tb_shm_name(const struct stat *lock, const uint64_t number[2],
                 char out[TB_SHM_NAME_MAX])
{
    snprintf(out, TB_SHM_NAME_MAX, "kvtier-%016llx%016llx-%llx-%llx",
             (unsigned long long)number[0], (unsigned long long)number[1],
             (unsigned long long)lock->st_dev, (unsigned long long)lock->st_ino);
}

#define TRIES 8

/* Check RLIMIT_FSIZE, because ftruncate() and fallocate() beyond the limit kill the process. */
static int
check_file_limit(size_t bytes)
{
    struct rlimit limit;

    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes)
        return kvt__fail(EFBIG, "index: RLIMIT_FSIZE is below %zu bytes", bytes);
    return 0;
}

/* Create a file and hold the file's shared flock.  If a maker of another table finds the file
 * between the creation and the flock, that maker deletes the file, and the loop creates another
 * file.  Returns a descriptor, or -errno with a sentence. */
static int
create(const struct kvt__table *t, int dir, const char *name)
{
    struct stat st, lock;

    for (int i = 0; i < TRIES; i++) {
        int fd = kvt__lock_file_open(dir, name, O_RDWR | O_CREAT, 0600);

        if (fd < 0)
            return kvt__fail(-fd, "index: create the table's file");
        if (kvt__tb_flock_shared(fd) && !fstat(fd, &st) && st.st_nlink) {
            /* If root makes the table, the owner of the store must be able to open the table. */
            if (!fstat(t->lock_fd, &lock) && lock.st_uid != st.st_uid)
                (void)!fchown(fd, lock.st_uid, lock.st_gid);
            return fd;
        }
        kvt__lock_file_close(fd);
    }
    return kvt__fail(ESTALE, "index: another process deleted the new file");
}

int
kvt__tb_make(struct kvt__table *t, const struct kvt__table_params *params, int dir,
             const char *name, const uint64_t number[2], const char *store)
{
    uint64_t max = kvt__tb_max_entries(params);
    size_t bytes = tb_file_bytes(tb_parts(max, params->wide_hashes).end, params->area_bytes);
    int err = check_file_limit(bytes);

    if (err)
        return err;
    int fd = create(t, dir, name);
    if (fd < 0)
        return fd;
    t->map_fd = fd;
    if (ftruncate(fd, (off_t)bytes))
        err = kvt__fail(errno, "index: make a file of %zu bytes", bytes);
    if (!err)
        err = kvt__tb_map(t, max, params->wide_hashes, params->area_bytes);
    if (!err)
        err = kvt__tb_allocate(t, 0);
    if (!err)
        err = kvt__tb_init(t, params, number, store);
    if (err) {
        kvt__tb_unmap(t);
        unlinkat(dir, name, 0);
    }
    return err;
}

/* ------------------------------------------------------------ stale tables */

/* Return true if the file `lock` of the directory dir has this device and inode, and names this
 * number; also if `lock` exists and cannot be opened. */
static bool
is_named(const char *dir, uint64_t dev, uint64_t ino, const uint64_t number[2])
{
    char path[TB_DIR_MAX + 8];
    struct tb_location location;
    struct stat st;

    snprintf(path, sizeof path, "%s/lock", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno != ENOENT && errno != ENOTDIR;
    bool same = !fstat(fd, &st) && st.st_dev == dev && st.st_ino == ino &&
                kvt__tb_get_location(fd, &location) &&
                !memcmp(location.number, number, sizeof location.number);
    close(fd);
    return same;
}

/* Return true if a table's file without users is stale.  fd: the file, of which the caller holds
 * the exclusive flock.  number, dev, ino: from the file's name.  A file for the same `lock` is
 * stale, because the caller has just made another table for this `lock`. */
static bool
is_stale(int fd, const struct stat *lock, const uint64_t number[2], uint64_t dev,
         uint64_t ino)
{
    struct tb_header h;

    if (dev == lock->st_dev && ino == lock->st_ino)
        return true;
    if (pread(fd, &h, sizeof h, 0) != sizeof h ||
        memcmp(h.magic, TB_MAGIC, sizeof h.magic) || !memchr(h.dir, 0, sizeof h.dir))
        return true; /* the maker died */
    return h.dir[0] && !is_named(h.dir, dev, ino, number);
}

/* Delete a file of the tmpfs if the file is a stale table of this user. */
static void
remove_if_stale(int shm, const char *name, const struct stat *lock,
                const struct tb_location *location)
{
    unsigned long long n[2], dev, ino;
    struct stat st;

    if (sscanf(name, "kvtier-%16llx%16llx-%llx-%llx", &n[0], &n[1], &dev, &ino) != 4 ||
        (n[0] == location->number[0] && n[1] == location->number[1]))
        return;
    int fd = openat(shm, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        !flock(fd, LOCK_EX | LOCK_NB) &&
        is_stale(fd, lock, (const uint64_t[2]){ n[0], n[1] }, dev, ino))
        unlinkat(shm, name, 0);
    close(fd);
}

void
kvt__tb_remove_stale(int shm, const struct stat *lock, const struct tb_location *location)
{
    int fd = openat(shm, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;

    if (!dir && fd >= 0)
        close(fd);
    if (!dir)
        return;
    while ((entry = readdir(dir)))
        remove_if_stale(shm, entry->d_name, lock, location);
    closedir(dir);
}
