/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of the chunks that kvtier cp copies.  The names of chunks in storage may contain '_' or '-'
 * in place of '/'. */
#ifndef KVT_CLI_CP_KEYS_H
#define KVT_CLI_CP_KEYS_H

#include "batch.h"

/* Remove the chunks of other models, and the chunks in shared host memory, from the list.  model
 * NULL: keep the chunks of all models.  Return 0, or CLI_USAGE after printing the error if model is
 * NULL and a listed key may differ from the chunk's key. */
int cp_select(struct kvt_store *store, const char *model, struct cli_chunks *chunks);

/* Return a copy of the listed key, with the model's name in place of the name in the listed key
 * (model NULL: unchanged).  The names are equally long, as cp_select() ensures.  The caller frees
 * the copy.  NULL: the allocation failed. */
char *cp_key(const char *listed, const char *model);

#endif
