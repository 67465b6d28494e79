/* SPDX-License-Identifier: Apache-2.0
 *
 * What is in one directory of a file store, by names and sizes alone.  Runs on any thread
 * beside everything else: files come and go meanwhile. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tier/file/file.h"

/* A chunk's file in one directory, with the one beside it. */
struct on_disk {
    struct stat st;
    uint64_t bytes; /* of both */
    bool has_beside;
};

static bool
look_at(const struct file_tier *t, int dirfd, const char *name, struct on_disk *f)
{
    char beside[KVT__BESIDE_BYTES];
    struct stat second;

    if (fstatat(dirfd, name, &f->st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(f->st.st_mode))
        return false;
    f->bytes = (uint64_t)f->st.st_blocks * 512;
    f->has_beside = kvt__beside(t->layout, name, beside) &&
                    !fstatat(dirfd, beside, &second, AT_SYMLINK_NOFOLLOW);
    if (f->has_beside)
        f->bytes += (uint64_t)second.st_blocks * 512;
    return true;
}

uint64_t
kvt__bytes_on_disk(const struct file_tier *t, const struct kvt__object *o,
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
    const struct file_tier *t;
    bool opaque;
    uint32_t path; /* the store's directory, by number */
    kvt__tier_list_fn fn;
    void *ctx;
};

/* A directory that is read: that one, or below it. */
struct reading {
    int fd;
    char above[KVT__SPREAD_BYTES]; /* what is before a file's name */
    size_t n_beside, n_with_beside; /* more of the first: some are beside nothing */
    bool has_unfinished;
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
list_file(const struct walk *w, struct reading *r, const char *file)
{
    char key[KVT__KEY_TEXT_MAX + 1], name[sizeof r->above + NAME_MAX];
    struct kvt__key_parts parts;
    struct on_disk f;

    snprintf(name, sizeof name, "%s%s", r->above, file);
    if (kvt__layout_key(w->t->layout, name, key, sizeof key, &parts)) {
        enum kvt__other other = kvt__layout_other(w->t->layout, name, NULL);

        r->n_beside += other == KVT__BESIDE;
        r->has_unfinished |= other == KVT__UNFINISHED;
        return;
    }
    if (!look_at(w->t, r->fd, file, &f))
        return;
    r->n_with_beside += f.has_beside;
    if (w->t->n_dirs == 1 || add_others(w, &parts, name, &f.bytes))
        w->fn(w->ctx, key, w->opaque, w->path, f.bytes,
              (int64_t)f.st.st_mtim.tv_sec * 1000000000 + f.st.st_mtim.tv_nsec);
}

/* "-", "7", "18": as hashes name directories. */
static bool
is_spread(const char *name)
{
    size_t n = strspn(name, "-0123456789");

    return n && n <= 2 && !name[n];
}

static int list_below(const struct walk *w, int dirfd, const char *name,
                      const char *above, int depth);

/* The files in a directory, and in those below it down to a depth. */
static int
list_dir(const struct walk *w, int dirfd, const char *name, const char *above, int depth)
{
    struct reading r = { .fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC) };
    DIR *d = r.fd < 0 ? NULL : fdopendir(r.fd);
    struct dirent *e;
    int err = 0;

    if (!d) {
        err = -errno;
        if (r.fd >= 0)
            close(r.fd);
        return err;
    }
    snprintf(r.above, sizeof r.above, "%s", above);
    while (!err && (e = readdir(d))) {
        if (depth && is_spread(e->d_name))
            err = list_below(w, r.fd, e->d_name, above, depth - 1);
        else if (e->d_name[0] != '.')
            list_file(w, &r, e->d_name);
    }
    if (r.has_unfinished || r.n_beside > r.n_with_beside)
        kvt__remove_others(w->t->layout, d, r.above);
    closedir(d);
    return err;
}

/* One that is gone, or is none, has no files. */
static int
list_below(const struct walk *w, int dirfd, const char *name, const char *above, int depth)
{
    char below[KVT__SPREAD_BYTES];

    snprintf(below, sizeof below, "%s%.2s/", above, name);
    int err = list_dir(w, dirfd, name, below, depth);
    return err == -ENOENT || err == -ENOTDIR ? 0 : err;
}

int
kvt__list_dir(const struct file_tier *t, uint32_t path, kvt__tier_list_fn fn, void *ctx)
{
    struct walk w = { .t = t, .path = path, .fn = fn, .ctx = ctx };
    const struct kvt__dir *dir = &t->dirs[path];
    int depth = t->layout->spread ? 2 : 0;
    int err = list_dir(&w, dir->fd, ".", "", depth);

    w.opaque = true;
    if (!err)
        err = list_dir(&w, dir->opaque_fd, ".", "", depth);
    return err ? kvt__fail(-err, "list %s", dir->path) : 0;
}
