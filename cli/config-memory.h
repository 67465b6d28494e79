/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier config check: check whether a configuration fits in this host's memory. */
#ifndef KVT_CLI_CONFIG_MEMORY_H
#define KVT_CLI_CONFIG_MEMORY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvtier.h"

/* With these limits no product in config-memory.c exceeds INT64_MAX. */
#define CLI_MAX_BYTES_PER_TOKEN 100000000
#define CLI_MAX_WORKERS 1024

struct cli_memory {
    uint64_t bytes_per_token;  /* KV bytes of a token in all workers; 0: unknown */
    uint64_t n_workers;        /* workers on the host, at least 1 */
    json_t *json;              /* object that receives the numbers; NULL: print lines */
    kvt_config_problem_fn on_problem; /* receives each setting that does not fit */
    void *ctx;                 /* of on_problem */
};

/* Compare the configuration's memory with the available memory.  Without bytes_per_token, check
 * only the shared memory (shared_cpu and 3FS).  Return 0, also if settings do not fit; or a
 * negative errno if the configuration cannot be read. */
int cli_config_memory(const struct kvt_config_sources *sources,
                      const struct cli_memory *memory);

#endif
