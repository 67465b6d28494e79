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

static bool
look_at(const struct kvt__files *t, int dirfd, const char *name, struct on_disk *f)
{
    char beside[KVT__BESIDE_BYTES];
    struct stat second;

    if (fstatat(dirfd, name, &f->st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(f->st.st_mode))
        return false;
    f->bytes = (uint64_t)f->st.st_blocks * 512;
    if (kvt__beside(t->layout, name, beside) &&
        !fstatat(dirfd, beside, &second, AT_SYMLINK_NOFOLLOW))
        f->bytes += (uint64_t)second.st_blocks * 512;
    return true;
}

uint64_t
kvt__bytes_on_disk(const struct kvt__files *t, const struct kvt__object *o,
                   const char *name)
{
    struct on_disk f;
    uint64_t sum = 0;

    for (size_t i = 0; i < t->n_dirs; i++)
        if (look_at(t, kvt__fd_of(&t->dirs[i], o), name, &f))
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
};

/* Add what other directories have of a chunk.  False: it is in one where it is looked for
 * sooner, and is told from there. */
static bool
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
        } else if (look_at(w->t, kvt__fd_of(dir, &o), name, &f)) {
            if (sooner)
                return false;
            *bytes += f.bytes;
        }
    }
    return true;
}

static void
list_file(const struct walk *w, int dirfd, const char *name)
{
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__key_parts parts;
    struct on_disk f;

    if (kvt__layout_key(w->t->layout, name, key, sizeof key, &parts) ||
        strncmp(key, w->prefix, strlen(w->prefix)) ||
        !look_at(w->t, dirfd, name, &f))
        return;
    if (w->t->n_dirs == 1 || add_others(w, &parts, name, &f.bytes))
        w->fn(w->ctx, key, w->opaque, w->path, f.bytes,
              (int64_t)f.st.st_mtim.tv_sec * 1000000000 + f.st.st_mtim.tv_nsec);
}

static int
list_in(const struct walk *w, int dirfd)
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
    return err ? kvt__fail(-err, "list %s", t->dirs[path].path) : 0;
}
