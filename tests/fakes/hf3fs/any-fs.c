/* SPDX-License-Identifier: Apache-2.0
 *
 * Linked with --wrap=ioctl: while any_fs is set, the ioctl that identifies 3FS succeeds for files
 * of every file system. */
#include "any-fs.h"

#include <stdarg.h>
#include <stdint.h>
#include <sys/ioctl.h>

#include "usrbio/abi.h"

int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...);

_Atomic bool any_fs;

int
__wrap_ioctl(int fd, unsigned long request, ...)
{
    va_list ap;

    va_start(ap, request);
    void *out = va_arg(ap, void *);
    va_end(ap);
    if (request != KVT__HF3FS_GET_MAGIC || !any_fs)
        return __real_ioctl(fd, request, out);
    if (__real_ioctl(fd, FIONREAD, &(int){ 0 })) /* fails if fd is not an open file */
        return -1;
    *(uint32_t *)out = KVT__HF3FS_SUPER_MAGIC;
    return 0;
}
