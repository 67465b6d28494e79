/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing a chunk's file, and removing it.  It is written under a temporary name and
 * published by rename. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/bytes.h"
#include "tier/file/file.h"

/* Put header and trailer around the payload; the extent that is the file. */
static unsigned char *
frame(const struct file_tier *t, const struct kvt__object *o,
      const struct kvt__slot *slot, uint32_t crc, size_t *n)
{
    unsigned char *start = slot->payload;
    unsigned char *end = slot->payload + slot->bytes;

    if (t->header) {
        start -= KVT__FS_HEADER_BYTES;
        kvt__fs_header_put(&o->shape, slot->bytes, start);
    }
    if (kvt__file_has_trailer(t, o)) {
        struct kvt__trailer trailer = {
            .payload_bytes = slot->bytes, .crc = crc, .tokens = o->tokens, .id = o->id,
            .id_of_key = o->id_of_key,
            .payload_at = (uint32_t)(slot->payload - start) };
        kvt__trailer_put(&trailer, end);
        end += KVT__TRAILER_BYTES;
    }
    *n = (size_t)(end - start);
    return start;
}

/* Where no trailer may be, the identity stands beside the file, valid only for
 * this size and time of change. */
static int
put_xattr(int fd, const struct kvt__object *o, size_t payload, uint32_t crc)
{
    unsigned char value[KVT__XATTR_BYTES];
    struct kvt__trailer trailer = { .payload_bytes = payload, .crc = crc,
                                    .tokens = o->tokens, .id = o->id,
                                    .id_of_key = o->id_of_key };
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    kvt__trailer_put(&trailer, value);
    kvt__put_le64(value + KVT__TRAILER_BYTES, (uint64_t)st.st_size);
    kvt__put_le64(value + KVT__TRAILER_BYTES + 8,
                  (uint64_t)st.st_mtim.tv_sec * 1000000000u +
                      (uint64_t)st.st_mtim.tv_nsec);
    if (fsetxattr(fd, KVT__XATTR_NAME, value, sizeof value, 0) < 0 &&
        errno != ENOTSUP)
        return -errno;
    return 0; /* without attributes the chunk counts as foreign */
}

static int
write_temp(const struct file_tier *t, int fd, bool direct,
           const struct kvt__object *o, const struct kvt__slot *slot, uint32_t crc)
{
    size_t n;
    unsigned char *start = frame(t, o, slot, crc, &n);
    int err = kvt__extent_write(&(struct kvt__file_extent){
        .fd = fd, .at = start, .bytes = n, .direct = direct, .rings = t->rings,
        .counters = t->counters });

    if (!err && !kvt__file_has_trailer(t, o))
        err = put_xattr(fd, o, slot->bytes, crc);
    if (!err && t->fsync && fsync(fd) < 0)
        err = -errno;
    return err;
}

/* Remove all files of this name but those of the first directories of the order. */
static int
remove_from(const struct file_tier *t, const struct kvt__object *o, const char *name,
            size_t first)
{
    int result = -ENOENT;

    for (size_t i = first; i < t->n_dirs; i++) {
        const struct kvt__dir *dir = kvt__nth_dir(t, o, i);

        if (!unlinkat(kvt__fd_of(dir, o), name, 0))
            result = 0;
        else if (errno != ENOENT)
            return kvt__fail(errno, "remove %s in %s", name, dir->path);
    }
    return result;
}

/* Network mounts tell ENOSPC when any descriptor is closed; the file's lock goes
 * with the last one, which must not be before the rename. */
static int
close_copy(int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    return copy < 0 || close(copy) < 0 ? -errno : 0;
}

int
kvt__file_put(struct kvt__tier *tier, const struct kvt__object *o,
         const struct kvt__slot *slot, uint32_t crc)
{
    struct file_tier *t = (struct file_tier *)tier;
    const struct kvt__dir *dir = kvt__nth_dir(t, o, 0);
    char name[NAME_MAX + 1], temp[NAME_MAX + 1];
    bool direct = kvt__file_direct(dir, slot->payload -
                            (t->header ? KVT__FS_HEADER_BYTES : 0), slot->bytes);
    int err = kvt__layout_name(t->layout, o->key, name, sizeof name);

    if (err)
        return err;
    if (t->header && slot->bytes > INT32_MAX)
        return kvt__fail(ENOTSUP, "%s: a chunk of %zu bytes does not fit LMCache's "
                         "header; set save_chunk_meta: false or a smaller "
                         "chunk_size.", name, slot->bytes);
    int fd = kvt__temp_create(t, dir, direct, temp, sizeof temp);
    if (fd < 0)
        return kvt__fail(-fd, "create a file in %s/.kvtier/tmp", dir->path);
    err = write_temp(t, fd, direct, o, slot, crc);
    if (!err)
        err = close_copy(fd);
    if (!err && renameat(dir->temp_fd, temp, kvt__fd_of(dir, o), name) < 0)
        err = -errno;
    if (err)
        unlinkat(dir->temp_fd, temp, 0);
    close(fd);
    if (err)
        return kvt__fail(-err, "write %s (%zu bytes) in %s", name, slot->bytes,
                         dir->path);
    (void)remove_from(t, o, name, 1); /* what it takes the place of */
    return 0;
}

int
kvt__file_remove(struct kvt__tier *tier, const struct kvt__object *o)
{
    struct file_tier *t = (struct file_tier *)tier;
    char name[NAME_MAX + 1];
    int err = kvt__layout_name(t->layout, o->key, name, sizeof name);

    if (!err)
        err = remove_from(t, o, name, 0);
    return err == -ENOENT ? kvt__fail(ENOENT, "remove %s in %s", name,
                                      kvt__nth_dir(t, o, 0)->path) : err;
}
