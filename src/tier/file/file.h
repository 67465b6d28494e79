/* SPDX-License-Identifier: Apache-2.0
 *
 * The file tier's own parts.  After open everything here is read-only but the
 * counter: any thread. */
#ifndef KVT_TIER_FILE_FILE_H
#define KVT_TIER_FILE_FILE_H

#include <stdatomic.h>

#include "tier/tier.h"

#define KVT__FILE_MAX_PATHS 64

/* One directory of the store. */
struct kvt__dir {
    char *path;
    int fd;        /* where LMCache's files are */
    int opaque_fd; /* kvtier/ in it */
    int private_fd; /* .kvtier/ in it */
    int temp_fd;   /* .kvtier/tmp/ in it */
    bool direct;   /* O_DIRECT works */
    uint64_t unit; /* files take multiples of this on disk */
};

struct file_tier {
    struct kvt__tier tier;
    struct kvt__dir dirs[KVT__FILE_MAX_PATHS];
    size_t n_dirs;
    bool header; /* save_chunk_meta */
    bool fsync;
    char temp_prefix[64];
    _Atomic uint64_t temp_count;
};

/* ------------------------------------------------------------------ dirs.c */

/* Make and open the directories of a comma list; name: for messages. */
int kvt__dirs_open(struct file_tier *t, const char *name, const char *list);
void kvt__dirs_close(struct file_tier *t);

/* 90 % of the file systems of all directories, less what else is on them. */
uint64_t kvt__dirs_default_limit(const struct file_tier *t);

/* ------------------------------------------------------------------ temp.c */

/* The prefix of this process's temporary names. */
int kvt__temp_init(struct file_tier *t);

/* Create, lock and open one for writing.  The fd, or -errno. */
int kvt__temp_create(struct file_tier *t, const struct kvt__dir *dir, bool direct,
                     char *name, size_t size);

/* Remove what dead processes of this host left, and what any left an hour ago. */
void kvt__temp_clean(const struct kvt__dir *dir);

#endif
