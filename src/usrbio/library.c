/* SPDX-License-Identifier: Apache-2.0
 *
 * The site's libhf3fs_api_shared.so, found by the dynamic loader.  The library is C++ and ends
 * the process where other libraries return an error, so kvtier checks the arguments first.  A
 * loaded library is never unloaded: its threads and tables outlive a dlclose().
 *
 * kvtier prefers the library to its own implementation (own.c), because the interface of 3FS is the
 * library, not the protocol: the site's library belongs to the version of the site's daemon. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"
#include "usrbio/usrbio.h"

#define FILE_NAME "libhf3fs_api_shared.so"
#define MAX_FILES 4194304 /* the library's table of descriptors then takes 32 MiB */
#define MAX_STALE 64      /* stale descriptors to deregister for one file, at most */

static struct {
    pthread_mutex_t lock;
    bool loaded;
    struct kvt__usrbio_api api;
    int (*extract_mount_point)(char *mount, int size, const char *path);
    int (*reg_fd)(int fd, uint64_t flags);
} library = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int
extract_mount_point(char *mount, int size, const char *path)
{
    if (!path || access(path, F_OK)) /* the library would end the process */
        return -1;
    return library.extract_mount_point(mount, size, path);
}

/* If a file is deregistered after its daemon has ended, the library keeps the table's entry, and
 * refuses a later file with this descriptor number or with a duplicate of this number.
 * Deregistering any file with this number deletes the entry. */
static int
reg_fd(int fd, uint64_t flags)
{
    int result = library.reg_fd(fd, flags);

    for (int i = 0; result == EINVAL && i < MAX_STALE; i++) {
        library.api.dereg_fd(fd);
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (copy >= 0) {
            library.api.dereg_fd(copy);
            close(copy);
        }
        result = library.reg_fd(fd, flags);
    }
    return result;
}

static int
check_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit))
        return kvt__fail(errno, "read the limit of open files");
    if (limit.rlim_max == RLIM_INFINITY)
        return kvt__fail(EMFILE, FILE_NAME " cannot be loaded where the hard limit of open "
                         "files is infinite: set one (prlimit --nofile=65536:1048576, "
                         "ulimit -Hn 1048576) or HF3FS_CLIENT=own.");
    if (limit.rlim_max > MAX_FILES)
        return kvt__fail(EMFILE, FILE_NAME " would take %" PRIu64 " MiB of memory, 8 bytes "
                         "for each file that the hard limit of open files allows: lower "
                         "it (prlimit --nofile=65536:1048576, ulimit -Hn 1048576) or set "
                         "HF3FS_CLIENT=own.", (uint64_t)limit.rlim_max >> 17);
    return 0;
}

static int
find_functions(void *handle, struct kvt__usrbio_api *api)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {
        { "hf3fs_is_hf3fs", &api->is_hf3fs },
        { "hf3fs_extract_mount_point", &api->extract_mount_point },
        { "hf3fs_iovcreate", &api->iovcreate },
        { "hf3fs_iovunlink", &api->iovunlink },
        { "hf3fs_iovdestroy", &api->iovdestroy },
        { "hf3fs_ior_size", &api->ior_size },
        { "hf3fs_iorcreate4", &api->iorcreate4 },
        { "hf3fs_iordestroy", &api->iordestroy },
        { "hf3fs_reg_fd", &api->reg_fd },
        { "hf3fs_dereg_fd", &api->dereg_fd },
        { "hf3fs_prep_io", &api->prep_io },
        { "hf3fs_submit_ios", &api->submit_ios },
        { "hf3fs_wait_for_ios", &api->wait_for_ios },
    };

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(handle, functions[i].name);

        if (!function)
            return kvt__fail(ENOSYS, FILE_NAME " has no function %s: kvtier does not "
                             "support this version.", functions[i].name);
        memcpy(functions[i].to, &function, sizeof function);
    }
    return 0;
}

static int
load_locked(void)
{
    struct kvt__usrbio_api api = { .name = "library" };
    int err = check_limit();

    if (err)
        return err;
    void *handle = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle)
        return kvt__fail(ELIBACC, FILE_NAME " cannot be loaded (%s).", dlerror());
    err = find_functions(handle, &api);
    if (err)
        return err;
    library.extract_mount_point = api.extract_mount_point;
    api.extract_mount_point = extract_mount_point;
    library.reg_fd = api.reg_fd;
    api.reg_fd = reg_fd;
    library.api = api;
    library.loaded = true;
    return 0;
}

static int
load(const struct kvt__usrbio_api **out)
{
    pthread_mutex_lock(&library.lock);
    int err = library.loaded ? 0 : load_locked();
    pthread_mutex_unlock(&library.lock);
    if (!err)
        *out = &library.api;
    return err;
}

/* Load the library for HF3FS_CLIENT=library: an error suggests a remedy. */
static int
load_required(const struct kvt__usrbio_api **out)
{
    char why[320];
    int err = load(out);

    if (err != -ELIBACC)
        return err;
    snprintf(why, sizeof why, "%.*s", (int)strlen(kvt__why()) - 1, kvt__why());
    return kvt__fail(ELIBACC, "HF3FS_CLIENT is library, and %s: name the library's "
                     "directory in LD_LIBRARY_PATH, or leave HF3FS_CLIENT out.", why);
}

int
kvt__usrbio_choose(const char *wanted, const struct kvt__usrbio_api **out)
{
    if (!wanted || !*wanted) {
        if (load(out))
            *out = &kvt__usrbio_own;
        return 0;
    }
    if (!strcmp(wanted, "library"))
        return load_required(out);
    if (strcmp(wanted, "own"))
        return kvt__fail(EINVAL, "HF3FS_CLIENT is '%s': use library or own, or leave it "
                         "out.", wanted);
    *out = &kvt__usrbio_own;
    return 0;
}
