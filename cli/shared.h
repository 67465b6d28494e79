/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared host memory (shared_cpu) without the storage of a configuration. */
#ifndef KVT_CLI_SHARED_H
#define KVT_CLI_SHARED_H

#include "kvtier.h"

/* Open the shared host memory that a configuration names, and no storage.  At most
 * CLI_MAX_SETTINGS settings.  0; -EINVAL: the configuration is wrong; -ENOTSUP: shared_cpu is
 * false; -ENOENT: no engine has made the memory; -errno.  kvt_last_error() has the sentence. */
int cli_shared_open(const struct kvt_config_sources *sources, struct kvt_store **out);

/* Describe the shared host memory; all zeros if the store has none. */
void cli_shared_info(const struct kvt_store *store, struct kvt_tier_info *out);

#endif
