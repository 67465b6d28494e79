/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine for bench/ and kvtier replay: a group with the KV of a model like Llama. */
#ifndef KVT_CLI_ENGINE_H
#define KVT_CLI_ENGINE_H

#include "kvtier.h"

#define CLI_BLOCK_TOKENS 16u
#define CLI_MAX_LAYERS 256u

struct cli_shape {
    uint32_t n_layers; /* at most CLI_MAX_LAYERS */
    uint32_t n_heads, head_bytes; /* head_bytes: K or V of a token in a head */
};

/* Open an engine.  name: the model's name.  role: KVT_ROLE_*.  Return 0 or a negative errno.  The
 * caller closes *out with kvt_engine_close(). */
int cli_engine_open(const struct kvt_config *config, const char *name, uint32_t role,
                    const struct cli_shape *shape, struct kvt_engine **out);

/* Set the addresses of the engine's KV.  memory: [kv][layer][block][token][head]; the memory must
 * stay allocated until kvt_engine_close().  null_block: as in kvt_kv_view.  Return 0 or a negative
 * errno. */
int cli_engine_view(struct kvt_engine *engine, const struct cli_shape *shape,
                    unsigned char *memory, uint32_t n_blocks, int32_t null_block);

/* Return the value of the counter with this name; 0 if no counter has the name. */
uint64_t cli_counter(const struct kvt_engine *engine, const char *name);

#endif
