/* SPDX-License-Identifier: Apache-2.0
 *
 * The user's private directory below a directory of all users.  Any thread. */
#ifndef KVT_BASE_PRIVATE_DIR_H
#define KVT_BASE_PRIVATE_DIR_H

#include <stddef.h>

/* The parent for private data that a host keeps over reboots: indexes of stores without a
 * directory of the host, compiled GPU kernels. */
#define KVT__LOCAL_DIR "/var/tmp"

/* Open kvtier-<uid> in parent; create the directory if it does not exist.  If another user owns
 * the name, or other users may write to the directory, use kvtier-<uid>-1 to -15: all processes
 * of the user find the same directory.  Symbolic links are never followed.  Return a descriptor,
 * which the caller closes, or -errno with a sentence; -EACCES: no name can be used. */
int kvt__private_dir_open(const char *parent);

/* Open a subdirectory of the user's directory in parent, for the data of one subject, for example
 * of one store; create the subdirectory if it does not exist.  The n bytes at id identify the
 * subject; the subdirectory's name is a hash of these bytes.  Return a descriptor, which the caller
 * closes, or -errno with a sentence. */
int kvt__private_dir_open_for(const char *parent, const void *id, size_t n);

/* If a user has deleted the subdirectory that kvt__private_dir_open_for() returned as fd, create
 * and open the subdirectory again, under the same descriptor number.  parent, id, n: as for
 * kvt__private_dir_open_for().  After a failure fd stays unchanged.  fd -1: no effect. */
void kvt__private_dir_renew_for(int fd, const char *parent, const void *id, size_t n);

#endif
