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

#include "tier/layout/layout.h"
#include "tier/mover/mover.h"
#include "tier/tier.h"

#define KVT__FILE_MAX_PATHS 64

/* One directory of the store. */
struct kvt__dir {
    char *path;
    mode_t mode; /* mode of new directories: 0700, 0770 or 0777 */
    int fd;         /* the directory, with the files in LMCache's format */
    int opaque_fd;  /* subdirectory kvtier/, with the opaque chunks */
    int private_fd; /* subdirectory .kvtier/ */
    int temp_fd;    /* subdirectory .kvtier/tmp/ */
    bool direct;   /* O_DIRECT works */
    uint64_t unit; /* bytes of a block on disk */
};

struct kvt__files;

/* The differences between backends. */
struct kvt__files_kind {
    const struct kvt__layout *layout;
    bool relative;  /* paths of directories may be relative */

    /* Check a directory, which may not exist yet.  name: the setting, for messages.  0; -errno
     * with a sentence: the storage must not be in this directory.  NULL: any directory is
     * valid. */
    int (*check_path)(const struct kvt__files *files, const char *name, const char *path);

    /* Write and read an extent without the mount's page cache and without O_DIRECT.  The
     * backend has both functions; or both are NULL, and kvt__extent_write() and
     * kvt__extent_read() transfer the extent. */
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
    struct kvt__places places;
    struct kvt__dir dirs[KVT__FILE_MAX_PATHS]; /* different directories */
    size_t n_dirs;
    uint8_t dir_of_place[KVT__FILE_MAX_PATHS]; /* number in dirs of each configured path: several
                                                * paths may lead to one directory */
    int index_fd; /* directory of the index for multi-host storage; -1: none */
    bool header; /* the setting save_chunk_meta */
    mode_t mode; /* mode of new directories */
    struct kvt__counters *counters; /* NULL: nothing is counted */
    bool fsync;   /* the setting fsync */
    char temp_prefix[64]; /* begin of the names of this process's temporary files */
    _Atomic uint64_t temp_count; /* number of the next temporary file */
    atomic_bool stopped; /* listings end with -ECANCELED */
};

/* Return the i-th directory in the lookup order of a chunk. */
static inline const struct kvt__dir *
kvt__nth_dir(const struct kvt__files *t, const struct kvt__object *o, size_t i)
{
    assert(i < t->n_dirs);
    return &t->dirs[(t->dir_of_place[t->layout->place(&t->places, o)] + i) % t->n_dirs];
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

/* Smaller transfers use the page cache, which is cheaper for them than O_DIRECT. */
#define KVT__FILE_DIRECT_MIN ((size_t)256 << 10)

/* Return true if a transfer of n bytes from this address bypasses the page cache. */
static inline bool
kvt__file_direct(const struct kvt__dir *dir, const void *start, size_t n)
{
    return dir->direct && n >= KVT__FILE_DIRECT_MIN &&
           (uintptr_t)start % KVT__DIRECT_ALIGN == 0;
}

/* Return err with a sentence that names the action and the file, and contains the mover's sentence
 * `detail` unless `detail` is "". */
int kvt__file_failed(int err, const char *what, const char *name,
                     const struct kvt__dir *dir, const char *detail);

/* ----------------------------------------------------------------- files.c */

/* Allocate a backend's tier of this size, which begins with struct kvt__files.  The caller frees
 * the tier with kvt__files_close().  NULL, with a sentence: no memory. */
void *kvt__files_new(size_t size, const struct kvt__tier_ops *ops,
                     const struct kvt__files_kind *kind,
                     const struct kvt__tier_params *params);

/* Set the distribution of workers over the directories: "by_gpu" or "by_local_rank".  setting:
 * the name of the setting, for messages.  Call this function before kvt__files_open(). */
void kvt__files_set_sharding(struct kvt__files *files, const char *setting,
                             const char *sharding);

/* Make and open the directories of a comma list.  0, or -errno with a sentence. */
int kvt__files_open(struct kvt__files *files, const struct kvt__tier_params *params,
                    const char *list);

/* End a backend's open(): after an error (err) close the tier, otherwise set *out.  Returns err. */
int kvt__files_opened(struct kvt__files *files, int err, struct kvt__tier **out);

/* Row stop of struct kvt__tier_ops. */
void kvt__files_stop(struct kvt__tier *tier);

/* Close the directories and free the backend's tier.  A backend has this function as row close, or
 * calls the function at the end of the backend's row. */
void kvt__files_close(struct kvt__tier *tier);

/* Rows private_dir and stored_bytes of struct kvt__tier_ops. */
int kvt__files_private_dir(const struct kvt__tier *tier);
uint64_t kvt__files_stored_bytes(const struct kvt__tier *tier, const struct kvt__object *o,
                                 uint64_t payload);

/* Rows of struct kvt__tier_ops that all backends have. */
#define KVT__FILES_OPS                          \
    .private_dir = kvt__files_private_dir,      \
    .shortage = kvt__files_shortage,            \
    .makes_room = kvt__file_makes_room,         \
    .stored_bytes = kvt__files_stored_bytes,    \
    .list = kvt__file_list

/* ------------------------------------------------------ run.c, put.c and get.c */

/* Row run of struct kvt__tier_ops. */
int kvt__files_run(struct kvt__tier *tier, struct kvt__tier_op *op);

/* Write, remove, read or probe a chunk.  0, or -errno with a sentence: the values of error in
 * struct kvt__tier_op. */
int kvt__file_put(struct kvt__tier *tier, const struct kvt__object *o,
                  const struct kvt__slot *slot, uint32_t crc);
int kvt__file_remove(struct kvt__tier *tier, const struct kvt__object *o);
bool kvt__file_makes_room(const struct kvt__tier *tier, const struct kvt__object *gone,
                          const struct kvt__object *o);
int kvt__file_get(struct kvt__tier *tier, const struct kvt__object *o,
                  const struct kvt__slot *slot, struct kvt__found *found);
int kvt__file_probe(struct kvt__tier *tier, const struct kvt__object *o,
                    struct kvt__found *found);

/* ------------------------------------------------------------------ dirs.c */

/* Make a directory of this mode, independent of the umask.  0, also for an existing directory;
 * -errno. */
int kvt__make_dir(int dirfd, const char *path, mode_t mode);

/* Make and open the directories of a comma list; name: the setting, for messages.  0, or -errno
 * with a sentence; after an error the caller calls kvt__dirs_close(). */
int kvt__dirs_open(struct kvt__files *t, const char *name, const char *list);
void kvt__dirs_close(struct kvt__files *t);

/* Row shortage of struct kvt__tier_ops, for the file system of the chunk's directory. */
uint64_t kvt__files_shortage(const struct kvt__tier *tier, const struct kvt__object *o,
                             uint64_t bytes);

/* Get the next path of a comma list, without the blanks around the path, and advance the list.
 * False: the list has no more paths. */
bool kvt__next_path(const char **list, const char **path, size_t *n);

/* Open a directory again under the same descriptor numbers and delete leftover temporary
 * files.  name: for messages.  0, or -errno with a sentence. */
int kvt__dir_reopen(const struct kvt__files *t, const struct kvt__dir *dir, const char *name);

/* If a user has deleted the directory, kvtier/ or .kvtier/tmp/ in the directory, make and open
 * all of them again under the same descriptor numbers.  Return true if they were opened again. */
bool kvt__dir_renew(const struct kvt__files *t, const struct kvt__dir *dir);

/* ----------------------------------------------------------------- check.c */

/* Implement kvt__tier_ops.check for a backend of files: open the tier, check each directory with a
 * file of up to 64 MiB, delete the file, and close the tier.  limit_gib: the configured limit;
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

/* Make and open a directory of this host for the index of the multi-host store in the directory
 * path, which is open as fd.  Returns a descriptor that the caller closes, or -errno with a
 * sentence. */
int kvt__shared_index_dir(int fd, const char *path);

/* If a user has deleted the directory that kvt__shared_index_dir() returned as index_fd, make and
 * open the directory again under the same descriptor.  index_fd -1: no effect. */
void kvt__shared_index_renew(int index_fd, int fd, const char *path);

/* ------------------------------------------------------------------ list.c */

/* Return the bytes on disk of all files of a chunk, in all directories of the store.  name: path
 * of the chunk's file below a directory. */
uint64_t kvt__bytes_on_disk(const struct kvt__files *t, const struct kvt__object *o,
                            const char *name);

/* Row list of struct kvt__tier_ops.  If the store has several directories, or the layout has
 * second files, the call needs memory for all names of a subdirectory. */
int kvt__file_list(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn,
                   void *ctx);

/* ------------------------------------------------------------------ temp.c */

/* Set the prefix of the names of this process's temporary files.  0, or -errno with a sentence. */
int kvt__temp_init(struct kvt__files *t);

/* Create, lock and open a temporary file for writing; write the file's name to `name`.  Returns a
 * descriptor that the caller closes, or -errno without a sentence. */
int kvt__temp_create(struct kvt__files *t, const struct kvt__dir *dir, bool direct,
                     char *name, size_t size);

/* Delete the temporary files of dead processes of this host, and temporary files of other hosts
 * that are older than an hour. */
void kvt__temp_clean(const struct kvt__dir *dir);

#endif
