/* SPDX-License-Identifier: Apache-2.0
 *
 * What is in one directory of a file store that is flat, by names and sizes alone.  Runs
 * on any thread beside everything else: files come and go meanwhile. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tier/files/files.h"

/* A chunk's file in one directory, with the one beside it. */
struct on_disk {
    struct stat st;
    uint64_t bytes; /* of both */
};

int
kvt__stat_file(int dirfd, const char *name, struct stat *out)
{
    if (!fstatat(dirfd, name, out, AT_SYMLINK_NOFOLLOW))
        return S_ISREG(out->st_mode) ? 0 : -ENOENT;
    return -errno;
}

/* Read the bytes on disk of a chunk's files.  As kvt__stat_file(). */
static int
look_at(const struct kvt__files *t, int dirfd, const char *name, struct on_disk *f)
{
    char beside[KVT__BESIDE_BYTES];
    struct stat second;
    int err = kvt__stat_file(dirfd, name, &f->st);

    if (err)
        return err;
    f->bytes = (uint64_t)f->st.st_blocks * 512;
    if (!kvt__beside(t->layout, name, beside))
        return 0;
    err = kvt__stat_file(dirfd, beside, &second);
    if (!err)
        f->bytes += (uint64_t)second.st_blocks * 512;
    return err == -ENOENT ? 0 : err;
}

uint64_t
kvt__bytes_on_disk(const struct kvt__files *t, const struct kvt__object *o,
                   const char *name)
{
    struct on_disk f;
    uint64_t sum = 0;

    for (size_t i = 0; i < t->n_dirs; i++)
        if (!look_at(t, kvt__fd_of(&t->dirs[i], o), name, &f))
            sum += f.bytes;
    return sum;
}

struct walk {
    const struct kvt__files *t;
    bool opaque;
    uint32_t path; /* the directory's number */
    const char *prefix; /* of the keys to list */
    kvt__tier_list_fn fn;
    void *ctx;
    int err; /* the last file whose attributes cannot be read; 0: none */
};

/* Add the bytes of the chunk's files in other directories.  0; -EEXIST: a directory that is
 * searched sooner has the chunk, and lists the chunk; or an error of look_at(). */
static int
add_others(const struct walk *w, const struct kvt__key_parts *parts, const char *name,
           uint64_t *bytes)
{
    struct kvt__object o = { .hash = parts->hash, .rank = parts->worker_id,
                             .opaque = w->opaque };
    bool sooner = true;
    struct on_disk f;

    for (size_t i = 0; i < w->t->n_dirs; i++) {
        const struct kvt__dir *dir = kvt__nth_dir(w->t, &o, i);

        if (dir == &w->t->dirs[w->path]) {
            sooner = false;
            continue;
        }
        int err = look_at(w->t, kvt__fd_of(dir, &o), name, &f);
        if (!err && sooner)
            return -EEXIST;
        if (!err)
            *bytes += f.bytes;
        else if (err != -ENOENT)
            return err;
    }
    return 0;
}

static void
list_file(struct walk *w, int dirfd, const char *name)
{
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__key_parts parts;
    struct on_disk f;

    if (kvt__layout_key(w->t->layout, name, key, sizeof key, &parts) ||
        strncmp(key, w->prefix, strlen(w->prefix)))
        return;
    int err = look_at(w->t, dirfd, name, &f);
    if (!err && w->t->n_dirs > 1)
        err = add_others(w, &parts, name, &f.bytes);
    if (!err)
        w->fn(w->ctx, key, w->opaque, w->path, f.bytes,
              (int64_t)f.st.st_mtim.tv_sec * 1000000000 + f.st.st_mtim.tv_nsec);
    else if (err != -ENOENT && err != -EEXIST)
        w->err = err;
}

static int
list_in(struct walk *w, int dirfd)
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
    for (errno = 0; (e = readdir(d)); errno = 0)
        list_file(w, dirfd, e->d_name);
    int err = -errno;
    closedir(d);
    return err;
}

int
kvt__list_dir(const struct kvt__files *t, uint32_t path, const char *prefix,
              kvt__tier_list_fn fn, void *ctx)
{
    struct walk w = { .t = t, .path = path, .prefix = prefix, .fn = fn, .ctx = ctx };
    int err = list_in(&w, t->dirs[path].fd);

    w.opaque = true;
    if (!err)
        err = list_in(&w, t->dirs[path].opaque_fd);
    if (err)
        return kvt__fail(-err, "list %s", t->dirs[path].path);
    return w.err ? kvt__fail(-w.err, "list %s: a file", t->dirs[path].path) : 0;
}
