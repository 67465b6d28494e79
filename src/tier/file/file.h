/* SPDX-License-Identifier: Apache-2.0
 *
 * The file tier's own parts.  After open everything here is read-only but the
 * counter: any thread. */
#ifndef KVT_TIER_FILE_FILE_H
#define KVT_TIER_FILE_FILE_H

#include <stdatomic.h>

#include "tier/file/gds-choose.h"
#include "tier/file/layout/layout.h"
#include "tier/file/mover/mover.h"
#include "tier/tier.h"
#include "usrbio/abi.h"

#define KVT__FILE_MAX_PATHS 64

/* One directory of the store. */
struct kvt__dir {
    char *path;
    mode_t mode; /* of directories made here: 0700, 0770 or 0777 */
    int fd;        /* where LMCache's files are */
    int opaque_fd; /* kvtier/ in it */
    int private_fd; /* .kvtier/ in it */
    int temp_fd;   /* .kvtier/tmp/ in it */
    bool direct;   /* O_DIRECT works */
    uint64_t unit; /* files take multiples of this on disk */
};

struct file_tier {
    struct kvt__tier tier;
    const struct kvt__layout *layout;
    struct kvt__places places;
    struct kvt__dir dirs[KVT__FILE_MAX_PATHS];
    size_t n_dirs;
    int index_fd; /* where the index lies if it is shared; -1: nowhere */
    bool header; /* save_chunk_meta */
    mode_t mode; /* of directories */
    struct {
        struct kvt__gds_wish wish;
        size_t buffer_bytes; /* of a GPU's memory, at most; 0: no limit is set */
    } gds;
    struct kvt__file_device *device; /* NULL: they are moved through host memory */
    struct kvt__hf3fs *hf3fs; /* NULL: the directories are not opened as 3FS's */
    struct kvt__usrbio_client *rings; /* then */
    struct kvt__counters *counters;   /* NULL: nothing is counted */
    bool fsync;
    char temp_prefix[64];
    _Atomic uint64_t temp_count;
};

/* The i-th directory in the order in which a chunk is looked for. */
static inline const struct kvt__dir *
kvt__nth_dir(const struct file_tier *t, const struct kvt__object *o, size_t i)
{
    return &t->dirs[(t->layout->place(&t->places, o) + i) % t->n_dirs];
}

static inline int
kvt__fd_of(const struct kvt__dir *dir, const struct kvt__object *o)
{
    return o->opaque ? dir->opaque_fd : dir->fd;
}

/* How a chunk is written. */
static inline struct kvt__form
kvt__form_of(const struct file_tier *t, const struct kvt__object *o)
{
    return t->layout->form(o, t->header);
}

/* Below this the page cache is cheaper than a direct transfer. */
#define KVT__FILE_DIRECT_MIN ((size_t)256 << 10)

/* Whether a direct transfer may start at this address. */
static inline bool
kvt__file_direct(const struct kvt__dir *dir, const void *start, size_t n)
{
    return dir->direct && n >= KVT__FILE_DIRECT_MIN &&
           (uintptr_t)start % KVT__DIRECT_ALIGN == 0;
}

/* Return err with a sentence that names the file, and behind that what the mover said, if
 * it said more than an errno ("" otherwise). */
int kvt__file_failed(int err, const char *what, const char *name,
                     const struct kvt__dir *dir, const char *said);

/* ----------------------------------------------------------- put.c and get.c */

int kvt__file_put(struct kvt__tier *tier, const struct kvt__object *o,
                  const struct kvt__slot *slot, uint32_t crc);
int kvt__file_remove(struct kvt__tier *tier, const struct kvt__object *o);
bool kvt__file_makes_room(const struct kvt__tier *tier, const struct kvt__object *gone,
                          const struct kvt__object *o);
int kvt__file_get(struct kvt__tier *tier, const struct kvt__object *o,
                  const struct kvt__slot *slot, struct kvt__found *found);
int kvt__file_probe(struct kvt__tier *tier, const struct kvt__object *o,
                    struct kvt__found *found);

/* ------------------------------------------------------------------ hf3fs.c */

/* Before the directories are opened. */
int kvt__hf3fs_open(struct file_tier *t, const struct kvt__tier_params *params);

/* 0, or -errno with a sentence: no directory can be there that rings move files of. */
int kvt__hf3fs_check_path(const struct file_tier *t, const char *name, const char *path);
void kvt__hf3fs_stop(struct kvt__tier *tier);
void kvt__hf3fs_close(struct file_tier *t);
void kvt__hf3fs_start(struct kvt__tier *tier, struct kvt__tier_op *op);
bool kvt__hf3fs_lend(struct kvt__tier *tier, enum kvt__prio prio, size_t bytes,
                     struct kvt__slot *out);

/* Time that an operation waits for a daemon that is restarted.  For tests. */
extern int64_t kvt__hf3fs_patience_ns;

/* ------------------------------------------------------------ hf3fs-mount.c */

/* The mount of a tier's directories: that of the setting, or of the first of the list,
 * which need not be there yet.  0, or -errno with a sentence that begins with the setting
 * or with name. */
int kvt__hf3fs_mount(const struct kvt_config *config, const char *name, const char *list,
                     char mount_point[KVT__HF3FS_MAX_MOUNT]);

/* 0, or -errno with a sentence that begins with name: a directory is or would be made
 * elsewhere. */
int kvt__hf3fs_lies_in(const char *mount_point, const char *name, const char *path);

/* ------------------------------------------------------------- hf3fs-look.c */

void kvt__hf3fs_look(const struct kvt__tier_params *params, kvt__tier_look_fn fn,
                     void *ctx);

/* ------------------------------------------------------------------- gds.c */

/* Once the directories are open: how files are named there, and how they are to be moved.
 * 0, or -errno with a sentence. */
int kvt__file_gds_open(struct file_tier *t, const struct kvt__tier_params *params);

/* ---------------------------------------------------------------- device.c */

/* How it is asked whether a GPU reaches a directory.  For tests. */
extern struct kvt__gds_probe kvt__file_gds_probe;

/* As ops->use_gpu and ops->lend. */
int kvt__file_use_gpu(struct kvt__tier *tier, struct kvt__gpu *gpu, size_t most);
bool kvt__file_lend(struct kvt__tier *tier, enum kvt__prio prio, size_t bytes,
                    struct kvt__slot *out);
void kvt__file_device_close(struct file_tier *t);

/* Move a slot that was lent to or from a file, open with O_DIRECT, from offset on, which is
 * a multiple of 4096; on a thread of an executor by as many requests at a time as it has
 * threads to spare.  Blocks; when it returns nothing moves any more.  0, or -errno with a
 * sentence. */
int kvt__file_device_move(struct kvt__file_device *device, int fd,
                          const struct kvt__slot *slot, off_t offset, bool to_file);

/* The CRC32C of such a slot's payload.  Blocks.  0 or -EIO with a sentence. */
int kvt__file_device_sum(struct kvt__file_device *device, const struct kvt__slot *slot,
                         uint32_t *crc);

/* ------------------------------------------------------------------ dirs.c */

/* Make a directory of this mode, independent of the umask.  Return 0, also for an existing
 * directory, or -errno. */
int kvt__make_dir(int dirfd, const char *path, mode_t mode);

/* Make and open the directories of a comma list; relative: paths may be so; name: for
 * messages. */
int kvt__dirs_open(struct file_tier *t, const char *name, const char *list,
                   bool relative);
void kvt__dirs_close(struct file_tier *t);

/* The next path of such a list, without the blanks around it; list goes on behind it.
 * False: there are no more. */
bool kvt__next_path(const char **list, const char **path, size_t *n);

/* Open one again in place of what is open: its descriptors stay the same numbers, and what
 * was half written is removed.  0, or -errno with a sentence. */
int kvt__dir_reopen(struct kvt__dir *dir);

/* Return 90 % of the file systems of all directories; 0 for a shared file system. */
uint64_t kvt__dirs_default_limit(const struct file_tier *t);

/* As ops->shortage, for a directory's file system. */
uint64_t kvt__dir_shortage(const struct kvt__dir *dir, uint64_t bytes);

/* ---------------------------------------------------------------- shared.c */

/* Whether it lies on a file system that other hosts have too. */
bool kvt__fs_is_shared(int fd);

/* Whether what is mounted there is of that type, as the table of mounts calls it. */
bool kvt__fs_is(int fd, const char *type);

/* That table; tests have their own. */
extern const char *kvt__mounts;

/* Make and open a local directory for the index of the store in path, where fd is.  The
 * descriptor, or -errno with a sentence. */
int kvt__shared_index_dir(int fd, const char *path);

/* ------------------------------------------------------------------ list.c */

/* What all files of a chunk take on disk; name: of each, below its directory. */
uint64_t kvt__bytes_on_disk(const struct file_tier *t, const struct kvt__object *o,
                            const char *name);

/* List the chunks in the directory with this number, for layouts without spread files.  Only
 * chunks with a key beginning with prefix are listed. */
int kvt__list_dir(const struct file_tier *t, uint32_t path, const char *prefix,
                  kvt__tier_list_fn fn, void *ctx);

/* ----------------------------------------------------------- list-spread.c */

/* What can be listed by itself where files are spread: the directories of the first level,
 * of which the digits of a hash make no more than this. */
#define KVT__MAX_PARTS (2 * (11 * 11 + 11))
struct kvt__parts {
    size_t n;
    struct kvt__part {
        bool opaque;
        char above[KVT__SPREAD_BYTES];
    } at[KVT__MAX_PARTS];
};
int kvt__spread_parts(const struct file_tier *t, struct kvt__parts *out);

/* List the chunks in a part, in all directories of the store.  Only chunks with a key
 * beginning with prefix are listed. */
int kvt__list_spread(const struct file_tier *t, const struct kvt__part *part,
                     const char *prefix, kvt__tier_list_fn fn, void *ctx);

/* ---------------------------------------------------------------- others.c */

/* Remove a file that belongs to no chunk, if it is old enough that none is about to come.
 * chunk: whose file a second one is beside. */
void kvt__remove_other(int dirfd, const char *name, enum kvt__other other,
                       const char *chunk);

/* -------------------------------------------------------------- list-all.c */

int kvt__file_list(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn,
                   void *ctx);

/* ------------------------------------------------------------------ temp.c */

/* The prefix of this process's temporary names. */
int kvt__temp_init(struct file_tier *t);

/* Create, lock and open one for writing.  The fd, or -errno. */
int kvt__temp_create(struct file_tier *t, const struct kvt__dir *dir, bool direct,
                     char *name, size_t size);

/* Remove what dead processes of this host left, and what any left an hour ago. */
void kvt__temp_clean(const struct kvt__dir *dir);

#endif
