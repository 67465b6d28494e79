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
#define PATIENCE_S 10 /* timeout of bench_library_wait() */

static struct kvt__usrbio_api library;

static int
left_out(const char *why)
{
    fprintf(stderr, "kvtier-bench: the hf3fs cases measure beside " FILE_NAME " (%s): "
            "left out.\nPut its directory into LD_LIBRARY_PATH, or build the one of the "
            "tests (ninja -C build tests/fakes/hf3fs/" FILE_NAME ").\n", why);
    return BENCH_LEFT_OUT;
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
bench_library_open(const struct kvt__usrbio_api **out)
{
    struct rlimit files;
    char built[4096];
    void *handle = NULL;

    *out = &library;
    if (library.name)
        return 0;
    if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_max > MAX_FILES)
        return left_out("which takes memory for each file that the hard limit of open "
                        "files allows: lower that, ulimit -Hn 1048576");
    int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    handle = dlopen(FILE_NAME, flags);
    if (!handle && bench_program_find("fakes/hf3fs/" FILE_NAME, built, sizeof built))
        handle = dlopen(built, flags);
    if (!handle)
        return left_out(dlerror());
    if (!find_functions(handle))
        return left_out("which lacks a function here");
    library.name = "library";
    return 0;
}

int
bench_library_memory(const struct bench_mount *mount, size_t bytes,
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
bench_library_wait(const struct kvt__usrbio_api *api, const struct kvt__hf3fs_ior *ring,
                   struct kvt__hf3fs_cqe *answers, int n)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    int got = api->wait_for_ios(ring, answers, n, 1, &until);
    return got ? got : -ETIMEDOUT;
}
