/* SPDX-License-Identifier: Apache-2.0
 *
 * What is in a file store whose files are spread over many small directories.  The same
 * directory is read in all directories of the store at a time, so that names alone tell
 * which chunks lie in several, and which files belong to none.  Runs on any thread beside
 * everything else: files come and go meanwhile. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "tier/files/files.h"

#define LEVELS 3 /* the store's directory, and two below it */

/* What is in one directory: sorted by name, then by the store's directory. */
struct entry {
    uint32_t name; /* where it begins in the text */
    uint32_t path;
};

struct names {
    struct entry *at;
    size_t n, max;
    char *text;
    size_t n_text, max_text;
};

struct walk {
    const struct kvt__files *t;
    bool opaque;
    const char *prefix; /* of the keys to list */
    kvt__tier_list_fn fn;
    void *ctx;
    int err; /* the last file whose attributes cannot be read; 0: none */
    struct names levels[LEVELS]; /* used again for the next directory of that level */
};

static const char *
name_of(const struct names *names, size_t i)
{
    return names->text + names->at[i].name;
}

/* ------------------------------------------------------------------- reading */

/* Make room for one more of size bytes in an array of max elements. */
static bool
grow(void **array, size_t *max, size_t needed, size_t size)
{
    size_t more = *max ? *max * 2 : 64;

    if (needed <= *max)
        return true;
    if (more < needed)
        more = needed;
    void *grown = realloc(*array, more * size);
    if (!grown)
        return false;
    *array = grown;
    *max = more;
    return true;
}

static int
add_name(struct names *names, const char *name, uint32_t path)
{
    size_t len = strlen(name) + 1;

    if (names->n_text + len > UINT32_MAX ||
        !grow((void **)&names->text, &names->max_text, names->n_text + len, 1) ||
        !grow((void **)&names->at, &names->max, names->n + 1, sizeof *names->at))
        return -ENOMEM;
    memcpy(names->text + names->n_text, name, len);
    names->at[names->n++] = (struct entry){ (uint32_t)names->n_text, path };
    names->n_text += len;
    return 0;
}

static int
by_name(const void *a, const void *b, void *text)
{
    const struct entry *x = a, *y = b;
    int order = strcmp((char *)text + x->name, (char *)text + y->name);

    return order ? order : (x->path > y->path) - (x->path < y->path);
}

static int
root_of(const struct walk *w, uint32_t path)
{
    return w->opaque ? w->t->dirs[path].opaque_fd : w->t->dirs[path].fd;
}

/* One that is gone, or is none, has no files. */
static int
read_in(const struct walk *w, uint32_t path, const char *above, struct names *names)
{
    int fd = openat(root_of(w, path), *above ? above : ".",
                    O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;
    int err = 0;

    if (!d) {
        err = errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
        if (fd >= 0)
            close(fd);
        return err;
    }
    for (errno = 0; !err && (e = readdir(d)); errno = 0)
        if (e->d_name[0] != '.')
            err = add_name(names, e->d_name, path);
    if (!err)
        err = -errno;
    closedir(d);
    return err;
}

static int
read_names(const struct walk *w, const char *above, struct names *names)
{
    int err = 0;

    names->n = names->n_text = 0;
    for (uint32_t i = 0; !err && i < w->t->n_dirs; i++) {
        err = read_in(w, i, above, names);
        if (err)
            err = kvt__fail(-err, "list %s/%s", w->t->dirs[i].path, above);
    }
    if (!err && names->n)
        qsort_r(names->at, names->n, sizeof *names->at, by_name, names->text);
    return err;
}

static bool
has_name(const struct names *names, const char *name, uint32_t path)
{
    size_t low = 0, high = names->n;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(name_of(names, mid), name);

        if (!order)
            order = (names->at[mid].path > path) - (names->at[mid].path < path);
        if (!order)
            return true;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return false;
}

/* -------------------------------------------------------------------- telling */

/* The chunk of names first ... end - 1, which are the same; name: below the store's
 * directories.  The second files' sizes are known: nobody looks at them. */
static void
tell_chunk(struct walk *w, const struct names *names, size_t first, size_t end,
           const char *name, const char *key, const struct kvt__key_parts *parts)
{
    struct kvt__object o = { .hash = parts->hash, .rank = parts->worker_id,
                             .opaque = w->opaque };
    size_t place = w->t->layout->place(&w->t->places, &o), soonest = SIZE_MAX;
    char beside[NAME_MAX + 16];
    uint64_t bytes = 0;
    int64_t mtime_ns = 0;
    uint32_t path = 0;
    struct stat st;

    snprintf(beside, sizeof beside, "%s%s", name_of(names, first), w->t->layout->beside);
    for (size_t i = first; i < end; i++) {
        uint32_t p = names->at[i].path;
        size_t order = (p + w->t->n_dirs - place) % w->t->n_dirs;

        int err = kvt__stat_file(root_of(w, p), name, &st);
        if (err && err != -ENOENT)
            w->err = err;
        if (err)
            continue;
        bytes += (uint64_t)st.st_blocks * 512;
        if (has_name(names, beside, p))
            bytes += kvt__round_up(kvt__form_of(w->t, &o).header_bytes, w->t->dirs[p].unit);
        if (order < soonest) {
            soonest = order;
            path = p;
            mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        }
    }
    if (soonest != SIZE_MAX)
        w->fn(w->ctx, key, w->opaque, path, bytes, mtime_ns);
}

/* The names first ... end - 1, which are the same. */
static void
tell_file(struct walk *w, const struct names *names, size_t first, size_t end,
          const char *above)
{
    char key[KVT__KEY_TEXT_MAX + 1], name[KVT__SPREAD_BYTES + NAME_MAX];
    char chunk[KVT__FILE_NAME_BYTES];
    struct kvt__key_parts parts;

    snprintf(name, sizeof name, "%s%s", above, name_of(names, first));
    if (!kvt__layout_key(w->t->layout, name, key, sizeof key, &parts)) {
        if (!strncmp(key, w->prefix, strlen(w->prefix)))
            tell_chunk(w, names, first, end, name, key, &parts);
        return;
    }
    enum kvt__other other = kvt__layout_other(w->t->layout, name, chunk);
    for (size_t i = first; other != KVT__NEITHER && i < end; i++)
        if (other == KVT__UNFINISHED ||
            !has_name(names, chunk + strlen(above), names->at[i].path))
            kvt__remove_other(root_of(w, names->at[i].path), name, other, chunk);
}

/* "-", "7", "18": as hashes name directories. */
static bool
is_spread(const char *name)
{
    size_t n = strspn(name, "-0123456789");

    return n && n <= 2 && !name[n];
}

static int
walk_level(struct walk *w, const char *above, int level)
{
    struct names *names = &w->levels[level];
    char below[KVT__SPREAD_BYTES];
    size_t end;
    int err = read_names(w, above, names);

    for (size_t i = 0; !err && i < names->n; i = end) {
        end = i + 1;
        while (end < names->n && !strcmp(name_of(names, i), name_of(names, end)))
            end++;
        if (level < LEVELS - 1 && is_spread(name_of(names, i)) &&
            snprintf(below, sizeof below, "%s%s/", above, name_of(names, i)) <
                (int)sizeof below) {
            err = walk_level(w, below, level + 1);
        } else {
            tell_file(w, names, i, end, above);
        }
    }
    return err;
}

/* ---------------------------------------------------------------------- parts */

static void
free_names(struct walk *w)
{
    for (int i = 0; i < LEVELS; i++) {
        free(w->levels[i].at);
        free(w->levels[i].text);
    }
}

/* The directories below the store's, of those and of kvtier/ in them: each is a part. */
int
kvt__spread_parts(const struct kvt__files *t, struct kvt__parts *out)
{
    *out = (struct kvt__parts){ 0 };
    for (int opaque = 0; opaque < 2; opaque++) {
        struct walk w = { .t = t, .opaque = opaque };
        const char *last = "";
        int err = read_names(&w, "", &w.levels[0]);

        for (size_t i = 0; !err && i < w.levels[0].n; i++) {
            const char *name = name_of(&w.levels[0], i);

            if (!is_spread(name) || !strcmp(name, last) || out->n == KVT__MAX_PARTS)
                continue;
            out->at[out->n].opaque = opaque;
            snprintf(out->at[out->n++].above, sizeof out->at[0].above, "%s/", name);
            last = name;
        }
        free_names(&w);
        if (err)
            return err;
    }
    return 0;
}

int
kvt__list_spread(const struct kvt__files *t, const struct kvt__part *part,
                 const char *prefix, kvt__tier_list_fn fn, void *ctx)
{
    struct walk w = { .t = t, .opaque = part->opaque, .prefix = prefix, .fn = fn,
                      .ctx = ctx };
    int err = walk_level(&w, part->above, 1);

    free_names(&w);
    if (!err && w.err)
        err = kvt__fail(-w.err, "list %s/%s: a file", t->dirs[0].path, part->above);
    return err;
}
