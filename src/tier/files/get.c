/* SPDX-License-Identifier: Apache-2.0
 *
 * The read of a chunk's file in one extent, and the probe of a chunk, which does not read the
 * payload. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "tier/files/files.h"

/* Return true if this errno of fgetxattr() means: the file has no attribute of kvtier, or this
 * process may not read attributes. */
static bool
lacks_attribute(int err)
{
    return err == ENODATA || err == ENOTSUP || err == EPERM || err == EACCES ||
           err == ENOSYS || err == ERANGE;
}

/* Read the identity of a file without trailer from the attribute.  0, also if the file has no valid
 * attribute: found->has_id stays false.  -ENOENT with a sentence: kvtier wrote the file with a
 * trailer, and the file was truncated, or LMCache overwrote the file.  Other errors with a
 * sentence. */
static int
read_xattr(int fd, const struct stat *st, const struct kvt__object *o,
           struct kvt__found *found)
{
    unsigned char value[KVT__XATTR_BYTES];
    struct kvt__trailer trailer;
    uint64_t mtime = (uint64_t)st->st_mtim.tv_sec * 1000000000u +
                     (uint64_t)st->st_mtim.tv_nsec;
    ssize_t n = fgetxattr(fd, KVT__XATTR_NAME, value, sizeof value);

    if (n < 0 && !lacks_attribute(errno))
        return kvt__fail(errno, "%s: read the attribute %s", o->key, KVT__XATTR_NAME);
    if (n == KVT__XATTR_MARK_BYTES)
        return kvt__fail(ENOENT, "%s: the file was stored with a trailer and has none.",
                         o->key);
    if (n != sizeof value ||
        kvt__get_le64(value + KVT__TRAILER_BYTES) != (uint64_t)st->st_size ||
        kvt__get_le64(value + KVT__TRAILER_BYTES + 8) != mtime ||
        !kvt__trailer_get(value, &trailer) ||
        trailer.payload_bytes != (uint64_t)st->st_size)
        return 0;
    kvt__found_from_trailer(&trailer, found);
    return 0;
}

/* A chunk's file, open for reading. */
struct opened {
    const struct kvt__dir *dir;
    bool direct;
    struct stat st;
};

/* Fail because the name is no regular file. */
static int
fail_not_regular(const struct kvt__dir *dir, const char *name)
{
    return kvt__fail(ENOENT, "%s in %s is no regular file.", name, dir->path);
}

static int
open_in(const struct kvt__dir *dir, const struct kvt__object *o, const char *name,
        struct opened *f)
{
    int dirfd = kvt__fd_of(dir, o), err = 0;
    int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK |
                    (f->direct ? O_DIRECT : 0)); /* O_NONBLOCK: a pipe does not block the open */

    f->dir = dir;
    if (fd < 0) { /* a link fails with ELOOP, a directory or pipe with O_DIRECT with EINVAL */
        err = errno;
        return err != ENOENT && !fstatat(dirfd, name, &f->st, AT_SYMLINK_NOFOLLOW) &&
               !S_ISREG(f->st.st_mode) ? fail_not_regular(dir, name)
                                       : kvt__fail(err, "open %s in %s", name, dir->path);
    }
    if (fstat(fd, &f->st) < 0)
        err = kvt__fail(errno, "read the status of %s in %s", name, dir->path);
    else if (!S_ISREG(f->st.st_mode))
        err = fail_not_regular(dir, name);
    if (err)
        close(fd);
    return err ? err : fd;
}

/* Open a chunk's file for a read into a slot; slot NULL: for a probe.  Returns a descriptor, or
 * -errno with a sentence. */
static int
open_chunk(const struct kvt__files *t, const struct kvt__object *o,
           const struct kvt__slot *slot, struct opened *f)
{
    char name[KVT__FILE_NAME_BYTES];
    int fd = kvt__layout_name(t->layout, o->key, &o->hash, name, sizeof name);

    if (fd < 0)
        return fd;
    for (size_t i = 0; i < t->n_dirs; i++) {
        const struct kvt__dir *dir = kvt__nth_dir(t, o, i);

        f->direct = slot ? kvt__slot_on_device(slot) ||
                           kvt__file_direct(dir, slot->payload -
                                            kvt__form_of(t, o).header_bytes,
                                            slot->bytes)
                         : t->kind->read != NULL; /* kind->write() bypasses the page cache */
        fd = open_in(dir, o, name, f);
        if (fd != -ENOENT)
            break;
    }
    return fd;
}

/* Return the bytes on disk of all files of an open chunk. */
static uint64_t
bytes_of(const struct kvt__files *t, const struct kvt__object *o, const struct opened *f)
{
    char name[KVT__FILE_NAME_BYTES];

    if ((t->n_dirs > 1 || t->layout->sidecar_suffix) &&
        !kvt__layout_name(t->layout, o->key, &o->hash, name, sizeof name))
        return kvt__bytes_on_disk(t, o, name);
    return (uint64_t)f->st.st_blocks * 512;
}

/* Return the error of a layout's unframe() or parse(), with a sentence. */
static int
bad_frame(int err, const struct kvt__object *o)
{
    if (err != -ENOENT)
        return kvt__fail(-err, "%s: header or trailer is corrupt.", o->key);
    KVT__LOG_ONCE(KVT_LOG_WARN, "%s is a miss: LMCache wrote the file with remote_serde: cachegen, "
                  "or in a version of its format that kvtier does not read; kvtier leaves the file "
                  "alone (logged once)", o->key);
    return kvt__fail(ENOENT, "%s: LMCache wrote the file in a form that kvtier does not read.",
                     o->key);
}

/* Read header, payload and trailer of a file of this form into a slot of host memory.  crc: the
 * CRC32C of the payload; NULL: compute no checksum. */
static int
read_extent(const struct kvt__files *t, int fd, const struct opened *f,
            const struct kvt__form *form, const struct kvt__slot *slot, uint32_t *crc)
{
    struct kvt__sum sum = { slot->payload, slot->payload + slot->bytes, 0 };
    struct kvt__file_extent extent = { .fd = fd, .at = slot->payload - form->header_bytes,
                                       .bytes = (size_t)f->st.st_size,
                                       .direct = f->direct };

    assert(f->st.st_size == (off_t)(form->header_bytes + slot->bytes + form->trailer_bytes));
    if (f->direct && (uintptr_t)extent.at % KVT__DIRECT_ALIGN) {
        /* The file was written with another save_chunk_meta: the slot's address is not aligned
         * for a header of this size. */
        (void)fcntl(fd, F_SETFL, 0);
        extent.direct = false;
    }
    struct kvt__sum *wanted = crc ? &sum : NULL;
    int err = t->kind->read ? t->kind->read(t, &extent, wanted)
                            : kvt__extent_read(&extent, wanted);
    if (crc)
        *crc = sum.crc;
    return err;
}

/* Read the payload into a device's memory and the header into host memory. */
static int
read_to_device(const struct kvt__files *t, int fd, const struct kvt__form *form,
               const struct kvt__slot *slot, unsigned char *header, uint32_t *crc)
{
    assert(form->header_bytes <= KVT__DIRECT_ALIGN && !form->trailer_bytes);
    kvt__set_why("");
    int err = kvt__posix_read(fd, header, form->header_bytes, form->header_bytes, 0);

    if (!err)
        err = t->kind->move_device(t, fd, slot, (off_t)form->header_bytes, false);
    return err ? err : t->kind->sum_device(t, slot, crc);
}

/* Read the trailer at the end of a file.  1; 0: the file has no valid trailer; -errno. */
static int
read_trailer(int fd, const struct stat *st, struct kvt__trailer *trailer)
{
    unsigned char bytes[KVT__TRAILER_BYTES];

    if (st->st_size < KVT__TRAILER_BYTES)
        return 0;
    int err = kvt__posix_read(fd, bytes, sizeof bytes, sizeof bytes,
                              st->st_size - KVT__TRAILER_BYTES);
    if (err)
        return err;
    return kvt__trailer_get(bytes, trailer) &&
           trailer->payload_bytes <= (uint64_t)st->st_size && /* the sum does not overflow */
           trailer->payload_at + trailer->payload_bytes + KVT__TRAILER_BYTES ==
               (uint64_t)st->st_size;
}

/* Read the length and the identity of a chunk from the header, the trailer or the attribute.  0,
 * or -errno with a sentence. */
static int
read_metadata(const struct kvt__files *t, const struct kvt__object *o, int fd,
     const struct opened *f, struct kvt__found *found)
{
    uint64_t size = (uint64_t)f->st.st_size;
    size_t n = size < t->layout->parse_bytes ? (size_t)size : t->layout->parse_bytes;
    unsigned char start[KVT__MAX_PARSE_BYTES];
    struct kvt__trailer trailer;

    assert(n <= sizeof start);
    int err = t->layout->trailers ? read_trailer(fd, &f->st, &trailer) : 0;
    if (err > 0) {
        kvt__found_from_trailer(&trailer, found);
        return 0;
    }
    if (!err)
        err = kvt__posix_read(fd, start, n, n, 0);
    if (err)
        return kvt__file_failed(err, "read", o->key, f->dir, "");
    err = t->layout->parse(start, n, size, found);
    if (err)
        return bad_frame(err, o);
    return !found->has_id && t->layout->trailers
        ? read_xattr(fd, &f->st, o, found) : 0;
}

/* Return the error of a file that cannot hold the payload: -ENOENT if LMCache wrote the file in a
 * form that kvtier does not read, else -EBADMSG; with a sentence. */
static int
wrong_size(const struct kvt__files *t, const struct kvt__object *o, int fd,
           const struct opened *f, size_t payload_bytes)
{
    uint64_t size = (uint64_t)f->st.st_size;
    size_t n = size < t->layout->parse_bytes ? (size_t)size : t->layout->parse_bytes;
    unsigned char start[KVT__MAX_PARSE_BYTES];
    struct kvt__found found = { 0 };

    (void)fcntl(fd, F_SETFL, 0); /* the header is no aligned read */
    if (!kvt__posix_read(fd, start, n, n, 0) &&
        t->layout->parse(start, n, size, &found) == -ENOENT)
        return bad_frame(-ENOENT, o);
    return kvt__fail(EBADMSG, "%s: file of %lld bytes cannot hold %zu of payload.", o->key,
                     (long long)f->st.st_size, payload_bytes);
}

/* Set the slot's length to the length of the open chunk.  0; -EMSGSIZE with a sentence: the chunk
 * is longer than the slot; errors of read_metadata(). */
static int
set_length(const struct kvt__files *t, const struct kvt__object *o, int fd,
           const struct opened *f, struct kvt__slot *slot)
{
    struct kvt__found found = { 0 };

    /* Metadata is no aligned read.  kind->write() bypasses the page cache. */
    (void)fcntl(fd, F_SETFL, t->kind->read ? O_DIRECT : 0);
    int err = read_metadata(t, o, fd, f, &found);
    (void)fcntl(fd, F_SETFL, f->direct ? O_DIRECT : 0);
    if (err)
        return err;
    if (found.payload_bytes > slot->bytes)
        return kvt__fail(EMSGSIZE, "%s: the chunk has %llu bytes, the buffer only %zu.", o->key,
                         (unsigned long long)found.payload_bytes, slot->bytes);
    slot->bytes = (size_t)found.payload_bytes;
    return 0;
}

/* Read an open chunk of the slot's length. */
static int
read_chunk(const struct kvt__files *t, const struct kvt__object *o, int fd, struct opened *f,
           const struct kvt__slot *slot, struct kvt__found *found)
{
    unsigned char header[KVT__DIRECT_ALIGN] __attribute__((aligned(KVT__DIRECT_ALIGN)));
    bool on_device = kvt__slot_on_device(slot);
    /* A slot whose header is in host memory. */
    struct kvt__slot host_slot = { on_device ? header + sizeof header : slot->payload,
                                   slot->bytes, slot->source };
    struct kvt__form form;

    *found = (struct kvt__found){ .payload_bytes = slot->bytes,
                                  .stored_bytes = bytes_of(t, o, f),
                                  .expires = kvt__file_expires(&f->st) };
    if (!kvt__layout_form_of(t->layout, (uint64_t)f->st.st_size, slot->bytes, &form))
        return wrong_size(t, o, fd, f, slot->bytes);
    found->has_read_crc = on_device || !o->skips_crc;
    int err = on_device ? read_to_device(t, fd, &form, slot, header, &found->read_crc)
                        : read_extent(t, fd, f, &form, slot,
                                      found->has_read_crc ? &found->read_crc : NULL);
    if (err)
        return kvt__file_failed(err, "read", o->key, f->dir, on_device ? kvt__why() : "");
    err = kvt__layout_unframe(t->layout, &form, o, &host_slot, found);
    if (err)
        return bad_frame(err, o);
    return form.has_id ? 0 : read_xattr(fd, &f->st, o, found);
}

int
kvt__file_get(struct kvt__tier *tier, const struct kvt__object *o,
         const struct kvt__slot *slot, bool may_be_shorter, struct kvt__found *found)
{
    struct kvt__files *t = (struct kvt__files *)tier;
    struct kvt__slot used = *slot;
    struct opened f;

    assert(!may_be_shorter || !kvt__slot_on_device(slot));
    int fd = open_chunk(t, o, slot, &f);
    if (fd < 0)
        return fd;
    int err = may_be_shorter ? set_length(t, o, fd, &f, &used) : 0;
    if (!err)
        err = read_chunk(t, o, fd, &f, &used, found);
    close(fd);
    return err;
}

int
kvt__file_probe(struct kvt__tier *tier, const struct kvt__object *o,
           struct kvt__found *found)
{
    struct kvt__files *t = (struct kvt__files *)tier;
    struct opened f;

    int fd = open_chunk(t, o, NULL, &f);
    if (fd < 0)
        return fd;
    *found = (struct kvt__found){ .stored_bytes = bytes_of(t, o, &f),
                                  .expires = kvt__file_expires(&f.st) };
    int err = read_metadata(t, o, fd, &f, found);
    close(fd);
    return err;
}
