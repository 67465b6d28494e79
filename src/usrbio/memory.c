/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared memory that is safe to touch, whoever makes it.  Pages of /dev/shm are not
 * reserved by who asks for them, and what is touched without room ends the process. */
#include <errno.h>
#include <sys/mman.h>

#include "base/error.h"
#include "usrbio/usrbio.h"

#define STEP ((size_t)32 << 20) /* populated at a time */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Without room this is an error, not a signal.  Before Linux 5.14 pages come when they are
 * touched. */
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
            return kvt__usrbio_no_room(bytes);
        else if (errno != EINTR && errno != EAGAIN)
            return kvt__fail(errno, "populate %zu bytes of shared memory", bytes);
    }
    return 0;
}

int
kvt__usrbio_memory(const struct kvt__usrbio_api *api, struct kvt__hf3fs_iov *iov,
                   const char *mount, size_t bytes, size_t block_bytes, int numa)
{
    *iov = (struct kvt__hf3fs_iov){ 0 };
    if (block_bytes > bytes) /* ends the process in the library */
        return kvt__fail(EINVAL, "%zu bytes of shared memory in blocks of %zu", bytes,
                         block_bytes);
    int err = kvt__usrbio_room(bytes);
    if (err)
        return err;
    err = api->iovcreate(iov, mount, bytes, block_bytes, numa);
    if (err)
        return api == &kvt__usrbio_own ? err :
               kvt__fail(-err, "%zu bytes of shared memory for the 3FS at %s", bytes,
                         mount);
    api->iovunlink(iov);
    madvise(iov->base, bytes, MADV_DONTFORK);
    err = populate(iov->base, bytes);
    if (err)
        api->iovdestroy(iov);
    return err;
}
