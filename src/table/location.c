/* SPDX-License-Identifier: Apache-2.0
 *
 * The location of the table: a file of the tmpfs /dev/shm, or a file of the store's directory.
 * A table of memory is a file of the store's directory, which is on a tmpfs, and is deleted with
 * the memory.  The file `lock` names the table by a random number.  The caller of
 * kvt__tb_open_location() holds TB_OPEN_BYTE of `lock`. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "table/private.h"

/* The state of the host and of the store that an opener finds. */
struct opening {
    int dirfd;          /* directory of the store */
    int shm;            /* directory on the tmpfs; -1: none */
    uint64_t device;    /* device and inode of shm; 0: none */
    struct stat lock;   /* status of the file `lock` */
    bool known;         /* location is valid, and was written since the boot */
    struct tb_location location;
    uint8_t boot_id[16];
    const char *store;  /* path of the store's directory, for messages */
};

/* Open the tmpfs and set f->device.  The inode of the directory is a part of f->device, because
 * two directories of one tmpfs can be /dev/shm of two containers.  0, also without a tmpfs;
 * -errno with a sentence: this process lacks descriptors or memory. */
static int
inspect_shm(struct opening *f, const char *path)
{
    struct statfs fs;
    struct stat st;

    f->shm = open(path ? path : "/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->shm < 0 && tb_is_shortage(errno))
        return kvt__fail(errno, "index: open /dev/shm");
    if (f->shm >= 0 && (fstatfs(f->shm, &fs) || fs.f_type != TMPFS_MAGIC ||
                        fstat(f->shm, &st))) {
        close(f->shm);
        f->shm = -1;
    }
    f->device = f->shm >= 0 ? st.st_dev ^ (uint64_t)st.st_ino << 32 : 0;
    return 0;
}

static int
inspect(struct opening *f, const struct kvt__table *t, const struct kvt__table_params *params)
{
    if (fstat(t->lock_fd, &f->lock))
        return kvt__fail(errno, "index: read the status of the lock file");
    int err = kvt__tb_boot_id(f->boot_id);
    if (err)
        return err;
    f->known = kvt__tb_get_location(t->lock_fd, &f->location) &&
               !memcmp(f->location.boot_id, f->boot_id, sizeof f->boot_id);
    return params->of_memory ? 0 : inspect_shm(f, params->shm);
}

/* ---------------------------------------------------------- an existing table */

/* Return true if the size of the file fits the header.  Every byte of the header may be
 * garbage. */
static bool
has_size(const struct tb_header *h, uint64_t bytes)
{
    size_t end = tb_parts(h->max_entries, h->wide_hashes).end;

    if (!h->area_bytes || !h->area_version)
        return !h->area_bytes && !h->area_version && bytes == end;
    return bytes > tb_area_at(end) && bytes - tb_area_at(end) == h->area_bytes;
}

/* Return true if a file with this header and size is a valid table that fits params. */
static bool
is_ok(const struct tb_header *h, off_t bytes, const struct kvt__table_params *params,
      const uint64_t number[2])
{
    uint64_t max = h->max_entries;

    return !memcmp(h->magic, TB_MAGIC, sizeof h->magic) && h->version == TB_VERSION &&
           h->use == TB_IN_USE && !memcmp(h->number, number, sizeof h->number) &&
           h->wide_hashes <= 1 && h->wide_hashes >= params->wide_hashes &&
           h->of_memory == params->of_memory && max >= TB_MIN_HEADS &&
           max <= TB_MAX_ENTRIES && h->n_made <= max && h->n_fresh <= h->n_made &&
           h->n_heads >= TB_MIN_HEADS && h->n_heads <= max &&
           has_size(h, (uint64_t)bytes) && (params->area_version || !h->area_version);
}

/* Mark a rejected table replaced, so that the table's present users open the new table. */
static void
mark_replaced(int fd)
{
    static const uint32_t replaced = TB_REPLACED;
    char magic[8];
    ssize_t n = pread(fd, magic, sizeof magic, 0);

    if (n == sizeof magic && !memcmp(magic, TB_MAGIC, sizeof magic))
        n = pwrite(fd, &replaced, sizeof replaced, offsetof(struct tb_header, use));
    (void)n;
}

/* Open the file of a table and hold the file's shared flock.  Returns a descriptor; -ENOENT: there
 * is no regular file with this name that belongs to this user or to the owner of `lock`; other
 * errors with a sentence. */
static int
open_file(const struct opening *f, int dir, const char *name)
{
    int fd = kvt__lock_file_open(dir, name, O_RDWR | O_NONBLOCK, 0);
    struct stat st;

    if (fd == -ENOENT || fd == -ELOOP)
        return -ENOENT;
    if (fd < 0)
        return kvt__fail(-fd, "index: open the table's file");
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && !(st.st_mode & 0077) &&
        (st.st_uid == geteuid() || st.st_uid == f->lock.st_uid) && kvt__tb_flock_shared(fd) &&
        !fstat(fd, &st) && st.st_nlink)
        return fd;
    kvt__lock_file_close(fd);
    return -ENOENT;
}

/* Decide if the handle can use the table in the file fd.  0: the handle uses the table; -ENOENT:
 * the file is no valid table for params, or the handle replaces the table; -ESTALE, -EBUSY with a
 * sentence: the open fails, and the file stays. */
static int
check_table(const struct tb_header *h, off_t bytes, const struct kvt__table_params *params,
      const uint64_t number[2], int fd)
{
    bool other = !memcmp(h->magic, TB_MAGIC, sizeof h->magic) && h->version != TB_VERSION &&
                 h->use == TB_IN_USE;

    if (other && params->keep_version)
        return kvt__fail(ESTALE, "index: another version of kvtier has replaced the index");
    if (!other && !is_ok(h, bytes, params, number))
        return -ENOENT;
    if (!params->area_version)
        return other ? -ENOENT : 0;
    bool same = !other && h->area_version == params->area_version;
    if (same && (h->area_bytes == params->area_bytes || tb_only_existing(params)))
        return 0;
    if (tb_only_existing(params) || kvt__tb_flock_exclusive(fd))
        return -ENOENT;
    return same ? 0 : kvt__fail(EBUSY, "index: processes with another version of the shared "
                                "memory use it");
}

/* Map the file if the handle can use the table.  0; an error of check_table() or of the mapping. */
static int
map_file(struct kvt__table *t, const struct kvt__table_params *params,
         const struct opening *f)
{
    struct tb_header h;
    struct stat st;

    if (fstat(t->map_fd, &st) || pread(t->map_fd, &h, sizeof h, 0) != sizeof h)
        return -ENOENT;
    int err = check_table(&h, st.st_size, params, f->location.number, t->map_fd);
    if (err == -ENOENT && !tb_only_existing(params))
        mark_replaced(t->map_fd);
    if (!err)
        err = kvt__tb_map(t, h.max_entries, h.wide_hashes, h.area_bytes);
    return err ? err : kvt__tb_allocate(t, h.n_made);
}

/* Map the table that `lock` names.  0; -ENOENT: `lock` names no table that the handle can use;
 * other errors with a sentence. */
static int
find(struct kvt__table *t, const struct kvt__table_params *params, const struct opening *f)
{
    bool in_shm = f->location.where == TB_SHM;
    char name[TB_SHM_NAME_MAX] = TB_DIR_NAME;

    if (!f->known || (in_shm && (f->shm < 0 || f->location.device != f->device)))
        return -ENOENT;
    if (in_shm)
        kvt__tb_shm_name(&f->lock, f->location.number, name);
    int fd = open_file(f, in_shm ? f->shm : f->dirfd, name);
    if (fd < 0)
        return fd;
    t->map_fd = fd;
    int err = map_file(t, params, f);
    if (err)
        kvt__tb_unmap(t);
    if (err == -ENOENT && in_shm)
        unlinkat(f->shm, name, 0);
    return err;
}

/* ---------------------------------------------------------------- a new table */

/* Make a table in the tmpfs or in the directory.  The old table of the directory, which find()
 * rejected, is deleted first, because the new table may need the old table's memory.  `lock` gets
 * the number before the rename: if the process is killed between, `lock` names no table. */
static int
make_in(enum tb_where where, struct kvt__table *t, const struct kvt__table_params *params,
        struct opening *f)
{
    char name[TB_SHM_NAME_MAX] = TB_DIR_NEW;
    bool in_shm = where == TB_SHM;
    int dir = in_shm ? f->shm : f->dirfd;

    f->location.where = where;
    if (in_shm)
        kvt__tb_shm_name(&f->lock, f->location.number, name);
    unlinkat(f->dirfd, TB_DIR_NAME, 0);
    unlinkat(f->dirfd, TB_DIR_NEW, 0);
    int err = kvt__tb_make(t, params, dir, name, f->location.number, f->store);
    if (err)
        return err;
    err = kvt__tb_set_location(t->lock_fd, &f->location);
    if (!err && !in_shm && renameat(dir, name, dir, TB_DIR_NAME))
        err = kvt__fail(errno, "index: rename the table's file");
    if (err) {
        kvt__tb_unmap(t);
        unlinkat(dir, name, 0);
    } else if (in_shm) {
        kvt__tb_remove_stale(dir, &f->lock, &f->location);
    }
    return err;
}

/* Return true if a living owner of the present table has another tmpfs.  Containers that share a
 * store but no tmpfs must share a table in the directory. */
static bool
has_other_tmpfs(const struct kvt__table *t, const struct opening *f)
{
    return f->known && (f->location.where == TB_DIR || f->location.device != f->device) &&
           kvt__tb_is_locked(t->lock_fd, TB_OWNER_BYTE, TB_N_OWNERS);
}

static int
make(struct kvt__table *t, const struct kvt__table_params *params, struct opening *f)
{
    bool other = has_other_tmpfs(t, f);

    kvt__tb_keep_v3(f->dirfd, t->lock_fd);
    if (getrandom(f->location.number, sizeof f->location.number, 0) != sizeof f->location.number)
        return kvt__fail(errno, "index: get a random number");
    memcpy(f->location.boot_id, f->boot_id, sizeof f->boot_id);
    f->location.device = f->device;
    if (!other && f->shm >= 0 && !make_in(TB_SHM, t, params, f))
        return 0;
    if (!params->of_memory)
        kvt__log(KVT_LOG_WARN, "%s: the index is a file of this directory, lookups may wait for "
                 "its disk (%s)", *f->store ? f->store : "the store's directory",
                 other ? "processes with another /dev/shm use it"
                 : f->shm < 0 ? "/dev/shm is no tmpfs" : kvt__why());
    return make_in(TB_DIR, t, params, f);
}

int
kvt__tb_open_location(struct kvt__table *t, const struct kvt__table_params *params, int dirfd,
                   const char *store)
{
    struct opening f = { .dirfd = dirfd, .shm = -1, .store = store };

    assert(t->lock_fd >= 0 && t->map_fd < 0);
    int err = inspect(&f, t, params);

    if (!err)
        err = find(t, params, &f);
    if (err == -ENOENT && tb_only_existing(params))
        err = kvt__fail(ENOENT, "index: there is no shared memory of this version");
    else if (err == -ENOENT)
        err = make(t, params, &f);
    if (f.shm >= 0)
        close(f.shm);
    return err;
}

bool
kvt__table_is_current(struct kvt__table *t)
{
    struct tb_location location;
    struct stat st;

    if (!tb_is_usable(t))
        return false;
    if (t->lock_fd < 0)
        return t->v3_fd < 0 || kvt__tb_is_locked(t->v3_fd, 0, TB_V3_OWNERS);
    if (!fstat(t->lock_fd, &st) && st.st_nlink && kvt__tb_get_location(t->lock_fd, &location) &&
        !memcmp(location.number, t->header->number, sizeof location.number))
        return true;
    TB_STORE(&t->header->use, TB_REPLACED); /* all processes with this mapping see the value */
    return false;
}
