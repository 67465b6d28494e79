/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of the hf3fs tier. */
#ifndef KVT_TIER_HF3FS_HF3FS_H
#define KVT_TIER_HF3FS_HF3FS_H

#include "tier/files/files.h"
#include "usrbio/abi.h"

/* Time that an operation waits for a daemon that is restarted.  For tests. */
extern int64_t kvt__hf3fs_patience_ns;

/* ------------------------------------------------------------------ mount.c */

/* The mount of a tier's directories: that of the setting, or of the first of the list,
 * which need not be there yet.  0, or -errno with a sentence that begins with the setting
 * or with name. */
int kvt__hf3fs_mount(const struct kvt_config *config, const char *name, const char *list,
                     char mount_point[KVT__HF3FS_MAX_MOUNT]);

/* 0, or -errno with a sentence that begins with name: a directory is or would be made
 * elsewhere. */
int kvt__hf3fs_lies_in(const char *mount_point, const char *name, const char *path);

/* ------------------------------------------------------------------- look.c */

void kvt__hf3fs_look(const struct kvt__tier_params *params, kvt__tier_look_fn fn,
                     void *ctx);

#endif
