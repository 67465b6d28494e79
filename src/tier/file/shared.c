/* SPDX-License-Identifier: Apache-2.0
 *
 * File systems of other hosts.  Mappings of their files are not shared between hosts,
 * so the index lies in local storage, one for each mount and directory; and other hosts
 * write there too, so nothing is evicted unless a limit is set. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/private-dir.h"
#include "base/sha256.h"
#include "tier/file/file.h"

#define LOCAL_DIR "/var/tmp"

/* f_type of statfs(2); the kernel's headers do not have all of them. */
static const unsigned long shared_types[] = {
    0x6969,     /* NFS */
    0x65735546, /* FUSE: 3FS, and whatever else: not known to be local */
    0x517b,     /* SMB */
    0xfe534d42, /* SMB2 */
    0xff534d42, /* CIFS */
    0x0bd00bd0, /* Lustre */
    0x00c36400, /* Ceph */
    0x47504653, /* GPFS */
    0x19830326, /* BeeGFS */
    0xaad7aaea, /* PanFS */
    0x5346414f, /* AFS */
    0x6b414653, /* kAFS */
    0x01021997, /* 9P */
    0x01161970, /* GFS2 */
    0x7461636f, /* OCFS2 */
};

bool
kvt__fs_is_shared(int fd)
{
    struct statfs fs;

    if (fstatfs(fd, &fs) < 0)
        return false;
    for (size_t i = 0; i < sizeof shared_types / sizeof *shared_types; i++)
        if (((unsigned long)fs.f_type & 0xffffffff) == shared_types[i])
            return true;
    return false;
}

/* What is mounted where fd lies, as /proc/self/mountinfo has it: "server:/export". */
static void
mount_source(int fd, char *out, size_t size)
{
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    unsigned device_major, device_minor;
    char *line = NULL;
    size_t room = 0;
    struct stat st;

    out[0] = '\0';
    while (mounts && !fstat(fd, &st) && getline(&line, &room, mounts) > 0) {
        const char *rest = strstr(line, " - ");

        if (!rest || sscanf(line, "%*d %*d %u:%u", &device_major, &device_minor) != 2 ||
            makedev(device_major, device_minor) != st.st_dev)
            continue;
        snprintf(out, size, "%s", rest);
        break;
    }
    free(line);
    if (mounts)
        fclose(mounts);
}

int
kvt__shared_index_dir(int fd, const char *path)
{
    char source[1024], name[32], *real = realpath(path, NULL);
    uint8_t digest[KVT__SHA256_BYTES];
    struct kvt__sha256 sha;
    uint64_t number;
    int base;

    mount_source(fd, source, sizeof source);
    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, source, strlen(source) + 1);
    kvt__sha256_add(&sha, real ? real : path, strlen(real ? real : path));
    kvt__sha256_end(&sha, digest);
    free(real);
    memcpy(&number, digest, sizeof number);
    snprintf(name, sizeof name, "%016llx", (unsigned long long)number);
    base = kvt__private_dir_open(LOCAL_DIR);
    if (base < 0)
        return base;
    if (mkdirat(base, name, 0700) < 0 && errno != EEXIST) {
        close(base);
        return kvt__fail(errno, "make %s in " LOCAL_DIR, name);
    }
    int dir = openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int err = dir < 0 ? kvt__fail(errno, "open %s in " LOCAL_DIR, name) : 0;
    close(base);
    return err ? err : dir;
}
