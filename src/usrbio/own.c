/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier's own implementation of the ring protocol.  A forked child inherits neither shared
 * memory nor tables: calls with handles of the parent return -ESTALE in the child.
 *
 * This implementation is for hosts without the site's library: no known package contains
 * libhf3fs_api_shared.so, and a build of the library needs the source tree of 3FS.  Unlike the
 * library, this implementation needs no memory for each possible file, returns an error where the
 * library ends the process, and measures deadlines with the monotonic clock. */
#include "usrbio/own.h"

#include <pthread.h>

#include "usrbio/usrbio.h"

static void
before_fork(void)
{
    kvt__own_mounts_lock();
    kvt__own_files_lock();
}

static void
after_fork(void)
{
    kvt__own_files_unlock();
    kvt__own_mounts_unlock();
}

static void
after_fork_in_child(void)
{
    atomic_fetch_add(&kvt__own_generation, 1);
    kvt__own_files_forget();
    kvt__own_mounts_forget();
    after_fork();
}

static void
watch(void)
{
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

/* Install the handlers of forks, before the first handle that a forked child must not use. */
static void
watch_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, watch);
}

static int
iovcreate(struct kvt__hf3fs_iov *iov, const char *mount, size_t size, size_t block_size,
          int numa)
{
    watch_forks();
    return kvt__own_iovcreate(iov, mount, size, block_size, numa);
}

static int
iorcreate4(struct kvt__hf3fs_ior *ior, const char *mount, int entries, bool for_read,
           int io_depth, int timeout, int numa, uint64_t flags)
{
    watch_forks();
    return kvt__own_iorcreate4(ior, mount, entries, for_read, io_depth, timeout, numa, flags);
}

static int
reg_fd(int fd, uint64_t flags)
{
    watch_forks();
    return kvt__own_reg_fd(fd, flags);
}

const struct kvt__usrbio_api kvt__usrbio_own = {
    .name = "own",
    .is_hf3fs = kvt__own_is_hf3fs,
    .extract_mount_point = kvt__own_extract_mount_point,
    .iovcreate = iovcreate,
    .iovunlink = kvt__own_iovunlink,
    .iovdestroy = kvt__own_iovdestroy,
    .ior_size = kvt__own_ior_size,
    .iorcreate4 = iorcreate4,
    .iordestroy = kvt__own_iordestroy,
    .reg_fd = reg_fd,
    .dereg_fd = kvt__own_dereg_fd,
    .prep_io = kvt__own_prep_io,
    .submit_ios = kvt__own_submit_ios,
    .wait_for_ios = kvt__own_wait_for_ios,
};
