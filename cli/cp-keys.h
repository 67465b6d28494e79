/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of chunks that kvtier cp copies: names in storage may have another character in place of
 * each '/'. */
#ifndef KVT_CLI_CP_KEYS_H
#define KVT_CLI_CP_KEYS_H

#include "batch.h"

/* Remove the chunks of other models and of shared host memory from the list.  model NULL: keep all chunks, if the listed
 * keys certainly are the chunks' keys.  Return an exit code, after printing the error. */
int cp_select(struct kvt_store *store, const char *model, struct cli_chunks *chunks);

/* Return the listed key with the model (NULL: unchanged), allocated.  NULL: the allocation
 * failed. */
char *cp_key(const char *listed, const char *model);

#endif
