/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests for many chunks, a few at a time. */
#ifndef KVT_CLI_BATCH_H
#define KVT_CLI_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "kvtier.h"

/* A chunk of a store. */
struct cli_chunk {
    char *key;
    uint32_t tier; /* as kvt_op.tier */
    uint64_t stored_bytes;
    int64_t mtime_ns;
};

struct cli_chunks {
    struct cli_chunk *chunks;
    size_t n, max;
};

/* Functions that return int return an exit code, after printing the error. */

/* Append a chunk with a copy of chunk->key. */
int cli_chunks_add(struct cli_chunks *chunks, const struct cli_chunk *chunk);

/* Append each chunk in each tier of which the key begins with prefix.  Blocks. */
int cli_chunks_list(struct kvt_store *store, const char *prefix, struct cli_chunks *chunks);

void cli_chunks_free(struct cli_chunks *chunks);

/* Receive the end of the request for a chunk. */
typedef void (*cli_chunk_fn)(void *ctx, const struct cli_chunk *chunk, const struct kvt_op *op);

/* Run a request of this kind for each chunk and call fn for each result, in any order, on the
 * calling thread.  progress: the word before the counts on a terminal.  All started requests have
 * ended at the return.  Blocks. */
int cli_chunks_run(struct kvt_store *store, enum kvt_op_kind kind,
                   const struct cli_chunks *chunks, const char *progress, cli_chunk_fn fn,
                   void *ctx);

#endif
