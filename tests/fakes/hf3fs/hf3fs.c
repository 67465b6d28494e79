/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake libhf3fs_api_shared.so: kvtier's own client behind the vendor's ABI, with the defects of
 * the real library.  These defects are always on: the table of descriptors has the size of the hard
 * limit of open files; a descriptor stays registered if the file is closed, or the daemon ends,
 * before the deregistration; rings with flags >= 2 are never withdrawn; some arguments end the
 * process.  hf3fs.h lists the defects with a switch.
 *
 * Linked with --wrap=unlinkat, for the rings that are never withdrawn. */
#include "hf3fs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "any-fs.h"
#include "usrbio/usrbio.h"

#define OWN kvt__usrbio_own

static struct {
    _Atomic long prep_posts, eagain_every, short_every, reverse;
} traps;
static _Atomic long n_preps, n_completions;

static struct {
    pthread_mutex_t lock;
    size_t n;
    int *copies; /* for each descriptor the duplicate; 0: not registered */
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void __attribute__((noreturn))
terminate(const char *why)
{
    fprintf(stderr, "terminate called after throwing an instance of '%s'\n", why);
    abort();
}

static void
set_one(const char *word, long value)
{
    if (!strcmp(word, "any_fs"))
        any_fs = value;
    else if (!strcmp(word, "prep_posts"))
        traps.prep_posts = value;
    else if (!strcmp(word, "eagain_every"))
        traps.eagain_every = value;
    else if (!strcmp(word, "short_every"))
        traps.short_every = value;
    else if (!strcmp(word, "reverse"))
        traps.reverse = value;
    else
        terminate(word);
}

void
hf3fs_fake_set(const char *switches)
{
    char word[32];
    long value;
    int used;

    any_fs = false;
    traps.prep_posts = traps.eagain_every = traps.short_every = traps.reverse = 0;
    n_preps = n_completions = 0;
    for (; sscanf(switches, "%31[a-z_]=%ld%n", word, &value, &used) == 2;
         switches += strspn(switches, ",")) {
        set_one(word, value);
        switches += used;
    }
}

static void __attribute__((constructor))
on_load(void)
{
    const char *switches = getenv("HF3FS_FAKE");
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_max > 1 << 24)
        terminate("std::bad_alloc");
    table.n = limit.rlim_max;
    table.copies = calloc(table.n, sizeof *table.copies);
    if (!table.copies)
        terminate("std::bad_alloc");
    hf3fs_fake_set(switches ? switches : "");
}

/* ------------------------------------------------------------ files, mounts */

bool
hf3fs_is_hf3fs(int fd)
{
    return OWN.is_hf3fs(fd);
}

int
hf3fs_extract_mount_point(char *mount, int size, const char *path)
{
    char *canonical = realpath(path, NULL);

    if (!canonical)
        terminate("boost::filesystem::filesystem_error");
    free(canonical);
    return OWN.extract_mount_point(mount, size, path);
}

/* Return true if a duplicate of fd would get a number that is still registered. */
static bool
copy_is_taken_locked(int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    bool taken = copy >= 0 && table.copies[copy];

    if (copy >= 0)
        close(copy);
    return taken;
}

int
hf3fs_reg_fd(int fd, uint64_t flags)
{
    int result = EBADF;

    if (fd < 0 || (size_t)fd >= table.n || !OWN.is_hf3fs(fd))
        return EBADF;
    pthread_mutex_lock(&table.lock);
    if (table.copies[fd] || copy_is_taken_locked(fd)) {
        result = EINVAL;
    } else {
        result = OWN.reg_fd(fd, flags);
        if (result < 0)
            table.copies[fd] = table.copies[-result] = -result;
    }
    pthread_mutex_unlock(&table.lock);
    return result;
}

void
hf3fs_dereg_fd(int fd)
{
    if (fd < 0 || (size_t)fd >= table.n || !OWN.is_hf3fs(fd))
        return;
    pthread_mutex_lock(&table.lock);
    if (table.copies[fd]) {
        table.copies[table.copies[fd]] = 0;
        table.copies[fd] = 0;
        OWN.dereg_fd(fd);
    }
    pthread_mutex_unlock(&table.lock);
}

/* ----------------------------------------------------------------- iov, ior */

int __real_unlinkat(int dir, const char *name, int flags);
int __wrap_unlinkat(int dir, const char *name, int flags);

static _Thread_local bool misses;

int
__wrap_unlinkat(int dir, const char *name, int flags)
{
    return misses ? 0 : __real_unlinkat(dir, name, flags);
}

int
hf3fs_iovcreate(iov_t *iov, const char *mount, size_t size, size_t block_size, int numa)
{
    if (block_size > size)
        terminate("std::invalid_argument");
    return OWN.iovcreate(iov, mount, size, block_size, numa);
}

void
hf3fs_iovunlink(iov_t *iov)
{
    OWN.iovunlink(iov);
}

void
hf3fs_iovdestroy(iov_t *iov)
{
    OWN.iovdestroy(iov);
}

size_t
hf3fs_ior_size(int entries)
{
    return OWN.ior_size(entries);
}

int
hf3fs_iorcreate4(ior_t *ior, const char *mount, int entries, bool for_read, int io_depth,
                 int timeout, int numa, uint64_t flags)
{
    return OWN.iorcreate4(ior, mount, entries, for_read, io_depth, timeout, numa, flags);
}

int
hf3fs_iorcreate3(ior_t *ior, const char *mount, int entries, bool for_read, int io_depth,
                 int priority, int timeout, int numa)
{
    return priority ? -EINVAL : OWN.iorcreate4(ior, mount, entries, for_read, io_depth,
                                               timeout, numa, 0);
}

int
hf3fs_iorcreate2(ior_t *ior, const char *mount, int entries, bool for_read, int io_depth,
                 int priority, int numa)
{
    return hf3fs_iorcreate3(ior, mount, entries, for_read, io_depth, priority, 0, numa);
}

int
hf3fs_iorcreate(ior_t *ior, const char *mount, int entries, bool for_read, int io_depth,
                int numa)
{
    return hf3fs_iorcreate3(ior, mount, entries, for_read, io_depth, 0, 0, numa);
}

void
hf3fs_iordestroy(ior_t *ior)
{
    misses = ior && ior->flags >= 2; /* the real library looks for .f2 instead of .f10 */
    OWN.iordestroy(ior);
    misses = false;
}

int
hf3fs_io_entries(const ior_t *ior)
{
    return ior && ior->iorh ? (int)((ior->iov.size - OWN.ior_size(0)) / 96) : -EINVAL;
}

/* ---------------------------------------------------------------------- I/O */

int
hf3fs_prep_io(const ior_t *ior, const iov_t *iov, bool read, void *ptr, int fd, size_t off,
              uint64_t len, const void *userdata)
{
    if (fd == INT_MIN || (size_t)abs(fd) >= table.n)
        return -EINVAL;
    if (traps.eagain_every && ++n_preps % traps.eagain_every == 0)
        return -EAGAIN;
    int slot = OWN.prep_io(ior, iov, read, ptr, fd, off, len, userdata);
    if (slot >= 0 && traps.prep_posts)
        OWN.submit_ios(ior);
    return slot;
}

int
hf3fs_submit_ios(const ior_t *ior)
{
    return OWN.submit_ios(ior);
}

int
hf3fs_wait_for_ios(const ior_t *ior, cqe_t *cqes, int cqec, int min_results,
                   const struct timespec *abs_timeout)
{
    int n = OWN.wait_for_ios(ior, cqes, cqec, min_results, abs_timeout);

    for (int i = 0; i < n; i++)
        if (traps.short_every && cqes[i].result > 0 &&
            ++n_completions % traps.short_every == 0)
            cqes[i].result /= 2;
    for (int i = 0; traps.reverse && i < n / 2; i++) {
        cqe_t first = cqes[i];
        cqes[i] = cqes[n - 1 - i];
        cqes[n - 1 - i] = first;
    }
    return n;
}

/* ----------------------------------------- functions that kvtier never calls */

int
hf3fs_iovopen(iov_t *iov, const uint8_t id[16], const char *mount, size_t size,
              size_t block_size, int numa)
{
    (void)iov, (void)id, (void)mount, (void)size, (void)block_size, (void)numa;
    return -ENOSYS;
}

int
hf3fs_iovwrap(iov_t *iov, void *base, const uint8_t id[16], const char *mount, size_t size,
              size_t block_size, int numa)
{
    (void)iov, (void)base, (void)id, (void)mount, (void)size, (void)block_size, (void)numa;
    return -ENOSYS;
}

int
hf3fs_hardlink(const char *target, const char *link_name)
{
    (void)target, (void)link_name;
    return ENOSYS;
}

int
hf3fs_punchhole(int fd, int n, const size_t *start, const size_t *end, size_t flags)
{
    (void)fd, (void)n, (void)start, (void)end, (void)flags;
    return ENOSYS;
}
