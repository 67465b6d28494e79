/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of the commands. */
#include "file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char suffix[] = ".kvtier-part";

int
cli_file_open(struct cli_file *file, const char *path)
{
    struct stat st;
    bool exists = !stat(path, &st);

    memset(file, 0, sizeof *file);
    /* A rename would replace a device, a pipe or a symbolic link by a regular file. */
    if (exists && S_ISDIR(st.st_mode))
        return -EISDIR;
    if (exists && !S_ISREG(st.st_mode)) {
        file->out = fopen(path, "we");
        return file->out ? 0 : -errno;
    }
    file->path = exists ? realpath(path, NULL) : strdup(path);
    if (file->path)
        file->part = malloc(strlen(file->path) + sizeof suffix);
    if (file->part) {
        stpcpy(stpcpy(file->part, file->path), suffix);
        file->out = fopen(file->part, "we");
    }
    if (file->out)
        return 0;
    int err = errno;
    free(file->part);
    free(file->path);
    memset(file, 0, sizeof *file);
    return -err;
}

int
cli_file_close(struct cli_file *file, bool keep)
{
    int err = 0;

    if (!file->out)
        return 0;
    errno = 0;
    if (fflush(file->out) || ferror(file->out))
        err = errno ? -errno : -EIO;
    if (fclose(file->out) && !err)
        err = -errno;
    if (file->part && !err && keep && rename(file->part, file->path))
        err = -errno;
    if (file->part && (err || !keep))
        remove(file->part);
    free(file->part);
    free(file->path);
    memset(file, 0, sizeof *file);
    return err;
}

/* Read the stream to the end.  0; -EFBIG, -ENOMEM, or the errno of the read. */
static int
read_stream(FILE *f, uint64_t max, unsigned char **buf, size_t *n)
{
    size_t room = 0, got = 1;

    while (got) {
        if (*n == room) {
            room = room ? room * 2 : 1 << 20;
            unsigned char *grown = realloc(*buf, room);
            if (!grown)
                return -ENOMEM;
            *buf = grown;
        }
        errno = 0;
        got = fread(*buf + *n, 1, room - *n, f);
        *n += got;
        if (*n > max)
            return -EFBIG;
    }
    return ferror(f) ? errno ? -errno : -EIO : 0;
}

int
cli_file_read(const char *path, uint64_t max, unsigned char **buf, size_t *n)
{
    FILE *f = strcmp(path, "-") ? fopen(path, "rbe") : stdin;
    int err = f ? 0 : -errno;
    struct stat st;

    *buf = NULL;
    *n = 0;
    if (f && !fstat(fileno(f), &st) && S_ISREG(st.st_mode) && (uint64_t)st.st_size > max)
        err = -EFBIG;
    if (f && !err)
        err = read_stream(f, max, buf, n);
    if (err) {
        free(*buf);
        *buf = NULL;
    }
    if (f && f != stdin)
        fclose(f);
    return err;
}
