/* SPDX-License-Identifier: Apache-2.0
 *
 * Delete the chunks of a listing. */
#ifndef KVT_CLI_DELETE_H
#define KVT_CLI_DELETE_H

#include <stdbool.h>
#include <stdint.h>

#include "common.h"

struct cli_delete {
    const struct cli_command *command;
    const struct cli_common *common;
    const char *prefix; /* of keys */
    const char *tier;   /* name of a tier; NULL: all tiers */
    int64_t before_ns;  /* delete only chunks written before, wall clock */
    bool dry_run;       /* print the chunks and delete nothing */
};

/* Delete the chunks and print the counts.  Return an exit code: CLI_NO if a chunk is in use and
 * stays. */
int cli_delete(const struct cli_delete *what);

#endif
