/* SPDX-License-Identifier: Apache-2.0
 *
 * Listing the chunks of a file store, by file names and file sizes alone.  A listing also
 * deletes files that belong to no chunk: a copy of a header without the chunk's file, and
 * files that LMCache did not finish.  Any thread; files come and go meanwhile. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tier/files/files.h"

#define SPREAD_LEVELS 2
#define BESIDE_AGE_S 60 /* a shared mount may show the chunk's file later */
#define UNFINISHED_AGE_S 3600

struct walk {
    const struct kvt__files *t;
    const struct kvt__dir *dir;
    bool opaque;
    const char *prefix; /* of the keys to list */
    kvt__tier_list_fn fn;
    void *ctx;
    struct kvt__error error; /* the first one; the listing goes on */
};

static void
keep_error(struct walk *w, int err, const char *name)
{
    if (!w->error.code)
        kvt__error_set(&w->error, kvt__fail(-err, "list %s/%s", w->dir->path, name));
}

/* -------------------------------------------------------------------- chunks */

/* Get the status of a regular file.  1; 0: there is no such file; -errno. */
static int
look_at(int dirfd, const char *name, struct stat *st)
{
    if (fstatat(dirfd, name, st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
    return S_ISREG(st->st_mode);
}

/* Look at a chunk's file in one directory.  If the file exists, add the bytes on disk of the
 * file and of the file beside it.  1; 0: there is no such file; -errno. */
static int
add_bytes(const struct kvt__files *t, int dirfd, const char *name, struct stat *st,
          uint64_t *bytes)
{
    char beside[KVT__BESIDE_BYTES];
    struct stat second;
    int found = look_at(dirfd, name, st), also;

    if (found <= 0)
        return found;
    *bytes += (uint64_t)st->st_blocks * 512;
    if (!kvt__beside(t->layout, name, beside))
        return 1;
    also = look_at(dirfd, beside, &second);
    if (also > 0)
        *bytes += (uint64_t)second.st_blocks * 512;
    return also < 0 ? also : 1;
}

uint64_t
kvt__bytes_on_disk(const struct kvt__files *t, const struct kvt__object *o,
                   const char *name)
{
    uint64_t bytes = 0;
    struct stat st;

    for (size_t i = 0; i < t->n_dirs; i++)
        (void)add_bytes(t, kvt__fd_of(&t->dirs[i], o), name, &st, &bytes);
    return bytes;
}

/* List a chunk with the bytes of all directories.  If several directories have the chunk,
 * only the walk through the first one in the order of lookups lists the chunk. */
static int
list_chunk(const struct walk *w, const char *name, const char *key,
           const struct kvt__key_parts *parts)
{
    struct kvt__object o = { .hash = parts->hash, .rank = parts->worker_id,
                             .opaque = w->opaque };
    const struct kvt__dir *first = NULL;
    uint64_t bytes = 0;
    int64_t mtime_ns = 0;
    struct stat st;

    for (size_t i = 0; i < w->t->n_dirs; i++) {
        const struct kvt__dir *dir = kvt__nth_dir(w->t, &o, i);
        int found = add_bytes(w->t, kvt__fd_of(dir, &o), name, &st, &bytes);

        if (found < 0)
            return found;
        if (!found || first)
            continue;
        if (dir != w->dir)
            return 0;
        first = dir;
        mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    }
    if (first)
        w->fn(w->ctx, key, w->opaque, (uint32_t)(first - w->t->dirs), bytes, mtime_ns);
    return 0;
}

/* ------------------------------------------------------ files without a chunk */

static bool
is_older(const struct stat *st, time_t seconds)
{
    return time(NULL) - st->st_mtime > seconds;
}

/* Delete a file that belongs to no chunk.  A process may be about to write the chunk: the
 * file must be old. */
static void
remove_orphan(const struct walk *w, const char *name)
{
    int dirfd = w->opaque ? w->dir->opaque_fd : w->dir->fd;
    char chunk[KVT__FILE_NAME_BYTES];
    struct stat st, of_chunk;
    enum kvt__other other = kvt__layout_other(w->t->layout, name, chunk);

    if (other == KVT__NEITHER || look_at(dirfd, name, &st) <= 0 ||
        !is_older(&st, other == KVT__UNFINISHED ? UNFINISHED_AGE_S : BESIDE_AGE_S))
        return;
    if (other == KVT__UNFINISHED || (fstatat(dirfd, chunk, &of_chunk, AT_SYMLINK_NOFOLLOW) &&
                                     errno == ENOENT))
        (void)unlinkat(dirfd, name, 0);
}

/* -------------------------------------------------------------------- walking */

/* name: below the store's directory. */
static void
list_file(struct walk *w, const char *name)
{
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__key_parts parts;
    int err;

    if (kvt__layout_key(w->t->layout, name, key, sizeof key, &parts)) {
        remove_orphan(w, name);
        return;
    }
    if (strncmp(key, w->prefix, strlen(w->prefix)))
        return;
    err = list_chunk(w, name, key, &parts);
    if (err)
        keep_error(w, err, name);
}

/* Return true if a hash may name a directory like this: "-", "7", "18". */
static bool
is_spread(const char *name)
{
    size_t n = strspn(name, "-0123456789");

    return n && n <= 2 && !name[n];
}

/* List a directory and, in a layout that spreads files, the directories below. */
static void
walk_dir(struct walk *w, const char *above, int levels)
{
    int fd = openat(w->opaque ? w->dir->opaque_fd : w->dir->fd, *above ? above : ".",
                    O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    char name[KVT__SPREAD_BYTES + NAME_MAX + 1];
    struct dirent *e;

    if (!d) {
        if (!*above || (errno != ENOENT && errno != ENOTDIR))
            keep_error(w, -errno, above);
        if (fd >= 0)
            close(fd);
        return;
    }
    for (errno = 0; !atomic_load(&w->t->stopped) && (e = readdir(d)); errno = 0) {
        bool spread = levels && is_spread(e->d_name);

        snprintf(name, sizeof name, "%s%s%s", above, e->d_name, spread ? "/" : "");
        if (spread)
            walk_dir(w, name, levels - 1);
        else
            list_file(w, name);
    }
    if (errno)
        keep_error(w, -errno, above);
    closedir(d);
}

int
kvt__file_list(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn, void *ctx)
{
    const struct kvt__files *t = (const struct kvt__files *)tier;
    struct walk w = { .t = t, .prefix = prefix, .fn = fn, .ctx = ctx };

    for (size_t i = 0; i < 2 * t->n_dirs; i++) {
        w.dir = &t->dirs[i / 2];
        w.opaque = i % 2;
        walk_dir(&w, "", t->layout->spread ? SPREAD_LEVELS : 0);
    }
    if (atomic_load(&t->stopped))
        return kvt__fail(ECANCELED, "list %s", t->dirs[0].path);
    return kvt__error_raise(&w.error);
}
