/* SPDX-License-Identifier: Apache-2.0
 *
 * What is in the directories of a file store.  Runs on any thread beside everything
 * else: files come and go meanwhile. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tier/file/file.h"

uint64_t
kvt__bytes_on_disk(const struct file_tier *t, bool opaque, const char *name)
{
    uint64_t sum = 0;
    struct stat st;

    for (size_t i = 0; i < t->n_dirs; i++) {
        const struct kvt__dir *dir = &t->dirs[i];

        if (!fstatat(opaque ? dir->opaque_fd : dir->fd, name, &st,
                     AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode))
            sum += (uint64_t)st.st_blocks * 512;
    }
    return sum;
}

struct listing {
    const struct file_tier *t;
    bool opaque;
    uint32_t path; /* the directory's number */
    kvt__tier_list_fn fn;
    void *ctx;
};

/* Whether a file of this name is in no directory where it is looked for sooner. */
static bool
is_first(const struct listing *l, const struct kvt__key_parts *parts, const char *name)
{
    struct kvt__object o = { .hash = parts->hash, .rank = parts->worker_id, .opaque = l->opaque };
    const struct kvt__dir *here = &l->t->dirs[l->path], *dir;
    struct stat st;

    for (size_t i = 0; (dir = kvt__nth_dir(l->t, &o, i)) != here; i++)
        if (!fstatat(kvt__fd_of(dir, &o), name, &st, AT_SYMLINK_NOFOLLOW) &&
            S_ISREG(st.st_mode))
            return false;
    return true;
}

static void
list_file(const struct listing *l, int dirfd, const char *name)
{
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__key_parts parts;
    struct stat st;

    if (kvt__layout_key(l->t->layout, name, key, sizeof key, &parts) ||
        fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
        return;
    uint64_t bytes = (uint64_t)st.st_blocks * 512;
    if (l->t->n_dirs > 1) {
        if (!is_first(l, &parts, name))
            return;
        bytes = kvt__bytes_on_disk(l->t, l->opaque, name);
    }
    l->fn(l->ctx, key, l->opaque, l->path, bytes,
          (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec);
}

static int
list_dir(const struct listing *l, int dirfd)
{
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;

    if (!d) {
        int err = -errno;
        if (fd >= 0)
            close(fd);
        return err;
    }
    while ((e = readdir(d)))
        list_file(l, dirfd, e->d_name);
    closedir(d);
    return 0;
}

int
kvt__file_list(struct kvt__tier *tier, kvt__tier_list_fn fn, void *ctx)
{
    const struct file_tier *t = (const struct file_tier *)tier;

    for (size_t i = 0; i < t->n_dirs; i++) {
        struct listing l = { .t = t, .path = (uint32_t)i, .fn = fn, .ctx = ctx };
        int err = list_dir(&l, t->dirs[i].fd);

        l.opaque = true;
        if (!err)
            err = list_dir(&l, t->dirs[i].opaque_fd);
        if (err)
            return kvt__fail(-err, "list %s", t->dirs[i].path);
    }
    return 0;
}
