/* SPDX-License-Identifier: Apache-2.0
 *
 * Find the 3FS mount of a path in the kernel's table of mounts.  Rings need a mount point with
 * the directory 3fs-virt.  If only a part of a 3FS is mounted, 3fs-virt is present only if
 * 3fs-virt was mounted there too. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "usrbio/own.h"
#include "usrbio/usrbio.h"

#define VIRT "/3fs-virt"
#define TYPE "fuse.hf3fs"

/* Copy a word of a line, with escapes such as \040 resolved.  Return the text after the word, or
 * NULL: the line has no more word, or the word does not fit. */
static const char *
parse_word(const char *at, char *out, size_t size)
{
    size_t n = 0;

    at += strspn(at, " ");
    for (; *at && *at != ' ' && *at != '\n'; at++) {
        char c = *at;

        if (c == '\\' && strspn(at + 1, "01234567") >= 3) {
            c = (char)((at[1] - '0') * 64 + (at[2] - '0') * 8 + (at[3] - '0'));
            at += 3;
        }
        if (n + 1 >= size)
            return NULL;
        out[n++] = c;
    }
    out[n] = '\0';
    return n ? at : NULL;
}

/* Parse "36 35 98:0 /root /mount/point rw,noatime master:1 - type source options". */
static bool
parse_line(const char *at, char *point, size_t point_size, char *type, size_t type_size)
{
    char skipped[PATH_MAX];

    for (int i = 0; at && i < 4; i++)
        at = parse_word(at, skipped, sizeof skipped);
    if (!at || !(at = parse_word(at, point, point_size)))
        return false;
    const char *end = at + strcspn(at, "\n");
    const char *dash = memmem(at, (size_t)(end - at), " - ", 3);
    return dash && parse_word(dash + 3, type, type_size);
}

/* Return true if `path` is `dir` or below `dir`. */
static bool
is_inside(const char *path, const char *dir)
{
    size_t n = strlen(dir);

    if (n && dir[n - 1] == '/')
        n--;
    return !strncmp(path, dir, n) && (!path[n] || path[n] == '/');
}

/* Return 0 if the mount point has the directory 3fs-virt, or -errno. */
static int
check_rings(const char *point)
{
    char virt[PATH_MAX + sizeof VIRT];
    struct stat st;

    snprintf(virt, sizeof virt, "%s" VIRT, strcmp(point, "/") ? point : "");
    if (stat(virt, &st))
        return -errno;
    return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

/* Set out->rings if the mount at `point` is the innermost 3FS with rings so far that contains
 * `path`. */
static void
consider_rings(const char *point, const char *path, struct kvt__mount_location *out)
{
    char around[PATH_MAX];
    size_t n = strlen(point);

    memcpy(around, point, n + 1);
    if (n > strlen(VIRT) && !strcmp(point + n - strlen(VIRT), VIRT))
        around[n - strlen(VIRT)] = '\0';
    if (is_inside(path, around) && strlen(around) >= strlen(out->rings_mount_point) &&
        !check_rings(around))
        memcpy(out->rings_mount_point, around, strlen(around) + 1);
}

void
kvt__mount_find(const char *mountinfo, const char *path, bool any_type,
                struct kvt__mount_location *out)
{
    char point[PATH_MAX], type[sizeof out->type];

    memset(out, 0, sizeof *out);
    for (const char *at = mountinfo; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        if (!parse_line(at, point, sizeof point, type, sizeof type))
            continue;
        if (is_inside(path, point) && strlen(point) >= strlen(out->mount_point)) {
            memcpy(out->mount_point, point, strlen(point) + 1);
            memcpy(out->type, type, sizeof type);
        }
        if (any_type || !strcmp(type, TYPE))
            consider_rings(point, path, out);
    }
}

/* Return the kernel's table of mounts, which the caller frees; NULL: see errno. */
static char *
read_table(void)
{
    FILE *f = fopen("/proc/self/mountinfo", "re");
    char *text = NULL;
    size_t size = 0;

    if (!f)
        return NULL;
    if (getdelim(&text, &size, '\0', f) < 0) {
        free(text);
        text = NULL;
    }
    fclose(f);
    return text;
}

bool
kvt__usrbio_any_type(void)
{
    const char *word = getenv("HF3FS_USRBIO_DONT_CHECKFS_FOR_MP");

    return word && !strcmp(word, "yes");
}

/* Find the location of a path, with symbolic links resolved.  Return 0 or -errno. */
static int
find_place(const char *path, struct kvt__mount_location *out)
{
    char canonical[PATH_MAX];

    if (!realpath(path, canonical))
        return -errno;
    char *table = read_table();
    if (!table)
        return errno ? -errno : -ENOMEM;
    kvt__mount_find(table, canonical, kvt__usrbio_any_type(), out);
    free(table);
    return 0;
}

/* Fail with -ENOTCONN: the daemon of this mount has ended. */
static int
fail_no_daemon(const char *path)
{
    return kvt__fail(ENOTCONN, "%s: Transport endpoint is not connected: the daemon of "
                     "this mount has ended; start the daemon again.", path);
}

int
kvt__usrbio_mount_of(const char *path, char mount[KVT__HF3FS_MAX_MOUNT])
{
    struct kvt__mount_location place;
    int err = find_place(path, &place);

    if (err == -ENOTCONN)
        return fail_no_daemon(path);
    if (err == -ENOENT)
        return kvt__fail(ENOENT, "%s: no such directory.", path);
    if (err)
        return kvt__fail(-err, "%s", path);
    if (strcmp(place.type, TYPE) && !kvt__usrbio_any_type())
        return kvt__fail(ENODEV, "%s lies on a file system of another type (%s), not on "
                         "3FS: name a directory in a mount of 3FS (%s), and check that "
                         "3FS is mounted.", path, *place.type ? place.type : "unknown", TYPE);
    if (!*place.rings_mount_point) {
        if (check_rings(place.mount_point) == -ENOTCONN)
            return fail_no_daemon(path);
        return kvt__fail(ENOTSUP, "%s: the 3FS mounted at %s has no 3fs-virt: the daemon "
                         "serves no USRBIO, or only a part of the 3FS is mounted here; "
                         "mount the whole 3FS.", path, place.mount_point);
    }
    if (strlen(place.rings_mount_point) >= KVT__HF3FS_MAX_MOUNT)
        return kvt__fail(ENAMETOOLONG, "%s: the mount point %s has more than %d bytes.",
                         path, place.rings_mount_point, KVT__HF3FS_MAX_MOUNT - 1);
    memcpy(mount, place.rings_mount_point, strlen(place.rings_mount_point) + 1);
    return 0;
}

int
kvt__own_extract_mount_point(char *mount, int size, const char *path)
{
    struct kvt__mount_location place;

    if (!path || find_place(path, &place) || !*place.rings_mount_point)
        return -1;
    int n = (int)strlen(place.rings_mount_point);
    if (mount && n < size)
        memcpy(mount, place.rings_mount_point, (size_t)n + 1);
    return n + 1;
}
