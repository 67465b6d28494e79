/* SPDX-License-Identifier: Apache-2.0
 *
 * Linked with --wrap=access: /proc/modules is readable, whatever the machine's kernel has; if the
 * environment variable NO_MODULES is set, the file is missing. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int __real_access(const char *path, int mode);
int __wrap_access(const char *path, int mode);

int
__wrap_access(const char *path, int mode)
{
    if (strcmp(path, "/proc/modules"))
        return __real_access(path, mode);
    if (!getenv("NO_MODULES"))
        return 0;
    errno = ENOENT;
    return -1;
}
