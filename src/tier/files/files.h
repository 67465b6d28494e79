/* SPDX-License-Identifier: Apache-2.0
 *
 * Storage with a file for each chunk.  The tiers that store files (backends) share this code: a
 * backend embeds struct kvt__files, and struct kvt__files_kind describes the differences.  After
 * the open only the atomic fields change, so all functions may be called on any thread, several
 * at once.  No lock is needed, because the file system makes each rename and removal atomic.
 *
 * The layout chooses the directory of a chunk.  A read tries this directory first, then the
 * other directories; a removal deletes the chunk from all directories, because the list of
 * directories or the number of workers may have changed since the write. */
#ifndef KVT_TIER_FILES_FILES_H
#define KVT_TIER_FILES_FILES_H

#include <assert.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "tier/layout/layout.h"
#include "tier/mover/mover.h"
#include "tier/tier.h"

#define KVT__FILE_MAX_PATHS 64

/* One directory of the store. */
struct kvt__dir {
    char *path;
    mode_t mode; /* mode of new directories: 0700, 0770 or 0777 */
    int fd;         /* the directory, which contains the files in LMCache's format */
    int opaque_fd;  /* subdirectory kvtier/, which contains the opaque chunks */
    int private_fd; /* subdirectory .kvtier/, which contains the index */
    int temp_fd;    /* subdirectory .kvtier/tmp/ */
    bool direct;   /* O_DIRECT works */
    uint64_t unit; /* bytes of a block on disk */
};

struct kvt__files;

/* The differences between backends.  Functions that return int return 0 or -errno.  Any thread. */
struct kvt__files_kind {
    const struct kvt__layout *layout;
    bool relative;  /* paths of directories may be relative */

    /* Check a directory, which may not exist yet.  name: the setting, for messages.  0; -errno
     * with a sentence: the storage must not be in this directory.  NULL: any directory is
     * valid. */
    int (*check_path)(const struct kvt__files *files, const char *name, const char *path);

    /* Write and read an extent, as kvt__extent_write() and kvt__extent_read() (tier/mover/mover.h),
     * but without the mount's page cache and without O_DIRECT.  NULL, both: the functions of the
     * mover transfer the extent. */
    int (*write)(const struct kvt__files *files, const struct kvt__file_extent *e);
    int (*read)(const struct kvt__files *files, const struct kvt__file_extent *e,
                struct kvt__sum *sum);

    /* For a backend with slots in a device's memory; otherwise both are NULL.  Move the
     * payload of a slot to or from a file that is open with O_DIRECT, at an offset that is a
     * multiple of 4096; compute the CRC32C of a slot's payload.  Both functions block until the
     * device has finished.  0, or -errno with a sentence. */
    int (*move_device)(const struct kvt__files *files, int fd, const struct kvt__slot *slot,
                       off_t offset, bool to_file);
    int (*sum_device)(const struct kvt__files *files, const struct kvt__slot *slot,
                      uint32_t *crc);
};

struct kvt__files {
    struct kvt__tier tier; /* first */
    const struct kvt__files_kind *kind;
    const struct kvt__layout *layout; /* layout of the kind, unless a directory needs another
                                       * layout */
    struct kvt__sharding sharding;
    struct kvt__dir dirs[KVT__FILE_MAX_PATHS]; /* all different */
    size_t n_dirs;
    uint8_t dir_of_path[KVT__FILE_MAX_PATHS]; /* index in dirs of each configured path: several
                                               * paths may lead to one directory */
    int index_fd; /* this host's directory for the index of multi-host storage; -1: the index is
                   * in .kvtier/ of the first directory */
    bool header; /* the setting save_chunk_meta */
    mode_t mode; /* mode of new directories */
    struct kvt__counters *counters; /* NULL: nothing is counted */
    bool fsync;   /* the setting fsync */
    char temp_prefix[64]; /* prefix of the names of this process's temporary files */
    _Atomic uint64_t temp_count; /* number of the next temporary file */
    atomic_bool stopped; /* listings end with -ECANCELED */
};

/* Return directory number i < n_dirs of the search order of a chunk.  Directory 0 receives
 * writes. */
static inline const struct kvt__dir *
kvt__nth_dir(const struct kvt__files *t, const struct kvt__object *o, size_t i)
{
    assert(i < t->n_dirs);
    return &t->dirs[(t->dir_of_path[t->layout->choose_path(&t->sharding, o)] + i) % t->n_dirs];
}

/* Return the descriptor of the directory for a chunk's file; dir owns the descriptor. */
static inline int
kvt__fd_of(const struct kvt__dir *dir, const struct kvt__object *o)
{
    return o->opaque ? dir->opaque_fd : dir->fd;
}

/* Return the form in which a chunk is written. */
static inline struct kvt__form
kvt__form_of(const struct kvt__files *t, const struct kvt__object *o)
{
    return t->layout->form(o, t->header);
}

/* The smallest transfer with O_DIRECT, in bytes.  The page cache is faster for smaller
 * transfers. */
#define KVT__FILE_DIRECT_MIN ((size_t)256 << 10)

/* Return true if a transfer of n bytes from this address bypasses the page cache. */
static inline bool
kvt__file_direct(const struct kvt__dir *dir, const void *start, size_t n)
{
    return dir->direct && n >= KVT__FILE_DIRECT_MIN &&
           (uintptr_t)start % KVT__DIRECT_ALIGN == 0;
}

/* Return err, a -errno, with a sentence that contains the action `what`, the file, and the mover's
 * sentence `detail` ("": none). */
int kvt__file_failed(int err, const char *what, const char *name,
                     const struct kvt__dir *dir, const char *detail);

/* ----------------------------------------------------------------- files.c */

/* Allocate a backend's tier: `size` bytes that begin with struct kvt__files.  kvt__files_close()
 * frees the tier.  NULL, with a sentence: no memory. */
void *kvt__files_new(size_t size, const struct kvt__tier_ops *ops,
                     const struct kvt__files_kind *kind,
                     const struct kvt__tier_params *params);

/* Set the distribution of workers over the paths: "by_gpu" or "by_local_rank".  setting: the
 * name of the setting, for messages, static.  Call before kvt__files_open(). */
void kvt__files_set_sharding(struct kvt__files *files, const char *setting,
                             const char *sharding);

/* Create and open the directories of a comma-separated list.  0, or -errno with a sentence. */
int kvt__files_open(struct kvt__files *files, const struct kvt__tier_params *params,
                    const char *list);

/* End a backend's open(): if err is 0, set *out; otherwise close the tier.  Return err. */
int kvt__files_opened(struct kvt__files *files, int err, struct kvt__tier **out);

/* Implement kvt__tier_ops.stop. */
void kvt__files_stop(struct kvt__tier *tier);

/* Implement kvt__tier_ops.close: close the directories and free the tier.  A backend with a close()
 * of its own calls this function last. */
void kvt__files_close(struct kvt__tier *tier);

/* Implement private_dir and stored_bytes of struct kvt__tier_ops. */
int kvt__files_private_dir(const struct kvt__tier *tier);
uint64_t kvt__files_stored_bytes(const struct kvt__tier *tier, const struct kvt__object *o,
                                 uint64_t payload);

/* The members of struct kvt__tier_ops that are equal in all backends. */
#define KVT__FILES_OPS                          \
    .private_dir = kvt__files_private_dir,      \
    .shortage = kvt__files_shortage,            \
    .makes_room = kvt__file_makes_room,         \
    .stored_bytes = kvt__files_stored_bytes,    \
    .list = kvt__file_list

/* ------------------------------------------------------ run.c, put.c and get.c */

/* The mode bit of a chunk's file that was stored with a time to live: kvt__found.expires. */
#define KVT__MODE_EXPIRES S_ISVTX

static inline bool
kvt__file_expires(const struct stat *st)
{
    return st->st_mode & KVT__MODE_EXPIRES;
}

/* Implement kvt__tier_ops.run. */
int kvt__files_run(struct kvt__tier *tier, struct kvt__tier_op *op);

/* Write, remove, read or probe a chunk.  may_be_shorter as in kvt__tier_op.  0, or -errno with a
 * sentence: the values of kvt__tier_op.error.  kvt__file_makes_room() implements
 * kvt__tier_ops.makes_room. */
int kvt__file_put(struct kvt__tier *tier, const struct kvt__object *o,
                  const struct kvt__slot *slot, uint32_t crc);
int kvt__file_remove(struct kvt__tier *tier, const struct kvt__object *o);
bool kvt__file_makes_room(const struct kvt__tier *tier, const struct kvt__object *gone,
                          const struct kvt__object *o);
int kvt__file_get(struct kvt__tier *tier, const struct kvt__object *o,
                  const struct kvt__slot *slot, bool may_be_shorter, struct kvt__found *found);
int kvt__file_probe(struct kvt__tier *tier, const struct kvt__object *o,
                    struct kvt__found *found);

/* ------------------------------------------------------------------ dirs.c */

/* Create a directory with exactly this mode; the umask has no effect.  0, also if the directory
 * exists; -errno without a sentence. */
int kvt__make_dir(int dirfd, const char *path, mode_t mode);

/* Check the paths of a comma-separated list without access to the directories.  name: the setting,
 * for messages.  0, or -EINVAL with a sentence. */
int kvt__files_check_list(const struct kvt__files_kind *kind, const char *name, const char *list);

/* Create and open the directories of a comma-separated list.  name: the setting, for messages.  0,
 * or -errno with a sentence; after an error the caller calls kvt__dirs_close(). */
int kvt__dirs_open(struct kvt__files *t, const char *name, const char *list);
void kvt__dirs_close(struct kvt__files *t);

/* Implement kvt__tier_ops.shortage, for the file system of the chunk's directory. */
uint64_t kvt__files_shortage(const struct kvt__tier *tier, const struct kvt__object *o,
                             uint64_t bytes);

/* Set *path and *n to the next path of a comma-separated list, without surrounding blanks, and
 * advance *list.  *path points into the list.  False: the list has no more paths. */
bool kvt__next_path(const char **list, const char **path, size_t *n);

/* Open a directory again under the same descriptor numbers and delete leftover temporary
 * files.  name: for messages.  0, or -errno with a sentence. */
int kvt__dir_reopen(const struct kvt__files *t, const struct kvt__dir *dir, const char *name);

/* If a user has deleted the directory or a subdirectory of kvtier, create and open all these
 * directories again, under the same descriptor numbers.  Return true if the directories were opened
 * again. */
bool kvt__dir_renew(const struct kvt__files *t, const struct kvt__dir *dir);

/* ----------------------------------------------------------------- check.c */

/* Implement kvt__tier_ops.check for a backend: open the tier, check each directory with a file
 * of up to 64 MiB, delete the file, and close the tier.  limit_gib: the configured limit in GiB;
 * 0: none. */
void kvt__files_check(const struct kvt__tier_ops *ops, const struct kvt__tier_params *params,
                      double limit_gib, const struct kvt__reporter *to);

/* ---------------------------------------------------------------- shared.c */

/* Return true if several hosts may share the file system of fd. */
bool kvt__fs_is_shared(int fd);

/* Return true if the mount of fd has this type in the mount table, for example "wekafs". */
bool kvt__fs_is(int fd, const char *type);

/* The path of the mount table; only tests change the path. */
extern const char *kvt__mounts;

/* Create and open this host's directory for the index of multi-host storage.  path, fd: the
 * directory of the storage, which is open as fd.  Return a descriptor, which the caller closes, or
 * -errno with a sentence. */
int kvt__shared_index_dir(int fd, const char *path);

/* If a user has deleted the directory that kvt__shared_index_dir() returned as index_fd, create and
 * open the directory again, under the same descriptor number.  index_fd -1: no effect. */
void kvt__shared_index_renew(int index_fd, int fd, const char *path);

/* ------------------------------------------------------------------ list.c */

/* Return the bytes on disk of all files of a chunk, in all directories of the store.  name: path
 * of the chunk's file below a directory. */
uint64_t kvt__bytes_on_disk(const struct kvt__files *t, const struct kvt__object *o,
                            const char *name);

/* Implement kvt__tier_ops.list.  If the store has several directories, or the layout has sidecars,
 * the call allocates memory for all names of a subdirectory. */
int kvt__file_list(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn,
                   void *ctx);

/* ------------------------------------------------------------------ temp.c */

/* Set the prefix of the names of this process's temporary files.  0, or -errno with a sentence. */
int kvt__temp_init(struct kvt__files *t);

/* Create, lock and open a temporary file for writing; write the file's name to `name`.  direct:
 * open with O_DIRECT.  Return a descriptor, which the caller closes, or -errno without a
 * sentence. */
int kvt__temp_create(struct kvt__files *t, const struct kvt__dir *dir, bool direct,
                     char *name, size_t size);

/* Delete the temporary files of dead processes of this host, and temporary files of other hosts
 * that are older than an hour. */
void kvt__temp_clean(const struct kvt__dir *dir);

#endif
