/* SPDX-License-Identifier: Apache-2.0
 *
 * The listing of the chunks in a file store, by names and sizes of files only.  A listing also
 * deletes orphans, files that belong to no chunk: a sidecar without the chunk's file, and
 * unfinished files of LMCache.  Other threads and processes may add and delete files meanwhile.
 *
 * The listing reads a subdirectory in all directories of the store before it lists the names, and
 * sorts the names.  So the files of one chunk are neighbours, and the listing calls fstatat() only
 * for names that readdir() returned.  If the store has one directory and a chunk has one file,
 * the listing lists each name at once and keeps no names in memory. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tier/files/files.h"

#define SPREAD_LEVELS 2
#define SIDECAR_AGE_S 60 /* on a shared mount the chunk's file may become visible later */
#define UNFINISHED_AGE_S 3600

struct listing {
    const struct kvt__files *t;
    bool opaque;
    const char *prefix; /* prefix of the keys to list */
    kvt__tier_list_fn fn;
    void *ctx;
    struct kvt__error error; /* the first error; the listing goes on after an error */
};

/* A name in a directory of the store. */
struct entry {
    uint32_t dir;
    const char *name;
};

/* The subdirectory with this path in each directory of the store. */
struct subdir {
    struct listing *listing;
    int n_levels;                   /* levels of subdirectories below */
    DIR *dirs[KVT__FILE_MAX_PATHS]; /* NULL: a directory of the store lacks the subdirectory */
    char path[KVT__SPREAD_BYTES + NAME_MAX + 1]; /* "18/97/", then the name of a file */
    size_t above;                   /* length of the path without the name */
    size_t n;                       /* number of entries */
    const char *chunk;              /* name of the last listed chunk; NULL: no chunk */
    uint64_t has_chunk;             /* bit i: directory i of the store has this chunk */
};

_Static_assert(KVT__FILE_MAX_PATHS <= 64, "the bits of has_chunk");

static void
keep_error(struct listing *l, int err, const struct kvt__dir *dir, const char *name)
{
    if (!l->error.code)
        kvt__error_set(&l->error, kvt__fail(-err, "list %s/%s", dir->path, name));
}

/* -------------------------------------------------------------------- chunks */

/* Get the status of a regular file.  1; 0: there is no such file; -errno. */
static int
stat_file(int dirfd, const char *name, struct stat *st)
{
    if (fstatat(dirfd, name, st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
    return S_ISREG(st->st_mode);
}

/* Read the status of a chunk's file in one directory.  If the file exists, add the bytes on disk
 * of the file and of the sidecar to *bytes.  1; 0: there is no such file; -errno. */
static int
add_bytes(const struct kvt__files *t, int dirfd, const char *name, struct stat *st,
          uint64_t *bytes)
{
    char sidecar[KVT__SIDECAR_BYTES];
    struct stat second;
    int found = stat_file(dirfd, name, st), also;

    if (found <= 0)
        return found;
    *bytes += (uint64_t)st->st_blocks * 512;
    if (!kvt__layout_sidecar(t->layout, name, sidecar))
        return 1;
    also = stat_file(dirfd, sidecar, &second);
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

/* List a chunk with the bytes of all its files.  entries: the chunk's name in n directories. */
static void
list_chunk(struct subdir *p, const struct entry *entries, size_t n, const char *key)
{
    const struct listing *l = p->listing;
    const struct entry *first = NULL;
    uint64_t bytes = 0;
    int64_t mtime_ns = 0;
    bool expires = false;
    struct stat st;

    assert(n);
    p->chunk = entries->name;
    p->has_chunk = 0;
    for (const struct entry *e = entries; e < entries + n; e++) {
        if (p->has_chunk >> e->dir & 1)
            continue; /* readdir() may return a name twice while the directory changes */
        assert(p->dirs[e->dir]);
        int found = add_bytes(l->t, dirfd(p->dirs[e->dir]), e->name, &st, &bytes);

        if (found < 0) {
            keep_error(p->listing, found, &l->t->dirs[e->dir], p->path);
            return;
        }
        p->has_chunk |= (uint64_t)found << e->dir;
        if (!found || first)
            continue;
        first = e;
        mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        expires = kvt__file_expires(&st);
    }
    if (first)
        l->fn(l->ctx, key, l->opaque, bytes, mtime_ns, expires);
}

/* ------------------------------------------------------ files without a chunk */

static bool
is_older(const struct stat *st, time_t seconds)
{
    return time(NULL) - st->st_mtime > seconds;
}

/* Return true if the entry is the sidecar of the last listed chunk, and the directory has the
 * chunk's file. */
static bool
belongs_to_chunk(const struct subdir *p, const struct entry *e)
{
    char sidecar[KVT__SIDECAR_BYTES];

    return p->chunk && p->has_chunk >> e->dir & 1 &&
           kvt__layout_sidecar(p->listing->t->layout, p->chunk, sidecar) &&
           !strcmp(e->name, sidecar);
}

/* Delete a file if the file belongs to no chunk and is old.  A young file may belong to a chunk
 * that a process is writing. */
static void
remove_orphan(const struct subdir *p, const struct entry *e)
{
    const struct kvt__dir *dir = &p->listing->t->dirs[e->dir];
    int fd = p->listing->opaque ? dir->opaque_fd : dir->fd;
    char chunk[KVT__FILE_NAME_BYTES];
    struct stat st, of_chunk;
    enum kvt__other_file other = kvt__layout_other(p->listing->t->layout, p->path, chunk);

    if (other == KVT__OTHER_NONE || stat_file(fd, p->path, &st) <= 0 ||
        !is_older(&st, other == KVT__OTHER_UNFINISHED ? UNFINISHED_AGE_S : SIDECAR_AGE_S))
        return;
    if (other == KVT__OTHER_UNFINISHED || (fstatat(fd, chunk, &of_chunk, AT_SYMLINK_NOFOLLOW) &&
                                     errno == ENOENT))
        (void)unlinkat(fd, p->path, 0);
}

/* -------------------------------------------------------------------- walking */

/* Return true if a subdirectory for hashes may have this name, for example "-", "7" or "18". */
static bool
is_spread(const char *name)
{
    size_t n = strspn(name, "-0123456789");

    return n && n <= 2 && !name[n];
}

static void walk(struct listing *l, const char *path, int n_levels);

/* List one name; entries: the name in n directories of the store.  The name is a subdirectory, a
 * chunk's file, or another file, which is deleted if it is an orphan. */
static void
list_name(struct subdir *p, const struct entry *entries, size_t n)
{
    const struct listing *l = p->listing;
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__key_parts parts;

    snprintf(p->path + p->above, sizeof p->path - p->above, "%s", entries->name);
    if (p->n_levels && is_spread(entries->name)) {
        strcat(p->path, "/");
        walk(p->listing, p->path, p->n_levels - 1);
    } else if (!kvt__layout_key(l->t->layout, p->path, key, sizeof key, &parts)) {
        if (!strncmp(key, l->prefix, strlen(l->prefix)))
            list_chunk(p, entries, n, key);
    } else {
        for (const struct entry *e = entries; e < entries + n; e++)
            if (!belongs_to_chunk(p, e))
                remove_orphan(p, e);
    }
}

static int
by_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int order = strcmp(x->name, y->name);

    return order ? order : (int)x->dir - (int)y->dir;
}

/* Sort and list the names in the text that read_dir() wrote.  0; -ENOMEM. */
static int
list_entries(struct subdir *p, const char *text)
{
    struct entry *entries = calloc(p->n, sizeof *entries);

    if (!entries)
        return p->n ? -ENOMEM : 0;
    for (size_t i = 0; i < p->n; i++) {
        entries[i] = (struct entry){ (unsigned char)*text, text + 1 };
        text += 1 + strlen(text + 1) + 1;
    }
    qsort(entries, p->n, sizeof *entries, by_name);
    for (size_t i = 0, end; i < p->n && !atomic_load(&p->listing->t->stopped); i = end) {
        for (end = i + 1; end < p->n && !strcmp(entries[end].name, entries[i].name);)
            end++;
        list_name(p, entries + i, end - i);
    }
    free(entries);
    return 0;
}

/* Read the names of the subdirectory in one directory of the store.  to: write each name to this
 * stream, after a byte with the number of the directory; NULL: list each name at once. */
static void
read_dir(struct subdir *p, uint32_t dir, FILE *to)
{
    const struct kvt__files *t = p->listing->t;
    struct dirent *e;

    for (errno = 0; !atomic_load(&t->stopped) && (e = readdir(p->dirs[dir])); errno = 0)
        if (to)
            p->n += fputc((int)dir, to) >= 0 &&
                    fwrite(e->d_name, strlen(e->d_name) + 1, 1, to) == 1;
        else
            list_name(p, &(struct entry){ dir, e->d_name }, 1);
    int err = -errno;
    if (err) {
        p->path[p->above] = '\0'; /* remove the last name */
        keep_error(p->listing, err, &t->dirs[dir], p->path);
    }
}

static DIR *
open_dir(int dirfd, const char *path)
{
    int fd = openat(dirfd, *path ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);

    if (!d && fd >= 0)
        close(fd);
    return d;
}

/* List the subdirectory with this path and n_levels levels of subdirectories below. */
static void
walk(struct listing *l, const char *path, int n_levels)
{
    struct subdir p = { .listing = l, .n_levels = n_levels, .above = strlen(path) };
    bool waits = l->t->n_dirs > 1 || l->t->layout->sidecar_suffix;
    char *text = NULL;
    size_t n_bytes;
    FILE *names = waits ? open_memstream(&text, &n_bytes) : NULL;
    int err = waits && !names ? -ENOMEM : 0;

    assert(p.above < KVT__SPREAD_BYTES);
    strcpy(p.path, path);
    for (uint32_t i = 0; !err && i < l->t->n_dirs; i++) {
        const struct kvt__dir *dir = &l->t->dirs[i];

        p.dirs[i] = open_dir(l->opaque ? dir->opaque_fd : dir->fd, path);
        if (p.dirs[i])
            read_dir(&p, i, names);
        else if (!*path || (errno != ENOENT && errno != ENOTDIR))
            keep_error(l, -errno, dir, path);
    }
    bool lacks_names = names && ferror(names);
    if ((names && fclose(names)) || lacks_names)
        err = -ENOMEM;
    if (!err)
        err = list_entries(&p, text); /* no entries if read_dir() has listed them */
    if (err)
        keep_error(l, err, &l->t->dirs[0], path);
    free(text);
    for (size_t i = 0; i < l->t->n_dirs; i++)
        if (p.dirs[i])
            closedir(p.dirs[i]);
}

int
kvt__file_list(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn, void *ctx)
{
    const struct kvt__files *t = (const struct kvt__files *)tier;
    struct listing l = { .t = t, .prefix = prefix, .fn = fn, .ctx = ctx };

    for (int i = 0; i < 2; i++) {
        l.opaque = i;
        walk(&l, "", t->layout->spread ? SPREAD_LEVELS : 0);
    }
    if (atomic_load(&t->stopped))
        return kvt__fail(ECANCELED, "list %s", t->dirs[0].path);
    return kvt__error_raise(&l.error);
}
