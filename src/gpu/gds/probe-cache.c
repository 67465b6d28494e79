/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache of probe results: one JSON file for each key in the user's private directory.  The
 * file's name is a digest of the key.  A file with other contents counts as missing. */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/private-dir.h"
#include "base/sha256.h"
#include "gpu/gds/probe.h"

#define MAX_KEY 4096

static bool
read_boot_id(char *out, size_t size)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, size - 1);

    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return false;
    out[n] = '\0';
    out[strcspn(out, "\n")] = '\0';
    return true;
}

bool
kvt__gds_cache_key(enum kvt__gds_kind kind, int ordinal, const char *path, const char *file,
                   char *out, size_t size)
{
    static const char *const variables[] = { "LD_LIBRARY_PATH", "CUFILE_ENV_PATH_JSON",
                                             "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
                                             "ROCR_VISIBLE_DEVICES" };
    char boot[64];
    struct stat st;

    if (!read_boot_id(boot, sizeof boot) || stat(path, &st))
        return false;
    int n = snprintf(out, size, "1 %s %d %d %u:%u %s", boot, (int)kind, ordinal,
                     major(st.st_dev), minor(st.st_dev), file);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);

        if (n < 0 || (size_t)n >= size)
            return false;
        n += snprintf(out + n, size - (size_t)n, " %s", value ? value : "-");
    }
    return n >= 0 && (size_t)n < size;
}

static void
name_of(const char *key, char out[24])
{
    snprintf(out, 24, "gds-%016llx", (unsigned long long)kvt__sha256_word(key));
}

/* Write size and modification time of the library's file to out, to detect a replaced file. */
static void
version_of(const char *file, char out[64])
{
    struct stat st;

    *out = '\0';
    if (*file && !stat(file, &st))
        snprintf(out, 64, "%lld %lld", (long long)st.st_size, (long long)st.st_mtime);
}

static bool
unpack(json_t *json, const char *key, struct kvt__gds_finding *out)
{
    const char *its_key, *word, *library, *file, *version, *text;
    enum kvt__gds_layer layer;
    int code, p2pdma;
    char now[64];

    if (json_unpack(json, "{s:s, s:s, s:i, s:b, s:s, s:s, s:s, s:s}", "key", &its_key,
                    "layer", &word, "code", &code, "p2pdma", &p2pdma, "library", &library,
                    "file", &file, "version", &version, "text", &text) ||
        strcmp(its_key, key) || !kvt__gds_layer_from_word(word, &layer))
        return false;
    version_of(file, now);
    if (strcmp(now, version))
        return false;
    *out = (struct kvt__gds_finding){ .layer = layer, .code = code, .p2pdma = p2pdma,
                                      .cached = true };
    snprintf(out->library, sizeof out->library, "%s", library);
    snprintf(out->file, sizeof out->file, "%s", file);
    snprintf(out->text, sizeof out->text, "%s", text);
    return true;
}

bool
kvt__gds_cache_read(const char *cache_dir, const char *key, struct kvt__gds_finding *out)
{
    char name[24], text[2 * MAX_KEY];
    ssize_t n = -1;
    int dir = kvt__private_dir_open(cache_dir);

    if (dir < 0)
        return false;
    name_of(key, name);
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, text, sizeof text);
        close(fd);
    }
    close(dir);
    json_t *json = n > 0 ? json_loadb(text, (size_t)n, 0, NULL) : NULL;
    bool found = json && unpack(json, key, out);
    json_decref(json);
    return found;
}

void
kvt__gds_cache_write(const char *cache_dir, const char *key,
                     const struct kvt__gds_finding *f)
{
    char name[24], half[48], version[64];
    int dir = kvt__private_dir_open(cache_dir);

    if (dir < 0)
        return;
    version_of(f->file, version);
    name_of(key, name);
    snprintf(half, sizeof half, "%s.%ld", name, (long)getpid());
    json_t *json = json_pack("{s:s, s:s, s:i, s:b, s:s, s:s, s:s, s:s}", "key", key,
                             "layer", kvt__gds_layer_word(f->layer), "code", f->code,
                             "p2pdma", f->p2pdma, "library", f->library, "file", f->file,
                             "version", version, "text", f->text);
    int fd = openat(dir, half, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool good = json && fd >= 0 && !json_dumpfd(json, fd, JSON_COMPACT);
    if (fd >= 0 && close(fd))
        good = false;
    if (!good || renameat(dir, half, dir, name))
        unlinkat(dir, half, 0);
    json_decref(json);
    close(dir);
}
