/* SPDX-License-Identifier: Apache-2.0
 *
 * Request traces in Mooncake's format.  Each line is a JSON object with input_length (tokens) and
 * hash_ids (an id for each 512 tokens of the input).  Two requests with an equal id have equal
 * tokens up to the end of the id's block. */
#ifndef KVT_CLI_TRACE_H
#define KVT_CLI_TRACE_H

#include <stddef.h>
#include <stdint.h>

#define TRACE_BLOCK_TOKENS 512u

struct trace_request {
    uint32_t n_tokens;
    uint32_t n_ids;
    uint64_t *ids;
};

struct trace {
    struct trace_request *requests;
    size_t n;
    uint32_t longest; /* tokens of the longest request */
};

/* Read at most max requests from a file.  Return 0, or an exit code after printing the error with
 * the line number.  A trace without requests is an error.  The caller frees *out with trace_free()
 * after success. */
int trace_read(const char *path, size_t max, struct trace *out);

/* Free the requests and make the trace empty. */
void trace_free(struct trace *trace);

/* Write request->n_tokens token ids to tokens.  The token ids of a block depend only on the block's
 * hash id: requests have equal tokens where the ids are equal, and different tokens where the ids
 * differ. */
void trace_tokens(const struct trace_request *request, int32_t *tokens);

#endif
