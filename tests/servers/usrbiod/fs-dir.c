/* SPDX-License-Identifier: Apache-2.0
 *
 * FUSE requests for open directories.  dirs_fini() frees the directories for which the kernel has
 * sent no release request. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "usrbiod.h"

#define AT_END INT64_MAX /* offset after the root's last entry, 3fs-virt */

struct dir {
    DIR *stream;            /* NULL: a virtual directory */
    off_t at;
    struct dirent *pending; /* entry that did not fit into the last response */
    pid_t opened_by;
    struct dir *prev, *next; /* list of all directories, guarded by `lock` */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct dir *all;

static struct dir *
dir_of(const struct fuse_file_info *fi)
{
    return (struct dir *)(uintptr_t)fi->fh;
}

static void
enter(struct dir *dir)
{
    pthread_mutex_lock(&lock);
    dir->next = all;
    if (all)
        all->prev = dir;
    all = dir;
    pthread_mutex_unlock(&lock);
}

static void
end(struct dir *dir)
{
    pthread_mutex_lock(&lock);
    *(dir->prev ? &dir->prev->next : &all) = dir->next;
    if (dir->next)
        dir->next->prev = dir->prev;
    pthread_mutex_unlock(&lock);
    if (dir->stream)
        closedir(dir->stream);
    free(dir);
}

/* The FUSE threads have ended. */
void
dirs_fini(void)
{
    while (all)
        end(all);
}

/* Open a stream of a backing directory.  Return 0 or an errno. */
static int
open_stream(fuse_ino_t ino, DIR **out)
{
    int fd = openat(node_get(ino)->path_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    *out = fd < 0 ? NULL : fdopendir(fd);
    if (*out)
        return 0;
    int err = errno;
    if (fd >= 0)
        close(fd);
    return err;
}

void
fs_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct dir *dir = calloc(1, sizeof *dir);
    int err = dir ? 0 : ENOMEM;

    if (!err && !is_virtual(ino))
        err = open_stream(ino, &dir->stream);
    if (err) {
        free(dir);
        fuse_reply_err(req, err);
        return;
    }
    dir->opened_by = fuse_req_ctx(req)->pid;
    enter(dir);
    fi->fh = (uintptr_t)dir;
    if (fuse_reply_open(req, fi) < 0)
        end(dir);
}

struct page {
    fuse_req_t req;
    char *buf;
    size_t used, size;
};

/* Add an entry to a response.  Return false if the entry does not fit. */
static bool
add_name(struct page *p, const char *name, const struct stat *st, off_t next)
{
    size_t n = fuse_add_direntry(p->req, p->buf + p->used, p->size - p->used, name, st,
                                 next);
    if (n > p->size - p->used)
        return false;
    p->used += n;
    return true;
}

static void
list_virtual(struct page *p, fuse_ino_t ino, off_t at)
{
    uid_t uid = fuse_req_ctx(p->req)->uid;
    char name[256];
    struct stat st;

    while (virt_list(ino, uid, &at, &st, name))
        if (!add_name(p, name, &st, at))
            return;
}

static void
list_backing(struct page *p, fuse_ino_t ino, struct dir *dir, off_t at)
{
    struct stat st = {0};

    if (at == AT_END)
        return;
    if (at != dir->at) {
        seekdir(dir->stream, at);
        dir->pending = NULL;
    }
    for (;;) {
        struct dirent *e = dir->pending ? dir->pending : readdir(dir->stream);

        dir->pending = e;
        if (!e)
            break;
        st.st_ino = e->d_ino;
        st.st_mode = (mode_t)DTTOIF(e->d_type);
        if (!add_name(p, e->d_name, &st, e->d_off))
            return;
        dir->at = e->d_off;
        dir->pending = NULL;
    }
    at = 0;
    char name[256];
    if (ino == FUSE_ROOT_ID && virt_list(ino, 0, &at, &st, name))
        add_name(p, name, &st, AT_END);
}

void
fs_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
           struct fuse_file_info *fi)
{
    struct page page = { .req = req, .buf = malloc(size), .size = size };

    if (!page.buf) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    if (is_virtual(ino))
        list_virtual(&page, ino, off);
    else
        list_backing(&page, ino, dir_of(fi), off);
    fuse_reply_buf(req, page.buf, page.used);
    free(page.buf);
}

void
fs_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct dir *dir = dir_of(fi);

    virt_releasedir(ino, dir->opened_by);
    end(dir);
    fuse_reply_err(req, 0);
}
