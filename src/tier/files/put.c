/* SPDX-License-Identifier: Apache-2.0
 *
 * The write and the deletion of a chunk's file.  The file is written under a temporary name and
 * published by a rename.  A sidecar (tier/layout/layout.h) is written last and deleted first: the
 * chunk exists if the chunk's file exists. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "tier/files/files.h"

/* Set kvtier's attribute of a file.  0, also if the file system or a security policy refuses
 * attributes: this process made the file and has all other rights, and chunks can be stored
 * without attributes (docs/formats.md describes the consequences).  -errno: the put fails; after
 * -ENOSPC an eviction makes room. */
static int
set_attribute(int fd, const void *value, size_t n)
{
    if (!fsetxattr(fd, KVT__XATTR_NAME, value, n, 0) || errno == ENOTSUP)
        return 0;
    int err = errno;
    if (err != EPERM && err != EACCES && err != ENOSYS && err != E2BIG && err != ERANGE)
        return -err;
    KVT__LOG_ONCE(KVT_LOG_WARN, "files are stored without the extended attribute %s, which "
                  "cannot be set: %s", KVT__XATTR_NAME, strerror(err));
    return 0;
}

/* Store the identity in the attribute of a file without trailer.  The attribute is valid only
 * for this size and modification time. */
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
    /* If the attribute is refused, the chunk is a foreign chunk. */
    return set_attribute(fd, value, sizeof value);
}

/* Mark a file with a trailer: if the file is truncated later, only this attribute distinguishes
 * the file from a chunk of LMCache. */
static int
mark_trailer(int fd)
{
    static const char mark[KVT__XATTR_MARK_BYTES] = "t";

    return set_attribute(fd, mark, sizeof mark);
}

/* Mark the file of a chunk with a time to live by the sticky bit, which has no other effect on a
 * file.  0; -ENOTSUP: the file system does not keep the bit, so the chunk must not be stored. */
static int
mark_expiring(int fd)
{
    struct stat st;

    if (fstat(fd, &st) || fchmod(fd, (st.st_mode & 07777) | KVT__MODE_EXPIRES) || fstat(fd, &st))
        return -errno;
    if (kvt__file_expires(&st))
        return 0;
    KVT__LOG_ONCE(KVT_LOG_WARN, "chunks with a time to live are not stored in files, because the "
                  "file system does not keep the sticky bit of a file; use another file system");
    return -ENOTSUP;
}

/* A chunk whose header and trailer are in memory around the payload. */
struct framed {
    const struct kvt__object *object;
    const struct kvt__slot *slot;      /* header, payload, trailer in host memory */
    const struct kvt__slot *on_device; /* payload in a device's memory; slot then has only the
                                        * header.  NULL: the payload is in slot */
    struct kvt__form form;
    uint32_t crc;
};

/* Write the header: as the whole sidecar, or at the start of a chunk's file. */
static int
write_header(int fd, const struct framed *f)
{
    return kvt__posix_write(fd, f->slot->payload - f->form.header_bytes,
                            f->form.header_bytes, 0);
}

/* Write header, payload and trailer. */
static int
write_extent(const struct kvt__files *t, int fd, bool direct, const struct framed *f)
{
    if (f->on_device) {
        assert(direct && !f->form.trailer_bytes && f->form.header_bytes <= KVT__DIRECT_ALIGN);
        kvt__set_why("");
        int err = write_header(fd, f);

        return err ? err : t->kind->move_device(t, fd, f->on_device,
                                                (off_t)f->form.header_bytes, true);
    }
    const struct kvt__file_extent extent = {
        .fd = fd, .at = f->slot->payload - f->form.header_bytes,
        .bytes = f->form.header_bytes + f->slot->bytes + f->form.trailer_bytes,
        .direct = direct };
    return t->kind->write ? t->kind->write(t, &extent) : kvt__extent_write(&extent);
}

static int
write_chunk(const struct kvt__files *t, int fd, bool direct, const struct framed *f)
{
    int err = write_extent(t, fd, direct, f);

    if (!err && !f->form.has_id)
        err = put_xattr(fd, f->object, f->slot->bytes, f->crc);
    else if (!err && f->form.trailer_bytes)
        err = mark_trailer(fd);
    return err;
}

/* ---------------------------------------------------------------- publishing */

/* Close a copy of the descriptor: network mounts report ENOSPC at the close of any descriptor.
 * The file's lock ends with the last descriptor, so fd stays open until the rename. */
static int
close_copy(int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    return copy < 0 || close(copy) < 0 ? -errno : 0;
}

/* Make the directories above a file. */
static int
make_parents(int dirfd, const char *name, mode_t mode)
{
    char above[KVT__FILE_NAME_BYTES];

    for (const char *at = name; (at = strchr(at, '/')); at++) {
        snprintf(above, sizeof above, "%.*s", (int)(at - name), name);
        int err = kvt__make_dir(dirfd, above, mode);
        if (err)
            return err;
    }
    return 0;
}

static int
rename_to(const struct kvt__dir *dir, const char *temp, int dirfd, const char *name)
{
    if (!renameat(dir->temp_fd, temp, dirfd, name))
        return 0;
    if (errno != ENOENT || !strchr(name, '/'))
        return -errno;
    int err = make_parents(dirfd, name, dir->mode);
    if (!err && renameat(dir->temp_fd, temp, dirfd, name) < 0)
        err = -errno;
    return err;
}

/* Write a file under a temporary name and rename the file.  is_sidecar: write the sidecar, a
 * copy of the header.  0, or -errno with a sentence. */
static int
publish(struct kvt__files *t, const struct kvt__dir *dir, const struct framed *f,
        const char *name, bool is_sidecar)
{
    bool on_device = f->on_device && !is_sidecar;
    bool direct = on_device ||
                  (!is_sidecar && kvt__file_direct(dir, f->slot->payload - f->form.header_bytes,
                                                   f->slot->bytes));
    char temp[NAME_MAX + 1];
    int fd = kvt__temp_create(t, dir, direct, temp, sizeof temp);

    if (fd < 0)
        return kvt__fail(-fd, "create a file in %s/.kvtier/tmp", dir->path);
    int err = is_sidecar ? write_header(fd, f) : write_chunk(t, fd, direct, f);
    if (!err && !is_sidecar && f->object->expires)
        err = mark_expiring(fd);
    if (!err && t->fsync && fsync(fd) < 0)
        err = -errno;
    if (!err)
        err = close_copy(fd);
    if (!err)
        err = rename_to(dir, temp, kvt__fd_of(dir, f->object), name);
    if (err)
        unlinkat(dir->temp_fd, temp, 0);
    close(fd);
    return err ? kvt__file_failed(err, "write", name, dir, on_device ? kvt__why() : "") : 0;
}

/* ------------------------------------------------------------------ removing */

/* Delete a file.  0; -ENOENT: there is no such file; -errno.  A read-only file system refuses an
 * unlink with EROFS even if the file does not exist, so the function tests the existence. */
static int
remove_file(int dirfd, const char *name)
{
    struct stat st;

    if (!unlinkat(dirfd, name, 0))
        return 0;
    int err = -errno;
    return fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) && errno == ENOENT ? -ENOENT : err;
}

/* Delete a chunk's files from a directory, the sidecar first, because LMCache expects the chunk's
 * file if the sidecar exists.  0; -ENOENT: the chunk's file does not exist; -errno. */
static int
remove_here(const struct kvt__files *t, int dirfd, const char *name)
{
    char sidecar[KVT__SIDECAR_BYTES];
    int err = kvt__layout_sidecar(t->layout, name, sidecar) ? remove_file(dirfd, sidecar) : 0;

    return err && err != -ENOENT ? err : remove_file(dirfd, name);
}

/* Delete the files of this name in all directories of the store, except in the first `first`
 * directories of the lookup order.  0; -ENOENT: no directory has the chunk's file; -errno with a
 * sentence. */
static int
remove_from(const struct kvt__files *t, const struct kvt__object *o, const char *name,
            size_t first)
{
    int result = -ENOENT;

    for (size_t i = first; i < t->n_dirs; i++) {
        const struct kvt__dir *dir = kvt__nth_dir(t, o, i);
        int err = remove_here(t, kvt__fd_of(dir, o), name);

        if (!err)
            result = 0;
        else if (err != -ENOENT)
            return kvt__fail(-err, "remove %s in %s", name, dir->path);
    }
    return result;
}

/* ---------------------------------------------------------------- operations */

/* Write the files of a chunk into a directory, and delete older files of the chunk in the other
 * directories.  0, or -errno with a sentence. */
static int
put_in(struct kvt__files *t, const struct kvt__dir *dir, const struct kvt__object *o,
       const struct kvt__slot *slot, uint32_t crc)
{
    unsigned char header[KVT__DIRECT_ALIGN] __attribute__((aligned(KVT__DIRECT_ALIGN)));
    bool on_device = kvt__slot_on_device(slot);
    struct kvt__slot host_slot = { on_device ? header + sizeof header : slot->payload,
                                   slot->bytes, slot->source };
    const struct framed f = { o, &host_slot, on_device ? slot : NULL, kvt__form_of(t, o), crc };
    char name[KVT__FILE_NAME_BYTES], sidecar[KVT__SIDECAR_BYTES];
    int err = kvt__layout_name(t->layout, o->key, &o->hash, name, sizeof name);

    assert(f.form.header_bytes <= KVT__SLOT_MARGIN && f.form.trailer_bytes <= KVT__SLOT_MARGIN);
    if (!err)
        err = t->layout->frame(&f.form, o, &host_slot, crc);
    if (!err)
        err = publish(t, dir, &f, name, false);
    if (!err && kvt__layout_sidecar(t->layout, name, sidecar)) {
        err = publish(t, dir, &f, sidecar, true);
        if (err) /* a chunk is stored with both files or not at all */
            (void)remove_here(t, kvt__fd_of(dir, o), name);
    }
    if (!err)
        (void)remove_from(t, o, name, 1);
    return err;
}

int
kvt__file_put(struct kvt__tier *tier, const struct kvt__object *o,
              const struct kvt__slot *slot, uint32_t crc)
{
    struct kvt__files *t = (struct kvt__files *)tier;
    const struct kvt__dir *dir = kvt__nth_dir(t, o, 0);
    int err = put_in(t, dir, o, slot, crc);

    return err == -ENOENT && kvt__dir_renew(t, dir) ? put_in(t, dir, o, slot, crc) : err;
}

int
kvt__file_remove(struct kvt__tier *tier, const struct kvt__object *o)
{
    struct kvt__files *t = (struct kvt__files *)tier;
    char name[KVT__FILE_NAME_BYTES];
    int err = kvt__layout_name(t->layout, o->key, &o->hash, name, sizeof name);

    if (!err)
        err = remove_from(t, o, name, 0);
    return err == -ENOENT ? kvt__fail(ENOENT, "remove %s in %s", name,
                                      kvt__nth_dir(t, o, 0)->path) : err;
}

bool
kvt__file_makes_room(const struct kvt__tier *tier, const struct kvt__object *gone,
                     const struct kvt__object *o)
{
    const struct kvt__files *t = (const struct kvt__files *)tier;
    char name[KVT__FILE_NAME_BYTES];
    struct stat room, file;

    assert(t->n_dirs > 1);
    if (fstat(kvt__nth_dir(t, o, 0)->fd, &room) < 0 ||
        kvt__layout_name(t->layout, gone->key, &gone->hash, name, sizeof name))
        return false;
    for (size_t i = 0; i < t->n_dirs; i++)
        if (!fstatat(kvt__fd_of(&t->dirs[i], gone), name, &file, AT_SYMLINK_NOFOLLOW) &&
            file.st_dev == room.st_dev)
            return true;
    return false;
}
