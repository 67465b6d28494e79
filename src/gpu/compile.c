/* SPDX-License-Identifier: Apache-2.0
 *
 * The compiler's library is found at run time: a library that the process has loaded already, else
 * a library on the dynamic loader's path, else a library next to PyTorch's libraries.  A file in
 * the cache is a SHA-256 digest followed by the image; the file's name is a digest of source,
 * device and compiler version. */
#include "gpu/compile.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/private-dir.h"
#include "base/sha256.h"

#define MAX_IMAGE ((off_t)64 << 20)

/* ------------------------------------------------------------------ finding */

struct search {
    const char *const *names;
    void *handle;
};

/* Places of the compiler, relative to the directory of a library that PyTorch loads. */
static const char *const beside[] = { "", "../../cuda_nvrtc/lib/",
                                      "../../nvidia/cuda_nvrtc/lib/",
                                      "../../nvidia/cu13/lib/" };

static int
load_beside(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct search *s = arg;
    const char *slash = strrchr(info->dlpi_name, '/');
    char path[4096];

    (void)size;
    if (!slash || (!strstr(slash, "/libcudart") && !strstr(slash, "/libtorch") &&
                   !strstr(slash, "/libamdhip64")))
        return 0;
    for (size_t i = 0; !s->handle && s->names[i]; i++) {
        for (size_t b = 0; !s->handle && b < sizeof beside / sizeof *beside; b++) {
            int n = snprintf(path, sizeof path, "%.*s%s%s",
                             (int)(slash + 1 - info->dlpi_name), info->dlpi_name, beside[b],
                             s->names[i]);

            if (n > 0 && (size_t)n < sizeof path && access(path, R_OK) == 0)
                s->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        }
    }
    return s->handle != NULL;
}

static void *
open_library(enum kvt__gpu_kind kind)
{
    static const char *const names[][5] = {
        [KVT__GPU_CUDA] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2" },
        [KVT__GPU_HIP] = { "libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5",
                           "libhiprtc.so" },
    };
    struct search s = { .names = names[kind] };

    for (size_t i = 0; !s.handle && s.names[i]; i++)
        s.handle = dlopen(s.names[i], RTLD_NOW | RTLD_NOLOAD);
    for (size_t i = 0; !s.handle && s.names[i]; i++)
        s.handle = dlopen(s.names[i], RTLD_NOW | RTLD_LOCAL);
    if (!s.handle)
        dl_iterate_phdr(load_beside, &s);
    return s.handle;
}

/* The compiler's library is never unloaded: compilers leave threads and handlers behind. */
static int
find_compiler(enum kvt__gpu_kind kind, struct kvt__compiler *c)
{
    static const struct {
        const char *nvrtc, *hiprtc;
        size_t at;
    } functions[] = {
#define COMPILER(member, nvrtc, hiprtc)                                                    \
        { #nvrtc, #hiprtc, offsetof(struct kvt__compiler, member) },
#include "gpu/functions.def"
    };
    void *handle = open_library(kind);

    for (size_t i = 0; handle && i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(handle, kind == KVT__GPU_CUDA ? functions[i].nvrtc
                                                             : functions[i].hiprtc);

        if (!function)
            handle = NULL;
        memcpy((char *)c + functions[i].at, &function, sizeof function);
    }
    if (handle)
        return 0;
    return kvt__fail(ENOENT, "There is no compiler for the GPU's kernels (%s).",
                     kind == KVT__GPU_CUDA ? "libnvrtc" : "libhiprtc");
}

/* ---------------------------------------------------------------- compiling */

static int
fail_with_log(const struct kvt__compiler *c, void *program, int error)
{
    char *text = NULL;
    size_t n = 0;

    if (c->log_size(program, &n) == 0 && n && n < MAX_IMAGE && (text = calloc(1, n + 1)))
        c->log(program, text);
    int err = kvt__fail(EIO, "The GPU's kernels do not compile (%d): %.300s.", error,
                        text ? text : "");
    free(text);
    return err;
}

static int
compile_source(const struct kvt__compiler *c, const char *architecture,
               struct kvt__image *out)
{
    const char *const options[] = { architecture };
    void *program;
    size_t n = 0;
    int error;

    error = c->create(&program, kvt__kernel_source, "kernels.c", 0, NULL, NULL);
    if (error)
        return kvt__fail(EIO, "The compiler for the GPU's kernels cannot be started (%d).",
                         error);
    error = c->compile(program, *architecture ? 1 : 0, options);
    if (!error)
        error = c->image_size(program, &n);
    if (!error && (n == 0 || n > MAX_IMAGE))
        error = -1;
    int err = error ? fail_with_log(c, program, error) : 0;
    if (!err && !(out->bytes = malloc(n)))
        err = kvt__fail(ENOMEM, "the GPU's kernels");
    if (!err && (error = c->image(program, out->bytes)) != 0) {
        free(out->bytes);
        err = kvt__fail(EIO, "The compiler returns no compiled kernels (%d).", error);
    }
    c->destroy(&program);
    out->n = err ? 0 : n;
    return err;
}

/* -------------------------------------------------------------------- cache */

static void
digest_of(const void *bytes, size_t n, uint8_t digest[KVT__SHA256_BYTES])
{
    struct kvt__sha256 sha;

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, bytes, n);
    kvt__sha256_end(&sha, digest);
}

static bool
read_whole(int fd, void *to, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = read(fd, (char *)to + at, n - at);

        if (got <= 0)
            return false;
        at += (size_t)got;
    }
    return true;
}

static bool
write_whole(int fd, const void *from, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t put = write(fd, (const char *)from + at, n - at);

        if (put <= 0)
            return false;
        at += (size_t)put;
    }
    return true;
}

/* Read an image from the cache.  False: no image, or a truncated or corrupt image. */
static bool
read_image(int dir, const char *name, struct kvt__image *out)
{
    uint8_t want[KVT__SHA256_BYTES], is[KVT__SHA256_BYTES];
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    bool good = false;

    out->bytes = NULL;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
        st.st_size > KVT__SHA256_BYTES && st.st_size < MAX_IMAGE) {
        out->n = (size_t)st.st_size - sizeof want;
        out->bytes = malloc(out->n);
        good = out->bytes && read_whole(fd, want, sizeof want) &&
               read_whole(fd, out->bytes, out->n);
    }
    if (good) {
        digest_of(out->bytes, out->n, is);
        good = memcmp(want, is, sizeof is) == 0;
    }
    if (fd >= 0)
        close(fd);
    if (!good)
        free(out->bytes);
    return good;
}

/* Write an image into the cache.  A failure is not reported: the next start compiles again. */
static void
write_image(int dir, const char *name, const struct kvt__image *image)
{
    uint8_t digest[KVT__SHA256_BYTES];
    char temporary[96];

    snprintf(temporary, sizeof temporary, "%s.%ld", name, (long)getpid());
    int fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                    0600);
    if (fd < 0)
        return;
    digest_of(image->bytes, image->n, digest);
    bool whole = write_whole(fd, digest, sizeof digest) &&
                 write_whole(fd, image->bytes, image->n);
    if (close(fd) < 0 || !whole || renameat(dir, temporary, dir, name) < 0)
        unlinkat(dir, temporary, 0);
}

/* ----------------------------------------------------------------- together */

/* Compute the compiler's option for this device, and the file name of the image in the cache. */
static int
name_image(const struct kvt__compiler *c, const struct kvt__driver *d, int device,
           char architecture[64], char name[64])
{
    int major, minor, compiler[2] = { 0, 0 }, n_processors;
    uint8_t digest[KVT__SHA256_BYTES];
    struct kvt__sha256 sha;
    char model[256] = "";

    int error = kvt__driver_capability(d, device, &major, &minor, &n_processors);
    if (!error)
        error = d->device_name(model, sizeof model - 1, device);
    if (error)
        return kvt__fail(EIO, "The GPU's attributes cannot be read (%s).",
                         kvt__driver_error(d, error));
    c->version(&compiler[0], &compiler[1]);
    /* hipRTC reads the architecture from the current device. */
    *architecture = '\0';
    if (d->kind == KVT__GPU_CUDA)
        snprintf(architecture, 64, "--gpu-architecture=sm_%d%d", major, minor);
    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, kvt__kernel_source, strlen(kvt__kernel_source));
    kvt__sha256_add(&sha, model, sizeof model);
    kvt__sha256_add(&sha, (int[]){ major, minor }, 2 * sizeof(int));
    kvt__sha256_add(&sha, compiler, sizeof compiler);
    kvt__sha256_end(&sha, digest);
    int at = snprintf(name, 64, "kernels-");
    for (size_t i = 0; i < 16; i++)
        at += snprintf(name + at, 64 - (size_t)at, "%02x", digest[i]);
    return 0;
}

int
kvt__compile(const struct kvt__driver *d, int device, const char *cache, bool recompile,
             struct kvt__image *out)
{
    char architecture[64], name[64];
    struct kvt__compiler c;

    int err = find_compiler(d->kind, &c);
    if (!err)
        err = name_image(&c, d, device, architecture, name);
    if (err)
        return err;
    int dir = kvt__private_dir_open(cache);
    if (dir < 0 || recompile || !read_image(dir, name, out)) {
        err = compile_source(&c, architecture, out);
        if (!err && dir >= 0)
            write_image(dir, name, out);
    }
    if (dir >= 0)
        close(dir);
    return err;
}
