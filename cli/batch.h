/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of chunks, and requests for all chunks of a list, a few requests at a time. */
#ifndef KVT_CLI_BATCH_H
#define KVT_CLI_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "kvtier.h"

/* A chunk in a tier of a store. */
struct cli_chunk {
    char *key;
    uint32_t tier; /* as kvt_op.tier */
    uint64_t stored_bytes;
    int64_t mtime_ns; /* as kvt_listed.mtime_ns */
};

/* A list of chunks.  All zeros: an empty list.  The list owns the keys. */
struct cli_chunks {
    struct cli_chunk *chunks;
    size_t n, max;
};

/* Functions that return int return an exit code, after printing the error. */

/* Append a chunk with a copy of chunk->key. */
int cli_chunks_add(struct cli_chunks *chunks, const struct cli_chunk *chunk);

/* Append the chunks of all tiers whose keys begin with prefix.  After an error some chunks may be
 * appended.  Blocks. */
int cli_chunks_list(struct kvt_store *store, const char *prefix, struct cli_chunks *chunks);

/* Free the keys and the array.  The list must not be used again. */
void cli_chunks_free(struct cli_chunks *chunks);

/* Receive the completed request for a chunk.  op is valid during the call. */
typedef void (*cli_chunk_fn)(void *ctx, const struct cli_chunk *chunk, const struct kvt_op *op);

/* Run a request of this kind for each chunk and call fn for each completed request, in any order,
 * on the calling thread.  progress: the word before the counts on a terminal.  A failed request is
 * no error: fn receives the status.  If a request cannot be started, no further requests start.
 * All started requests have completed when the function returns.  Blocks. */
int cli_chunks_run(struct kvt_store *store, enum kvt_op_kind kind,
                   const struct cli_chunks *chunks, const char *progress, cli_chunk_fn fn,
                   void *ctx);

#endif
