/* SPDX-License-Identifier: Apache-2.0
 *
 * FUSE requests for open files. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "usrbiod.h"

/* -------------------------------------------------------------------------- files */

/* All openers of a file, and the rings, share a descriptor of the backing file for reading and
 * writing.  The kernel handles the state of each opener. */
static void
set_cached(struct fuse_file_info *fi)
{
    fi->direct_io = !opt.cache || fi->flags & O_DIRECT;
}

static int
open_node(struct node *n, int flags)
{
    int err = node_open(n);

    if (!err && flags & O_TRUNC && ftruncate(n->data_fd, 0) < 0) {
        err = errno;
        node_release(n);
    }
    return err;
}

void
fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct node *n = node_get(ino);
    char name[256];

    delay_request();
    node_name(n, name);
    int err = fault_request(OP_OPEN, name);
    if (!err)
        err = open_node(n, fi->flags);
    set_cached(fi);
    if (err)
        fuse_reply_err(req, err);
    else if (fuse_reply_open(req, fi) < 0)
        node_release(n);
}

void
fs_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
          struct fuse_file_info *fi)
{
    struct fuse_entry_param e;
    struct node *n;
    struct stat st;
    int err, fd;

    delay_request();
    err = is_virtual(parent) ? EPERM : fault_request(OP_CREATE, name);
    if (err) {
        fuse_reply_err(req, err);
        return;
    }
    fd = openat(node_get(parent)->path_fd, name, O_RDWR | O_CREAT | O_CLOEXEC |
                O_NOFOLLOW | (fi->flags & (O_EXCL | O_TRUNC)), mode);
    if (fd < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    become_owner(req, fd, "");
    err = node_add_open(fd, name, &st, &n);
    if (err) {
        fuse_reply_err(req, err);
        return;
    }
    fill_entry(&e, n, &st);
    set_cached(fi);
    if (fuse_reply_create(req, &e, fi) < 0) {
        node_release(n);
        node_forget(e.ino, 1);
    }
}

void
fs_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    char *buf = malloc(size);
    ssize_t n = buf ? pread(node_get(ino)->data_fd, buf, size, off) : -1;

    (void)fi;
    if (n < 0)
        fuse_reply_err(req, buf ? errno : ENOMEM);
    else
        fuse_reply_buf(req, buf, (size_t)n);
    free(buf);
}

void
fs_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
         struct fuse_file_info *fi)
{
    struct node *node = node_get(ino);
    ssize_t n = pwrite(node->data_fd, buf, size, off);

    (void)fi;
    node_show_growth(node);
    if (n < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_write(req, (size_t)n);
}

/* Make the growth of a file visible, and sync the file if `to_disk`.  Return 0 or an errno. */
static int
synchronize(struct node *n, bool to_disk)
{
    char name[256];

    node_name(n, name);
    int err = fault_request(OP_FLUSH, name);
    if (err)
        return err;
    node_show_growth(n);
    return to_disk && fsync(n->data_fd) < 0 ? errno : 0;
}

void
fs_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)fi;
    fuse_reply_err(req, synchronize(node_get(ino), false));
}

void
fs_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    (void)datasync;
    (void)fi;
    fuse_reply_err(req, synchronize(node_get(ino), true));
}

void
fs_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)fi;
    node_release(node_get(ino));
    fuse_reply_err(req, 0);
}

/* -------------------------------------------------------------------------- ioctls */

enum { MAGIC = (int)0x8f3f5fff, IOCTL_VERSION = 1 };

struct mount_name {
    char text[32];
};

struct hard_link {
    uint64_t parent;
    char name[256];
};
_Static_assert(sizeof(struct hard_link) == 264, "an ioctl's layout");

static const unsigned get_mount_name = 0x80206800, get_path_offset = 0x80046801,
                      get_magic_num = 0x80046802, get_ioctl_version = 0x80046803,
                      ioctl_fsync = 0x8004680b, ioctl_hard_link = 0x4108680c;

static int
link_file(fuse_ino_t ino, const void *in, size_t in_bytes)
{
    struct hard_link link;
    struct node *dir;
    char path[32];

    if (in_bytes < sizeof link || is_virtual(ino))
        return EINVAL;
    memcpy(&link, in, sizeof link);
    link.name[sizeof link.name - 1] = '\0';
    struct stat root;
    if (fstat(node_get(FUSE_ROOT_ID)->path_fd, &root) == 0 && link.parent == root.st_ino)
        link.parent = FUSE_ROOT_ID;
    dir = node_get(link.parent);
    if (!dir || strchr(link.name, '/'))
        return dir ? EINVAL : ENOENT;
    snprintf(path, sizeof path, "/proc/self/fd/%d", node_get(ino)->path_fd);
    return linkat(AT_FDCWD, path, dir->path_fd, link.name, AT_SYMLINK_FOLLOW) < 0 ? errno
                                                                                  : 0;
}

static void
reply_number(fuse_req_t req, uint32_t number)
{
    fuse_reply_ioctl(req, 0, &number, sizeof number);
}

/* The ioctls that clients of rings use.  PUNCH_HOLE and the removing ioctls are not implemented. */
void
fs_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
         struct fuse_file_info *fi, unsigned flags, const void *in, size_t in_bytes,
         size_t out_bytes)
{
    struct mount_name name = { "test" };
    int err = EINVAL;

    (void)arg;
    (void)fi;
    (void)flags;
    (void)out_bytes;
    if (cmd == get_mount_name) {
        fuse_reply_ioctl(req, 0, &name, sizeof name);
    } else if (cmd == get_path_offset) {
        reply_number(req, (uint32_t)strlen(opt.mount));
    } else if (cmd == get_magic_num) {
        reply_number(req, (uint32_t)MAGIC);
    } else if (cmd == get_ioctl_version) {
        reply_number(req, IOCTL_VERSION);
    } else {
        if (cmd == ioctl_hard_link)
            err = link_file(ino, in, in_bytes);
        else if (cmd == ioctl_fsync && !is_virtual(ino) && node_get(ino)->regular)
            err = synchronize(node_get(ino), true);
        if (err)
            fuse_reply_err(req, err);
        else
            fuse_reply_ioctl(req, 0, NULL, 0);
    }
}
