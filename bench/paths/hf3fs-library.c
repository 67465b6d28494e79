/* SPDX-License-Identifier: Apache-2.0
 *
 * Load 3FS's client library, libhf3fs_api_shared.so: the site's library if the dynamic loader
 * finds the file, otherwise the replacement that the tests build. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "hf3fs.h"
#include "cli.h"

#define FILE_NAME "libhf3fs_api_shared.so"
#define MAX_FILES (1 << 22) /* the library allocates a table of RLIMIT_NOFILE descriptors */
#define TIMEOUT_S 10 /* timeout of bench_hf3fs_wait() */

static struct kvt__usrbio_api library;

static int
skip(const char *why)
{
    fprintf(stderr, "kvtier-bench: the baseline of the hf3fs cases needs " FILE_NAME
            " (%s): skipped.\nPut the library's directory into LD_LIBRARY_PATH, or build the "
            "replacement (ninja -C build tests/fakes/hf3fs/" FILE_NAME ").\n", why);
    return BENCH_SKIPPED;
}

static bool
find_functions(void *handle)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {
        { "hf3fs_is_hf3fs", &library.is_hf3fs },
        { "hf3fs_extract_mount_point", &library.extract_mount_point },
        { "hf3fs_iovcreate", &library.iovcreate },
        { "hf3fs_iovunlink", &library.iovunlink },
        { "hf3fs_iovdestroy", &library.iovdestroy },
        { "hf3fs_iorcreate4", &library.iorcreate4 },
        { "hf3fs_iordestroy", &library.iordestroy },
        { "hf3fs_reg_fd", &library.reg_fd },
        { "hf3fs_dereg_fd", &library.dereg_fd },
        { "hf3fs_prep_io", &library.prep_io },
        { "hf3fs_submit_ios", &library.submit_ios },
        { "hf3fs_wait_for_ios", &library.wait_for_ios },
    };

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(handle, functions[i].name);

        if (!function)
            return false;
        memcpy(functions[i].to, &function, sizeof function);
    }
    return true;
}

int
bench_hf3fs_library(const struct kvt__usrbio_api **out)
{
    struct rlimit files;
    char built[4096];
    void *handle = NULL;

    *out = &library;
    if (library.name)
        return 0;
    if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_max > MAX_FILES)
        return skip("the library allocates memory for each descriptor up to the hard limit "
                    "of open files; lower the limit: ulimit -Hn 1048576");
    int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    handle = dlopen(FILE_NAME, flags);
    if (!handle && bench_program_test_path("fakes/hf3fs/" FILE_NAME, built, sizeof built))
        handle = dlopen(built, flags);
    if (!handle)
        return skip(dlerror());
    if (!find_functions(handle))
        return skip("the library lacks a function");
    library.name = "library";
    return 0;
}

int
bench_hf3fs_memory(const struct bench_hf3fs_mount *mount, size_t bytes,
                     struct kvt__hf3fs_iov *out)
{
    *out = (struct kvt__hf3fs_iov){ 0 };
    int err = mount->api->iovcreate(out, mount->point, bytes, 0, -1);
    if (err) {
        fprintf(stderr, "kvtier-bench: %zu MiB of shared memory in /dev/shm: %s\n",
                bytes >> 20, strerror(-err));
        return CLI_ENVIRONMENT;
    }
    mount->api->iovunlink(out);
    memset(out->base, 0x5a, bytes);
    return 0;
}

int
bench_hf3fs_wait(const struct kvt__usrbio_api *api, const struct kvt__hf3fs_ior *ring,
                   struct kvt__hf3fs_cqe *cqes, int n)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += TIMEOUT_S;
    int got = api->wait_for_ios(ring, cqes, n, 1, &until);
    return got ? got : -ETIMEDOUT;
}
