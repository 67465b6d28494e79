/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared host memory (shared_cpu) without the storage of a configuration. */
#ifndef KVT_CLI_SHARED_H
#define KVT_CLI_SHARED_H

#include "kvtier.h"

/* Open the shared host memory of a configuration, without storage.  sources has at most
 * CLI_MAX_SETTINGS settings.  The caller closes *out with kvt_store_close().  Resets the log to the
 * default.  After an error, kvt_last_error() returns the sentence.
 *   -EINVAL   the configuration is wrong
 *   -ENOTSUP  shared_cpu is false
 *   -ENOENT   no engine has created the memory
 *   ...       as kvt_store_open() */
int cli_shared_open(const struct kvt_config_sources *sources, struct kvt_store **out);

/* Describe the shared host memory.  If the store has no shared host memory, set all fields except
 * struct_size to 0. */
void cli_shared_info(const struct kvt_store *store, struct kvt_tier_info *out);

#endif
