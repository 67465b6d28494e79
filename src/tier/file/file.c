/* SPDX-License-Identifier: Apache-2.0
 *
 * The file tier: one file a chunk, as a layout names and frames them.  A file is
 * published by rename and read in one extent.  Runs on executor threads, several at
 * once, without a lock: the file system is the arbiter.
 *
 * A chunk is written to the directory that the layout says, and looked for there
 * first.  It is looked for in the others too, and removed from all: it may lie there
 * since the list of directories or the number of workers was another. */
#include "tier/file/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/bytes.h"
#include "conf/conf.h"
#include "tier/file/mover/mover.h"

/* Below this the page cache is cheaper than a direct transfer. */
#define DIRECT_MIN ((size_t)256 << 10)

extern const struct kvt__tier_ops kvt__tier_file;
static const struct kvt__tier_ops local_disk_ops;

static struct file_tier *
from(struct kvt__tier *tier)
{
    return (struct file_tier *)tier;
}

static const struct kvt__dir *
dir_of(const struct file_tier *t, const struct kvt__object *o)
{
    return kvt__nth_dir(t, o, 0);
}

/* A partial chunk without header: its file's size is its length, nothing may
 * follow it. */
static bool
has_trailer(const struct file_tier *t, const struct kvt__object *o)
{
    return t->header || o->whole || o->opaque;
}

static uint64_t
file_bytes(const struct file_tier *t, const struct kvt__object *o, uint64_t payload)
{
    return payload + (t->header ? KVT__FS_HEADER_BYTES : 0) +
           (has_trailer(t, o) ? KVT__TRAILER_BYTES : 0);
}

static uint64_t
file_stored_bytes(const struct kvt__tier *tier, const struct kvt__object *o,
                  uint64_t payload)
{
    const struct file_tier *t = (const struct file_tier *)tier;
    uint64_t unit = dir_of(t, o)->unit;
    uint64_t units = (file_bytes(t, o, payload) + unit - 1) / unit;

    /* The attribute may need a block of its own. */
    return (units + !has_trailer(t, o)) * unit;
}

/* ----------------------------------------------------------------- writing */

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
    if (has_trailer(t, o)) {
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
    int err = kvt__extent_write(&(struct kvt__extent){ fd, start, n, direct });

    if (!err && !has_trailer(t, o))
        err = put_xattr(fd, o, slot->bytes, crc);
    if (!err && t->fsync && fsync(fd) < 0)
        err = -errno;
    return err;
}

/* Whether a direct transfer may start at this address. */
static bool
direct_ok(const struct kvt__dir *dir, const void *start, size_t n)
{
    return dir->direct && n >= DIRECT_MIN &&
           (uintptr_t)start % KVT__DIRECT_ALIGN == 0;
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

static int
file_put(struct kvt__tier *tier, const struct kvt__object *o,
         const struct kvt__slot *slot, uint32_t crc)
{
    struct file_tier *t = from(tier);
    const struct kvt__dir *dir = dir_of(t, o);
    char name[NAME_MAX + 1], temp[NAME_MAX + 1];
    bool direct = direct_ok(dir, slot->payload -
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

/* ----------------------------------------------------------------- reading */

static void
read_xattr(int fd, const struct stat *st, struct kvt__found *found)
{
    unsigned char value[KVT__XATTR_BYTES];
    struct kvt__trailer trailer;
    uint64_t mtime = (uint64_t)st->st_mtim.tv_sec * 1000000000u +
                     (uint64_t)st->st_mtim.tv_nsec;

    if (fgetxattr(fd, KVT__XATTR_NAME, value, sizeof value) != sizeof value ||
        kvt__get_le64(value + KVT__TRAILER_BYTES) != (uint64_t)st->st_size ||
        kvt__get_le64(value + KVT__TRAILER_BYTES + 8) != mtime ||
        !kvt__trailer_get(value, &trailer) ||
        trailer.payload_bytes != (uint64_t)st->st_size)
        return;
    kvt__found_from_trailer(&trailer, found);
}

/* A chunk's file, open for reading. */
struct opened {
    const struct kvt__dir *dir;
    bool direct;
    struct stat st;
};

static int
open_in(const struct kvt__dir *dir, const struct kvt__object *o, const char *name,
        struct opened *f)
{
    int fd = openat(kvt__fd_of(dir, o), name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW |
                    O_NONBLOCK | (f->direct ? O_DIRECT : 0)); /* no wait for a pipe */

    if (fd < 0)
        return kvt__fail(errno, "open %s in %s", name, dir->path);
    if (fstat(fd, &f->st) < 0 || !S_ISREG(f->st.st_mode)) {
        close(fd);
        return kvt__fail(ENOENT, "%s in %s is no regular file.", name, dir->path);
    }
    f->dir = dir;
    return fd;
}

/* Open a chunk's file to read it into a slot, or only to look at it (NULL).  The fd, or
 * -errno with a sentence. */
static int
open_chunk(const struct file_tier *t, const struct kvt__object *o,
           const struct kvt__slot *slot, struct opened *f)
{
    char name[NAME_MAX + 1];
    int fd = kvt__layout_name(t->layout, o->key, name, sizeof name);

    if (fd < 0)
        return fd;
    for (size_t i = 0; i < t->n_dirs; i++) {
        const struct kvt__dir *dir = kvt__nth_dir(t, o, i);

        f->direct = slot && direct_ok(dir, slot->payload -
                                      (t->header ? KVT__FS_HEADER_BYTES : 0),
                                      slot->bytes);
        fd = open_in(dir, o, name, f);
        if (fd != -ENOENT)
            break;
    }
    return fd;
}

/* Check what stands around the payload and tell what was found. */
static int
read_frame(const struct file_tier *t, const struct kvt__object *o,
           const struct kvt__slot *slot, const struct kvt__form *form,
           struct kvt__found *found)
{
    const unsigned char *start = slot->payload - form->header_bytes;
    bool has_header = t->layout->headers &&
                      (form->header_bytes || slot->bytes >= KVT__FS_HEADER_BYTES) &&
                      kvt__fs_header_get(start) == (int64_t)slot->bytes;
    struct kvt__trailer trailer;

    if (form->header_bytes && !has_header)
        return -EBADMSG;
    /* Cut off: a bare payload has no header. */
    if (!form->header_bytes && !form->trailer_bytes && t->layout->headers &&
        slot->bytes >= KVT__FS_HEADER_BYTES &&
        (has_header || kvt__fs_header_agrees(start)))
        return -EBADMSG;
    if (o->opaque && !form->trailer_bytes)
        return -EBADMSG; /* only kvtier writes these, and never without */
    if (form->trailer_bytes) {
        if (!kvt__trailer_get(slot->payload + slot->bytes, &trailer) ||
            trailer.payload_bytes != slot->bytes ||
            trailer.payload_at != form->header_bytes)
            return -EBADMSG;
        kvt__found_from_trailer(&trailer, found);
    }
    return 0;
}

static int
file_get(struct kvt__tier *tier, const struct kvt__object *o,
         const struct kvt__slot *slot, struct kvt__found *found)
{
    struct file_tier *t = from(tier);
    struct kvt__form form;
    struct opened f;
    int err;

    int fd = open_chunk(t, o, slot, &f);
    if (fd < 0)
        return fd;
    bool direct = f.direct;
    struct stat st = f.st;
    *found = (struct kvt__found){ .payload_bytes = slot->bytes,
                                  .stored_bytes = (uint64_t)st.st_blocks * 512 };
    if (!kvt__layout_form_of(t->layout, (uint64_t)st.st_size, slot->bytes, &form)) {
        err = kvt__fail(EBADMSG, "%s: file of %lld bytes cannot hold %zu of payload.",
                        o->key, (long long)st.st_size, slot->bytes);
        goto out;
    }
    unsigned char *start = slot->payload - form.header_bytes;
    if (direct && (uintptr_t)start % KVT__DIRECT_ALIGN) {
        /* Written under another save_chunk_meta: off this slot's grid. */
        (void)fcntl(fd, F_SETFL, 0);
        direct = false;
    }
    struct kvt__sum sum = { slot->payload, slot->payload + slot->bytes, 0 };
    err = kvt__extent_read(&(struct kvt__extent){ fd, start, (size_t)st.st_size, direct },
                           &sum);
    found->read_crc = sum.crc;
    found->has_read_crc = true;
    if (err)
        err = kvt__fail(-err, "read %s in %s", o->key, f.dir->path);
    else if (read_frame(t, o, slot, &form, found))
        err = kvt__fail(EBADMSG, "%s: header or trailer is damaged.", o->key);
    else if (!form.trailer_bytes)
        read_xattr(fd, &st, found);
out:
    close(fd);
    return err;
}

/* The trailer at the end of a file; false: there is none. */
static bool
read_trailer(int fd, const struct stat *st, struct kvt__trailer *trailer)
{
    unsigned char bytes[KVT__TRAILER_BYTES];

    return st->st_size >= KVT__TRAILER_BYTES &&
           pread(fd, bytes, sizeof bytes, st->st_size - KVT__TRAILER_BYTES) ==
               (ssize_t)sizeof bytes &&
           kvt__trailer_get(bytes, trailer) &&
           trailer->payload_bytes <= (uint64_t)st->st_size && /* no overflow below */
           trailer->payload_at + trailer->payload_bytes + KVT__TRAILER_BYTES ==
               (uint64_t)st->st_size;
}

static int
file_probe(struct kvt__tier *tier, const struct kvt__object *o,
           struct kvt__found *found)
{
    struct file_tier *t = from(tier);
    unsigned char start[KVT__FS_HEADER_BYTES] = { 0 };
    struct kvt__trailer trailer;
    char name[NAME_MAX + 1];
    struct opened f;

    int fd = open_chunk(t, o, NULL, &f);
    if (fd < 0)
        return fd;
    *found = (struct kvt__found){ .stored_bytes = (uint64_t)f.st.st_blocks * 512 };
    if (t->n_dirs > 1 && !kvt__layout_name(t->layout, o->key, name, sizeof name))
        found->stored_bytes = kvt__bytes_on_disk(t, o->opaque, name);
    if (read_trailer(fd, &f.st, &trailer)) {
        kvt__found_from_trailer(&trailer, found);
    } else {
        if (pread(fd, start, sizeof start, 0) < 0)
            memset(start, 0, sizeof start);
        found->payload_bytes = kvt__layout_payload(t->layout, (uint64_t)f.st.st_size,
                                                   start);
        read_xattr(fd, &f.st, found);
    }
    close(fd);
    return 0;
}

static int
file_remove(struct kvt__tier *tier, const struct kvt__object *o)
{
    struct file_tier *t = from(tier);
    char name[NAME_MAX + 1];
    int err = kvt__layout_name(t->layout, o->key, name, sizeof name);

    if (!err)
        err = remove_from(t, o, name, 0);
    return err == -ENOENT ? kvt__fail(ENOENT, "remove %s in %s", name,
                                      dir_of(t, o)->path) : err;
}

/* local_disk's names tell a key without its slashes. */
static void
local_disk_listed_key(const struct kvt__tier *tier, char *key)
{
    (void)tier;
    for (char *slash = key; (slash = strchr(slash, '/'));)
        *slash = '-';
}

/* ----------------------------------------------------------------- opening */

static size_t
file_phase(const struct kvt__tier *tier)
{
    return ((const struct file_tier *)tier)->header ? KVT__FS_HEADER_BYTES : 0;
}

static int
file_private_dir(const struct kvt__tier *tier)
{
    const struct file_tier *t = (const struct file_tier *)tier;

    return t->tier.shared ? t->index_fd : t->dirs[0].private_fd;
}

static uint64_t
file_default_limit(const struct kvt__tier *tier)
{
    return kvt__dirs_default_limit((const struct file_tier *)tier);
}

static void
file_close(struct kvt__tier *tier)
{
    struct file_tier *t = from(tier);

    kvt__dirs_close(t);
    free(t);
}

/* fs://HOST:PORT/path, as released versions of LMCache want it, or fs:///path. */
static const char *
path_of(const char *url)
{
    return url + strcspn(url, "/");
}

static int
open_layout(struct file_tier *t, const struct kvt__tier_params *params)
{
    const struct kvt_config *config = params->config;
    bool local_disk = !strncmp(params->url, "local_disk:", strlen("local_disk:"));
    struct kvt__share share;

    t->tier.ops = local_disk ? &local_disk_ops : &kvt__tier_file;
    t->layout = local_disk ? &kvt__layout_local_disk : &kvt__layout_fs;
    t->header = t->layout->headers && config->save_chunk_meta;
    int err = kvt__dirs_open(t, params->name,
                             local_disk ? params->rest : path_of(params->rest),
                             local_disk);
    t->places = (struct kvt__places){
        .n = t->n_dirs, .local_ranks = params->local_ranks,
        .by_local_rank = local_disk &&
                         !strcmp(config->local_disk_path_sharding, "by_local_rank") };
    return err ? err : kvt__share_of(&t->places, 0, &share);
}

static int
file_open(const struct kvt__tier_params *params, struct kvt__tier **out)
{
    struct file_tier *t = calloc(1, sizeof *t);
    int err;

    if (!t)
        return kvt__fail(ENOMEM, "%s: open", params->name);
    t->index_fd = -1;
    t->fsync = params->config->fsync;
    err = kvt__temp_init(t);
    if (!err)
        err = open_layout(t, params);
    if (err) {
        file_close(&t->tier);
        return err;
    }
    *out = &t->tier;
    return 0;
}

/* What both kinds share. */
#define FILE_OPS                            \
    .open = file_open,                      \
    .close = file_close,                    \
    .phase = file_phase,                    \
    .private_dir = file_private_dir,        \
    .default_limit = file_default_limit,    \
    .stored_bytes = file_stored_bytes,      \
    .put = file_put,                        \
    .get = file_get,                        \
    .probe = file_probe,                    \
    .remove = file_remove,                  \
    .list = kvt__file_list

const struct kvt__tier_ops kvt__tier_file = {
    .name = "fs",
    .schemes = "fs local_disk",
    FILE_OPS,
};

static const struct kvt__tier_ops local_disk_ops = {
    .name = "local_disk",
    .schemes = "",
    FILE_OPS,
    .listed_key = local_disk_listed_key,
};
