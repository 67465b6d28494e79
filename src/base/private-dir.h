/* SPDX-License-Identifier: Apache-2.0
 *
 * The user's own directory below one that all users share. */
#ifndef KVT_BASE_PRIVATE_DIR_H
#define KVT_BASE_PRIVATE_DIR_H

#include <stddef.h>

/* Where what a host keeps of stores of others lies. */
#define KVT__LOCAL_DIR "/var/tmp"

/* Open kvtier-<uid> in parent; make the directory if it does not exist.  If another user
 * owns the name, or other users may write to the directory, use kvtier-<uid>-1 to -15:
 * all processes of the user find an equal name.  A link is never followed.  Return a
 * descriptor, or -errno with a sentence; -EACCES: all names are foreign. */
int kvt__private_dir_open(const char *parent);

/* The same for a directory in it that belongs to one thing, which n bytes tell apart from
 * others. */
int kvt__private_dir_of(const char *parent, const void *thing, size_t n);

#endif
