/* SPDX-License-Identifier: Apache-2.0
 *
 * Request traces as Mooncake publishes them: one JSON object a line with
 * input_length (tokens) and hash_ids, one id for each 512 tokens of the input;
 * equal ids mean an equal prefix up to the end of that block. */
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
    uint32_t longest; /* tokens */
};

/* Read up to max requests.  0, or an exit code after saying what is wrong with
 * which line. */
int trace_read(const char *path, size_t max, struct trace *out);
void trace_free(struct trace *trace);

/* Token ids made from the hash ids: equal prefixes, and only those, agree.
 * tokens has room for request->n_tokens. */
void trace_tokens(const struct trace_request *request, int32_t *tokens);

#endif
