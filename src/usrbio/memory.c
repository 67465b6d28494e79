/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocation of shared memory that is safe to access, for each implementation.  An allocation in
 * /dev/shm does not reserve pages: access to a page without room ends the process by a signal. */
#include <errno.h>
#include <sys/mman.h>

#include "base/error.h"
#include "usrbio/usrbio.h"

#define STEP ((size_t)32 << 20) /* bytes populated at a time */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Populate memory.  Without room this is an error instead of a signal.  Before Linux 5.14 the
 * kernel populates each page on first access. */
static int
populate(unsigned char *at, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done < STEP ? bytes - done : STEP;

        if (!madvise(at + done, n, MADV_POPULATE_WRITE))
            done += n;
        else if (errno == EINVAL)
            return 0;
        else if (errno == EFAULT)
            return kvt__usrbio_fail_no_space(bytes);
        else if (errno != EINTR && errno != EAGAIN)
            return kvt__fail(errno, "populate %zu bytes of shared memory", bytes);
    }
    return 0;
}

int
kvt__usrbio_alloc_memory(const struct kvt__usrbio_api *api, struct kvt__hf3fs_iov *iov,
                         const char *mount, size_t bytes, size_t block_bytes, int numa)
{
    *iov = (struct kvt__hf3fs_iov){ 0 };
    if (block_bytes > bytes) /* the site's library would end the process */
        return kvt__fail(EINVAL, "allocate %zu bytes of shared memory in blocks of %zu", bytes,
                         block_bytes);
    int err = kvt__usrbio_check_space(bytes);
    if (err)
        return err;
    err = api->iovcreate(iov, mount, bytes, block_bytes, numa);
    if (err)
        return api == &kvt__usrbio_own ? err :
               kvt__fail(-err, "allocate %zu bytes of shared memory for the 3FS at %s",
                         bytes, mount);
    api->iovunlink(iov);
    madvise(iov->base, bytes, MADV_DONTFORK);
    err = populate(iov->base, bytes);
    if (err)
        api->iovdestroy(iov);
    return err;
}
