/* SPDX-License-Identifier: Apache-2.0
 *
 * File systems that several hosts share.  A mapping of a file cannot be shared between hosts, so
 * each host has an index in local storage for each mount and directory.  Other hosts write files
 * too, so kvtier evicts only if a limit is set. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/private-dir.h"
#include "tier/files/files.h"

/* Values of f_type of statfs(2); the kernel's headers lack some of the values. */
static const unsigned long shared_types[] = {
    0x6969,     /* NFS */
    0x65735546, /* FUSE: 3FS, and file systems that may be shared */
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

const char *kvt__mounts = "/proc/self/mountinfo";

/* Copy the end of fd's line in the mount table, for example " - nfs4 server:/export ..."; "": the
 * mount table has no line for fd. */
static void
mount_source(int fd, char *out, size_t size)
{
    FILE *mounts = fopen(kvt__mounts, "re");
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

bool
kvt__fs_is(int fd, const char *type)
{
    char source[256];
    size_t n = strlen(type);

    mount_source(fd, source, sizeof source);
    return !strncmp(source, " - ", 3) && !strncmp(source + 3, type, n) &&
           source[3 + n] == ' ';
}

bool
kvt__fs_is_shared(int fd)
{
    struct statfs fs;

    if (fstatfs(fd, &fs) < 0)
        return false;
    for (size_t i = 0; i < sizeof shared_types / sizeof *shared_types; i++)
        if (((unsigned long)fs.f_type & 0xffffffff) == shared_types[i])
            return true;
    return kvt__fs_is(fd, "wekafs");
}

#define THING_BYTES (1024 + PATH_MAX)

/* Write the text that identifies the index of a store: the mount, and the path of the directory.
 * Returns the bytes of the text. */
static size_t
index_thing(int fd, const char *path, char thing[THING_BYTES])
{
    char *real = realpath(path, NULL);

    mount_source(fd, thing, 1024);
    size_t n = strlen(thing) + 1;
    snprintf(thing + n, THING_BYTES - n, "%s", real ? real : path);
    free(real);
    return n + strlen(thing + n);
}

int
kvt__shared_index_dir(int fd, const char *path)
{
    char thing[THING_BYTES];
    size_t n = index_thing(fd, path, thing);

    return kvt__private_dir_open_for(KVT__LOCAL_DIR, thing, n);
}

void
kvt__shared_index_renew(int index_fd, int fd, const char *path)
{
    char thing[THING_BYTES];
    size_t n = index_thing(fd, path, thing);

    kvt__private_dir_renew_for(index_fd, KVT__LOCAL_DIR, thing, n);
}
