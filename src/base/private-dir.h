/* SPDX-License-Identifier: Apache-2.0
 *
 * The user's own directory below one that all users share. */
#ifndef KVT_BASE_PRIVATE_DIR_H
#define KVT_BASE_PRIVATE_DIR_H

#include <stddef.h>

/* Where what a host keeps of stores of others lies. */
#define KVT__LOCAL_DIR "/var/tmp"

/* Make, if need be, and open kvtier-<uid> in parent.  Its descriptor, or -errno with a
 * sentence; -EACCES: somebody else made it, or others may write to it. */
int kvt__private_dir_open(const char *parent);

/* The same for a directory in it that belongs to one thing, which n bytes tell apart from
 * others. */
int kvt__private_dir_of(const char *parent, const void *thing, size_t n);

#endif
