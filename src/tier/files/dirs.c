/* SPDX-License-Identifier: Apache-2.0
 *
 * The directories of a file store: creation, open, file systems and free space. */
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/log.h"
#include "tier/files/files.h"
#include "tier/mover/mover.h"

#define OPAQUE_DIR "kvtier"
#define PRIVATE_DIR ".kvtier"
#define TEMP_DIR "tmp"

int
kvt__make_dir(int dirfd, const char *path, mode_t mode)
{
    struct stat st;
    int err = 0;

    if (mkdirat(dirfd, path, mode) < 0)
        return errno == EEXIST ? 0 : -errno;
    if (mode == 0700)
        return 0; /* the umask removes no bit */
    /* O_NOFOLLOW: another user with write access to dirfd may replace the directory by a link. */
    int fd = openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    /* A directory below an S_ISGID directory inherits the bit, which gives files the group. */
    if (fstat(fd, &st) < 0 || fchmod(fd, mode | (st.st_mode & S_ISGID)) < 0)
        err = -errno;
    close(fd);
    return err;
}

/* Make a directory and all missing parents, like mkdir -p.  0; -errno. */
static int
make_dirs(const char *path, mode_t mode)
{
    char *copy = strdup(path);
    int err = 0;

    if (!copy)
        return -ENOMEM;
    for (char *p = copy + 1; !err; p++) {
        char c = *p;

        if (c && c != '/')
            continue;
        *p = '\0';
        err = kvt__make_dir(AT_FDCWD, copy, mode);
        *p = c;
        if (!c)
            break;
    }
    free(copy);
    return err;
}

/* Make and open the subdirectory `below`. */
static int
open_below(int dirfd, const char *below, const struct kvt__dir *dir, const char *name,
           int *out)
{
    int err = kvt__make_dir(dirfd, below, dir->mode);

    if (err)
        return kvt__fail(-err, "%s: make directory %s in %s", name, below, dir->path);
    *out = openat(dirfd, below, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*out < 0)
        return kvt__fail(errno, "%s: open directory %s in %s", name, below, dir->path);
    return 0;
}

/* Check .kvtier, the directory of the index and of unfinished files: only the users that
 * store_mode allows may write there.  The owner is not checked on a network file system, which
 * may report another owner than the creator of the directory.  If the group may write to a
 * directory of this user against store_mode, remove the group's right: Kubernetes adds the right
 * to all directories of a volume with fsGroup at each mount of the volume. */
static int
check_private(const struct kvt__dir *dir, const char *name)
{
    struct stat st;

    if (fstat(dir->private_fd, &st) < 0)
        return kvt__fail(errno, "%s: read the status of %s in %s", name, PRIVATE_DIR, dir->path);
    bool foreign = dir->mode == 0700 && st.st_uid != geteuid() &&
                   !kvt__fs_is_shared(dir->private_fd);
    mode_t wrong = st.st_mode & 022 & ~dir->mode;
    if (wrong == 020 && st.st_uid == geteuid() &&
        !fchmod(dir->private_fd, dir->mode | (st.st_mode & S_ISGID)))
        wrong = 0;
    if (!foreign && !wrong)
        return 0;
    return kvt__fail(EACCES, "%s: %s in %s belongs to another user or is writable by "
                     "others (owner %u, mode %o). Remove it, or set store_mode.", name,
                     PRIVATE_DIR, dir->path, (unsigned)st.st_uid,
                     (unsigned)st.st_mode & 07777);
}

static int
open_fds(struct kvt__dir *dir, const char *name)
{
    int err = make_dirs(dir->path, dir->mode);

    if (err)
        return kvt__fail(-err, "%s: make directory %s", name, dir->path);
    dir->fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->fd < 0)
        return kvt__fail(errno, "%s: open directory %s", name, dir->path);
    err = open_below(dir->fd, OPAQUE_DIR, dir, name, &dir->opaque_fd);
    if (!err)
        err = open_below(dir->fd, PRIVATE_DIR, dir, name, &dir->private_fd);
    if (!err)
        err = check_private(dir, name);
    if (!err)
        err = open_below(dir->private_fd, TEMP_DIR, dir, name, &dir->temp_fd);
    return err;
}

static void
close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

static void
close_fds(const struct kvt__dir *dir)
{
    close_fd(dir->temp_fd);
    close_fd(dir->private_fd);
    close_fd(dir->opaque_fd);
    close_fd(dir->fd);
}

int
kvt__dir_reopen(const struct kvt__files *t, const struct kvt__dir *dir, const char *name)
{
    struct kvt__dir new = { .path = dir->path, .mode = dir->mode, .fd = -1, .opaque_fd = -1,
                            .private_fd = -1, .temp_fd = -1 };
    int err = t->kind->check_path ? t->kind->check_path(t, name, dir->path) : 0;

    if (!err)
        err = open_fds(&new, name);

    if (!err && (dup3(new.fd, dir->fd, O_CLOEXEC) < 0 ||
                 dup3(new.opaque_fd, dir->opaque_fd, O_CLOEXEC) < 0 ||
                 dup3(new.private_fd, dir->private_fd, O_CLOEXEC) < 0 ||
                 dup3(new.temp_fd, dir->temp_fd, O_CLOEXEC) < 0))
        err = kvt__fail(errno, "open directory %s again", dir->path);
    close_fds(&new);
    if (!err)
        kvt__temp_clean(dir);
    return err;
}

static bool
is_deleted(int fd)
{
    struct stat st;

    return !fstat(fd, &st) && !st.st_nlink;
}

bool
kvt__dir_renew(const struct kvt__files *t, const struct kvt__dir *dir)
{
    /* A deletion of the whole directory begins with the subdirectories.  The directory itself can
     * be deleted alone if two threads opened the descriptors again beside two deletions.  A
     * relative path is not opened again, because the path may lead to another directory now. */
    return (is_deleted(dir->temp_fd) || is_deleted(dir->opaque_fd) ||
            is_deleted(dir->private_fd) || is_deleted(dir->fd)) && *dir->path == '/' &&
           !kvt__dir_reopen(t, dir, t->tier.ops->name);
}

static int
open_dir(struct kvt__files *t, struct kvt__dir *dir, const char *name)
{
    struct statvfs fs;
    int err = t->kind->check_path ? t->kind->check_path(t, name, dir->path) : 0;

    if (!err)
        err = open_fds(dir, name);
    if (err)
        return err;
    if (fstatvfs(dir->fd, &fs) < 0)
        return kvt__fail(errno, "%s: read the size of the file system of %s", name, dir->path);
    dir->unit = fs.f_frsize ? fs.f_frsize : 4096;
    dir->direct = !t->kind->read && kvt__posix_direct_works(dir->temp_fd);
    kvt__temp_clean(dir);
    return 0;
}

/* Record the directory of the last path.  If an earlier path leads to the directory too, close the
 * second copy of the directory: a put deletes older files of a chunk from the other directories. */
static void
add_dir_of_path(struct kvt__files *t)
{
    const struct kvt__dir *last = &t->dirs[t->n_dirs - 1];
    struct stat a, b;
    size_t i = 0;

    while (i < t->n_dirs - 1 && (fstat(last->fd, &a) < 0 || fstat(t->dirs[i].fd, &b) < 0 ||
                                 a.st_dev != b.st_dev || a.st_ino != b.st_ino))
        i++;
    t->dir_of_path[t->sharding.n_paths++] = (uint8_t)i;
    if (i == t->n_dirs - 1)
        return;
    close_fds(last);
    free(last->path);
    t->n_dirs--;
}

bool
kvt__next_path(const char **list, const char **path, size_t *n)
{
    const char *at = *list;

    at += strspn(at, ", \t\n\v\f\r");
    *path = at;
    *n = strcspn(at, ",");
    *list = at + *n;
    while (*n && isspace((unsigned char)at[*n - 1]))
        --*n;
    return *n > 0;
}

int
kvt__files_check_list(const struct kvt__files_kind *kind, const char *name, const char *list)
{
    const char *at = list, *path;
    size_t n_paths = 0, n;

    for (; kvt__next_path(&at, &path, &n); n_paths++) {
        if (*path != '/' && !kind->relative)
            return kvt__fail(EINVAL, "%s: '%.*s' is no absolute path.", name, (int)n, path);
        if (memmem(path, n, "://", 3))
            return kvt__fail(EINVAL, "%s: '%.*s' is no path; write /DIRECTORY.", name,
                             (int)n, path);
        if (n_paths == KVT__FILE_MAX_PATHS)
            return kvt__fail(EINVAL, "%s: more than %d directories.", name,
                             KVT__FILE_MAX_PATHS);
    }
    if (n_paths)
        return 0;
    return kvt__fail(EINVAL, "%s: '%s' is no %s.", name, list,
                     kind->relative ? "directory" : "absolute path");
}

static int
add_path(struct kvt__files *t, const char *name, const char *from, size_t n)
{
    struct kvt__dir *dir = &t->dirs[t->n_dirs];

    *dir = (struct kvt__dir){ .mode = t->mode, .fd = -1, .opaque_fd = -1, .private_fd = -1,
                              .temp_fd = -1, .path = strndup(from, n) };
    if (!dir->path)
        return kvt__fail(ENOMEM, "%s: open", name);
    t->n_dirs++;
    int err = open_dir(t, dir, name);
    if (!err)
        add_dir_of_path(t);
    return err;
}

/* Return true if directory i and a directory before i are on one file system. */
static bool
same_file_system(const struct kvt__files *t, size_t i)
{
    struct stat a, b;

    if (fstat(t->dirs[i].fd, &a) < 0)
        return false;
    for (size_t j = 0; j < i; j++)
        if (!fstat(t->dirs[j].fd, &b) && a.st_dev == b.st_dev)
            return true;
    return false;
}

/* Set the fields of the tier that depend on the file systems of the directories.  The default
 * limit is 90 % of the file systems; multi-host storage has no default limit. */
static void
set_traits(struct kvt__files *t)
{
    uint64_t all = 0;
    size_t n_disks = 0;
    struct statvfs fs;

    for (size_t i = 0; i < t->n_dirs; i++) {
        t->tier.multi_host |= kvt__fs_is_shared(t->dirs[i].fd);
        if (same_file_system(t, i))
            continue;
        n_disks++;
        if (!fstatvfs(t->dirs[i].fd, &fs))
            all += (uint64_t)fs.f_blocks * fs.f_frsize;
    }
    t->tier.several_disks = n_disks > 1;
    t->tier.default_limit = t->tier.multi_host ? 0 : all / 10 * 9;
}

int
kvt__dirs_open(struct kvt__files *t, const char *name, const char *list)
{
    const char *at = list, *path;
    size_t n;
    int err = kvt__files_check_list(t->kind, name, list);

    assert(!t->n_dirs);
    while (!err && kvt__next_path(&at, &path, &n))
        err = add_path(t, name, path, n);
    if (!err)
        set_traits(t);
    if (err || !t->tier.multi_host)
        return err;
    t->index_fd = kvt__shared_index_dir(t->dirs[0].fd, t->dirs[0].path);
    if (t->index_fd < 0)
        kvt__log(KVT_LOG_WARN, "%s: the index of %s is private to this process: %s", name,
                 t->dirs[0].path, kvt__why());
    return 0;
}

void
kvt__dirs_close(struct kvt__files *t)
{
    for (size_t i = 0; i < t->n_dirs; i++) {
        close_fds(&t->dirs[i]);
        free(t->dirs[i].path);
    }
    t->n_dirs = 0;
    close_fd(t->index_fd);
}

uint64_t
kvt__files_shortage(const struct kvt__tier *tier, const struct kvt__object *o,
                    uint64_t bytes)
{
    const struct kvt__files *t = (const struct kvt__files *)tier;
    struct statvfs fs;

    /* ramfs and others report no size. */
    if (fstatvfs(kvt__nth_dir(t, o, 0)->fd, &fs) < 0 || !fs.f_blocks)
        return 0;
    uint64_t needed = (uint64_t)fs.f_blocks * fs.f_frsize / 10 + bytes;
    uint64_t unused = (uint64_t)fs.f_bfree * fs.f_frsize;
    return needed > unused ? needed - unused : 0;
}
