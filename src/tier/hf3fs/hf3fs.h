/* SPDX-License-Identifier: Apache-2.0
 *
 * Internal parts of the hf3fs tier. */
#ifndef KVT_TIER_HF3FS_HF3FS_H
#define KVT_TIER_HF3FS_HF3FS_H

#include "tier/files/files.h"
#include "usrbio/abi.h"

/* Longest time that an operation waits for the restart of the daemon; only tests change the
 * value. */
extern int64_t kvt__hf3fs_max_wait_ns;

/* ------------------------------------------------------------------ mount.c */

/* Write the mount point of a tier's directories: the setting hf3fs_mount_point, or the mount of
 * the first directory of `list`, which need not exist.  name: the setting with the list, for
 * messages.  Returns 0, or -errno with a sentence that begins with the setting's name or with
 * `name`. */
int kvt__hf3fs_mount(const struct kvt_config *config, const char *name, const char *list,
                     char mount_point[KVT__HF3FS_MAX_MOUNT]);

/* Check that the directory `path` is in the mount, or would be created there.  Returns 0, or
 * -errno with a sentence that begins with `name`. */
int kvt__hf3fs_check_in_mount(const char *mount_point, const char *name, const char *path);

/* ------------------------------------------------------------------- check.c */

/* Implement kvt__tier_ops.shm_bytes: return the bytes that each worker shares with the daemon. */
uint64_t kvt__hf3fs_shm_bytes(const struct kvt_config *config);

/* Implement kvt__tier_ops.check: report each requirement of the directories. */
void kvt__hf3fs_check(const struct kvt__tier_params *params,
                      const struct kvt__reporter *to);

#endif
