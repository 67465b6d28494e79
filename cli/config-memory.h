/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier config check: does a configuration fit in this machine's memory. */
#ifndef KVT_CLI_CONFIG_MEMORY_H
#define KVT_CLI_CONFIG_MEMORY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvtier.h"

/* So that no product here is above INT64_MAX. */
#define CLI_MOST_BYTES_PER_TOKEN 100000000
#define CLI_MOST_WORKERS 1024

struct cli_memory {
    uint64_t bytes_per_token; /* over all workers; 0: not told */
    uint64_t n_workers;
    json_t *into;             /* gets the numbers; NULL: print lines */
    kvt_config_problem_fn see; /* what does not fit */
    void *ctx;
};

/* 0, or a negative errno: the configuration could not be read. */
int cli_config_memory(const struct kvt_config_sources *sources,
                      const struct cli_memory *memory);

#endif
