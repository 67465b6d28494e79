/* SPDX-License-Identifier: Apache-2.0
 *
 * FUSE requests for names: pass requests to the backing directory, and requests for 3fs-virt to
 * virt.c. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "usrbiod.h"

static double
entry_timeout(void)
{
    return opt.cache ? 30 : 0;
}

void
fill_entry(struct fuse_entry_param *e, struct node *n, const struct stat *st)
{
    *e = (struct fuse_entry_param){ .ino = n->ino, .attr = *st,
                                    .attr_timeout = entry_timeout(),
                                    .entry_timeout = entry_timeout() };
}

/* Simulate the distance to the metadata server. */
void
delay_request(void)
{
    if (opt.delay_us)
        sleep_ns((int64_t)opt.delay_us * 1000);
}

void
become_owner(fuse_req_t req, int dir_fd, const char *name)
{
    const struct fuse_ctx *who = fuse_req_ctx(req);

    if (geteuid() == 0 && (who->uid || who->gid) &&
        fchownat(dir_fd, name, who->uid, who->gid,
                 AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) < 0)
        return; /* the daemon's user stays the owner */
}

static void
reply_looked_up(fuse_req_t req, struct node *dir, const char *name)
{
    struct fuse_entry_param e;
    struct node *n;
    struct stat st;
    int err = node_look_up(dir, name, &st, &n);

    if (err == ENOENT && opt.cache) {
        e = (struct fuse_entry_param){ .entry_timeout = 5 };
        fuse_reply_entry(req, &e);
    } else if (err) {
        fuse_reply_err(req, err);
    } else {
        fill_entry(&e, n, &st);
        if (fuse_reply_entry(req, &e) < 0) /* the request was interrupted */
            node_forget(n->ino, 1);
    }
}

static void
fs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (is_virtual(parent) || (parent == FUSE_ROOT_ID && !strcmp(name, VIRT_NAME))) {
        virt_lookup(req, parent, name);
        return;
    }
    count_lookup_begins();
    delay_request();
    int err = fault_request(OP_LOOKUP, name);
    count_lookup_ends();
    if (err)
        fuse_reply_err(req, err);
    else
        reply_looked_up(req, node_get(parent), name);
}

static void
fs_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
    if (!is_virtual(ino))
        node_forget(ino, n);
    fuse_reply_none(req);
}

static void
fs_forget_multi(fuse_req_t req, size_t n, struct fuse_forget_data *all)
{
    for (size_t i = 0; i < n; i++)
        if (!is_virtual(all[i].ino))
            node_forget(all[i].ino, all[i].nlookup);
    fuse_reply_none(req);
}

static void
reply_attr(fuse_req_t req, struct node *n)
{
    struct stat st;
    int err = node_stat(n, &st);

    if (err)
        fuse_reply_err(req, err);
    else
        fuse_reply_attr(req, &st, entry_timeout());
}

static void
fs_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)fi;
    if (is_virtual(ino))
        virt_getattr(req, ino);
    else
        reply_attr(req, node_get(ino));
}

static int
set_times(const char *path, const struct stat *attr, int what)
{
    struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_nsec = UTIME_OMIT } };

    if (what & FUSE_SET_ATTR_ATIME)
        times[0] = attr->st_atim;
    if (what & FUSE_SET_ATTR_ATIME_NOW)
        times[0].tv_nsec = UTIME_NOW;
    if (what & FUSE_SET_ATTR_MTIME)
        times[1] = attr->st_mtim;
    if (what & FUSE_SET_ATTR_MTIME_NOW)
        times[1].tv_nsec = UTIME_NOW;
    return utimensat(AT_FDCWD, path, times, 0);
}

/* Apply the attributes of a request to a node.  Return 0 or an errno. */
static int
set_attr(struct node *n, const struct stat *attr, int what)
{
    char path[32];

    snprintf(path, sizeof path, "/proc/self/fd/%d", n->path_fd);
    if (what & FUSE_SET_ATTR_MODE && chmod(path, attr->st_mode) < 0)
        return errno;
    if (what & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID) &&
        fchownat(n->path_fd, "", what & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1,
                 what & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1, AT_EMPTY_PATH) < 0)
        return errno;
    if (what & FUSE_SET_ATTR_SIZE) {
        if (truncate(path, attr->st_size) < 0)
            return errno;
        node_show_growth(n);
    }
    if (what & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_MTIME |
                FUSE_SET_ATTR_MTIME_NOW) && set_times(path, attr, what) < 0)
        return errno;
    return 0;
}

static void
fs_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int what,
           struct fuse_file_info *fi)
{
    int err = is_virtual(ino) ? EPERM : set_attr(node_get(ino), attr, what);

    (void)fi;
    if (err)
        fuse_reply_err(req, err);
    else
        reply_attr(req, node_get(ino));
}

static void
fs_readlink(fuse_req_t req, fuse_ino_t ino)
{
    char target[4096];

    if (is_virtual(ino)) {
        virt_readlink(req, ino);
        return;
    }
    ssize_t n = readlinkat(node_get(ino)->path_fd, "", target, sizeof target - 1);
    if (n < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    target[n] = '\0';
    fuse_reply_readlink(req, target);
}

/* ------------------------------------------------------------------ making and removing */

static void
reply_made(fuse_req_t req, struct node *dir, const char *name, int err)
{
    if (err) {
        fuse_reply_err(req, err);
        return;
    }
    become_owner(req, dir->path_fd, name);
    reply_looked_up(req, dir, name);
}

static void
fs_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    struct node *dir = is_virtual(parent) ? NULL : node_get(parent);

    if (!dir)
        fuse_reply_err(req, EPERM);
    else
        reply_made(req, dir, name, mkdirat(dir->path_fd, name, mode) < 0 ? errno : 0);
}

static void
fs_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    struct node *dir;

    if (is_virtual(parent)) {
        virt_symlink(req, target, parent, name);
        return;
    }
    dir = node_get(parent);
    reply_made(req, dir, name, symlinkat(target, dir->path_fd, name) < 0 ? errno : 0);
}

static void
fs_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
    char path[32];
    struct node *dir;

    if (is_virtual(ino) || is_virtual(parent)) {
        fuse_reply_err(req, EPERM);
        return;
    }
    dir = node_get(parent);
    snprintf(path, sizeof path, "/proc/self/fd/%d", node_get(ino)->path_fd);
    if (linkat(AT_FDCWD, path, dir->path_fd, name, AT_SYMLINK_FOLLOW) < 0)
        fuse_reply_err(req, errno);
    else
        reply_looked_up(req, dir, name);
}

static int
remove_name(fuse_ino_t parent, const char *name, int flags)
{
    return unlinkat(node_get(parent)->path_fd, name, flags) < 0 ? errno : 0;
}

static void
fs_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (is_virtual(parent)) {
        virt_unlink(req, parent, name);
        return;
    }
    int err = fault_request(OP_UNLINK, name);
    fuse_reply_err(req, err ? err : remove_name(parent, name, 0));
}

static void
fs_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    fuse_reply_err(req, is_virtual(parent) ? EPERM
                                           : remove_name(parent, name, AT_REMOVEDIR));
}

static int
rename_name(fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
            const char *new_name, unsigned flags)
{
    struct node *to = node_get(new_parent);
    struct stat st;

    if (renameat2(node_get(parent)->path_fd, name, to->path_fd, new_name, flags) < 0)
        return errno;
    if (fstatat(to->path_fd, new_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        node_rename(st.st_ino, new_name);
    return 0;
}

/* A fault matches by the old name or by the new name. */
static void
fs_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
          const char *new_name, unsigned flags)
{
    char both[520];

    snprintf(both, sizeof both, "%s/%s", name, new_name);
    int err = is_virtual(parent) || is_virtual(new_parent)
                  ? EPERM : fault_request(OP_RENAME, both);
    if (!err)
        err = rename_name(parent, name, new_parent, new_name, flags);
    fuse_reply_err(req, err);
}

/* ------------------------------------------------------------------------------ other */

static void
fs_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct statvfs s;

    (void)ino;
    if (fstatvfs(node_get(FUSE_ROOT_ID)->path_fd, &s) < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_statfs(req, &s);
}

/* 3FS has the attribute "hf3fs.lock" of directories, which kvtier does not use.  The responses
 * are those of 3FS for other attributes. */
static void
fs_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
            size_t size, int flags)
{
    (void)ino;
    (void)name;
    (void)value;
    (void)size;
    (void)flags;
    fuse_reply_err(req, ENOTSUP);
}

static void
fs_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    (void)name;
    (void)size;
    fuse_reply_err(req, is_virtual(ino) ? ENOTSUP : ENODATA);
}

static void
fs_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    if (is_virtual(ino))
        fuse_reply_err(req, ENOTSUP);
    else if (size)
        fuse_reply_buf(req, NULL, 0);
    else
        fuse_reply_xattr(req, 0);
}

static void
fs_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    (void)ino;
    (void)name;
    fuse_reply_err(req, EPERM);
}

/* Without flock and lk, the kernel handles locks itself, as with the real daemon. */
const struct fuse_lowlevel_ops fs_ops = {
    .lookup = fs_lookup,
    .forget = fs_forget,
    .forget_multi = fs_forget_multi,
    .getattr = fs_getattr,
    .setattr = fs_setattr,
    .readlink = fs_readlink,
    .mkdir = fs_mkdir,
    .unlink = fs_unlink,
    .rmdir = fs_rmdir,
    .symlink = fs_symlink,
    .rename = fs_rename,
    .link = fs_link,
    .open = fs_open,
    .create = fs_create,
    .read = fs_read,
    .write = fs_write,
    .flush = fs_flush,
    .fsync = fs_fsync,
    .release = fs_release,
    .ioctl = fs_ioctl,
    .opendir = fs_opendir,
    .readdir = fs_readdir,
    .releasedir = fs_releasedir,
    .statfs = fs_statfs,
    .setxattr = fs_setxattr,
    .getxattr = fs_getxattr,
    .listxattr = fs_listxattr,
    .removexattr = fs_removexattr,
};
