/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts that are or may contain secrets: environment variables and files. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "conf/conf.h"
#include "tier/s3/credentials/private.h"

/* AWS's tokens have at most 2 KiB, JWTs of other issuers at most 8 KiB. */
#define MAX_TOKEN ((size_t)16 << 10)

const char *
kvt__s3_getenv(const struct kvt__s3_chain_params *params, const char *name)
{
    const char *value = kvt__variable(params->environment, name);

    return value && *value ? value : NULL;
}

void
kvt__s3_wipe_free(char *text)
{
    if (!text)
        return;
    explicit_bzero(text, strlen(text));
    free(text);
}

/* Open a regular file.  O_NONBLOCK: a FIFO with this name must not block the open. */
static int
open_regular(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0)
        return kvt__fail(errno, "open %s", path);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return kvt__fail(EINVAL, "%s is not a regular file.", path);
    }
    return fd;
}

/* Read at most max bytes.  Return the number of bytes or -errno. */
static ssize_t
read_up_to(int fd, char *out, size_t max)
{
    size_t done = 0;

    while (done < max) {
        ssize_t got = read(fd, out + done, max - done);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (!got)
            break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

int
kvt__s3_read_file(const char *path, size_t max, char **out, size_t *n)
{
    int fd = open_regular(path);
    char *text;

    if (fd < 0)
        return fd;
    if (!(text = malloc(max + 2))) {
        close(fd);
        return kvt__fail(ENOMEM, "read %s", path);
    }
    ssize_t got = read_up_to(fd, text, max + 1);
    close(fd);
    size_t bytes = got > 0 ? (size_t)got : 0;
    text[bytes] = '\0';
    int err = 0;
    if (got < 0)
        err = kvt__fail((int)-got, "read %s", path);
    else if (bytes > max)
        err = kvt__fail(EFBIG, "%s is longer than %zu bytes.", path, max);
    else if (strlen(text) != bytes)
        err = kvt__fail(EBADMSG, "%s is not a text file: it contains NUL bytes.", path);
    if (err) {
        explicit_bzero(text, bytes);
        free(text);
        return err;
    }
    *out = text;
    if (n)
        *n = bytes;
    return 0;
}

int
kvt__s3_read_token(const char *path, char **out)
{
    size_t n;
    char *text;
    int err = kvt__s3_read_file(path, MAX_TOKEN, &text, &n);

    if (err)
        return err;
    while (n && strchr(" \t\r\n", text[n - 1]))
        text[--n] = '\0';
    size_t skip = strspn(text, " \t\r\n");
    memmove(text, text + skip, n - skip);
    explicit_bzero(text + n - skip, skip);
    for (const char *p = text; *p && !err; p++)
        if (*p <= ' ' || *p == 0x7f)
            err = kvt__fail(EBADMSG, "%s has more than a token in it.", path);
    if (!*text)
        err = kvt__fail(EBADMSG, "%s is empty.", path);
    if (err)
        kvt__s3_wipe_free(text);
    else
        *out = text;
    return err;
}

void
kvt__s3_make_printable(char *text)
{
    for (; *text && *text != '\r' && *text != '\n'; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
    *text = '\0';
}
